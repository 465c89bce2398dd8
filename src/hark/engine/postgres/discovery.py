"""Pops on their way through the rounds of a call: their groups (rule 20), and the partitions that they may try."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from hark.clock import SECOND
from hark.engine.postgres.partitions import Group, Partition, Store
from hark.engine.postgres.ready import BUCKET, RUNNING
from hark.errors import Conflict, HarkError
from hark.model import QUEUE_MODE, Delivery, EmptyReason, PopRequest, Subscription

TAKEN, NOTHING, LEASED, LOCKED, WAITING, WINDOW, PAUSED, GONE, UNUSED, RATE, IN_FLIGHT, RATE_HERE, FULL_HERE = range(13)
MORE = TAKEN
"""In `share_v1`, of a candidate that has more."""
NOT_NOW = (NOTHING, LEASED, WAITING, WINDOW, RATE_HERE, FULL_HERE)
CLOSED = (PAUSED, RATE, IN_FLIGHT)
"""The whole group can't take any more."""
REASONS: dict[int, EmptyReason] = {
    NOTHING: "nothing_ready",
    LEASED: "lease_held",
    LOCKED: "lease_held",
    WAITING: "waiting",
    WINDOW: "window_buffer",
    PAUSED: "paused",
    GONE: "partition_not_found",
    RATE: "rate_limited",
    IN_FLIGHT: "max_in_flight",
    RATE_HERE: "rate_limited",
    FULL_HERE: "max_in_flight",
}


class Job(msgspec.Struct, eq=False):
    """One request on its way through a call."""

    request: PopRequest
    lease: str
    max_bytes: int
    """The pop ends with the message that reaches this number of bytes, whatever its batch."""
    may_hold: bool = False
    """Whether the database may have the lease."""
    until: int | None = None
    groups: list[tuple[int, Group]] = []
    """Where it takes from, with the priority of the queue."""
    named: Partition | None = None
    """The partition that it names."""
    messages: list[Delivery] = []
    bytes: int = 0
    positions: int = 0
    tried_partition: bool = False
    discovered: bool = False
    locked: list[tuple[Group, int]] = []
    served: list[tuple[Group, int]] = []
    """Partitions that it took from, settled at once, and that have more, for the pops after it."""
    had: set[tuple[Group, int]] = set()
    """The partitions of ordered groups that it took from: it does so once, whatever hints arrive meanwhile."""
    closed: set[Group] = set()
    """Groups that are paused, or may take no more for now."""
    stale: bool = False
    """Whether its queue or group was removed, so that its groups have to be found again."""
    error: HarkError | None = None
    reason: EmptyReason = "nothing_ready"
    look_again_at: int | None = None

    def give_up_rest(self) -> None:
        """Offer to other pops what it can't take."""
        for group, partition in (*self.locked, *self.served):
            group.ready.found(partition)
        self.locked, self.served = [], []

    def got_nothing(self, status: int) -> None:
        """Note why a partition gave nothing, unless its group may take no more, which is the better reason."""
        if not self.closed:
            self.reason = REASONS[status]

    def close(self, group: Group, status: int, due: int | None) -> None:
        """A group is paused, or may take no more until a settlement or until a time."""
        self.closed.add(group)
        self.reason = REASONS[status]
        group.ready.blocked |= status == IN_FLIGHT
        if status == RATE and due is not None:
            self.look_again_at = due if self.look_again_at is None else min(due, self.look_again_at)

    def take_locked(self, *, shared: bool) -> list[tuple[Group, int]]:
        """Partitions that were locked, in groups of one kind; as many as there is room for."""
        locked = [one for one in self.locked if (one[0].shared is not None) == shared]
        self.locked = [one for one in self.locked if (one[0].shared is not None) != shared]
        for group, partition in locked[self.room :]:
            group.ready.found(partition)
        return locked[: self.room]

    def is_shared_next(self, now: int) -> bool:
        """Whether the next partition to try is one of a shared group."""
        for _, group in self.groups:
            group.ready.wake_due(now)
        if self.named is not None:
            return bool(self.groups) and self.groups[0][1].shared is not None
        best = self.best_group()
        if best is not None:
            return best[1].shared is not None
        return bool(self.locked) and self.locked[0][0].shared is not None

    def shared_groups(self) -> list[Group]:
        """The shared groups to try next: those with work in queues of the highest priority of their namespace."""
        if self.named is not None:
            return [group for _, group in self.groups]
        highest = {group.namespace: priority for _, (priority, group) in self._best_of_each().values()}
        return [
            group
            for priority, group in self.groups
            if priority == highest.get(group.namespace) and group.shared is not None and group not in self.closed
        ]

    def goes_on(self, now: int) -> bool:
        """Whether it has a partition left to try."""
        if self.named is not None:
            return bool(self.groups) and not self.tried_partition
        if self.room <= 0:
            return False
        for _, group in self.groups:
            group.ready.wake_due(now)
        ready = any(group.ready.first() is not None for _, group in self.groups if group not in self.closed)
        return ready or (bool(self.locked) and not self.messages)

    def best_group(self) -> tuple[int, Group] | None:
        """The group with the next partition to try: highest queue priority, then served longest ago (rule 9)."""
        best = self._best_of_each().values()
        return min(best, key=lambda one: one[0][1:])[1] if best else None

    def _best_of_each(self) -> dict[str, tuple[tuple[int, int, int, int], tuple[int, Group]]]:
        """The same for each namespace: the priorities of queues compete only within one (rule 27)."""
        best: dict[str, tuple[tuple[int, int, int, int], tuple[int, Group]]] = {}
        for priority, group in self.groups:
            head = group.ready.first() if group not in self.closed else None
            if head is None:
                continue
            order, known = (-priority, *head), best.get(group.namespace)
            if known is None or order < known[0]:
                best[group.namespace] = order, (priority, group)
        return best

    @property
    def room(self) -> int:
        """How many more partitions it may take from."""
        full = len(self.messages) >= self.request.batch or self.bytes >= self.max_bytes
        return 0 if full else (1 if self.named is not None else self.request.partitions) - self.positions


