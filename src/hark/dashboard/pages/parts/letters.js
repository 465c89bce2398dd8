// What can be done with dead letters, on their list and on the page of one.
//
//   requeueIds(ids) -> {requeued, failed}    put them back, many requests if there are many
//   requeueMatching(filter, progress) -> number   put all back that match and failed before now
//   deleteIds(ids) -> number                 remove them
//   LETTERS(n)                               "1 dead letter", "5 dead letters"

import { post } from "../../lib/api.js";
import { exact } from "../../lib/format.js";

export const LETTERS = (number) => `${exact(number)} dead letter${number === 1 ? "" : "s"}`;

export async function requeueIds(ids) {
  const { requeued, results } = await post("/api/v1/dlq/requeue", { ids });
  return { requeued, failed: results.filter((result) => !result.success) };
}

// The server takes a bounded number at a time. What fails again meanwhile is newer than `to`, and not taken twice.
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
