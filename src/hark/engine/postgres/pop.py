"""The verb pop.

A request goes through rounds: each tries candidates, until the request is full or there is none left to try. This
server expects partitions to be ready (`Ready`); the database knows. Before a request is answered with nothing, the
database is asked for what this server does not know (`discover`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any

import msgspec

from hark.engine.api import Answers
from hark.engine.hints import reply_bound
from hark.engine.postgres import discovery
from hark.engine.postgres.discovery import (
    CLOSED,
    GONE,
    LOCKED,
    MORE,
    NOT_NOW,
    NOTHING,
    REASONS,
    TAKEN,
    UNUSED,
    Candidate,
    Job,
)
from hark.engine.postgres.partitions import Group, Partition, Store
from hark.engine.postgres.push import Notifications
from hark.errors import Conflict, EngineFailure, HarkError
from hark.model import Delivery, PopRequest, PopResult


class Options(msgspec.Struct):
    """Options that few messages have, as `options_v1` writes them."""

    p: int = 0
    s: bool = False
    t: str | None = None
    u: str | None = None
    c: str | None = None


NO_OPTIONS = Options()
decode_options = msgspec.json.Decoder(Options).decode


def hand_out(store: Store, job: Job, partition: Partition, until: int | None, messages: Any) -> None:
    """A job got messages of a partition: offsets, times, transaction ids, payloads, attempts and options.

    They are on its lease, or settled if that has no end.
    """
    offsets, created_ats, transaction_ids, payloads, attempts, options = messages
    prefix, uid, name, queue = partition.prefix, partition.uid, partition.name, partition.queue
    with_prefix, append = store.codec.with_prefix, job.messages.append
    for n, offset in enumerate(offsets):
        message_id = with_prefix(prefix, offset)
        extra = NO_OPTIONS if options is None or options[n] is None else decode_options(options[n])
        payload = payloads[n]
        job.bytes += len(payload)
        append(
            Delivery(
                message_id,
                transaction_ids[n] or message_id,
                extra.t,
                msgspec.Raw(payload),
                extra.s,
                extra.u,
                created_ats[n],
                queue,
                name,
                uid,
                offset,
                extra.p,
                1 if attempts is None else attempts[n],
                extra.c,
            )
        )
    job.positions += 1
    if until is not None:
        job.until = until if job.until is None else min(job.until, until)
        named = [(t, o) for t, o in zip(transaction_ids, offsets, strict=True) if t is not None]
        store.deliveries.add(job.lease, until, partition.id, len(offsets), named)


async def _ask(
    store: Store,
    sql: str,
    crowds: tuple[Sequence[int], ...],
    jobs: Sequence[Job],
    numbers: Sequence[int],
    candidates: Sequence[Candidate],
    max_bytes: int,
) -> list[Any]:
    """Call `pop_v1` or `share_v1`: `numbers` are those of the jobs or of the crowds that the candidates are for."""
    may_hold = True
    try:
        return await store.pool.call(
            sql,
            *crowds,
            [job.request.batch - len(job.messages) for job in jobs],
            [job.room for job in jobs],
            [job.lease for job in jobs],
            [job.until for job in jobs],
            [job.request.auto_ack for job in jobs],
            [job.request.lease_ms for job in jobs],
            numbers,
            [one.group.id for one in candidates],
            [one.partition for one in candidates],
            [one.wait for one in candidates],
            max_bytes,
            [job.request.consumer or None for job in jobs],
        )
    except EngineFailure as error:
        may_hold = error.code == "outcome_unknown"  # The others had no effect.
        raise
    finally:
        for job in jobs:
            job.may_hold |= may_hold


def _learn(
    store: Store,
    candidate: Candidate,
    jobs: Sequence[Job],
    status: int,
    due: int | None,
    now: int,
    counts: Sequence[int] = (),
) -> None:
    """Note what is left of a candidate, for its jobs and for later pops."""
    group, partition, ready = candidate.group, candidate.partition, candidate.group.ready
    hungry = [job for job in jobs if not job.messages]
    if status in NOT_NOW and candidate.is_outdated:
        ready.found(partition)
        for job in hungry:
            job.tried_partition = False
        return
    if status == MORE:
        assert group.shared is not None
        group.shared.has_left(partition, counts)
        for job in hungry:
            job.tried_partition = False
        return
    for job in hungry:
        job.got_nothing(status)
    if status == NOTHING:
        ready.remove(partition)
    elif status == LOCKED:
        if group.shared is not None:
            ready.leave(partition)  # Those of ordered groups have been taken.
        for job in jobs:
            job.locked.append((group, partition))
    elif status in CLOSED:
        ready.put_back(partition)
        for job in jobs:
            job.close(group, status, due)
    elif status == GONE:
        ready.remove(partition)
        store.forget_partitions([partition])
        store.forget_group(group)
        for job in jobs:
            job.stale, job.tried_partition = True, False
    else:
        assert due is not None
        ready.waits(partition, due, REASONS[status], now)
        for job in jobs:
            if job.named is not None:
                job.look_again_at = due


# Ordered groups ---------------------------------------------------------------------------------------------

POP = (
    "select * from hark.pop_v1($1, $2::int[], $3::int[], $4::uuid[], $5::bigint[], $6::boolean[], $7::bigint[],"
    " $8::int[], $9::int[], $10::bigint[], $11::boolean[], $12, $13::text[])"
)


async def _serve_ordered(store: Store, candidates: list[Candidate], now: int) -> None:
    """One round: each job gets of the partitions that come first for it."""
    jobs = list(dict.fromkeys(one.job for one in candidates))
    numbers = {job: number for number, job in enumerate(jobs, 1)}
    # Locking rows in one order everywhere avoids deadlocks.
    if any(one.wait for one in candidates):
        candidates.sort(key=lambda one: one.key)
    max_bytes = sum(job.max_bytes for job in jobs)  # The procedure divides them.
    rows = await _ask(store, POP, (), jobs, [numbers[one.job] for one in candidates], candidates, max_bytes)
    await store.load_partitions([candidates[row[0] - 1].partition for row in rows if row[1] == TAKEN])
    answered = {row[0] for row in rows}
    for number, one in enumerate(candidates, 1):
        if number not in answered:  # What was planned to be taken is gone: it is looked at closely next time.
            one.job.served.append((one.group, one.partition))
    for row in sorted(rows, key=itemgetter(0)):  # Candidates without anything special come last.
        one = candidates[row[0] - 1]
        status, due, more = row[1:4]
        group, partition = one.group, store.partitions_by_id.get(one.partition)
        if status == UNUSED:
            group.ready.found(one.partition)
        elif status != TAKEN or partition is None:
            # That of a queue which was removed a moment ago is gone, and the lease with it.
            _learn(store, one, [one.job], GONE if status == TAKEN else status, due, now)
        else:
            hand_out(store, one.job, partition, due, row[4:])
            group.ready.serve(partition.id)
            one.job.had.add((group, partition.id))
            if due is not None:
                group.ready.wake_at(partition.id, due, "lease_held")
            elif more or one.is_outdated:
                one.job.served.append((group, partition.id))


def _choose(active: Sequence[Job], now: int) -> list[Candidate]:
    """Candidates of all jobs, each partition once: the database answers by the state before the call."""
    chosen: dict[tuple[int, int], Candidate] = {}
    for job in active:
        for one in _candidates(job, now):
            if chosen.setdefault(one.key, one) is one:
                continue
            if job.named is not None:
                job.tried_partition = False
            else:
                job.locked.append((one.group, one.partition))
    return list(chosen.values())


def _candidates(job: Job, now: int) -> list[Candidate]:
    """The next partitions for a job: highest queue priority, then served longest ago (rule 9)."""
    if job.named is not None:
        if job.tried_partition or not job.groups:
            return []
        job.tried_partition = True
        return [Candidate(job, job.groups[0][1], job.named.id, wait=True)]
    chosen: list[Candidate] = []
    for _, group in job.groups:
        group.ready.wake_due(now)
    while len(chosen) < job.room:
        best = job.best_group()
        if best is None or best[1].shared is not None:
            break
        group, partition = best[1], best[1].ready.take()
        if (group, partition) in job.had:
            job.served.append((group, partition))
        else:
            chosen.append(Candidate(job, group, partition, wait=False))
    if not chosen and job.locked and not job.messages:
        # Only locked rows were found: try once more, and this time wait for the locks.
        chosen = [Candidate(job, group, partition, wait=True) for group, partition in job.take_locked(shared=False)]
    return chosen


# Shared groups ----------------------------------------------------------------------------------------------

SHARE = (
    "select * from hark.share_v1($1, $2::int[], $3::int[], $4::int[], $5::uuid[], $6::bigint[], $7::boolean[],"
    " $8::bigint[], $9::int[], $10::int[], $11::bigint[], $12::boolean[], $13, $14::text[])"
)
_WIDE = 8
"""Minimum number of partitions that are compared where messages have priorities."""


class Crowd(msgspec.Struct, eq=False):
    """Requests that may take from the same partitions."""

    groups: Sequence[Group]
    jobs: list[Job] = []
    candidates: list[Candidate] = []

    def choose(self, taken: set[tuple[int, int]]) -> None:
        """Find candidates: those with the highest priority, then those served longest ago (rule 9)."""
        number = sum(job.room for job in self.jobs)
        if any(group.ready.prioritized for group in self.groups):
            number = max(number, _WIDE)
        heads = sorted((head, n) for n, group in enumerate(self.groups) for head in group.ready.heads(number))
        # What is really ready there the database knows: of the same priority it takes the first.
        for (_, _, partition), n in sorted(heads[:number], key=lambda one: one[0][1:]):
            self.add(self.groups[n], partition, taken, wait=False)

    def wait_for(self, taken: set[tuple[int, int]]) -> None:
        """Only locked rows were found: try once more, and this time wait for the locks."""
        for job in self.jobs:
            for group, partition in job.take_locked(shared=True):
                group.ready.found(partition)
                self.add(group, partition, taken, wait=True)

    def add(self, group: Group, partition: int, taken: set[tuple[int, int]], *, wait: bool) -> None:
        """Add a candidate, unless it is one of another crowd."""
        if (group.id, partition) not in taken:
            taken.add((group.id, partition))
            self.candidates.append(Candidate(self.jobs[0], group, partition, wait=wait))


async def _serve_shared(store: Store, jobs: Iterable[Job], now: int) -> None:
    """One round: each job gets of its best partition what there is, as far as it wants it."""
    crowds = [crowd for crowd in _crowds(jobs) if crowd.candidates]
    if not crowds:
        return
    # The procedure locks rows in one order everywhere, which avoids deadlocks.
    numbered = [(number, job) for number, crowd in enumerate(crowds, 1) for job in crowd.jobs]
    tried = [(number, one) for number, crowd in enumerate(crowds, 1) for one in crowd.candidates]
    of_jobs, jobs = zip(*numbered, strict=True)
    of_candidates, candidates = zip(*tried, strict=True)
    rows = await _ask(store, SHARE, (of_jobs,), jobs, of_candidates, candidates, jobs[0].max_bytes)
    await store.load_partitions([candidates[row[1] - 1].partition for row in rows if row[0] is not None])
    for row in rows:
        candidate = candidates[row[1] - 1]
        partition = store.partitions_by_id.get(candidate.partition)
        if row[0] is None or partition is None:
            continue  # It may be of a queue that was removed a moment ago, and the lease with it.
        hand_out(store, jobs[row[0] - 1], partition, row[3], row[5:])
        assert candidate.group.shared is not None
        candidate.group.shared.served(candidate.partition, len(row[5]))
    for row in rows:
        if row[0] is None:
            number, candidate = tried[row[1] - 1]
            status, due, counts = row[2:5]
            _learn(store, candidate, crowds[number - 1].jobs, status, due, now, counts)


def _crowds(jobs: Iterable[Job]) -> list[Crowd]:
    """Jobs by the partitions that they may take from, with candidates; no partition is a candidate twice."""
    crowds: dict[tuple[int | None, ...], Crowd] = {}
    for job in jobs:
        groups = job.shared_groups()
        partition = None if job.named is None else job.named.id
        key = (partition, *(group.id for group in groups))
        crowd = crowds.setdefault(key, Crowd(groups))
        crowd.jobs.append(job)
    taken: set[tuple[int, int]] = set()
    for (partition, *_), crowd in crowds.items():
        if partition is not None:
            crowd.add(crowd.groups[0], partition, taken, wait=True)
            for job in crowd.jobs if crowd.candidates else ():
                job.tried_partition = True
    for (partition, *_), crowd in crowds.items():
        if partition is None and crowd.groups:
            crowd.choose(taken)
        elif partition is None:
            crowd.wait_for(taken)
    return list(crowds.values())


# Rounds -----------------------------------------------------------------------------------------------------

GIVE_BACK = "select hark.give_back_v1($1, $2::uuid[])"


async def pop(store: Store, requests: Sequence[PopRequest]) -> Answers[PopResult]:
    """An answer to each request."""
    now, bound = store.now(), reply_bound(len(requests))
    notifications = Notifications(store=store)
    jobs = [Job(request, store.ids.new(), bound) for request in requests]
    try:
        await discovery.resolve(store, jobs)
        active = [job for job in jobs if job.error is None]
        await discovery.note_seen(store, active, now)
        if store.owed:
            await _give_back(store, notifications)
        try:
            while active:
                active = await _round(store, active, now)
        except BaseException:
            # No request of this call gets an answer, so none may keep a lease.
            for job in jobs:
                groups = [group for _, group in job.groups]
                _forget(groups, notifications)
                if job.may_hold:
                    store.owed[job.lease] = groups
            if store.owed:
                await _give_back(store, notifications)
            raise
        results = [_answer(store, job) for job in jobs]
        notifications.left({group: None for job in jobs for _, group in job.groups})
        return results
    finally:
        notifications.send()


async def _round(store: Store, active: Sequence[Job], now: int) -> list[Job]:
    """Try candidates for each job; returns the jobs that go on."""
    wants_discovery = discovery.is_wanted
    wanting = [job for job in active if wants_discovery(job, now)]
    if wanting:
        await discovery.discover(store, wanting, now)
    shared = [job for job in active if job.is_shared_next(now)]
    candidates = _choose([job for job in active if job not in shared], now)
    if candidates:
        await _serve_ordered(store, candidates, now)
    if shared:
        await _serve_shared(store, shared, now)
    stale = [job for job in active if job.stale]  # Its queue or group was removed, here or by another server.
    if stale:
        await discovery.resolve(store, stale, Conflict)
    going = [job for job in active if job.goes_on(now) or wants_discovery(job, now)]
    for job in active:
        if job not in going:
            job.give_up_rest()
    # Partitions that have more are for the other jobs, if these have nothing yet.
    return [job for job in active if job in going or (not job.messages and job.goes_on(now))]


async def _give_back(store: Store, notifications: Notifications) -> None:
    """Give back the leases of failed calls; if the database is away, a later pop does."""
    owed = dict(store.owed)
    with suppress(HarkError):
        await store.pool.call(GIVE_BACK, list(owed))
        for lease, groups in owed.items():
            store.owed.pop(lease, None)
            _forget(groups, notifications)


def _forget(groups: Iterable[Group], notifications: Notifications) -> None:
    """It is unknown what these groups can take: the next pops discover it."""
    for group in groups:
        group.ready.forget()
        notifications.add(group.queue, group.name, None)


def _answer(store: Store, job: Job) -> PopResult | HarkError:
    job.give_up_rest()
    if job.messages:
        if job.until is None:
            return PopResult(job.messages, "", job.positions)
        return PopResult(job.messages, job.lease, job.positions, expires_at=store.to_local(job.until))
    if job.error is not None:
        return job.error
    for _, group in job.groups:
        due = group.ready.next_wake()
        if job.named is None:
            if job.reason == "nothing_ready" and group.ready.waking:
                job.reason = min(group.ready.waking.values())[1]
            if due is not None and (job.look_again_at is None or due < job.look_again_at):
                job.look_again_at = due
    due = job.look_again_at
    return PopResult((), "", 0, job.reason, None if due is None else store.to_local(due))