class Candidate(msgspec.Struct, eq=False):
    """A partition that a job is tried on."""

    job: Job
    group: Group
    partition: int
    wait: bool
    turn: int = 0

    def __post_init__(self) -> None:
        self.turn = self.group.ready.now()

    @property
    def key(self) -> tuple[int, int]:
        """Group and partition."""
        return self.group.id, self.partition

    @property
    def is_outdated(self) -> bool:
        """Whether something happened to the partition since: the answer of the database may be older."""
        return self.group.ready.hinted_since(self.partition, self.turn)


# Groups -----------------------------------------------------------------------------------------------------

_SEEN_INTERVAL = 3600 * SECOND
_CONTACT = "select * from hark.contact_v1($1, $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[])"
_LABEL = "select * from hark.label_v1($1, $2, $3, $4, $5, $6, $7)"


async def resolve(store: Store, jobs: Sequence[Job], caught: type[HarkError] = HarkError) -> None:
    """Find the groups of jobs; those that are seen for the first time are made (rule 20)."""
    await _contact(store, [job.request for job in jobs if job.request.queue is not None])
    for job in jobs:
        job.stale = job.discovered = False
        if job.request.queue is not None:
            job.groups = [(0, store.groups[job.request.queue, job.request.group])]
    for job in jobs:
        try:
            await _resolve_one(store, job)
        except caught as error:
            job.error, job.groups = error, []


async def _contact(store: Store, requests: Sequence[PopRequest]) -> None:
    missing: dict[tuple[str, str], PopRequest] = {}
    for request in requests:
        assert request.queue is not None
        known = store.groups.get((request.queue, request.group))
        if known is None or known.queue_id is None:
            missing.setdefault((request.queue, request.group), request)
    if not missing:
        return
    subscriptions = [_subscription(request) for request in missing.values()]
    rows = await store.pool.call(
        _CONTACT,
        [queue for queue, _ in missing],
        [group for _, group in missing],
        [request.group_mode for request in missing.values()],
        [mode for mode, _ in subscriptions],
        [since for _, since in subscriptions],
    )
    for queue, name, number, mode, queue_id in rows:
        store.adopt_group(number, queue, name, mode, queue_id)


