"""The observer: samples of the server once a second, surveys of the store, and the last hour."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from hark.broker.tallies import Tallies, Tally
from hark.broker.timers import Timer, Timers
from hark.clock import MILLISECOND, SECOND
from hark.engine.api import Engine
from hark.errors import HarkError, Overloaded, Unavailable
from hark.model import Counts, Depth, GroupStats, QueueFilter, QueueInfo, QueuePage, QueueStats, Totals


class Rates(msgspec.Struct, frozen=True):
    """Messages per second that went through this server process."""

    pushed: float = 0.0
    delivered: float = 0.0
    settled: float = 0.0
    failed: float = 0.0
    dead_lettered: float = 0.0


class Latency(msgspec.Struct, frozen=True):
    """How old messages were when they were first delivered, in milliseconds."""

    p50: float
    p99: float


class QueueRates(msgspec.Struct, frozen=True):
    """Messages per second of one queue."""

    queue: str
    pushed: float
    delivered: float
    settled: float


class QueueDepth(msgspec.Struct, frozen=True, gc=False):
    """What one queue has. `backlog` is what waits for the group that is furthest behind."""

    partitions: int
    backlog: int
    in_flight: int
    """Messages on leases of all its groups."""
    oldest_waiting: int | None
    """Since when the oldest message has been waiting that some group has not settled and that is not scheduled."""
    dead_letters: int
    scheduled: int = 0
    """What is delayed or waits for a retry in the group that is furthest behind."""


class GroupDepth(msgspec.Struct, frozen=True, gc=False):
    """What one group has open in the partitions of a queue."""

    waiting: int = 0
    """Unsettled messages that are not scheduled."""
    scheduled: int = 0
    lagging: int = 0
    """Partitions with messages that wait."""
    oldest: int | None = None
    """Since when the oldest of them has been waiting."""
    in_flight: int = 0


class LargeQueue(msgspec.Struct, frozen=True):
    """A queue of very many places, which is too large to be counted for each request."""

    partitions: int
    stored: int
    scheduled: int
    """Where there is no group."""
    groups: Mapping[str, GroupDepth]

    @property
    def furthest_behind(self) -> GroupDepth | None:
        """The group for which most messages wait; None: there is no group."""
        return max(self.groups.values(), key=lambda one: (one.waiting, one.scheduled), default=None)


class Depths(msgspec.Struct, frozen=True):
    """What the store has, as the last survey of it found."""

    began: int
    at: int
    """When the survey ended."""
    queues: int
    partitions: int
    backlog: int
    scheduled: int
    in_flight: int
    oldest_waiting: int | None
    dead_letters: int
    by_queue: Mapping[str, QueueDepth]
    """Those with the longest backlogs; all of them unless there are very many."""
    large: Mapping[str, LargeQueue] = {}


class Standing(msgspec.Struct, frozen=True):
    """Who waits on this server process, and what is stopped."""

    pops: int
    streams: int
    browsers: int
    push_maintenance: bool
    pop_maintenance: bool


class Point(msgspec.Struct, frozen=True):
    """Rates over the time before a moment, and the depths that were known at it."""

    at: int
    rates: Rates
    latency: Latency | None
    """None: nothing was delivered."""
    depths: Depths | None
    """None: the store has not been surveyed yet."""

    @property
    def oldest_waiting_seconds(self) -> float | None:
        """How long the oldest message has been waiting; None: none is, or it is not known yet."""
        if self.depths is None or self.depths.oldest_waiting is None:
            return None
        return max(0.0, (self.at - self.depths.oldest_waiting) / 1_000_000)


class Sample(msgspec.Struct, frozen=True):
    """A point of one second, with what only those want to know who watch right now."""

    point: Point
    standing: Standing
    busiest: tuple[QueueRates, ...]
    """Over the last ten seconds, the busiest first."""
    changed: tuple[str, ...]
    """Queues that something happened to in this second."""
    more: bool
    """Whether there were more of them than are named."""


_BUSIEST = 20
_BUSY_EACH_SECOND = 100
"""Queues of each second that may be among the busiest."""
_WINDOW = 10
"""Seconds that the busiest queues are chosen by: who looks at them should not see them dance."""
_MOST_REMEMBERED = 20_000


class Meter:
    """Messages per second since it was last read."""

    def __init__(self, tallies: Tallies, now: int) -> None:
        self._tallies = tallies
        self._at = now
        self._before = _counts(tallies.total)
        self._ages = list(tallies.ages)

    def read(self, now: int) -> tuple[Rates, Latency | None]:
        """The rates and latencies of the time since the last reading."""
        seconds = max(1, now - self._at) / SECOND
        counts, ages = _counts(self._tallies.total), list(self._tallies.ages)
        rates = Rates(*((after - before) / seconds for after, before in zip(counts, self._before, strict=True)))
        latency = percentiles([after - before for after, before in zip(ages, self._ages, strict=True)])
        self._at, self._before, self._ages = now, counts, ages
        return rates, latency


def _counts(tally: Tally) -> tuple[int, int, int, int, int]:
    return tally.pushed, tally.delivered, tally.settled, tally.failed, tally.dead_lettered


def percentiles(ages: Sequence[int]) -> Latency | None:
    """Of a histogram whose bucket i ends at 2**i microseconds; None if it is empty."""
    total = sum(ages)
    if not total:
        return None
    return Latency(_quantile(ages, total * 0.5), _quantile(ages, total * 0.99))


def _quantile(ages: Sequence[int], rank: float) -> float:
    """A percentile in milliseconds, with an even distribution assumed within each bucket."""
    below = 0
    for bits, number in enumerate(ages):
        if below + number >= rank:
            low, high = (1 << bits) >> 1, 1 << bits
            return (low + (high - low) * (rank - below) / number) / MILLISECOND
        below += number
    raise AssertionError("a rank is not above the number of values")


class BusyQueues:
    """The queues that most went through lately."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, int, int]] = {}
        self._window: deque[dict[str, tuple[int, int, int]]] = deque(maxlen=_WINDOW)

    def note(self, tallies: Tallies, changed: Iterable[str]) -> None:
        """A second is over in which something happened to these queues."""
        done: dict[str, tuple[int, int, int]] = {}
        for name in changed:
            tally = tallies.queues.get(name)
            if tally is None:  # Too many queues were busy since, so it is counted with the others.
                self._before.pop(name, None)
                continue
            now = (tally.pushed, tally.delivered, tally.settled)
            before = self._before.get(name, (0, 0, 0))
            if any(after < earlier for after, earlier in zip(now, before, strict=True)):
                before = (0, 0, 0)  # It was removed in between, and counts from 0 again.
            self._before[name] = now
            done[name] = (now[0] - before[0], now[1] - before[1], now[2] - before[2])
        if len(self._before) > _MOST_REMEMBERED:
            self._before = {name: counts for name, counts in self._before.items() if name in tallies.queues}
        if len(done) > _BUSY_EACH_SECOND:
            done = dict(heapq.nlargest(_BUSY_EACH_SECOND, done.items(), key=lambda item: sum(item[1])))
        self._window.append(done)

    def busiest(self) -> tuple[QueueRates, ...]:
        """Messages per second, over the seconds that are remembered."""
        sums: dict[str, tuple[int, int, int]] = {}
        for done in self._window:
            for name, counts in done.items():
                known = sums.get(name, (0, 0, 0))
                sums[name] = (known[0] + counts[0], known[1] + counts[1], known[2] + counts[2])
        active = [(name, counts) for name, counts in sums.items() if any(counts)]
        seconds = len(self._window)
        return tuple(
            QueueRates(name, *(number / seconds for number in counts))
            for name, counts in heapq.nsmallest(_BUSIEST, active, key=lambda item: (-sum(item[1]), item[0]))
        )


