"""Leases that end by themselves, or are held longer; and the database's time, by which they do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hark.clock import SECOND, Clock
from hark.engine.postgres.deliveries import Deliveries
from hark.engine.postgres.directory import Directory, Group
from hark.engine.postgres.leases import NO_LEASE, lease_ends, lease_uuid
from hark.engine.postgres.pool import Pool
from hark.engine.postgres.telling import Telling
from hark.errors import HarkError
from hark.model import Expired, Hint, Renewal, RenewOutcome

_OVERLAP = 1 * SECOND
_LATE = 60 * SECOND
"""A lease may become visible late: each search looks again at the last second, and now and then at the last minute."""


class Expirer:
    """Ends leases for one engine, whoever gave them."""

    def __init__(self, pool: Pool, directory: Directory, deliveries: Deliveries, clock: Clock) -> None:
        self._pool = pool
        self._directory = directory
        self._deliveries = deliveries
        self._clock = clock
        self._skew = 0
        """What the local clock is ahead of the database's."""
        self._done = (0, NO_LEASE)
        """The end and the id of the last lease that was looked at."""
        self._looked_back = 0
        self.behind = False
        """Whether the last call did not get to the end of what is due."""
        self.ended = 0
        """How many leases it has ended."""
        self.buried = 0
        """How many messages that made dead letters."""

    def now(self) -> int:
        """The database's time, as far as can be said from here."""
        return self._clock.now() - self._skew

    def to_local(self, time: int) -> int:
        """A time of the database by the local clock."""
        return time + self._skew

    def from_local(self, time: int) -> int:
        """A time of the local clock by the database's."""
        return time - self._skew

    async def expire(self, given: int | None, limit: int) -> tuple[Expired, list[Hint]]:
        """End what is due, at most `limit` leases, and say when to look next and whom to tell."""
        row = await self._pool.fetchrow("select * from hark.expire_v1($1, $2, $3, $4)", given, *self._done, limit)
        assert row is not None
        now: int = row["o_now"]
        if given is None:
            self._skew = self._clock.now() - now
        self.behind = row["o_examined"] >= limit
        if self.behind:
            self._done = row["o_last"], row["o_last_id"]
            next_due: int | None = now
        else:
            late = now - self._looked_back >= _LATE
            self._looked_back = now if late else self._looked_back
            self._done = now - (_LATE + _OVERLAP if late else _OVERLAP), NO_LEASE
            next_due = self._deliveries.next_end(now)
        hints = self.free(zip(row["o_grps"], row["o_partitions"], row["o_ended"], row["o_counts"], strict=True))
        self.ended += row["o_leases"]
        self.buried += row["o_buried"]
        return Expired(row["o_leases"], None if next_due is None else self.to_local(next_due)), hints

    def free(self, tracks: Iterable[Any]) -> list[Hint]:
        """Tracks or messages that nobody holds any more, with the leases that are over, may be taken; whom to tell."""
        found = list(tracks)
        if not found:
            return []
        groups: dict[int, Group] = {group.id: group for group in self._directory.groups.values()}
        telling = Telling(self._directory)
        for number, partition, lease, messages in found:
            group = groups.get(number)
            if group is None:
                continue
            if group.shared is None:
                telling.free(group, (partition,))
            else:
                telling.given_back(group, partition, messages)
            telling.ended(group, str(lease))
            telling.has_room(group)
        return telling.hints()

    async def lease_ends(self, lease_ids: Sequence[str], given: int | None) -> list[int | None]:
        """When leases end, by the local clock."""
        ends = await lease_ends(self._pool, given, lease_ids)
        return [None if end is None else self.to_local(end) for end in ends]

    async def renew(self, requests: Sequence[Renewal], given: int | None) -> list[RenewOutcome | HarkError]:
        """Hold leases longer."""
        row = await self._pool.fetchrow(
            "select * from hark.renew_v1($1, $2::uuid[], $3::bigint[])",
            given,
            [lease_uuid(request.lease_id) for request in requests],
            [request.seconds for request in requests],
        )
        assert row is not None
        answers: list[RenewOutcome | HarkError] = []
        for request, until, code in zip(requests, row["o_until"], row["o_codes"], strict=True):
            if not code:
                self._deliveries.renew(request.lease_id, until)
                answers.append(RenewOutcome(True, self.to_local(until)))
            elif code == 4:
                answers.append(RenewOutcome(False, None, "lease_expired", "Lease already expired"))
            else:
                answers.append(RenewOutcome(False, None, "lease_not_found", "Lease not found"))
        return answers
