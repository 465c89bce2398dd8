"""Pops of shared groups: many requests take from the same partitions in one call, and the database shares them out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hark.engine.postgres.directory import Directory, Group
from hark.engine.postgres.handing import Handing
from hark.engine.postgres.jobs import MAX_REPLY_BYTES, Candidate, Job
from hark.engine.postgres.pool import Pool
from hark.engine.postgres.statuses import CLOSED, GONE, LOCKED, MORE, NOT_NOW, NOTHING, REASONS

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
        asked = [(number, job) for number, crowd in enumerate(crowds, 1) for job in crowd.jobs]
        tried = [(number, one) for number, crowd in enumerate(crowds, 1) for one in crowd.candidates]
        rows = await self._pool.fetch(
            SHARE,
            given,
            [number for number, _ in asked],
            [job.request.batch - len(job.messages) for _, job in asked],
            [job.room for _, job in asked],
            [job.lease for _, job in asked],
            [job.until for _, job in asked],
            [job.request.auto_ack for _, job in asked],
            [job.request.lease_ms for _, job in asked],
            [number for number, _ in tried],
            [one.group.id for _, one in tried],
            [one.partition for _, one in tried],
            [one.wait for _, one in tried],
            MAX_REPLY_BYTES,
            [job.consumer for _, job in asked],
        )
        await self._directory.load_places([tried[row[1] - 1][1].partition for row in rows if row[0] is not None])
        for row in rows:
            if row[0] is not None:
                self._hand_out(asked[row[0] - 1][1], tried[row[1] - 1][1], row)
        for row in rows:
            if row[0] is None:
                number, candidate = tried[row[1] - 1]
                self._learn(crowds[number - 1], candidate, row, now)

    def _hand_out(self, job: Job, candidate: Candidate, row: Any) -> None:
        place = self._directory.places_by_id.get(candidate.partition)
        if place is None:
            return  # Its queue was removed a moment ago, and the lease with it.
        self._handing.hand_out(job, place, row[3], row[5:])
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
                job.tried_place = False
            return
        for job in hungry if status != MORE else ():
            job.got_nothing(status)
        if status == MORE:
            ready.has_left(partition, counts)
            for job in hungry:
                job.tried_place = False
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
            self._directory.forget_places([partition])
            self._directory.forget_group(group)
            for job in crowd.jobs:
                job.stale, job.tried_place = True, False
        else:
            ready.waits(partition, due, REASONS[status], now)
            for job in crowd.jobs:
                if job.place is not None:
                    job.look_again_at = due


def _crowds(jobs: Iterable[Job]) -> list[Crowd]:
    """Jobs by what they may take from, with candidates; no partition is a candidate twice."""
    crowds: dict[tuple[int | None, ...], Crowd] = {}
    for job in jobs:
        groups = job.shared_groups()
        place = None if job.place is None else job.place.id
        key = (place, *(group.id for group in groups))
        crowd = crowds.setdefault(key, Crowd(groups))
        crowd.jobs.append(job)
    taken: set[tuple[int, int]] = set()
    for (place, *_), crowd in crowds.items():
        if place is not None:
            crowd.name(crowd.groups[0], place, taken)
            for job in crowd.jobs if crowd.candidates else ():
                job.tried_place = True
    for (place, *_), crowd in crowds.items():
        if place is None and crowd.groups:
            crowd.choose(taken)
        elif place is None:
            crowd.wait_for(taken)
    return list(crowds.values())