MOST_QUEUES = 10_000
"""Queues that are remembered one by one."""
LARGE = 10_000
"""A queue is large if it has more places than this: positions of groups in partitions."""


class SurveyTotals:
    """Takes the entries of a survey in their order; those of one queue follow each other."""

    def __init__(self, totals: Totals, began: int, most_queues: int = MOST_QUEUES, large: int = LARGE) -> None:
        self._totals = totals
        self._began = began
        self._most = most_queues
        self._large_positions = large
        self._large: dict[str, LargeQueue] = {}
        self._in_flight: dict[str, int] = {}
        for (queue, _), number in totals.in_flight.items():
            self._in_flight[queue] = self._in_flight.get(queue, 0) + number
        self._queue: str | None = None
        self._partitions = self._stored = self._scheduled = 0
        self._open: dict[str, GroupDepth] = {}
        self._oldest: int | None = None
        self._by_queue: dict[str, QueueDepth] = {}
        self._all_partitions = self._all_backlog = self._all_scheduled = 0
        self._all_oldest: int | None = None

    def add(self, depths: Iterable[Depth]) -> None:
        """One step."""
        for depth in depths:
            if depth.queue != self._queue:
                self._close()
                self._queue = depth.queue
            if depth.group is None:
                self._partitions += depth.partitions
                self._stored += depth.messages
                self._scheduled += depth.scheduled
            else:
                group = self._open.get(depth.group) or GroupDepth(
                    in_flight=self._totals.in_flight.get((depth.queue, depth.group), 0)
                )
                self._open[depth.group] = GroupDepth(
                    waiting=group.waiting + depth.messages,
                    scheduled=group.scheduled + depth.scheduled,
                    lagging=group.lagging + depth.lagging,
                    oldest=_earlier(group.oldest, depth.oldest),
                    in_flight=group.in_flight,
                )
            self._oldest = _earlier(self._oldest, depth.oldest)

    def _close(self) -> None:
        """A queue is complete."""
        queue = self._queue
        if queue is None:
            return
        found = LargeQueue(self._partitions, self._stored, self._scheduled, self._open)
        if found.partitions * max(1, len(found.groups)) > self._large_positions:
            self._large[queue] = found
        if (worst := found.furthest_behind) is not None:
            scheduled = worst.scheduled
            backlog = max(0, worst.waiting - worst.in_flight)
        else:
            scheduled = self._scheduled
            backlog = self._stored - scheduled
        self._by_queue[queue] = QueueDepth(
            self._partitions,
            backlog,
            self._in_flight.get(queue, 0),
            self._oldest,
            self._totals.dead_letters.get(queue, 0),
            scheduled,
        )
        self._all_partitions += self._partitions
        self._all_backlog += backlog
        self._all_scheduled += scheduled
        self._all_oldest = _earlier(self._all_oldest, self._oldest)
        self._queue, self._partitions, self._stored, self._scheduled, self._open = None, 0, 0, 0, {}
        self._oldest = None
        if len(self._by_queue) > 2 * self._most:
            self._by_queue = self._longest()

    def _longest(self) -> dict[str, QueueDepth]:
        if len(self._by_queue) <= self._most:
            return self._by_queue
        return dict(heapq.nlargest(self._most, self._by_queue.items(), key=lambda item: item[1].backlog))

    def finish(self, now: int) -> Depths:
        """All of it."""
        self._close()
        return Depths(
            began=self._began,
            at=now,
            queues=self._totals.queues,
            partitions=self._all_partitions,
            backlog=self._all_backlog,
            scheduled=self._all_scheduled,
            in_flight=sum(self._in_flight.values()),
            oldest_waiting=self._all_oldest,
            dead_letters=sum(self._totals.dead_letters.values()),
            by_queue=self._longest(),
            large=self._large,
        )