async def _resolve_one(store: Store, job: Job) -> None:
    request = job.request
    if request.queue is None:
        rows = await store.pool.call(
            _LABEL, request.group, request.namespace, request.task, request.group_mode, *_subscription(request)
        )
        job.groups = []
        for queue, queue_id, priority, number, mode, namespace in rows:
            group = store.adopt_group(number, queue, request.group, mode, queue_id)
            group.namespace = namespace
            job.groups.append((priority, group))
        job.groups.sort(key=lambda pair: -pair[0])
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
            job.named = await store.find_partition(request.queue, request.partition)
        if job.named is None:
            job.groups = []


async def note_seen(store: Store, jobs: Sequence[Job], now: int) -> None:
    """Store that groups are in use: idle groups stop holding retention after some time."""
    quiet = {group for job in jobs for _, group in job.groups if now - group.seen_at >= _SEEN_INTERVAL}
    if quiet:
        await store.pool.call("select hark.seen_v1($1, $2::int[])", [group.id for group in quiet])
        for group in quiet:
            group.seen_at = now


def _subscription(request: PopRequest) -> tuple[str, int | None]:
    """Where a new group begins: mode and time."""
    one = request.subscription if request.group != QUEUE_MODE else Subscription()
    return one.mode, one.since if one.mode == "timestamp" else None


# Partitions that other servers made ready -------------------------------------------------------------------

_DISCOVER = f"""
select null::bigint[], * from hark.discover_v1($1, $2, $3, $4) union all select {RUNNING}, null, null, null, null
"""
_SEARCH_SECONDS = 0.5
_SEARCH_SHARE = 20
"""A group with work is searched for more twice a second, or less often if a search takes long."""


def is_wanted(job: Job, now: int) -> bool:
    """Whether to search the database for partitions that this server does not know."""
    if job.named is not None or job.discovered or not job.groups:
        return False
    if any(group.ready.discovered is None for _, group in job.groups):
        return True
    if not job.messages and not job.goes_on(now):
        return True
    searched = asyncio.get_running_loop().time()
    return any(group.ready.discover_after <= searched for _, group in job.groups)


async def discover(store: Store, jobs: Sequence[Job], now: int) -> None:
    """Make candidates of what other servers pushed or gave back, and of leases that have expired."""
    gone = set()
    for group in dict.fromkeys(group for job in jobs for _, group in job.groups):
        if not await _discover_group(store, group, now):
            gone.add(group)
    for job in jobs:
        job.discovered = True
        job.stale = any(group in gone for _, group in job.groups)


async def _discover_group(store: Store, group: Group, now: int) -> bool:
    """False: the group, or its queue, is not there any more."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    looked = group.ready.discovered
    if looked is None:
        group.ready.forget()
    group.ready.discovered = now
    turn = group.ready.now()
    since, wanted = None, 0 if looked is None else store.late.since(looked) // BUCKET
    try:
        while since is None or wanted < since:  # Again if a long transaction has ended.
            since = wanted
            look = store.late.look()
            *rows, last = await store.pool.call(_DISCOVER, group.id, group.queue_id, since)
            store.late.note(last[0], look, now)
            if looked is not None:
                wanted = store.late.since(looked) // BUCKET
    except BaseException:
        group.ready.discovered = None
        raise
    for _, partition, due, status, has_lanes in rows:
        if partition is None:
            store.forget_group(group)
            return False
        group.ready.prioritized |= bool(has_lanes)
        if due is None or group.ready.hinted_since(partition, turn):
            group.ready.found(partition)
        else:
            group.ready.waits(partition, due, REASONS[status], now)
    took = loop.time() - began
    group.ready.discover_after = began + max(_SEARCH_SECONDS, _SEARCH_SHARE * took)
    return True
