// Actions on a whole queue. Destructive actions need a confirmation.

import { del, post, url } from "../../lib/api.js";
import { ask } from "../../lib/dialog.js";
import { h } from "../../lib/dom.js";
import { count } from "../../lib/format.js";
import { toast } from "../../lib/toasts.js";
import { button } from "../../lib/ui.js";

export function pauseButton(queue, paused, done, kind = "") {
  const node = button(paused ? "Resume" : "Pause", {
    icon: paused ? "play" : "pause",
    kind,
    role: "read-write",
    title: paused ? "Resume deliveries" : "Stop deliveries. Pushes are still accepted.",
    on: async () => {
      await post(url`/api/v1/resources/queues/${queue}/` + (paused ? "resume" : "pause"));
      toast(paused ? `Resumed ${queue}.` : `Paused ${queue}. Consumers receive no messages from it.`);
      await done();
    },
  });
  node.setAttribute("aria-label", `${paused ? "Resume" : "Pause"} ${queue}`);
  return node;
}

export function purgeButton(queue, done) {
  return button("Purge", { icon: "trash", kind: "quiet-danger", role: "admin", on: () => purge(queue, done) });
}

export function deleteButton(queue) {
  return button("Delete", { icon: "trash", kind: "quiet-danger", role: "admin", on: () => remove(queue) });
}

async function purge(queue, done) {
  const answer = await ask({
    title: `Purge ${queue}?`,
    body: h("p", null, "All messages of this queue are removed for all groups, including messages in flight. The queue, its options, its groups and its dead letters stay. ", h("b", null, "You cannot undo this.")),
    action: "Purge queue",
    danger: true,
    typed: queue,
    run: () => post(url`/api/v1/resources/queues/${queue}/purge`),
  });
  if (!answer) return;
  toast(`Removed ${count(answer.purged)} ${answer.purged === 1 ? "message" : "messages"} from ${queue}.`);
  await done();
}

async function remove(queue) {
  const answer = await ask({
    title: `Delete ${queue}?`,
    body: h("p", null, "The queue is removed with its options, messages, groups and dead letters. A later push creates a new queue with default options. ", h("b", null, "You cannot undo this.")),
    action: "Delete queue",
    danger: true,
    typed: queue,
    run: () => del(url`/api/v1/resources/queues/${queue}`),
  });
  if (!answer) return;
  toast(`Deleted queue ${queue}.`);
  location.hash = "#/queues";
}