def _earlier(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


_replace = msgspec.structs.replace


class Counting:
    """Lists of queues and groups. The messages of a large queue are those that the last survey found."""

    def __init__(self, engine: Engine, depths: Callable[[], Depths | None], attend: Callable[[], None]) -> None:
        self.engine = engine
        self._depths = depths
        self._attend = attend

    async def queue_stats(self, where: QueueFilter) -> QueuePage:
        """See `Engine.queue_stats`."""
        large, began = self._known()
        page = await self.engine.queue_stats(_replace(where, uncounted=list(large)))
        # A queue that was made since the survey began only has the name of the one that was found.
        new = [stats.info.name for stats in page.items if stats.info.name in large and stats.info.created_at > began]
        exact = {} if not new else await self._recounted(new)
        return QueuePage([exact.get(one.info.name) or _ready_counts(one, large) for one in page.items], page.total)

    async def _recounted(self, names: Sequence[str]) -> dict[str, QueueStats]:
        page = await self.engine.queue_stats(QueueFilter(names=names))
        return {stats.info.name: stats for stats in page.items}

    async def group_stats(
        self, group: str | None = None, queue: str | None = None, queues: Sequence[str] | None = None
    ) -> list[GroupStats]:
        """See `Engine.group_stats`. A group that was made since the survey began is counted."""
        large, began = self._known()
        found = await self.engine.group_stats(group, queue, queues, list(large))

        async def complete(stats: GroupStats) -> GroupStats:
            if stats.queue not in large:
                return stats
            if stats.created_at > began:
                [stats] = await self.engine.group_stats(stats.group, stats.queue) or [stats]
                return stats
            depth = large[stats.queue].groups.get(stats.group, GroupDepth())
            return _replace(
                stats,
                lag=depth.waiting,
                partitions_with_lag=depth.lagging,
                scheduled=depth.scheduled,
                oldest_waiting=depth.oldest,
            )

        return list(await asyncio.gather(*map(complete, found)))

    def caught_up(self, before: int) -> set[str]:
        """The large queues in which no message has been waiting since before a time; none if the survey is older."""
        large, began = self._known()
        return {
            name
            for name, queue in large.items()
            if began > before
            and queue.groups
            and all(one.oldest is None or one.oldest > before for one in queue.groups.values())
        }

    def age(self, queues: Iterable[str], now: int) -> int:
        """The age of the counts of these queues, in seconds; 0 if none of them is large."""
        large, began = self._known()
        return max(0, now - began) // SECOND if any(name in large for name in queues) else 0

    def _known(self) -> tuple[Mapping[str, LargeQueue], int]:
        """The large queues, and when the survey began that found them."""
        self._attend()
        depths = self._depths()
        return ({}, 0) if depths is None else (depths.large, depths.began)


def _ready_counts(stats: QueueStats, large: Mapping[str, LargeQueue]) -> QueueStats:
    """A queue with the messages that the survey found, if it is a large one."""
    found = large.get(stats.info.name)
    if found is None:
        return stats
    dead = stats.counts.dead_letter
    worst = found.furthest_behind or GroupDepth(waiting=found.stored - found.scheduled, scheduled=found.scheduled)
    return _replace(
        stats,
        partitions=found.partitions,
        counts=Counts(
            total=found.stored,
            pending=max(0, worst.waiting - worst.in_flight),
            scheduled=worst.scheduled,
            processing=worst.in_flight,
            completed=max(0, found.stored - worst.waiting - worst.scheduled - dead),
            failed=stats.counts.failed,
            dead_letter=dead,
        ),
    )


INTERVAL_SECONDS = 10
HISTORY_SECONDS = 3600


class History:
    """The points, the oldest first."""

    def __init__(self, tallies: Tallies, now: int) -> None:
        self._meter = Meter(tallies, now)
        self._due = now + INTERVAL_SECONDS * SECOND
        self._points: deque[Point] = deque(maxlen=HISTORY_SECONDS // INTERVAL_SECONDS)

    def tick(self, now: int, depths: Depths | None) -> None:
        """Add a point if it is time for one."""
        if now < self._due:
            return
        rates, latency = self._meter.read(now)
        self._points.append(Point(now, rates, latency, depths))
        # From here, not from when it was due: a machine that slept does not make up for it.
        self._due = now + INTERVAL_SECONDS * SECOND

    def since(self, time: int) -> list[Point]:
        """The points after a time."""
        return [point for point in self._points if point.at > time]


async def list_queues(
    counts: Counting,
    where: QueueFilter,
    *,
    visible: Callable[[str], bool] | None = None,
    backlogs: Mapping[str, int] | None = None,
) -> QueuePage:
    """A page of queues; with `backlogs` the longest first, and only those that are `visible`."""
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


# It works in steps, so that other calls do not wait long, and pauses after each step: twenty times its duration while
# a
# client watches, otherwise a hundred times. So it can survey a store of any size; a large one takes longer. The first
# survey has shorter pauses, because until it ends large queues are counted for each request.


log = logging.getLogger(__name__)

STEP = 1000
"""Partitions that are looked at in one step."""
_REST_FIRST = 1
_REST, _INTERVAL = 20, 2 * SECOND
_REST_UNWATCHED, _INTERVAL_UNWATCHED = 100, 10 * SECOND
_LONGEST_REST = 60 * SECOND


class Surveyor:
    """Surveys a store for as long as it runs."""

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
        self._wakeup: asyncio.Future[None] | None = None
        self._is_first = True

    async def run(self) -> None:
        """Survey for ever."""
        while True:
            started = self._timers.now()
            try:
                await self._survey()
            except HarkError as error:
                log.debug("cannot survey the store; retrying: %s", error)
            await self._rest(0, self._timers.now(), started)

    def attend(self) -> None:
        """A client began to watch: a postponed survey may be due."""
        _end(self._wakeup)

    async def _survey(self) -> None:
        began = self._timers.now()
        survey_totals = SurveyTotals(await self._engine.totals(), began)
        await self._rest(self._timers.now() - began, self._timers.now())
        after: tuple[int, str] | None = (0, "")
        while after is not None:
            began = self._timers.now()
            step = await self._engine.survey(after, self._step)
            survey_totals.add(step.depths)
            after = step.next
            now = self._timers.now()
            if after is None:
                self._is_first = False
                self._found(survey_totals.finish(now))
            await self._rest(now - began, now)

    async def _rest(self, took: int, ended: int, started: int | None = None) -> None:
        """Wait after something that took so long; after a survey that `started` then, until the next one is due."""
        while True:
            watched = self._is_watched()
            share = _REST_FIRST if self._is_first else _REST if watched else _REST_UNWATCHED
            due = ended + min(took * share, _LONGEST_REST)
            if started is not None:
                due = max(due, started + (_INTERVAL if watched else _INTERVAL_UNWATCHED))
            if due <= self._timers.now():
                return
            wakeup = self._wakeup = asyncio.get_running_loop().create_future()
            timer = self._timers.at(due, lambda wakeup=wakeup: _end(wakeup))  # type: ignore[misc]  # mypy can't infer it
            try:
                await wakeup
            finally:
                self._wakeup = None
                timer.cancel()


def _end(wakeup: asyncio.Future[None] | None) -> None:
    if wakeup is not None and not wakeup.done():
        wakeup.set_result(None)


class Watcher:
    """One of them; who is slow misses samples, and gets the latest."""

    def __init__(self, watchers: Watchers, first: Sample | None) -> None:
        self._watchers = watchers
        self._next = first
        self._came = asyncio.Event()
        self._closed = False
        if first is not None:
            self._came.set()

    async def next(self) -> Sample | None:
        """The next sample, or None when there will be no more."""
        await self._came.wait()
        sample, self._next = self._next, None
        if not self._closed:
            self._came.clear()
        return None if self._closed else sample

    def notify(self, sample: Sample) -> None:
        """There is a new one."""
        if self._next is not None:  # What changed in a sample that is never seen is not named in this one.
            sample = msgspec.structs.replace(sample, more=True)
        self._next = sample
        self._came.set()

    def close(self) -> None:
        """It wants no more."""
        self._closed = True
        self._came.set()
        self._watchers.forget(self)


class Watchers:
    """All of them, no more than a number."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._all: set[Watcher] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._all)

    def open(self, first: Sample | None) -> Watcher:
        """A new one, who gets what is known now at once."""
        if self._closed:
            raise Unavailable("the server is shutting down; retry", code="stopping")
        if len(self._all) >= self._most:
            raise Overloaded(
                f"{len(self._all)} clients already watch this server; retry later or raise limits.max_streams",
                code="too_many_streams",
            )
        watcher = Watcher(self, first)
        self._all.add(watcher)
        return watcher

    def forget(self, watcher: Watcher) -> None:
        """One is gone."""
        self._all.discard(watcher)

    def notify(self, sample: Sample) -> None:
        """Send a sample to all watchers."""
        for watcher in self._all:
            watcher.notify(sample)

    def close(self) -> None:
        """There will be no more samples."""
        self._closed = True
        for watcher in list(self._all):
            watcher.close()


_MOST_CHANGED = 100
_ATTENTION = 30 * SECOND
"""How long after a request for store statistics they are refreshed as often as for a watching client."""


class Observer:
    """The statistics of this server and its store, sent to watching clients every second."""

    def __init__(
        self,
        engine: Engine,
        tallies: Tallies,
        timers: Timers,
        standing: Callable[[], Standing],
        max_watchers: int,
    ) -> None:
        self._tallies = tallies
        self._timers = timers
        self._standing = standing
        self.watchers = Watchers(max_watchers)
        self._last_requested = 0
        self._surveyor = Surveyor(engine, timers, self._is_watched, self._found)
        self._survey: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self._depths: Depths | None = None
        now = timers.now()
        self._started = now
        self.counts = Counting(engine, lambda: self._depths, self.attend)
        """Lists of queues and groups with their counts."""
        self._meter = Meter(tallies, now)
        self._busy = BusyQueues()
        self._history = History(tallies, now)
        self.latest: Sample | None = None
        """The sample of the last second; None before the first."""

    def start(self) -> None:
        """Begin."""
        self._survey = asyncio.create_task(self._surveyor.run(), name="survey")
        self._set()

    def stop_watching(self) -> None:
        """End all watches, because the server shuts down."""
        self.watchers.close()

    async def close(self) -> None:
        """Stop."""
        self.stop_watching()
        if self._timer is not None:
            self._timer.cancel()
        if self._survey is not None:
            self._survey.cancel()
            await asyncio.gather(self._survey, return_exceptions=True)

    # What is known -----------------------------------------------------------------------------------------

    @property
    def depths(self) -> Depths | None:
        """What the last survey found; None before the first is complete."""
        return self._depths

    @property
    def queues(self) -> Mapping[str, QueueDepth]:
        """What the last survey found in each queue."""
        return {} if self._depths is None else self._depths.by_queue

    @property
    def backlogs(self) -> dict[str, int]:
        """How many messages wait in each queue, by the last survey; asking for it keeps it fresh for a while."""
        self.attend()
        return {name: depth.backlog for name, depth in self.queues.items()}

    def history(self, seconds: int) -> list[Point]:
        """The points of the last `seconds`, the oldest first."""
        self.attend()
        return self._history.since(self._timers.now() - seconds * SECOND)

    def attend(self) -> None:
        """Refresh the statistics of the store more often for a while, after a request for them."""
        self._last_requested = self._timers.now()
        self._surveyor.attend()

    def watch(self) -> Watcher:
        """A new watcher that gets a sample every second. Raises if there are too many."""
        watcher = self.watchers.open(self.latest)
        self._surveyor.attend()
        return watcher

    # How it becomes known ----------------------------------------------------------------------------------

    def _is_watched(self) -> bool:
        return bool(self.watchers) or self._timers.now() - self._last_requested < _ATTENTION

    def _found(self, depths: Depths) -> None:
        self._depths = depths

    def _set(self) -> None:
        self._timer = self._timers.at(self._timers.now() + SECOND, self._tick)

    def _tick(self) -> None:
        now = self._timers.now()
        changed, self._tallies.changed_queues = self._tallies.changed_queues, set()
        rates, latency = self._meter.read(now)
        self._busy.note(self._tallies, changed)
        self._history.tick(now, self._depths)
        self.latest = Sample(
            point=Point(now, rates, latency, self._depths),
            standing=self._standing(),
            busiest=self._busy.busiest() if self.watchers else (),
            changed=tuple(sorted(changed)[:_MOST_CHANGED]),
            more=len(changed) > _MOST_CHANGED,
        )
        self.watchers.notify(self.latest)
        self._set()
