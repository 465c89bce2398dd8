"""What the verbs of one server share: connections, and the partitions and groups that it knows."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hark.clock import SystemClock
from hark.engine.api import KeyListener, Listener, ignore_keys
from hark.engine.postgres.pool import Pool
from hark.engine.postgres.ready import Deliveries, Late, Ready, SharedReady
from hark.ids import IdCodec, IdSource
from hark.model import GroupMode, Hint

# Numbers are never used twice, so a number that is remembered is right or names nothing. Then the database reports
# it as stale, it is forgotten, and the call is made again with names.


class Partition(msgspec.Struct, eq=False):
    """A partition."""

    id: int
    queue: str
    name: str
    prefix: str
    """Of the ids of its messages."""
    uid: str


class Group:
    """A group of a queue, with the partitions that are probably ready for it."""

    __slots__ = ("id", "mode", "name", "namespace", "queue", "queue_id", "ready", "seen_at", "shared")

    def __init__(self, number: int, queue: str, name: str, mode: GroupMode, queue_id: int | None) -> None:
        self.id = number
        self.queue = queue
        self.name = name
        self.namespace = ""
        """Of its queue, for pops by label: the priorities of queues compete only within a namespace (rule 27)."""
        self.mode = mode
        self.queue_id = queue_id
        """None: the queue did not exist at the last lookup."""
        self.shared = SharedReady() if mode == "shared" else None
        """`ready` of a shared group."""
        self.ready: Ready = self.shared or Ready()
        self.seen_at = 0
        """When this server last stored that the group is in use."""


class Store:
    """What the verbs of one server share; partitions and groups by name and by number."""

    codec: IdCodec
    """Of the ids of this store; known when the engine has started."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.clock = pool.clock or SystemClock()
        self.listener: Listener = lambda _hints: None
        self.key_listener: KeyListener = ignore_keys
        self.skew = 0
        """Microseconds that the local clock is ahead of the database's."""
        self.ids = IdSource(self.clock)
        self.deliveries = Deliveries()
        self.owed: dict[str, list[Group]] = {}
        """Leases of failed pops that could not be given back yet, and the groups that they may be of."""
        self.late = Late()
        self.partitions: dict[tuple[str, str], Partition] = {}
        self.partitions_by_id: dict[int, Partition] = {}
        self.groups: dict[tuple[str, str], Group] = {}
        self.groups_of: dict[str, dict[str, Group]] = {}
        """The groups that this server knows, by queue and name."""

    def now(self) -> int:
        """The estimated time of the database."""
        return self.clock.now() - self.skew

    def to_local(self, time: int) -> int:
        """A time of the database by the local clock."""
        return time + self.skew

    def hint(self, hints: Iterable[Hint]) -> None:
        """Send hints to the listener, each once."""
        found = list(dict.fromkeys(hints))
        if found:
            self.listener(found)

    def forget_ready(self, queue: str) -> None:
        """Discover again what the groups of a queue can take."""
        for group in self.groups_of.get(queue, {}).values():
            group.ready.forget()

    # Partitions --------------------------------------------------------------------------------------------

    def adopt_partition(self, number: int, queue: str, name: str) -> Partition:
        """Remember a partition."""
        partition = self.partitions_by_id.get(number)
        if partition is None or partition.name != name:
            partition = Partition(number, queue, name, self.codec.prefix(number), self.codec.encode(number, 0))
            self.partitions[queue, name] = self.partitions_by_id[number] = partition
        return partition

    def forget_partitions(self, numbers: Iterable[int]) -> None:
        """Forget partitions that do not exist any more."""
        for number in numbers:
            partition = self.partitions_by_id.pop(number, None)
            if partition is not None and self.partitions.get((partition.queue, partition.name)) is partition:
                del self.partitions[partition.queue, partition.name]

    async def find_partition(self, queue: str, name: str) -> Partition | None:
        """A partition by name."""
        partition = self.partitions.get((queue, name))
        if partition is None:
            row = await self.pool.fetchrow(
                "select p.id from hark.partitions p join hark.queues q on q.id = p.queue"
                " where q.name = $1 and p.name = $2",
                queue,
                name,
            )
            partition = None if row is None else self.adopt_partition(row[0], queue, name)
        return partition

    async def load_partitions(self, numbers: Iterable[int]) -> None:
        """Look up the partitions that are not known yet; those that do not exist stay unknown."""
        missing = [number for number in numbers if number not in self.partitions_by_id]
        if missing:
            rows = await self.pool.fetch(
                "select p.id, q.name, p.name from hark.partitions p join hark.queues q on q.id = p.queue"
                " where p.id = any ($1::bigint[])",
                missing,
            )
            for row in rows:
                self.adopt_partition(*row)

    # Groups ------------------------------------------------------------------------------------------------

    def adopt_group(self, number: int, queue: str, name: str, mode: GroupMode, queue_id: int | None) -> Group:
        """Remember a group, in place of one of this name that was deleted."""
        group = self.groups.get((queue, name))
        if group is None or group.id != number or (group.queue_id is not None and group.queue_id != queue_id):
            group = Group(number, queue, name, mode, queue_id)
            self.groups[queue, name] = group
            self.groups_of.setdefault(queue, {})[name] = group
        group.queue_id = queue_id
        return group

    def forget_group(self, group: Group) -> None:
        """Forget a group that does not exist any more, or whose queue does not."""
        if self.groups.get((group.queue, group.name)) is group:
            del self.groups[group.queue, group.name]
            del self.groups_of[group.queue][group.name]

    def forget_groups(self, numbers: Iterable[int]) -> None:
        """Forget groups that do not exist any more."""
        gone = set(numbers)
        for group in [group for group in self.groups.values() if group.id in gone]:
            self.forget_group(group)

    def forget_queue(self, queue: str) -> None:
        """Forget a queue that was deleted, with its partitions and groups."""
        self.forget_partitions([partition.id for partition in self.partitions.values() if partition.queue == queue])
        for group in list(self.groups_of.get(queue, {}).values()):
            self.forget_group(group)

    async def load_groups(self, wanted: Iterable[tuple[str, str]]) -> None:
        """Groups by queue and name that are not known yet; those that do not exist stay unknown."""
        missing = [key for key in wanted if key not in self.groups]
        if not missing:
            return
        queues, names = zip(*missing, strict=True)
        rows = await self.pool.fetch(
            "select g.id, g.queue, g.name, g.mode, q.id from unnest($1::text[], $2::text[]) as w(queue, name)"
            " join hark.groups g on g.queue = w.queue and g.name = w.name left join hark.queues q on q.name = g.queue",
            queues,
            names,
        )
        for row in rows:
            self.adopt_group(*row)
