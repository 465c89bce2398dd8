// Actions on dead letters, for the list and for the page of one dead letter.
//
//   requeueIds(ids) -> {requeued, failed}    requeue these dead letters
//   requeueMatching(filter, progress) -> number   requeue all that match and failed before now
//   deleteIds(ids) -> number                 delete these dead letters
//   LETTERS(n)                               "1 dead letter", "5 dead letters"

import { post } from "../../lib/api.js";
import { exact } from "../../lib/format.js";

export const LETTERS = (number) => `${exact(number)} dead letter${number === 1 ? "" : "s"}`;

export async function requeueIds(ids) {
  const { requeued, results } = await post("/api/v1/dlq/requeue", { ids });
  return { requeued, failed: results.filter((result) => !result.success) };
}

// The server requeues a limited number per request. Messages that fail again meanwhile are newer than `to`.
export async function requeueMatching(filter, progress) {
  const fixed = { ...filter, to: filter.to ?? new Date().toISOString() };
  let all = 0;
  for (;;) {
    const { requeued, remaining } = await post("/api/v1/dlq/requeue", { filter: fixed });
    all += requeued;
    if (remaining === 0 || requeued === 0) return all;
    progress(all, remaining);
  }
}

export async function deleteIds(ids) {
  return (await post("/api/v1/dlq/delete", { ids })).deleted;
}
