"""What memory keeps of the tables, and how it follows when they change under it.

The verbs of the SQLite engine believe that nobody else writes their tables. Here others do, and what was done here may
be undone. So whatever in memory is about rows that changed is dropped and read again; the rest stays, or every record
of another process would cost a look at all partitions.
"""

from __future__ import annotations

from collections.abc import Iterable

from hark.engine.s3.replica.leases import LeaseRows
from hark.engine.s3.replica.rates import Rates
from hark.engine.s3.replica.scratch import Scratch
from hark.engine.s3.replica.touched import Place, Touched
from hark.engine.sqlite.loader import Loader
from hark.engine.sqlite.state import Group, Queue, State
from hark.engine.sqlite.store import rows_of


class Memory:
    """The state of the SQLite engine, over tables that others write too."""

    def __init__(self, scratch: Scratch, state: State, leases: LeaseRows) -> None:
        self._scratch = scratch
        self._state = state
        self._leases = leases
        self.forgotten: set[str] = set()
        """Queues where somebody waits for room: that was not kept, so they have to ask again."""

    def read_all(self) -> None:
        """Make it anew. What tables do not have is kept: who was served when, and why leases ended."""
        state, writer = self._state, self._scratch.writer
        expired, removed = state.expired_leases, state.removed
        self.forgotten |= {queue.name for queue in state.queues.values() if queue.bounds.blocked}
        self.forgotten |= {group.queue_name for group in state.groups.values() if group.bounds.blocked}
        state.remember_turns()
        state.clear()
        state.expired_leases, state.removed = expired, removed
        loader = Loader(writer, state)
        loader.queues()
        rates = Rates(writer)
        for queue in state.queues.values():
            rates.give("queue", queue.id, queue.bounds)
        for number in rates.groups:
            for queue_name, name in rows_of(writer, "select queue, name from groups where id = ?1", number):
                loader.groups(queue_name)
                rates.give("group", number, state.groups[queue_name, name].bounds)
        self._leases.load(writer)

    def follow(self, touched: Touched, now: int) -> None:
        """Read again what is about rows that changed."""
        if touched.is_structural:
            self.read_all()
            return
        state, writer = self._state, self._scratch.writer
        loader = Loader(writer, state)
        groups = {group.id: group for group in state.groups.values()}
        if touched.labels:
            state.labels.clear()
        if touched.numbers:
            loader.numbers()
        if touched.rates:
            self._follow_rates(touched, groups)
        # Before and after: of partitions that were undone, or are gone, only memory knows whose they were.
        queues, places = self._queues_of(touched, groups), self._places_in(touched.partitions)
        loader.renew_partitions(touched.partitions)
        queues |= self._queues_of(touched, groups)
        places |= self._places_in(touched.partitions)
        places, leases = self._closed(touched, places)
        wanted = self._drop(places, leases, groups)
        for group, partitions in wanted.items():
            loader.tracks(group, sorted(partitions))
        self._leases.load(writer, leases)
        for group, partitions in wanted.items():
            for partition in partitions:
                track = group.tracks.get(partition)
                if track is not None:
                    group.refresh(track, now)
        for queue in queues:
            queue.open = None  # To be counted anew, when somebody next asks.

    def _follow_rates(self, touched: Touched, groups: dict[int, Group]) -> None:
        rates = Rates(self._scratch.writer)
        queues = {queue.id: queue for queue in self._state.queues.values()}
        for kind, number in touched.rates:
            owner = queues.get(number) if kind == "queue" else groups.get(number)
            if owner is not None:
                owner.bounds.tokens = None
                rates.give(kind, number, owner.bounds)

    def _places_in(self, partitions: Iterable[int]) -> set[Place]:
        """The places of all groups in partitions, as far as memory knows them."""
        found = (self._state.partitions.get(number) for number in partitions)
        return {(group.id, one.id) for one in found if one is not None for group in one.queue.groups.values()}

    def _closed(self, touched: Touched, places: set[Place]) -> tuple[set[Place], set[str]]:
        """The places and leases that have to go together: a lease knows its places, and a place its leases."""
        places = places | touched.places | self._leases.stored_places(self._scratch.writer, touched.leases)
        leases, seen = set(touched.leases), -1
        while len(places) + len(leases) != seen:
            seen = len(places) + len(leases)
            for place in places:
                leases |= self._leases.held_at(place)
            for lease in leases:
                places |= self._leases.places_of(lease)
        return places, leases

    def _drop(self, places: set[Place], leases: set[str], groups: dict[int, Group]) -> dict[Group, set[int]]:
        """Forget them; which places are to be read again, as somebody may ask for them."""
        state = self._state
        for lease in leases:
            state.leases.pop(lease, None)
            self._leases.forget(lease)
        wanted: dict[Group, set[int]] = {}
        for number, partition in places:
            group = groups.get(number)
            if group is None:
                continue
            track = group.tracks.pop(partition, None)
            if track is not None:
                group.in_flight -= track.noted
                if track.served:
                    state.turns[number, partition] = track.served
            for known in (group.ready, group.waking, group.rising):
                known.pop(partition, None)
            if group.discovered or track is not None:
                wanted.setdefault(group, set()).add(partition)
        return wanted

    def _queues_of(self, touched: Touched, groups: dict[int, Group]) -> set[Queue]:
        """The queues that rows are of, as far as memory knows it."""
        state = self._state
        found = (state.partitions.get(number) for number in touched.partitions)
        queues = {partition.queue for partition in found if partition is not None}
        names = {groups[number].queue_name for number, _ in touched.places if number in groups}
        return queues | {state.queues[name] for name in names if name in state.queues}
