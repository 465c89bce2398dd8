"""Who pops: the groups that a request takes from. Those that are seen for the first time are made (rule 20)."""

from __future__ import annotations

from collections.abc import Sequence

from hark.clock import SECOND
from hark.engine.postgres.directory import Directory, Group
from hark.engine.postgres.jobs import Job
from hark.engine.postgres.pool import Pool
from hark.errors import Conflict, HarkError
from hark.model import QUEUE_MODE, PopRequest, Subscription

_SEEN_INTERVAL = 3600 * SECOND
_CONTACT = "select * from hark.contact_v1($1, $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[])"
_LABEL = "select * from hark.label_v1($1, $2, $3, $4, $5, $6, $7)"


class Contacts:
    """Finds the groups of pops for one engine."""

    def __init__(self, pool: Pool, directory: Directory) -> None:
        self._pool = pool
        self._directory = directory

    async def resolve(self, jobs: dict[int, Job], given: int | None) -> dict[int, HarkError]:
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
            job.groups = [(0, self._directory.groups[request.queue, request.group])]
        for _, group in job.groups:
            if request.group_mode not in (None, group.mode):
                raise Conflict(
                    f"consumer group {group.name!r} of queue {group.queue!r} is {group.mode}, not "
                    f"{request.group_mode}; use its mode, or another group",
                    code="group_mode_conflict",
                )
        job.groups = [(priority, group) for priority, group in job.groups if group.queue_id is not None]
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

    async def resolve_again(self, jobs: Sequence[Job], given: int | None) -> None:
        """What these jobs were told about is gone: a queue or group was removed, here or by another server."""
        for job in jobs:
            job.stale = job.discovered = False
            try:
                if job.request.queue is not None:
                    await self._contact([job.request], given)
                await self._resolve_one(job, given)
            except Conflict as error:
                job.error, job.groups = error, []

    async def note_seen(self, jobs: Sequence[Job], given: int | None, now: int) -> None:
        """Idle groups stop holding retention some day, so the database has to know which ones are not."""
        quiet = {group for job in jobs for _, group in job.groups if now - group.seen_at >= _SEEN_INTERVAL}
        if quiet:
            await self._pool.fetch("select hark.seen_v1($1, $2::int[])", given, [group.id for group in quiet])
            for group in quiet:
                group.seen_at = now


def _subscription(request: PopRequest) -> Subscription:
    return request.subscription if request.group != QUEUE_MODE else Subscription()
