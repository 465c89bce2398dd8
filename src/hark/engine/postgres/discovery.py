"""Work of other servers: partitions that they made ready, however late they become visible."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Any

from hark.clock import SECOND
from hark.engine.postgres.contact import Job
from hark.engine.postgres.partitions import Directory, Group, Partition
from hark.engine.postgres.pool import Pool
from hark.engine.postgres.push import Arrival, Notifications
from hark.engine.postgres.settle import Deliveries
from hark.model import Hint

# A search for what other servers did goes back a little in time. That is not enough for a transaction that runs for
# long.
# So every search also asks which transactions are running, and when a long one has ended, all go back to its
# beginning.


RUNNING = """array(
    with snapshot as (select pg_current_snapshot() as s)
    select x::text::bigint from snapshot cross join lateral pg_snapshot_xip(s) x
    union all
    select x from snapshot cross join lateral generate_series(
        pg_snapshot_xmax(s)::text::bigint,
        pg_snapshot_xmax(s)::text::bigint + least(age(pg_snapshot_xmax(s)::xid), 10000) - 1) x
)"""
"""SQL: the transactions of all databases that have begun and that its statement does not see. A snapshot does not list
those after the last one that has ended; `age` tells how many numbers were given since."""

LATE = 30 * SECOND
"""So far back every look goes."""
_LONG = 10 * SECOND
"""A transaction that ended within this time is found by every look."""
_NOT_YET_RUNNING = LATE - _LONG
"""How much earlier a call may have read the clock than its transaction got its number."""
_MANY = 100


class Late:
    """The transactions that one engine has seen running, and those of them that ended after a long time."""

    def __init__(self) -> None:
        self._looks = 0
        self._looked = 0
        self._running: dict[int, int] = {}
        """By number, the time of the last look at which each was not running yet."""
        self._ended: list[tuple[int, int]] = []
        """When it was noticed that a long transaction had ended, and since when its changes may date."""

    def look(self) -> tuple[int, int]:
        """Begin a look, before the database is asked; `note` wants what this answers."""
        return self._looks, self._looked

    def note(self, running: Collection[int], look: tuple[int, int], now: int) -> None:
        """Take note of the transactions that were running at a look, which began at the time `now`."""
        number, before = look
        for one in running:
            self._running.setdefault(one, before)
        if number != self._looks:
            return  # Another look was answered meanwhile. It may be the newer one, so it is unknown which have ended.
        self._looks += 1
        self._looked = now
        ended = [self._running.pop(one) for one in list(self._running) if one not in running]
        began = min(ended, default=now)
        if began < now - _LONG:
            self._ended.append((now, max(0, began - _NOT_YET_RUNNING)))
        if len(self._ended) > _MANY:
            (_, first), (noticed, second) = self._ended[:2]
            self._ended[:2] = [(noticed, min(first, second))]

    @property
    def newest(self) -> tuple[int, int] | None:
        """The last long transaction that ended; for those who have to know whether there was another one."""
        return self._ended[-1] if self._ended else None

    def since(self, looked: int, reach: int = LATE) -> int:
        """The time back to which to look, for one who last looked at a time and looks back so far anyway."""
        return min([max(0, looked - reach), *(began for noticed, began in self._ended if noticed >= looked)])


# What is heard is belief, like all that is in `Ready`: the database verifies it when somebody wants to take.


_SECRET = "peer_secret:"
_SECRET_NUMBERS = 4
_NUMBER_BYTES = 8

# Of servers that start together one makes it, and all read what that one made.
_MAKE_SECRET = """
insert into hark.meta as known (key, value) select * from unnest($1::text[], $2::bigint[])
on conflict (key) do update set value = known.value
returning key, value
"""


async def peer_secret(pool: Pool) -> bytes:
    """32 random bytes in the database, made where there are none; as numbers, which is what `meta` has."""
    keys = [f"{_SECRET}{number}" for number in range(_SECRET_NUMBERS)]
    rows = await pool.fetch("select key, value from hark.meta where key = any ($1::text[])", keys)
    if len(rows) < len(keys):
        numbers = [int.from_bytes(secrets.token_bytes(_NUMBER_BYTES), signed=True) for _ in keys]
        rows = await pool.fetch(_MAKE_SECRET, keys, numbers)
    values = {row["key"]: row["value"] for row in rows}
    return b"".join(values[key].to_bytes(_NUMBER_BYTES, signed=True) for key in keys)


class HintListener:
    """Turns what other servers say into beliefs of this one, and into hints for those who wait here."""

    def __init__(self, directory: Directory, deliveries: Deliveries) -> None:
        self._directory = directory
        self._deliveries = deliveries

    def on_hints(self, hints: Sequence[Hint]) -> list[Hint]:
        """Believe hints; whom to tell of them."""
        notifications = Notifications(self._directory)
        for kind, same in groupby(hints, lambda hint: hint.kind):
            if kind == "message":
                self._arrived(list(same), notifications)
            else:
                for hint in same:
                    self._free(hint, notifications)
        # At the end: a lease over several queues is in several hints.
        for lease in (lease for hint in hints for lease in hint.ended):
            self._deliveries.end(lease)
        return notifications.hints()

    def _arrived(self, hints: Sequence[Hint], notifications: Notifications) -> None:
        """Messages came: they are for every group here, whomever the other server has told, and each of them once."""
        came: dict[Partition, int] = {}
        for hint in hints:
            counts = dict(zip(hint.partitions or (), hint.counts, strict=False))
            for partition in self._known(hint):
                came[partition] = max(came.get(partition, 1), counts.get(partition.name, 1))
        notifications.arrived([Arrival(partition, number) for partition, number in came.items()])
        for hint in hints:
            self._unknown(hint, notifications)

    def _unknown(self, hint: Hint, notifications: Notifications) -> None:
        """Of some partitions nobody here can take by belief: whoever looks discovers them."""
        names = {partition.name for partition in self._known(hint)}
        unknown = None if hint.partitions is None else [name for name in hint.partitions if name not in names]
        if unknown == []:
            return
        groups = list(self._directory.groups_of(hint.queue))
        for group in groups if unknown is None else ():
            group.ready.forget()
        excluded = [group.name for group in groups]
        notifications.book.arrived(hint.queue, (), excluded)
        for name in (None, *excluded):
            notifications.book.add(hint.queue, name, unknown, "message")

    def _free(self, hint: Hint, notifications: Notifications) -> None:
        for group in self._directory.groups_of(hint.queue):
            if hint.group in (None, group.name):
                self._note_ready(group, hint, notifications)
        if hint.partitions is None or hint.partitions:
            counts = dict(zip(hint.partitions or (), hint.counts, strict=False))
            notifications.book.add(hint.queue, hint.group, hint.partitions, counts=counts or None)
        if hint.group is not None:
            for lease in hint.ended:
                notifications.book.ended(hint.queue, hint.group, lease)

    def _note_ready(self, group: Group, hint: Hint, notifications: Notifications) -> None:
        if hint.partitions is None:
            group.ready.forget()
        for one in self._known(hint):
            group.ready.add(one.id)
        if hint.ended:
            notifications.has_room(group)
        if group.shared is not None:
            return  # A lease on messages keeps nobody else from a partition.
        if hint.ended:
            notifications.free(group, group.ready.doubt_leases())
        for lease in hint.ended:
            for partition in self._deliveries.partitions_of(lease):
                notifications.drained(group, partition)

    def _known(self, hint: Hint) -> list[Partition]:
        partitions = self._directory.partitions
        return [partitions[hint.queue, name] for name in hint.partitions or () if (hint.queue, name) in partitions]


BUCKET = 10 * SECOND
_DISCOVER = f"""
select null::bigint[], * from hark.discover_v1($1, $2, $3, $4) union all select {RUNNING}, null, null, null, null
"""
_SEARCH_SECONDS = 0.5
_SEARCH_SHARE = 20
"""A group with work is searched for more twice a second, or less often if a search takes long."""


class Discovery:
    """Asks the database for one engine."""

    def __init__(self, pool: Pool, directory: Directory, late: Late) -> None:
        self._pool = pool
        self._directory = directory
        self._late = late

    def is_wanted(self, job: Job, now: int) -> bool:
        """Whether to ask the database for partitions that this server has not heard of."""
        if job.named is not None or job.discovered or not job.groups:
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
        looked = group.ready.discovered
        if looked is None:
            group.ready.forget()
        group.ready.discovered = now
        turn = group.ready.now()
        try:
            rows = await self._ask(group, looked, given, now)
        except BaseException:
            group.ready.discovered = None
            raise
        for _, partition, due, leased, has_lanes in rows:
            if partition is None:
                self._directory.forget_group(group)
                return False
            group.ready.prioritized |= bool(has_lanes)
            if due is None or group.ready.hinted_since(partition, turn):
                group.ready.found(partition)
            elif group.shared is not None:
                group.shared.waits(partition, due, "lease_held" if leased else "waiting", now)
            else:
                group.ready.leased_until(partition, due)
        took = loop.time() - began
        group.ready.discover_after = began + max(_SEARCH_SECONDS, _SEARCH_SHARE * took)
        return True

    async def _ask(self, group: Group, looked: int | None, given: int | None, now: int) -> Sequence[Any]:
        """What happened since this server last looked, or (None) ever."""
        since, wanted = None, 0 if looked is None else self._late.since(looked) // BUCKET
        while since is None or wanted < since:  # Again if the answer says that a long transaction has ended.
            since = wanted
            look = self._late.look()
            *rows, last = await self._pool.fetch(_DISCOVER, given, group.id, group.queue_id, since)
            self._late.note(last[0], look, now)
            if looked is not None:
                wanted = self._late.since(looked) // BUCKET
        return rows
