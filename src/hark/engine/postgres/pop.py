"""Messages as the database hands them out, and as consumers get them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from hark.engine.hints import reply_bound
from hark.engine.postgres.contact import (
    CLOSED,
    GONE,
    LEASED,
    LOCKED,
    MORE,
    NOT_NOW,
    NOTHING,
    REASONS,
    TAKEN,
    UNUSED,
    Candidate,
    Contacts,
    Job,
    leasing,
)
from hark.engine.postgres.discovery import Discovery, Late
from hark.engine.postgres.partitions import Directory, Group, Partition
from hark.engine.postgres.pool import Pool
from hark.engine.postgres.push import Notifications
from hark.engine.postgres.settle import Deliveries
from hark.errors import HarkError
from hark.ids import IdCodec, IdSource
from hark.model import Delivery, PopRequest, PopResult


class Options(msgspec.Struct):
    """What few messages have, as `options_v1` writes it."""

    p: int = 0
    s: bool = False
    t: str | None = None
    u: str | None = None
    c: str | None = None


NO_OPTIONS = Options()
decode_options = msgspec.json.Decoder(Options).decode


class Handing:
    """Gives messages to jobs, for one engine."""

    def __init__(self, deliveries: Deliveries, codec: IdCodec) -> None:
        self._deliveries = deliveries
        self._codec = codec

    def hand_out(self, job: Job, partition: Partition, until: int | None, messages: Any) -> None:
        """A job got messages of a partition: offsets, times, transaction ids, payloads, attempts and options.

        They are on its lease, or settled if that has no end.
        """
        offsets, created_ats, transaction_ids, payloads, attempts, options = messages
        prefix, uid, name, queue = partition.prefix, partition.uid, partition.name, partition.queue
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
                    extra.c,
                )
            )
        job.positions += 1
        if until is not None:
            job.until = until if job.until is None else min(job.until, until)
            named = [(t, o) for t, o in zip(transaction_ids, offsets, strict=True) if t is not None]
            self._deliveries.add(job.lease, until, partition.id, len(offsets), named)


SHARE = (
    "select * from hark.share_v1($1, $2::int[], $3::int[], $4::int[], $5::uuid[], $6::bigint[], $7::boolean[],"
    " $8::bigint[], $9::int[], $10::int[], $11::bigint[], $12::boolean[], $13, $14::text[])"
)
_WIDE = 8
"""Where there are priorities, so many partitions at least are looked at for the highest."""


class Crowd:
    """Requests that may take from the same partitions."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = groups
        self.jobs: list[Job] = []
        self.candidates: list[Candidate] = []

    def choose(self, taken: set[tuple[int, int]]) -> None:
        """Find candidates: those with the highest priority, then those served longest ago (rule 9)."""
        number = sum(job.room for job in self.jobs)
        if any(group.ready.prioritized for group in self.groups):
            number = max(number, _WIDE)
        heads = sorted((head, n) for n, group in enumerate(self.groups) for head in group.ready.heads(number))
        # What is really ready there the database knows: of the same priority it takes the first.
        for (_, _, partition), n in sorted(heads[:number], key=lambda one: one[0][1:]):
            self._add(self.groups[n], partition, taken, wait=False)

    def wait_for(self, taken: set[tuple[int, int]]) -> None:
        """Only locked rows were found: look once more, and this time wait for them."""
        for job in self.jobs:
            for group, partition in job.take_locked(shared=True):
                group.ready.found(partition)
                self._add(group, partition, taken, wait=True)

    def name(self, group: Group, partition: int, taken: set[tuple[int, int]]) -> None:
        """The only candidate is one that the requests name."""
        self._add(group, partition, taken, wait=True)

    def _add(self, group: Group, partition: int, taken: set[tuple[int, int]], *, wait: bool) -> None:
        if (group.id, partition) not in taken:
            taken.add((group.id, partition))
            self.candidates.append(Candidate(self.jobs[0], group, partition, wait=wait))


