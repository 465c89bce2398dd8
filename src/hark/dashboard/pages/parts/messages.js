// Parts of several pages that show messages.
//
//   messageLink(message)          a link to its page; needs id and partitionId
//   messageHash(id, partitionId)  the address of that page
//   stateBadge(state)             its state as a coloured word
//   eventRow(event)               one recorded event, with its data

import { h } from "../../lib/dom.js";
import { ago } from "../../lib/format.js";
import { jsonView } from "../../lib/json.js";
import { badge, link } from "../../lib/ui.js";
import { groupName } from "./group-name.js";

const STATES = { pending: ["pending", ""], scheduled: ["scheduled", ""], processing: ["in flight", "accent"], completed: ["settled", "good"], dead_letter: ["dead letter", "bad"] };

export function stateBadge(state) {
  const [text, kind] = STATES[state] ?? [state, ""];
  return badge(text, kind);
}

export function messageHash(id, partitionId) {
  const prefix = partitionId ? `${encodeURIComponent(partitionId)}/` : "";
  return `#/messages/${prefix}${encodeURIComponent(id)}`;
}

export function messageLink(message) {
  return link(message.transactionId ?? message.id, messageHash(message.id, message.partitionId));
}

export function eventRow(event) {
  return h(
    "li",
    { class: "event" },
    h("div", { class: "event-head" }, badge(event.event_type), h("span", null, groupName(event.consumer_group)), h("span", { class: "note" }, ago(event.created_at)), (event.trace_names ?? []).map((name) => link(name, `#/traces/${encodeURIComponent(name)}`))),
    jsonView(event.data),
  );
}
