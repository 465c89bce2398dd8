"""The verb pop: which partitions a request is tried on, and what the database's answer means for it.

Servers hold beliefs (`Ready`), the database knows. A request goes through rounds: each tries candidates, until the
request is full or there is nobody left to try. Before a request is told that there is nothing, the database is asked
what this server has not heard of (`discover`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from hark.clock import SECOND
from hark.engine.postgres.deliveries import Deliveries
from hark.engine.postgres.directory import Directory, Group
from hark.engine.postgres.jobs import MAX_REPLY_BYTES, Candidate, Job
from hark.engine.postgres.pool import Pool
from hark.engine.postgres.telling import Telling
from hark.errors import Conflict, HarkError, Refused
from hark.ids import IdCodec, IdSource
from hark.model import QUEUE_MODE, Delivery, EmptyReason, PopRequest, PopResult, Subscription

BUCKET = 10 * SECOND
LATE = 30 * SECOND
"""How much later than it began a call may commit: so far back a discovery looks for what others did."""
_SEEN_INTERVAL = 3600 * SECOND
_SEARCH_SECONDS = 0.5
_SEARCH_SHARE = 20
"""A group with work is searched for more twice a second, or less often if a search takes long."""

_TAKEN, _NOTHING, _LEASED, _LOCKED, _WAITING, _WINDOW, _PAUSED, _GONE, _UNUSED = range(9)
_NOT_NOW = (_NOTHING, _LEASED, _WAITING, _WINDOW)
_REASONS: dict[int, EmptyReason] = {
    _NOTHING: "nothing_ready",
    _LEASED: "lease_held",
    _LOCKED: "lease_held",
    _WAITING: "waiting",
    _WINDOW: "window_buffer",
    _PAUSED: "paused",
    _GONE: "partition_not_found",
}

_POP = (
    "select * from hark.pop_v1($1, $2::int[], $3::int[], $4::uuid[], $5::bigint[], $6::boolean[], $7::int[], $8::int[],"
    " $9::bigint[], $10::boolean[], $11)"
)
_CONTACT = "select * from hark.contact_v1($1, $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[])"
_LABEL = "select * from hark.label_v1($1, $2, $3, $4, $5, $6, $7)"


class Options(msgspec.Struct):
    """What few messages have, as `options_v1` writes it."""

    p: int = 0
    s: bool = False
    t: str | None = None
    u: str | None = None


NO_OPTIONS = Options()
decode_options = msgspec.json.Decoder(Options).decode


class Popper:
    """Serves pops for one engine."""

    def __init__(self, pool: Pool, directory: Directory, deliveries: Deliveries, codec: IdCodec, ids: IdSource) -> None:
        self._pool = pool
        self._directory = directory
        self._deliveries = deliveries
        self._codec = codec
        self._ids = ids

    async def pop(
        self, requests: Sequence[PopRequest], given: int | None, now: int, telling: Telling
    ) -> list[PopResult | HarkError]:
        """An answer to each request. `given`: the time to tell the database, `now`: what that is or will be."""
        answers: dict[int, HarkError] = {}
        jobs: dict[int, Job] = {}
        for position, request in enumerate(requests):
            if request.group_mode == "shared":
                answers[position] = Refused(
                    "shared groups arrive with work queues; this server has ordered groups only"
                )
            else:
                jobs[position] = Job(request, self._ids.new())
        answers |= await self._resolve(jobs, given)
        active = [jobs[position] for position in jobs if position not in answers]
        await self._note_seen(active, given, now)
        try:
            while active:
                await self._discover([job for job in active if self._wants_discovery(job, now)], given, now)
                candidates = self._round(active, now)
                if candidates:
                    await self._try(candidates, given)
                await self._resolve_again([job for job in active if job.stale], given)
                going = [job for job in active if self._goes_on(job, now) or self._wants_discovery(job, now)]
                for job in active:
                    if job not in going:
                        job.give_up_rest()
                # What those had more of is for the others, if they have nothing yet.
                active = [job for job in active if job in going or (not job.messages and self._goes_on(job, now))]
        except BaseException:
            await self._give_back(jobs.values(), given, telling)
            raise
        results = [answers[n] if n in answers else self._answer(jobs[n]) for n in range(len(requests))]
        telling.left({group: None for job in jobs.values() for _, group in job.groups})
        return results

    async def _give_back(self, jobs: Iterable[Job], given: int | None, telling: Telling) -> None:
        """Somebody's later round failed: nobody of this call is answered, so nobody may hold anything."""
        leases = [job.lease for job in jobs if not job.request.auto_ack]
        for group in {group for job in jobs for _, group in job.groups}:
            group.ready.forget()
            telling.anywhere(group)
        if leases:
            await self._pool.fetch("select * from hark.release_v1($1, $2::uuid[])", given, leases)

    # Who asks ----------------------------------------------------------------------------------------------

    async def _resolve(self, jobs: dict[int, Job], given: int | None) -> dict[int, HarkError]:
        """Find the groups of all jobs; those that are seen for the first time are made (rule 20)."""
        errors: dict[int, HarkError] = {}
        await self._contact([job.request for job in jobs.values() if job.request.queue is not None], given)
        for position, job in jobs.items():
            try:
                await self._resolve_one(job, given)
            except HarkError as error:
                errors[position] = error
        return errors

    async def _contact(self, requests: Sequence[PopRequest], given: int | None) -> None:
        missing: dict[tuple[str, str], PopRequest] = {}
        for request in requests:
            assert request.queue is not None
            known = self._directory.groups.get((request.queue, request.group))
            if known is None or known.queue_id is None:
                missing.setdefault((request.queue, request.group), request)
        if not missing:
            return
        subscriptions = [_subscription(request) for request in missing.values()]
        rows = await self._pool.fetch(
            _CONTACT,
            given,
            [queue for queue, _ in missing],
            [group for _, group in missing],
            [request.group_mode for request in missing.values()],
            [one.mode for one in subscriptions],
            [one.since if one.mode == "timestamp" else None for one in subscriptions],
        )
        for queue, name, number, mode, queue_id in rows:
            self._directory.adopt_group(number, queue, name, mode, queue_id)

    async def _resolve_one(self, job: Job, given: int | None) -> None:
        request = job.request
        if request.queue is None:
            job.groups = await self._label_groups(request, given)
        else:
            group = self._directory.groups[request.queue, request.group]
            job.groups = [(0, group)] if group.queue_id is not None else []
        for _, group in job.groups:
            if request.group_mode not in (None, group.mode):
                raise Conflict(
                    f"group {group.name!r} of queue {group.queue!r} is {group.mode}, not {request.group_mode}",
                    code="group_mode_conflict",
                )
        if request.partition is not None:
            job.reason = "partition_not_found"
            if request.queue is not None and job.groups:
                job.place = await self._directory.find_place(request.queue, request.partition)
            if job.place is None:
                job.groups = []

    async def _label_groups(self, request: PopRequest, given: int | None) -> list[tuple[int, Group]]:
        subscription = _subscription(request)
        since = subscription.since if subscription.mode == "timestamp" else None
        rows = await self._pool.fetch(
            _LABEL,
            given,
            request.group,
            request.namespace,
            request.task,
            request.group_mode,
            subscription.mode,
            since,
        )
        groups = [
            (priority, self._directory.adopt_group(number, queue, request.group, mode, queue_id))
            for queue, queue_id, priority, number, mode in rows
        ]
        return sorted(groups, key=lambda pair: -pair[0])

    async def _resolve_again(self, jobs: Sequence[Job], given: int | None) -> None:
        """What these jobs were told about is gone: a queue or group was removed, here or by another server."""
        for job in jobs:
            job.stale = job.discovered = False
            try:
                if job.request.queue is not None:
                    await self._contact([job.request], given)
                await self._resolve_one(job, given)
            except Conflict as error:
                job.error, job.groups = error, []

    async def _note_seen(self, jobs: Sequence[Job], given: int | None, now: int) -> None:
        """Idle groups stop holding retention some day, so the database has to know which ones are not."""
        quiet = {group for job in jobs for _, group in job.groups if now - group.seen_at >= _SEEN_INTERVAL}
        if quiet:
            await self._pool.fetch("select hark.seen_v1($1, $2::int[])", given, [group.id for group in quiet])
            for group in quiet:
                group.seen_at = now

    # Rounds ------------------------------------------------------------------------------------------------

    def _round(self, active: Sequence[Job], now: int) -> list[Candidate]:
        """What all jobs try next, each partition once: the database judges a call by what was before it."""
        chosen: dict[tuple[int, int], Candidate] = {}
        for job in active:
            for one in self._candidates(job, now):
                if chosen.setdefault((one.group.id, one.partition), one) is one:
                    continue
                if job.place is not None:
                    job.tried_place = False
                else:
                    job.locked.append((one.group, one.partition))
        return list(chosen.values())

    def _candidates(self, job: Job, now: int) -> list[Candidate]:
        """The next partitions for a job: highest queue priority, then served longest ago (rule 9)."""
        if job.place is not None:
            if job.tried_place or not job.groups:
                return []
            job.tried_place = True
            return [Candidate(job, job.groups[0][1], job.place.id, wait=True)]
        chosen: list[Candidate] = []
        for _, group in job.groups:
            group.ready.wake_due(now)
        while len(chosen) < job.room:
            best: tuple[tuple[int, int, int], Group] | None = None
            for priority, group in job.groups:
                head = group.ready.first() if group not in job.paused else None
                if head is not None and (best is None or (-priority, *head) < best[0]):
                    best = (-priority, *head), group
            if best is None:
                break
            chosen.append(Candidate(job, best[1], best[1].ready.take(), wait=False))
        if not chosen and job.locked and not job.messages:
            # Only locked rows were found: look once more, and this time wait for them.
            chosen = [Candidate(job, group, partition, wait=True) for group, partition in job.locked[: job.room]]
            for group, partition in job.locked[job.room :]:
                group.ready.found(partition)
            job.locked = []
        return chosen

    def _goes_on(self, job: Job, now: int) -> bool:
        """Whether a job has somebody left to try."""
        if job.place is not None:
            return bool(job.groups) and not job.tried_place
        if job.room <= 0:
            return False
        for _, group in job.groups:
            group.ready.wake_due(now)
        ready = any(group.ready.first() is not None for _, group in job.groups if group not in job.paused)
        return ready or (bool(job.locked) and not job.messages)

    async def _try(self, candidates: Sequence[Candidate], given: int | None) -> None:
        jobs = list(dict.fromkeys(one.job for one in candidates))
        numbers = {job: number for number, job in enumerate(jobs, 1)}
        # Waiting for rows in one order everywhere keeps calls from waiting for each other for good.
        ordered = (
            sorted(candidates, key=lambda one: (one.group.id, one.partition)) if _any_waits(candidates) else candidates
        )
        rows = await self._pool.fetch(
            _POP,
            given,
            [job.request.batch - len(job.messages) for job in jobs],
            [job.room for job in jobs],
            [job.lease for job in jobs],
            [job.until for job in jobs],
            [job.request.auto_ack for job in jobs],
            [numbers[one.job] for one in ordered],
            [one.group.id for one in ordered],
            [one.partition for one in ordered],
            [one.wait for one in ordered],
            MAX_REPLY_BYTES,
        )
        await self._directory.load_places([ordered[row[0] - 1].partition for row in rows if row[1] == _TAKEN])
        answered = {row[0] for row in rows}
        for number, one in enumerate(ordered, 1):
            if number not in answered:  # What was planned to be taken is gone: it is looked at closely next time.
                one.job.served.append((one.group, one.partition))
        for row in sorted(rows, key=_position):
            one, status = ordered[row[0] - 1], row[1]
            if status == _TAKEN and one.partition not in self._directory.places_by_id:
                status = _GONE  # Its queue was removed a moment ago, and the lease with it.
            self._take_over(one, status, row)

    def _take_over(self, candidate: Candidate, status: int, row: Any) -> None:
        job, group, partition = candidate.job, candidate.group, candidate.partition
        due = row[2]
        if status == _TAKEN:
            self._hand_out(candidate, row)
            return
        if status == _UNUSED:
            group.ready.found(partition)
            return
        if status in _NOT_NOW and candidate.is_outdated:
            group.ready.found(partition)
            job.tried_place = False
            return
        job.reason = _REASONS[status]
        if status == _NOTHING:
            group.ready.remove(partition)
        elif status == _LOCKED:
            job.locked.append((group, partition))
        elif status == _PAUSED:
            job.paused.add(group)
            group.ready.put_back(partition)
        elif status == _GONE:
            group.ready.remove(partition)
            self._directory.forget_places([partition])
            self._directory.forget_group(group)
            job.stale = True
            job.tried_place = False
        else:
            if status == _LEASED:
                group.ready.leased_until(partition, due)
            else:
                group.ready.wake_at(partition, due, job.reason)
            if job.place is not None:
                job.look_again_at = due

    def _hand_out(self, candidate: Candidate, row: Any) -> None:
        job, group, partition = candidate.job, candidate.group, candidate.partition
        place = self._directory.places_by_id[partition]
        _, _, due, more, offsets, created_ats, transaction_ids, payloads, attempts, options = row
        prefix, uid, name, queue = place.prefix, place.uid, place.name, place.queue
        with_prefix, append = self._codec.with_prefix, job.messages.append
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
                )
            )
        job.tracks += 1
        group.ready.serve(partition)
        if job.request.auto_ack:
            if more or candidate.is_outdated:
                job.served.append((group, partition))
            return
        job.until = due if job.until is None else min(job.until, due)
        group.ready.wake_at(partition, due, "lease_held")
        named = [(t, o) for t, o in zip(transaction_ids, offsets, strict=True) if t is not None]
        self._deliveries.add(job.lease, due, partition, len(offsets), named)

    # Discovery ---------------------------------------------------------------------------------------------

    def _wants_discovery(self, job: Job, now: int) -> bool:
        """Whether to ask the database for partitions that this server has not heard of."""
        if job.place is not None or job.discovered or not job.groups:
            return False
        if any(group.ready.discovered is None for _, group in job.groups):
            return True
        if not job.messages and not self._goes_on(job, now):
            return True
        searched = asyncio.get_running_loop().time()
        return any(group.ready.discover_after <= searched for _, group in job.groups)

    async def _discover(self, jobs: Sequence[Job], given: int | None, now: int) -> None:
        """What others pushed or gave back, and leases that nobody ended, become candidates."""
        gone = set()
        for group in dict.fromkeys(group for job in jobs for _, group in job.groups):
            if not await self._discover_group(group, given, now):
                gone.add(group)
        for job in jobs:
            job.discovered = True
            job.stale = any(group in gone for _, group in job.groups)

    async def _discover_group(self, group: Group, given: int | None, now: int) -> bool:
        """False: the group, or its queue, is not there any more."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        since = 0 if group.ready.discovered is None else (group.ready.discovered - LATE) // BUCKET
        if group.ready.discovered is None:
            group.ready.forget()
        group.ready.discovered = now
        turn = group.ready.now()
        try:
            rows = await self._pool.fetch(
                "select * from hark.discover_v1($1, $2, $3, $4)", given, group.id, group.queue_id, since
            )
        except BaseException:
            group.ready.discovered = None
            raise
        for partition, due in rows:
            if partition is None:
                self._directory.forget_group(group)
                return False
            if due is None or group.ready.heard_since(partition, turn):
                group.ready.found(partition)
            else:
                group.ready.leased_until(partition, due)
        took = loop.time() - began
        group.ready.discover_after = began + max(_SEARCH_SECONDS, _SEARCH_SHARE * took)
        return True

    # Answers -----------------------------------------------------------------------------------------------

    def _answer(self, job: Job) -> PopResult | HarkError:
        job.give_up_rest()
        if job.messages:
            if job.request.auto_ack:
                return PopResult(job.messages, "", job.tracks)
            return PopResult(job.messages, job.lease, job.tracks, expires_at=job.until)
        if job.error is not None:
            return job.error
        for _, group in job.groups:
            due = group.ready.next_wake()
            if job.place is None:
                if job.reason == "nothing_ready" and group.ready.waking:
                    job.reason = min(group.ready.waking.values())[1]
                if due is not None and (job.look_again_at is None or due < job.look_again_at):
                    job.look_again_at = due
        return PopResult((), "", 0, job.reason, job.look_again_at)


def _subscription(request: PopRequest) -> Subscription:
    return request.subscription if request.group != QUEUE_MODE else Subscription()


def _position(row: Any) -> int:
    """Which candidate a row is about; those with nothing out of the ordinary come last."""
    number: int = row[0]
    return number


def _any_waits(candidates: Sequence[Candidate]) -> bool:
    return any(one.wait for one in candidates)
