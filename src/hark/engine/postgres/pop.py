"""The verb pop: which partitions a request is tried on, and what the database's answer means for it.

Servers hold beliefs (`Ready`), the database knows. A request goes through rounds: each tries candidates, until the
request is full or there is nobody left to try. Before a request is told that there is nothing, the database is asked
what this server has not heard of (`discover`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hark.engine.postgres.contact import Contacts
from hark.engine.postgres.deliveries import Deliveries
from hark.engine.postgres.directory import Directory
from hark.engine.postgres.discovery import Discovery
from hark.engine.postgres.handing import Handing
from hark.engine.postgres.jobs import MAX_REPLY_BYTES, Candidate, Job
from hark.engine.postgres.pool import Pool
from hark.engine.postgres.share import Sharing
from hark.engine.postgres.statuses import CLOSED, GONE, LEASED, LOCKED, NOT_NOW, NOTHING, REASONS, TAKEN, UNUSED
from hark.engine.postgres.telling import Telling
from hark.errors import HarkError
from hark.ids import IdCodec, IdSource
from hark.model import PopRequest, PopResult

POP = (
    "select * from hark.pop_v1($1, $2::int[], $3::int[], $4::uuid[], $5::bigint[], $6::boolean[], $7::bigint[],"
    " $8::int[], $9::int[], $10::bigint[], $11::boolean[], $12, $13::text[])"
)


class Popper:
    """Serves pops for one engine."""

    def __init__(self, pool: Pool, directory: Directory, deliveries: Deliveries, codec: IdCodec, ids: IdSource) -> None:
        self._pool = pool
        self._directory = directory
        self._ids = ids
        self._contacts = Contacts(pool, directory)
        self._discovery = Discovery(pool, directory)
        self._handing = Handing(deliveries, codec)
        self._sharing = Sharing(pool, directory, self._handing)

    async def pop(
        self, requests: Sequence[PopRequest], given: int | None, now: int, telling: Telling
    ) -> list[PopResult | HarkError]:
        """An answer to each request. `given`: the time to tell the database, `now`: what that is or will be."""
        jobs = {position: Job(request, self._ids.new()) for position, request in enumerate(requests)}
        answers = await self._contacts.resolve(jobs, given)
        active = [jobs[position] for position in jobs if position not in answers]
        await self._contacts.note_seen(active, given, now)
        try:
            while active:
                active = await self._round(active, given, now)
        except BaseException:
            await self._give_back(jobs.values(), given, telling)
            raise
        results = [answers[n] if n in answers else self._answer(jobs[n]) for n in range(len(requests))]
        telling.left({group: None for job in jobs.values() for _, group in job.groups})
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

    async def _give_back(self, jobs: Iterable[Job], given: int | None, telling: Telling) -> None:
        """Somebody's later round failed: nobody of this call is answered, so nobody may hold anything."""
        leases = [job.lease for job in jobs if not job.request.auto_ack]
        for group in {group for job in jobs for _, group in job.groups}:
            group.ready.forget()
            telling.anywhere(group)
        if leases:
            await self._pool.fetch("select * from hark.release_v1($1, $2::uuid[])", given, leases)

    # Ordered groups ----------------------------------------------------------------------------------------

    def _choose(self, active: Sequence[Job], now: int) -> list[Candidate]:
        """What all jobs try next, each partition once: the database judges a call by what was before it."""
        chosen: dict[tuple[int, int], Candidate] = {}
        for job in active:
            for one in self._candidates(job, now):
                if chosen.setdefault(one.key, one) is one:
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
            MAX_REPLY_BYTES,
            [job.consumer for job in jobs],
        )
        await self._directory.load_places([ordered[row[0] - 1].partition for row in rows if row[1] == TAKEN])
        answered = {row[0] for row in rows}
        for number, one in enumerate(ordered, 1):
            if number not in answered:  # What was planned to be taken is gone: it is looked at closely next time.
                one.job.served.append((one.group, one.partition))
        for row in sorted(rows, key=_position):
            one, status = ordered[row[0] - 1], row[1]
            if status == TAKEN and one.partition not in self._directory.places_by_id:
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
            job.tried_place = False
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
            self._directory.forget_places([partition])
            self._directory.forget_group(group)
            job.stale = True
            job.tried_place = False
        else:
            if status == LEASED:
                group.ready.leased_until(partition, due)
            else:
                group.ready.wake_at(partition, due, REASONS[status])
            if job.place is not None:
                job.look_again_at = due

    def _hand_out(self, candidate: Candidate, row: Any) -> None:
        job, group, partition = candidate.job, candidate.group, candidate.partition
        due, more = row[2:4]
        self._handing.hand_out(job, self._directory.places_by_id[partition], due, row[4:])
        group.ready.serve(partition)
        job.had.add((group, partition))
        if not job.request.auto_ack:
            group.ready.wake_at(partition, due, "lease_held")
        elif more or candidate.is_outdated:
            job.served.append((group, partition))

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


def _position(row: Any) -> int:
    """Which candidate a row is about; those with nothing out of the ordinary come last."""
    number: int = row[0]
    return number


def _any_waits(candidates: Sequence[Candidate]) -> bool:
    return any(one.wait for one in candidates)
