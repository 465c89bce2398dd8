// What can be done to a whole queue. Each asks first where something is lost.

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
    title: paused ? "Let deliveries go on" : "Stop deliveries; pushes go on",
    on: async () => {
      await post(url`/api/v1/resources/queues/${queue}/` + (paused ? "resume" : "pause"));
      toast(paused ? `Deliveries of ${queue} go on.` : `Deliveries of ${queue} are stopped.`);
      await done();
    },
  });
  node.setAttribute("aria-label", `${paused ? "Resume" : "Pause"} ${queue}`);
  return node;
}

export function purgeButton(queue, done) {
  return button("Purge…", { icon: "trash", kind: "quiet-danger", role: "admin", on: () => purge(queue, done) });
}

export function deleteButton(queue) {
  return button("Delete…", { icon: "trash", kind: "quiet-danger", role: "admin", on: () => remove(queue) });
}

async function purge(queue, done) {
  const answer = await ask({
    title: `Purge ${queue}?`,
    body: h("p", null, "All its messages are removed, settled or not, also those that consumers hold right now. Dead letters stay. ", h("b", null, "This can't be undone.")),
    action: "Purge the queue",
    danger: true,
    typed: queue,
    run: () => post(url`/api/v1/resources/queues/${queue}/purge`),
  });
  if (!answer) return;
  toast(`${count(answer.purged)} ${answer.purged === 1 ? "message was" : "messages were"} removed from ${queue}.`);
  await done();
}

async function remove(queue) {
  const answer = await ask({
    title: `Delete ${queue}?`,
    body: h("p", null, "The queue is removed with its messages, groups and dead letters. ", h("b", null, "This can't be undone.")),
    action: "Delete the queue",
    danger: true,
    typed: queue,
    run: () => del(url`/api/v1/resources/queues/${queue}`),
  });
  if (!answer) return;
  toast(`Queue ${queue} was deleted.`);
  location.hash = "#/queues";
}
