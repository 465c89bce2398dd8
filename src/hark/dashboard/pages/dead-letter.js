// One dead letter: its error and its payload.

import { ApiError, get } from "../lib/api.js";
import { ask } from "../lib/dialog.js";
import { fill, h } from "../lib/dom.js";
import { ago, exact, moment } from "../lib/format.js";
import { jsonView, pretty } from "../lib/json.js";
import { toast } from "../lib/toasts.js";
import { button, copyButton, facts, heading, link, loading, panel } from "../lib/ui.js";
import { deleteIds, requeueIds } from "./parts/letters.js";
import { groupName, groupText } from "./parts/group-name.js";
import { messageHash } from "./parts/messages.js";

export async function show(page) {
  const [id] = page.params;
  page.setTitle("Dead letter");
  page.root.append(heading("Dead letter", { crumbs: CRUMBS }), loading());
  const { messages } = await get("/api/v1/dlq", { id, limit: 1 }, { signal: page.signal });
  if (messages.length === 0) throw new ApiError(404, "dead_letter_not_found", "This dead letter does not exist. It was requeued or deleted.");
  const [letter] = messages;
  const actions = [
    button("Requeue", { icon: "refresh", kind: "primary", role: "read-write", on: () => requeue(letter) }),
    button("Delete", { icon: "trash", kind: "quiet-danger", role: "read-write", on: () => remove(letter) }),
  ];
  fill(
    page.root,
    heading("Dead letter", { crumbs: CRUMBS, actions }),
    panel("Error", { note: `after ${exact(letter.attempts)} attempt${letter.attempts === 1 ? "" : "s"}` }, h("pre", { class: "error-text", tabindex: "0", "aria-label": "Error" }, letter.errorMessage || "The consumer sent no error text.")),
    h("div", { class: "split" }, panel("Payload", { actions: copyButton(() => pretty(letter.data)) }, letter.payloadError ? empty("Cannot be read", letter.payloadError) : jsonView(letter.data)), panel("Details", {}, facts(about(letter)))),
  );
}

const CRUMBS = [["Dead letters", "#/dead-letters"]];

function about(letter) {
  return [
    ["Failed", [moment(letter.failedAt), " (", ago(letter.failedAt), ")"]],
    ["Queue", link(letter.queue, `#/queues/${encodeURIComponent(letter.queue)}`)],
    ["Partition", letter.partition],
    ["Group", groupName(letter.consumerGroup)],
    ["Pushed", [moment(letter.createdAt), " (", ago(letter.createdAt), ")"]],
    ["Idempotency key", h("code", null, letter.transactionId)],
    ["Message", link(letter.id, messageHash(letter.id))],
    ["Dead letter id", h("code", null, letter.deadLetterId)],
    ...(letter.producerSub ? [["Pushed by", letter.producerSub]] : []),
    ...(letter.traceId ? [["Trace id", h("code", null, letter.traceId)]] : []),
  ];
}

async function requeue(letter) {
  const done = await ask({
    title: "Requeue this dead letter?",
    body: `The message goes back to the front of partition ${letter.partition} of ${letter.queue}, only for ${groupText(letter.consumerGroup)}. Its attempts start again from zero.`,
    action: "Requeue",
    run: async () => {
      const { failed } = await requeueIds([letter.deadLetterId]);
      if (failed.length) throw new Error(failed[0].error);
      return true;
    },
  });
  if (done) leave(letter, "Requeued the dead letter.");
}

async function remove(letter) {
  const done = await ask({
    title: "Delete this dead letter?",
    body: "The dead letter and its payload are removed permanently. You cannot undo this.",
    action: "Delete",
    danger: true,
    run: async () => {
      await deleteIds([letter.deadLetterId]);
      return true;
    },
  });
  if (done) leave(letter, "Deleted the dead letter.");
}

function leave(letter, text) {
  toast(text);
  location.hash = `#/dead-letters?queue=${encodeURIComponent(letter.queue)}`;
}
