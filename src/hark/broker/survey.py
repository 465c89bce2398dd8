"""Surveys of the store: message counts of all queues and groups, and lists of queues with their counts."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from hark.broker.timers import Timers, Wakeup
from hark.clock import SECOND
from hark.engine.api import Engine
from hark.errors import HarkError
from hark.model import Counts, Depth, GroupStats, QueueFilter, QueueInfo, QueuePage, QueueStats, Totals

log = logging.getLogger(__name__)


class QueueDepth(msgspec.Struct, frozen=True, gc=False):
    """The message counts of one queue. `backlog` is that of the group that is furthest behind."""

    partitions: int
    backlog: int
    in_flight: int
    """Leased messages of all groups."""
    oldest_waiting: int | None
    """The time since which the oldest message waits that is in the backlog of some group."""
    dead_letters: int
    scheduled: int = 0
    """Messages that are delayed or wait for a retry in the group that is furthest behind."""


class GroupDepth(msgspec.Struct, gc=False):
    """The unsettled messages of one group in a queue."""

    waiting: int = 0
    """Unsettled messages that are neither scheduled nor in flight."""
    scheduled: int = 0
    lagging: int = 0
    """Partitions with waiting messages."""
    oldest: int | None = None
    """The time since which the oldest of them waits."""
    in_flight: int = 0

    @property
    def unsettled(self) -> int:
        """All messages of the group."""
        return self.waiting + self.scheduled + self.in_flight


class SurveyedQueue(msgspec.Struct):
    """What a survey found of a queue."""

    partitions: int = 0
    stored: int = 0
    scheduled: int = 0
    """Of a queue without groups."""
    groups: dict[str, GroupDepth] = {}
    oldest: int | None = None
    """The time since which the oldest message waits."""

    @property
    def positions(self) -> int:
        """How many rows it takes to count the queue: its partitions, for each group."""
        return self.partitions * max(1, len(self.groups))

    @property
    def furthest_behind(self) -> GroupDepth | None:
        """The group with the most waiting messages; None without groups."""
        return max(self.groups.values(), key=lambda one: (one.waiting, one.unsettled), default=None)


class Depths(msgspec.Struct, frozen=True):
    """The message counts of the store, by the last survey."""

    began: int
    at: int
    """The end of the survey."""
    queues: int
    partitions: int
    backlog: int
    scheduled: int
    in_flight: int
    oldest_waiting: int | None
    dead_letters: int
    by_queue: Mapping[str, QueueDepth]
    """The queues with the longest backlogs; all queues up to `MOST_QUEUES`."""
    largest: Mapping[str, SurveyedQueue] = {}
    """The queues with the most positions, in this order; all queues up to `MOST_QUEUES`."""


MOST_QUEUES = 10_000
"""Maximum number of queues in `Depths.by_queue`, and in `Depths.largest`."""
MAX_POSITIONS = 10_000
"""Maximum number of positions that a request counts. It takes the counts of the largest queues from the survey."""


class SurveyTotals:
    """Adds up the entries of a survey. The entries of one queue follow each other."""

    def __init__(self, totals: Totals, began: int, most_queues: int = MOST_QUEUES) -> None:
        self._totals = totals
        self._began = began
        self._most = most_queues
        self._queues: dict[str, SurveyedQueue] = {}
        self._leased: Counter[str] = Counter()
        for (queue, _), number in totals.in_flight.items():
            self._leased[queue] += number
        self._queue: str | None = None
        self._current = SurveyedQueue()
        self._by_queue: dict[str, QueueDepth] = {}
        self._all_partitions = self._all_backlog = self._all_scheduled = 0
        self._all_oldest: int | None = None

    def add(self, depths: Iterable[Depth]) -> None:
        """Add the entries of one step."""
        for depth in depths:
            if depth.queue != self._queue:
                self._close()
                self._queue = depth.queue
            current = self._current
            if depth.group is None:
                current.partitions += depth.partitions
                current.stored += depth.messages
                current.scheduled += depth.scheduled
            else:
                group = current.groups.get(depth.group)
                if group is None:
                    in_flight = self._totals.in_flight.get((depth.queue, depth.group), 0)
                    group = current.groups[depth.group] = GroupDepth(in_flight=in_flight)
                group.waiting += depth.messages
                group.scheduled += depth.scheduled
                group.lagging += depth.lagging
                group.oldest = _earlier(group.oldest, depth.oldest)
            current.oldest = _earlier(current.oldest, depth.oldest)

    def _close(self) -> None:
        queue, found = self._queue, self._current
        if queue is None:
            return
        self._queues[queue] = found
        scheduled, backlog = found.scheduled, found.stored - found.scheduled
        if (worst := found.furthest_behind) is not None:
            scheduled, backlog = worst.scheduled, worst.waiting
        dead = self._totals.dead_letters.get(queue, 0)
        self._by_queue[queue] = QueueDepth(
            found.partitions, backlog, self._leased[queue], found.oldest, dead, scheduled
        )
        self._all_partitions += found.partitions
        self._all_backlog += backlog
        self._all_scheduled += scheduled
        self._all_oldest = _earlier(self._all_oldest, found.oldest)
        self._queue, self._current = None, SurveyedQueue()
        if len(self._by_queue) > 2 * self._most:
            self._by_queue = self._longest()
        if len(self._queues) > 2 * self._most:
            self._queues = self._largest()

    def _longest(self) -> dict[str, QueueDepth]:
        if len(self._by_queue) <= self._most:
            return self._by_queue
        return dict(heapq.nlargest(self._most, self._by_queue.items(), key=lambda item: item[1].backlog))

    def _largest(self) -> dict[str, SurveyedQueue]:
        return dict(heapq.nlargest(self._most, self._queues.items(), key=lambda item: item[1].positions))

    @property
    def partitions(self) -> int:
        """The number of partitions so far."""
        return self._all_partitions + self._current.partitions

    def finish(self, now: int) -> Depths:
        """The result of the survey."""
        self._close()
        return Depths(
            began=self._began,
            at=now,
            queues=self._totals.queues,
            partitions=self._all_partitions,
            backlog=self._all_backlog,
            scheduled=self._all_scheduled,
            in_flight=self._leased.total(),
            oldest_waiting=self._all_oldest,
            dead_letters=sum(self._totals.dead_letters.values()),
            by_queue=self._longest(),
            largest=self._largest(),
        )


def _earlier(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


class Counting:
    """Lists of queues and groups. A request counts few positions and takes the other counts from the last survey."""

    def __init__(
        self, engine: Engine, depths: Callable[[], Depths | None], attend: Callable[[], None], most: int = MAX_POSITIONS
    ) -> None:
        self.engine = engine
        self._depths = depths
        self._attend = attend
        self._most = most

    async def queue_stats(self, where: QueueFilter) -> QueuePage:
        """A page of queues."""
        large, began = self._uncounted(where.names)
        page = await self.engine.queue_stats(msgspec.structs.replace(where, uncounted=list(large)))
        # A queue that was created after the begin of the survey only shares its name with the surveyed one.
        new = [stats.info.name for stats in page.items if stats.info.name in large and stats.info.created_at > began]
        recounted = (await self.engine.queue_stats(QueueFilter(names=new))).items if new else ()
        exact = {stats.info.name: stats for stats in recounted}
        return QueuePage([exact.get(one.info.name) or _ready_counts(one, large) for one in page.items], page.total)

    async def group_stats(
        self, group: str | None = None, queue: str | None = None, queues: Sequence[str] | None = None
    ) -> list[GroupStats]:
        """Groups. A group that was created after the begin of the survey is counted."""
        large, began = self._uncounted(queues if queue is None else [queue])
        found = await self.engine.group_stats(group, queue, queues, list(large))
        new = {stats.queue for stats in found if stats.queue in large and stats.created_at > began}
        recounted = await self.engine.group_stats(group, queues=list(new)) if new else ()
        exact = {(stats.group, stats.queue): stats for stats in recounted}
        return [exact.get((one.group, one.queue)) or _ready_lag(one, large) for one in found]

    def caught_up(self, before: int) -> set[str]:
        """The large queues in which no message has waited since before a time; none if the survey is older."""
        large, began = self._uncounted(None)
        return {
            name
            for name, queue in large.items()
            if began > before
            and queue.groups
            and all(one.oldest is None or one.oldest > before for one in queue.groups.values())
        }

    def age(self, where: Sequence[str] | None, found: Iterable[str], now: int) -> int:
        """The age in seconds of what a request for the queues `where` found; 0 if it counted all of them."""
        large, began = self._uncounted(where)
        return max(0, now - began) // SECOND if any(name in large for name in found) else 0

    def _uncounted(self, where: Sequence[str] | None) -> tuple[Mapping[str, SurveyedQueue], int]:
        """The large queues of a request for these queues (None: all), and the begin of the survey that found them.

        Those are the largest ones. All others together have at most `MAX_POSITIONS` positions.
        """
        self._attend()
        depths = self._depths()
        if depths is None:
            return {}, 0
        surveyed = depths.largest
        if where is not None:
            wanted = {name: surveyed[name] for name in where if name in surveyed}
            surveyed = dict(sorted(wanted.items(), key=lambda item: -item[1].positions))
        counted = sum(queue.positions for queue in surveyed.values())
        large: dict[str, SurveyedQueue] = {}
        for name, queue in surveyed.items():
            if counted <= self._most:
                break
            large[name] = queue
            counted -= queue.positions
        return large, depths.began


def _ready_counts(stats: QueueStats, large: Mapping[str, SurveyedQueue]) -> QueueStats:
    """A queue, with the counts of the survey if it is large."""
    found = large.get(stats.info.name)
    if found is None:
        return stats
    dead = stats.counts.dead_letter
    worst = found.furthest_behind or GroupDepth(waiting=found.stored - found.scheduled, scheduled=found.scheduled)
    return msgspec.structs.replace(
        stats,
        partitions=found.partitions,
        counts=Counts(
            total=found.stored,
            pending=worst.waiting,
            scheduled=worst.scheduled,
            processing=worst.in_flight,
            completed=max(0, found.stored - worst.unsettled - dead),
            failed=stats.counts.failed,
            dead_letter=dead,
        ),
    )


def _ready_lag(stats: GroupStats, large: Mapping[str, SurveyedQueue]) -> GroupStats:
    """A group, with the counts of the survey if its queue is large."""
    queue = large.get(stats.queue)
    if queue is None:
        return stats
    depth = queue.groups.get(stats.group, GroupDepth())
    return msgspec.structs.replace(
        stats,
        lag=depth.waiting,
        partitions_with_lag=depth.lagging,
        scheduled=depth.scheduled,
        oldest_waiting=depth.oldest,
    )


async def list_queues(
    counts: Counting,
    where: QueueFilter,
    *,
    visible: Callable[[str], bool] | None = None,
    backlogs: Mapping[str, int] | None = None,
) -> QueuePage:
    """A page of the visible queues. With `backlogs`, the queues with the longest backlogs are first."""
    if visible is None and backlogs is None:
        return await counts.queue_stats(where)
    names = [
        info.name
        for info in await counts.engine.queue_infos(where.names)
        if _matches(info, where) and (visible is None or visible(info.name))
    ]
    if backlogs is not None:
        names.sort(key=lambda name: (-backlogs.get(name, 0), name))
    elif where.sort == "name":
        names.sort()
    else:
        names.reverse()
    end = None if where.limit is None else where.offset + where.limit
    page = names[where.offset : end]
    found = await counts.queue_stats(QueueFilter(names=page))
    order = {name: number for number, name in enumerate(page)}
    items = sorted(found.items, key=lambda stats: order[stats.info.name])
    return QueuePage(items, len(names))


def _matches(info: QueueInfo, where: QueueFilter) -> bool:
    return (
        (where.search is None or where.search in info.name)
        and (where.namespace is None or info.namespace == where.namespace)
        and (where.task is None or info.task == where.task)
        and (where.paused is None or info.paused == where.paused)
    )


# The surveyor works in steps, so that other calls do not wait long. It pauses after each step: twenty times its
# duration while a client watches, otherwise a hundred times. So it can survey a store of any size. During the first
# survey, and in a store that has more than doubled since the last one, the pauses are shorter, because until this
# survey ends large queues are counted for each request.


STEP = 1000
"""Number of partitions of one step."""
_REST_GROWN = 1
_REST, _INTERVAL = 20, 2 * SECOND
_REST_UNWATCHED, _INTERVAL_UNWATCHED = 100, 10 * SECOND
_LONGEST_REST = 60 * SECOND


class Surveyor:
    """Surveys the store periodically."""

    def __init__(
        self,
        engine: Engine,
        timers: Timers,
        is_watched: Callable[[], bool],
        found: Callable[[Depths], None],
        step: int = STEP,
    ) -> None:
        self._engine = engine
        self._timers = timers
        self._is_watched = is_watched
        self._found = found
        self._step = step
        self._attended = asyncio.Event()
        self._known: int | None = None
        """The number of partitions that the last survey found."""
        self._seen = 0
        """The number of partitions that this survey has found so far."""

    async def run(self) -> None:
        """Survey until cancelled."""
        while True:
            started = self._timers.now()
            try:
                await self._survey()
            except HarkError as error:
                log.debug("cannot survey the store; retrying: %s", error)
            await self._rest(0, self._timers.now(), started)

    def attend(self) -> None:
        """Check whether a survey is due, because a client began to watch."""
        self._attended.set()

    async def _survey(self) -> None:
        began = self._timers.now()
        local = SurveyTotals(await self._engine.totals(), began)
        await self._rest(self._timers.now() - began, self._timers.now())
        partition: tuple[int, str] | None = (0, "")
        while partition is not None:
            began = self._timers.now()
            step = await self._engine.survey(partition, self._step)
            local.add(step.depths)
            self._seen = local.partitions
            partition = step.next
            now = self._timers.now()
            if partition is None:
                self._known = self._seen
                self._found(local.finish(now))
            await self._rest(now - began, now)

    async def _rest(self, took: int, ended: int, started: int | None = None) -> None:
        """Pause after a step that took a time; after a whole survey, given its start, until the next one is due."""
        while True:
            watched = self._is_watched()
            grown = self._known is None or self._seen > 2 * self._known
            share = _REST_GROWN if grown else _REST if watched else _REST_UNWATCHED
            due = ended + min(took * share, _LONGEST_REST)
            if started is not None:
                due = max(due, started + (_INTERVAL if watched else _INTERVAL_UNWATCHED))
            if due <= self._timers.now():
                return
            self._attended.clear()
            wakeup = Wakeup(self._timers, self._attended.set)
            wakeup.set(due)
            try:
                await self._attended.wait()
            finally:
                wakeup.cancel()
