"""What this server has not heard of: partitions that others pushed to, gave back or let expire."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hark.clock import SECOND
from hark.engine.postgres.directory import Directory, Group
from hark.engine.postgres.jobs import Job
from hark.engine.postgres.pool import Pool

BUCKET = 10 * SECOND
LATE = 30 * SECOND
"""How much later than it began a call may commit: so far back a discovery looks for what others did."""
_SEARCH_SECONDS = 0.5
_SEARCH_SHARE = 20
"""A group with work is searched for more twice a second, or less often if a search takes long."""


class Discovery:
    """Asks the database for one engine."""

    def __init__(self, pool: Pool, directory: Directory) -> None:
        self._pool = pool
        self._directory = directory

    def is_wanted(self, job: Job, now: int) -> bool:
        """Whether to ask the database for partitions that this server has not heard of."""
        if job.place is not None or job.discovered or not job.groups:
            return False
        if any(group.ready.discovered is None for _, group in job.groups):
            return True
        if not job.messages and not job.goes_on(now):
            return True
        searched = asyncio.get_running_loop().time()
        return any(group.ready.discover_after <= searched for _, group in job.groups)

    async def discover(self, jobs: Sequence[Job], given: int | None, now: int) -> None:
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
        for partition, due, leased, has_lanes in rows:
            if partition is None:
                self._directory.forget_group(group)
                return False
            group.ready.prioritized |= bool(has_lanes)
            if due is None or group.ready.heard_since(partition, turn):
                group.ready.found(partition)
            elif group.shared is not None:
                group.shared.waits(partition, due, "lease_held" if leased else "waiting", now)
            else:
                group.ready.leased_until(partition, due)
        took = loop.time() - began
        group.ready.discover_after = began + max(_SEARCH_SECONDS, _SEARCH_SHARE * took)
        return True
