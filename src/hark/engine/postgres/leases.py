"""When leases end, as the database knows it, and which of those that a call settled under are over with it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from hark.engine.postgres.directory import Group
from hark.engine.postgres.pool import Pool
from hark.engine.postgres.telling import Telling
from hark.errors import HarkError

NO_LEASE = uuid.UUID(int=0)
"""Stands for what a client sent as a lease id and no engine ever gave."""


def lease_uuid(text: str) -> uuid.UUID:
    """A lease id as the database has it."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return NO_LEASE


async def lease_ends(pool: Pool, given: int | None, lease_ids: Sequence[str]) -> list[int | None]:
    """When leases end, by the database's clock; None: over, or never was."""
    if not lease_ids:
        return []
    ends: list[int | None] = await pool.fetchval(
        "select hark.lease_ends_v1($1, $2::uuid[])", given, [lease_uuid(lease_id) for lease_id in lease_ids]
    )
    return ends


class Released:
    """Leases that let go of a partition in one call: some are over, of others the database has to say."""

    def __init__(self) -> None:
        self._over: dict[str, Group] = {}
        self._unsure: dict[str, Group] = {}

    def add(self, lease: str, group: Group, *, over: bool) -> None:
        """A lease let go of a partition of a group."""
        (self._over if over else self._unsure)[lease] = group

    def join(self, other: Released) -> None:
        """Take over what another part of the call found."""
        self._over |= other._over
        self._unsure |= other._unsure

    async def tell(self, pool: Pool, given: int | None, telling: Telling) -> None:
        """Find out which are over, and tell."""
        unsure = [lease for lease in self._unsure if lease not in self._over]
        try:
            ends = await lease_ends(pool, given, unsure)
        except HarkError:  # What was settled is settled: that nobody can be told of an end is no failure of it.
            unsure, ends = [], []
        for lease, end in zip(unsure, ends, strict=True):
            if end is None:
                self._over[lease] = self._unsure[lease]
        for lease, group in self._over.items():
            telling.ended(group, lease)