class Sharing:
    """Serves pops of shared groups for one engine."""

    def __init__(self, pool: Pool, directory: Directory, handing: Handing) -> None:
        self._pool = pool
        self._directory = directory
        self._handing = handing

    async def serve(self, jobs: Iterable[Job], given: int | None, now: int) -> None:
        """One round: each job gets of its best partition what there is, as far as it wants it."""
        crowds = [crowd for crowd in _crowds(jobs) if crowd.candidates]
        if not crowds:
            return
        # Waiting for rows in one order everywhere keeps calls from waiting for each other for good: the database does.
        numbered = [(number, job) for number, crowd in enumerate(crowds, 1) for job in crowd.jobs]
        tried = [(number, one) for number, crowd in enumerate(crowds, 1) for one in crowd.candidates]
        with leasing([job for _, job in numbered]):
            rows = await self._pool.fetch(
                SHARE,
                given,
                [number for number, _ in numbered],
                [job.request.batch - len(job.messages) for _, job in numbered],
                [job.room for _, job in numbered],
                [job.lease for _, job in numbered],
                [job.until for _, job in numbered],
                [job.request.auto_ack for _, job in numbered],
                [job.request.lease_ms for _, job in numbered],
                [number for number, _ in tried],
                [one.group.id for _, one in tried],
                [one.partition for _, one in tried],
                [one.wait for _, one in tried],
                numbered[0][1].max_bytes,
                [job.consumer for _, job in numbered],
            )
        await self._directory.load_partitions([tried[row[1] - 1][1].partition for row in rows if row[0] is not None])
        for row in rows:
            if row[0] is not None:
                self._hand_out(numbered[row[0] - 1][1], tried[row[1] - 1][1], row)
        for row in rows:
            if row[0] is None:
                number, candidate = tried[row[1] - 1]
                self._learn(crowds[number - 1], candidate, row, now)

    def _hand_out(self, job: Job, candidate: Candidate, row: Any) -> None:
        partition = self._directory.partitions_by_id.get(candidate.partition)
        if partition is None:
            return  # Its queue was removed a moment ago, and the lease with it.
        self._handing.hand_out(job, partition, row[3], row[5:])
        assert candidate.group.shared is not None
        candidate.group.shared.served(candidate.partition, len(row[5]))

    def _learn(self, crowd: Crowd, candidate: Candidate, row: Any, now: int) -> None:
        """What is left of a candidate, for its jobs and for those who come after them."""
        status, due, counts = row[2:5]
        group, partition, ready = candidate.group, candidate.partition, candidate.group.shared
        assert ready is not None
        hungry = [job for job in crowd.jobs if not job.messages]
        if status in NOT_NOW and candidate.is_outdated:
            ready.found(partition)
            for job in hungry:
                job.tried_partition = False
            return
        for job in hungry if status != MORE else ():
            job.got_nothing(status)
        if status == MORE:
            ready.has_left(partition, counts)
            for job in hungry:
                job.tried_partition = False
        elif status == NOTHING:
            ready.has_nothing(partition)
        elif status == LOCKED:
            ready.pass_by(partition)
            for job in crowd.jobs:
                job.locked.append((group, partition))
        elif status in CLOSED:
            ready.put_back(partition)
            for job in crowd.jobs:
                job.close(group, status, due)
        elif status == GONE:
            ready.has_nothing(partition)
            self._directory.forget_partitions([partition])
            self._directory.forget_group(group)
            for job in crowd.jobs:
                job.stale, job.tried_partition = True, False
        else:
            ready.waits(partition, due, REASONS[status], now)
            for job in crowd.jobs:
                if job.named is not None:
                    job.look_again_at = due


def _crowds(jobs: Iterable[Job]) -> list[Crowd]:
    """Jobs by what they may take from, with candidates; no partition is a candidate twice."""
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
            crowd.name(crowd.groups[0], partition, taken)
            for job in crowd.jobs if crowd.candidates else ():
                job.tried_partition = True
    for (partition, *_), crowd in crowds.items():
        if partition is None and crowd.groups:
            crowd.choose(taken)
        elif partition is None:
            crowd.wait_for(taken)
    return list(crowds.values())


# Servers hold beliefs (`Ready`), the database knows. A request goes through rounds: each tries candidates, until the
# request is full or there is nobody left to try. Before a request is told that there is nothing, the database is asked
# what this server has not heard of (`discover`).


POP = (
    "select * from hark.pop_v1($1, $2::int[], $3::int[], $4::uuid[], $5::bigint[], $6::boolean[], $7::bigint[],"
    " $8::int[], $9::int[], $10::bigint[], $11::boolean[], $12, $13::text[])"
)
GIVE_BACK = "select hark.give_back_v1($1, $2::uuid[])"


class Popper:
    """Serves pops for one engine."""

    def __init__(
        self,
        pool: Pool,
        directory: Directory,
        deliveries: Deliveries,
        codec: IdCodec,
        ids: IdSource,
        late: Late,
    ) -> None:
        self._pool = pool
        self._directory = directory
        self._ids = ids
        self._contacts = Contacts(pool, directory)
        self._discovery = Discovery(pool, directory, late)
        self._handing = Handing(deliveries, codec)
        self._sharing = Sharing(pool, directory, self._handing)
        self._owed: dict[str, list[Group]] = {}
        """Leases of failed calls that could not be given back yet, and the groups that they may be of."""

    async def pop(
        self, requests: Sequence[PopRequest], given: int | None, now: int, notifications: Notifications
    ) -> list[PopResult | HarkError]:
        """An answer to each request. `given`: the time to tell the database, `now`: what that is or will be."""
        bound = reply_bound(len(requests))
        jobs = {position: Job(request, self._ids.new(), bound) for position, request in enumerate(requests)}
        answers = await self._contacts.resolve(jobs, given)
        active = [jobs[position] for position in jobs if position not in answers]
        await self._contacts.note_seen(active, given, now)
        await self._give_back(given, notifications)
        try:
            while active:
                active = await self._round(active, given, now)
        except BaseException:
            self._owe(jobs.values(), notifications)
            await self._give_back(given, notifications)
            raise
        results = [answers[n] if n in answers else self._answer(jobs[n]) for n in range(len(requests))]
        notifications.left({group: None for job in jobs.values() for _, group in job.groups})
        return results

    async def _round(self, active: Sequence[Job], given: int | None, now: int) -> list[Job]:
        """Try something for each job; those that go on."""
        wants_discovery = self._discovery.is_wanted
        await self._discovery.discover([job for job in active if wants_discovery(job, now)], given, now)
        shared = [job for job in active if job.is_shared_next(now)]
        candidates = self._choose([job for job in active if job not in shared], now)
        if candidates:
            await self._try(candidates, given)
        if shared:
            await self._sharing.serve(shared, given, now)
        await self._contacts.resolve_again([job for job in active if job.stale], given)
        going = [job for job in active if job.goes_on(now) or wants_discovery(job, now)]
        for job in active:
            if job not in going:
                job.give_up_rest()
        # What those had more of is for the others, if they have nothing yet.
        return [job for job in active if job in going or (not job.messages and job.goes_on(now))]

    def _owe(self, jobs: Iterable[Job], notifications: Notifications) -> None:
        """A round failed: no request of this call gets an answer, so none may hold a lease."""
        for job in jobs:
            groups = [group for _, group in job.groups]
            _forget(groups, notifications)
            if job.may_hold:
                self._owed[job.lease] = groups

    async def _give_back(self, given: int | None, notifications: Notifications) -> None:
        """Give back the leases of failed calls; if the database is away, a later pop does."""
        owed = dict(self._owed)
        if not owed:
            return
        with suppress(HarkError):
            await self._pool.fetch(GIVE_BACK, given, list(owed))
            for lease, groups in owed.items():
                self._owed.pop(lease, None)
                _forget(groups, notifications)

    # Ordered groups ----------------------------------------------------------------------------------------

    def _choose(self, active: Sequence[Job], now: int) -> list[Candidate]:
        """What all jobs try next, each partition once: the database judges a call by what was before it."""
        chosen: dict[tuple[int, int], Candidate] = {}
        for job in active:
            for one in self._candidates(job, now):
                if chosen.setdefault(one.key, one) is one:
                    continue
                if job.named is not None:
                    job.tried_partition = False
                else:
                    job.locked.append((one.group, one.partition))
        return list(chosen.values())

    def _candidates(self, job: Job, now: int) -> list[Candidate]:
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
            # Only locked rows were found: look once more, and this time wait for them.
            chosen = [Candidate(job, group, partition, wait=True) for group, partition in job.take_locked(shared=False)]
        return chosen

    async def _try(self, candidates: Sequence[Candidate], given: int | None) -> None:
        jobs = list(dict.fromkeys(one.job for one in candidates))
        numbers = {job: number for number, job in enumerate(jobs, 1)}
        # Waiting for rows in one order everywhere keeps calls from waiting for each other for good.
        ordered = (
            sorted(candidates, key=lambda one: (one.group.id, one.partition)) if _any_waits(candidates) else candidates
        )
        with leasing(jobs):
            rows = await self._pool.fetch(
                POP,
                given,
                [job.request.batch - len(job.messages) for job in jobs],
                [job.room for job in jobs],
                [job.lease for job in jobs],
                [job.until for job in jobs],
                [job.request.auto_ack for job in jobs],
                [job.request.lease_ms for job in jobs],
                [numbers[one.job] for one in ordered],
                [one.group.id for one in ordered],
                [one.partition for one in ordered],
                [one.wait for one in ordered],
                sum(job.max_bytes for job in jobs),  # The procedure divides them.
                [job.consumer for job in jobs],
            )
        await self._directory.load_partitions([ordered[row[0] - 1].partition for row in rows if row[1] == TAKEN])
        answered = {row[0] for row in rows}
        for number, one in enumerate(ordered, 1):
            if number not in answered:  # What was planned to be taken is gone: it is looked at closely next time.
                one.job.served.append((one.group, one.partition))
        for row in sorted(rows, key=_position):
            one, status = ordered[row[0] - 1], row[1]
            if status == TAKEN and one.partition not in self._directory.partitions_by_id:
                status = GONE  # Its queue was removed a moment ago, and the lease with it.
            self._take_over(one, status, row)

    def _take_over(self, candidate: Candidate, status: int, row: Any) -> None:
        job, group, partition = candidate.job, candidate.group, candidate.partition
        due = row[2]
        if status == TAKEN:
            self._hand_out(candidate, row)
            return
        if status == UNUSED:
            group.ready.found(partition)
            return
        if status in NOT_NOW and candidate.is_outdated:
            group.ready.found(partition)
            job.tried_partition = False
            return
        job.got_nothing(status)
        if status == NOTHING:
            group.ready.remove(partition)
        elif status == LOCKED:
            job.locked.append((group, partition))
        elif status in CLOSED:
            job.close(group, status, due)
            group.ready.put_back(partition)
        elif status == GONE:
            group.ready.remove(partition)
            self._directory.forget_partitions([partition])
            self._directory.forget_group(group)
            job.stale = True
            job.tried_partition = False
        else:
            if status == LEASED:
                group.ready.leased_until(partition, due)
            else:
                group.ready.wake_at(partition, due, REASONS[status])
            if job.named is not None:
                job.look_again_at = due

    def _hand_out(self, candidate: Candidate, row: Any) -> None:
        job, group, partition = candidate.job, candidate.group, candidate.partition
        due, more = row[2:4]
        self._handing.hand_out(job, self._directory.partitions_by_id[partition], due, row[4:])
        group.ready.serve(partition)
        job.had.add((group, partition))
        if due is not None:
            group.ready.wake_at(partition, due, "lease_held")
        elif more or candidate.is_outdated:
            job.served.append((group, partition))

    # Answers -----------------------------------------------------------------------------------------------

    def _answer(self, job: Job) -> PopResult | HarkError:
        job.give_up_rest()
        if job.messages:
            if job.until is None:
                return PopResult(job.messages, "", job.positions)
            return PopResult(job.messages, job.lease, job.positions, expires_at=job.until)
        if job.error is not None:
            return job.error
        for _, group in job.groups:
            due = group.ready.next_wake()
            if job.named is None:
                if job.reason == "nothing_ready" and group.ready.waking:
                    job.reason = min(group.ready.waking.values())[1]
                if due is not None and (job.look_again_at is None or due < job.look_again_at):
                    job.look_again_at = due
        return PopResult((), "", 0, job.reason, job.look_again_at)


def _forget(groups: Iterable[Group], notifications: Notifications) -> None:
    """It is unknown what these groups can take: the next pops look."""
    for group in groups:
        group.ready.forget()
        notifications.anywhere(group)


def _position(row: Any) -> int:
    """Which candidate a row is about; those with nothing out of the ordinary come last."""
    number: int = row[0]
    return number


def _any_waits(candidates: Sequence[Candidate]) -> bool:
    return any(one.wait for one in candidates)
