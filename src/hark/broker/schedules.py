"""Schedules: messages that are pushed at due times, each due time exactly once, by whichever server is there.

A schedule is one value under `(OWN, "schedule", name)`, with a key `(OWN, "schedule_due", time, name)` in the order of
time. A run is one write: it checks the version of the schedule, advances it, moves the key of its time and pushes the
message. If several servers run the same due time, the check of all but the first fails, and they skip it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec

from hark import model
from hark.broker.keyvalue import AT_ONCE, KeyValue
from hark.broker.schedule_state import (
    DUE,
    KEPT_RUNS,
    MISSED_AFTER,
    SCHEDULES,
    Run,
    Schedule,
    ScheduleError,
    Skip,
    Spec,
    changes,
    key_of,
    moved,
    read_schedule,
    scheduled,
    time_text,
)
from hark.broker.sealing import SealedQueues
from hark.broker.timers import Timers, Wakeup
from hark.broker.upkeep import level_of
from hark.broker.work_queues import QueueLookup
from hark.clock import SECOND
from hark.engine.api import Engine
from hark.errors import Conflict, EngineFailure, HarkError, NotFound
from hark.model import QUEUE_MODE, Key, KeyEntry, KeyRange, NewMessage

log = logging.getLogger(__name__)

_MAX_ERROR = 500
_TRIES = 100
"""Of a change, while other servers run the schedule."""
_BACKOFF = (1 * SECOND, 2 * SECOND, 4 * SECOND, 8 * SECOND, 15 * SECOND, 30 * SECOND)
"""After failures. The last one is below `MISSED_AFTER`."""
_UNREADABLE_PAUSE = 60 * SECOND
_STORE_PAUSE = 1 * SECOND
_BACKLOG = 1000
"""How many of the keys that are due a server looks at, to choose a page."""
_POLL_SECONDS = 5.0
_LONGEST_REST = 30.0
"""Seconds of real time between looks at the clock, because the timers of the event loop stop while a machine sleeps."""
_OPEN = frozenset({"pending", "scheduled", "processing"})

MayUse = Callable[["Schedule | None"], None]
"""Raises if the caller may not use a schedule. None: a schedule that cannot be read, so its queue is unknown."""


def not_found() -> NotFound:
    """The error for a schedule that does not exist, or that the caller must not know."""
    return NotFound("Schedule not found", code="schedule_not_found")


class Schedules:
    """The schedules of the store, and the task of this server that runs them."""

    def __init__(
        self,
        keys: KeyValue,
        engine: Engine,
        sealed: SealedQueues,
        lookup: QueueLookup,
        timers: Timers,
        random: Callable[[], float],
    ) -> None:
        self._keys = keys
        self._engine = engine
        self._sealed = sealed
        self._lookup = lookup
        self._timers = timers
        self._random = random
        self._rang = asyncio.Event()
        self._wakeup = Wakeup(timers, self._rang.set)
        self._polls = engine.shared and not engine.follows
        self._task: asyncio.Task[None] | None = None
        self._changing: Counter[str] = Counter()
        self.counts: Counter[str] = Counter({"runs": 0, "overlap": 0, "missed": 0, "failures": 0})
        """Runs, skipped due times by reason, and failures, of this server."""

    # The schedules -----------------------------------------------------------------------------------------

    async def put(self, name: str, spec: Spec, may_use: MayUse) -> tuple[Schedule, bool]:
        """Create a schedule or change it. Returns whether it did not exist.

        An equal specification changes nothing. The due times change only with the timing.
        """
        await self._sealed.learn_of([spec.message.queue])
        with self._tries(name) as tries:
            for _ in tries:
                [entry] = await self._keys.fetch([key_of(name)])
                current = None
                if entry is not None:
                    with suppress(EngineFailure):  # It is replaced.
                        current = self._readable(entry, may_use)
                if current is not None and self._same(current.spec, spec):
                    return self.shown(current), False
                wanted = self._wanted(name, spec, current, self._timers.now())
                if await self._write(name, entry, current, wanted):
                    return self.shown(wanted), entry is None
        raise _busy()

    def _wanted(self, name: str, spec: Spec, current: Schedule | None, now: int) -> Schedule:
        """The new schedule: it keeps the state of the current one, and also its due times if the timing is equal."""
        spec = msgspec.structs.replace(spec, message=self._seal(spec.message))
        if current is not None and current.spec.timing == spec.timing:
            kept = msgspec.structs.replace(current, spec=spec, changed_at=now)
            return kept if kept.next_at is None else scheduled(kept, kept.next_at, now)
        anchor = now if spec.timing.start_at is None else spec.timing.start_at
        if current is None:
            new = Schedule(spec=spec, name=name, anchor=anchor, created_at=now, changed_at=now)
        else:
            new = msgspec.structs.replace(current, spec=spec, anchor=anchor, changed_at=now)
        return new if new.paused else scheduled(new, spec.timing.after(now, anchor), now)

    def _same(self, stored: Spec, given: Spec) -> bool:
        try:
            message = self._open(stored.message)
        except HarkError:
            return False  # It cannot be read, so it is replaced.
        # Which token declared it, and the labels that a new queue gets, do not count.
        stored_message = msgspec.structs.replace(message, producer=given.message.producer, labels=given.message.labels)
        return msgspec.structs.replace(stored, message=stored_message) == given

    async def get(self, name: str, may_use: MayUse) -> Schedule:
        """A schedule with a readable payload, and with the ids of the messages that are stored still."""
        schedule = self._readable(await self._entry(name), may_use)
        spec = schedule.spec
        runs = []
        for run in schedule.recent:
            message = await self._message(spec.message, run)
            runs.append(
                run
                if message is None
                else msgspec.structs.replace(run, message_id=message.id, partition_id=message.partition_id)
            )
        return self.shown(msgspec.structs.replace(schedule, recent=tuple(runs)))

    async def list(self, limit: int, offset: int, wanted: Callable[[Schedule], bool]) -> tuple[list[Schedule], int]:
        """A page of the schedules that match, by name, and the number of all that match."""
        page: list[Schedule] = []
        total = 0
        after: Key | None = None
        while True:
            entries = await self._keys.fetch_range(KeyRange(prefix=SCHEDULES, after=after, limit=AT_ONCE))
            for entry in entries:
                with suppress(EngineFailure):
                    schedule = read_schedule(entry)
                    if wanted(schedule):
                        if offset <= total < offset + limit:
                            page.append(schedule)
                        total += 1
            if len(entries) < AT_ONCE:
                return page, total
            after = entries[-1].key

    async def pause(self, name: str, may_use: MayUse) -> Schedule:
        """Pause a schedule. Due times during the pause are not missed runs."""

        def paused(schedule: Schedule, _now: int) -> Schedule:
            return msgspec.structs.replace(schedule, paused=True, next_at=None, wake_at=None)

        return await self._change(name, may_use, paused)

    async def resume(self, name: str, may_use: MayUse) -> Schedule:
        """Resume a schedule: its next due time is the first one after now."""

        def resumed(schedule: Schedule, now: int) -> Schedule:
            if not schedule.paused:
                return schedule
            active = msgspec.structs.replace(schedule, paused=False)
            return scheduled(active, active.spec.timing.after(now, active.anchor), now)

        return await self._change(name, may_use, resumed)

    async def run_now(self, name: str, may_use: MayUse) -> Run:
        """Push a message of a schedule now. Its due times do not change."""
        with self._tries(name) as tries:
            for _ in tries:
                entry = await self._entry(name)
                schedule = self._readable(entry, may_use)
                now = self._timers.now()
                run = Run(at=now, transaction_id=f"{name}@{time_text(now)}+now{entry.version}")
                plain = self._open(schedule.spec.message)
                message = msgspec.structs.replace(plain, transaction_id=run.transaction_id)
                changed = msgspec.structs.replace(
                    schedule, runs=schedule.runs + 1, recent=(run, *schedule.recent)[:KEPT_RUNS]
                )
                written = await self._keys.write_keys(changes(name, entry, schedule, changed, messages=[message]))
                if written.success:
                    self.counts["runs"] += 1
                    [outcome] = written.messages
                    return msgspec.structs.replace(
                        run, message_id=outcome.message_id, partition_id=outcome.partition_id
                    )
        raise _busy()

    async def delete(self, name: str, may_use: MayUse) -> None:
        """Delete a schedule. Messages that it pushed stay."""
        with self._tries(name) as tries:
            for _ in tries:
                entry, schedule = await self._entry(name), None
                with suppress(EngineFailure):
                    schedule = self._readable(entry, may_use)
                if await self._write(name, entry, schedule, None):
                    return
        raise _busy()

    async def _change(self, name: str, may_use: MayUse, change: Callable[[Schedule, int], Schedule]) -> Schedule:
        with self._tries(name) as tries:
            for _ in tries:
                entry = await self._entry(name)
                schedule = self._readable(entry, may_use)
                changed = change(schedule, self._timers.now())
                if changed is schedule or await self._write(name, entry, schedule, changed):
                    return self.shown(changed)
        raise _busy()

    async def _entry(self, name: str) -> KeyEntry:
        [entry] = await self._keys.fetch([key_of(name)])
        if entry is None:
            raise not_found()
        return entry

    def _readable(self, entry: KeyEntry, may_use: MayUse) -> Schedule:
        """A schedule that the caller may use. Raises `EngineFailure` if it cannot be read."""
        try:
            schedule = read_schedule(entry)
        except EngineFailure:
            may_use(None)
            raise
        may_use(schedule)
        return schedule

    @contextmanager
    def _tries(self, name: str) -> Iterator[range]:
        """Attempts to change a schedule. This server does not run it meanwhile, because each run refuses a change."""
        self._changing[name] += 1
        try:
            yield range(_TRIES)
        finally:
            self._changing[name] -= 1
            if not self._changing[name]:
                del self._changing[name]
                self._rang.set()

    async def _write(
        self, name: str, entry: KeyEntry | None, current: Schedule | None, changed: Schedule | None
    ) -> bool:
        return (await self._keys.write_keys(changes(name, entry, current, changed))).success

    # Values ------------------------------------------------------------------------------------------------

    def shown(self, schedule: Schedule) -> Schedule:
        """A schedule with a readable payload, or with null and the reason why it cannot be read."""
        message = schedule.spec.message
        payload, reason = self._sealed.shown(message.queue, msgspec.Raw(message.payload), message.sealed)
        message = msgspec.structs.replace(message, payload=bytes(payload), sealed=False)
        spec = msgspec.structs.replace(schedule.spec, message=message)
        return msgspec.structs.replace(schedule, spec=spec, unreadable=reason)

    def _open(self, message: NewMessage) -> NewMessage:
        """A message with a readable payload. It is encrypted again when it is written."""
        payload = self._sealed.read(message.queue, msgspec.Raw(message.payload), message.sealed)
        return msgspec.structs.replace(message, payload=bytes(payload), sealed=False)

    def _seal(self, message: NewMessage) -> NewMessage:
        return self._sealed.seal([message])[0]

    # The messages of earlier runs --------------------------------------------------------------------------

    async def _message(self, template: NewMessage, run: Run) -> model.MessageView | None:
        """The message of a run, while it is stored."""
        partition = await self._lookup.partition_id(template.queue, template.partition)
        return None if partition is None else await self._engine.message(partition, run.transaction_id)

    async def _overlap(self, schedule: Schedule, due_at: int, now: int) -> Skip | None:
        """Why a due time is skipped: the message of the run before is not settled. None: it is."""
        if schedule.spec.overlap == "allow" or not schedule.recent:
            return None
        message = await self._message(schedule.spec.message, schedule.recent[0])
        if message is None:
            return None
        # Without a group the message waits for the first one.
        states = [(one.group, one.state) for one in message.groups] or [("", message.state)]
        for group, state in states:
            if state in _OPEN:
                where = (
                    "in the default group" if group == QUEUE_MODE else f"in group {group}" if group else "for a group"
                )
                text = f"the message {message.id} of the run before is {state} {where}"
                return Skip(at=now, due_at=due_at, reason="overlap", text=text)
        return None

    # Running -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start to run the schedules that are due."""
        self._task = asyncio.create_task(self._run(), name="schedules")

    async def close(self) -> None:
        """Stop. A write that was begun completes or has no effect."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._wakeup.cancel()

    def notify(self, notification: model.KeyNotification) -> None:
        """Look again if the keys of due times changed, through this or another server."""
        keys = notification.keys
        if keys is None or any(key[:2] == DUE for key in keys):
            self._rang.set()

    async def _run(self) -> None:
        while True:
            self._rang.clear()
            rest = True
            try:
                rest = not await self._turn()
            except HarkError as error:
                log.log(level_of(error), "cannot run schedules; retrying every second: %s", error.text)
                self._wakeup.set(self._timers.now() + _STORE_PAUSE)
            except Exception:
                log.exception("cannot run schedules; retrying every second")
                self._wakeup.set(self._timers.now() + _STORE_PAUSE)
            if rest:
                await self._rest()

    async def _rest(self) -> None:
        """Wait for the next due time, or until keys of due times change."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS if self._polls else _LONGEST_REST):
                    await self._rang.wait()
            # A notification of another server can be lost, so its changes are also found without one.
            if self._rang.is_set() or self._polls or (self._wakeup and self._wakeup.due <= self._timers.now()):
                return

    async def _turn(self) -> bool:
        """Run what is due, at most a page of it. Returns whether something was due."""
        now = self._timers.now()
        keys = await self._keys.fetch_range(KeyRange(prefix=DUE, limit=AT_ONCE))
        is_backlog = self._engine.shared and len(keys) == AT_ONCE and int(keys[-1].key[2]) <= now
        if is_backlog:
            keys = await self._keys.fetch_range(KeyRange(prefix=DUE, limit=_BACKLOG))
        keys = [entry for entry in keys if entry.key[3] not in self._changing]  # Callers change these.
        due = [entry for entry in keys if int(entry.key[2]) <= now]
        if is_backlog:
            # Other servers run them, too: of many, each server takes others, so that few checks fail.
            first = int(self._random() * max(0, len(due) - AT_ONCE + 1))
            due = due[first : first + AT_ONCE]
        self._wakeup.cancel()
        if not due:
            if keys:
                self._wakeup.set(int(keys[0].key[2]))
            return False
        entries = await self._keys.fetch([key_of(str(one.key[3])) for one in due])
        # Together, so that their writes share a call.
        outcomes = await asyncio.gather(
            *(self._step(one, entry, now) for one, entry in zip(due, entries, strict=True)), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return True

    async def _step(self, due: KeyEntry, entry: KeyEntry | None, now: int) -> None:
        """Run one due time of a schedule, or record why that failed."""
        name = str(due.key[3])
        try:
            schedule = None if entry is None else read_schedule(entry)
        except EngineFailure as error:
            # The others must not wait for it. Another server may be able to read it.
            log.error("%s", error.text)
            await self._keys.write_keys(moved(due, entry, (*DUE, now + _UNREADABLE_PAUSE, name)))
            return
        if entry is None or schedule is None or schedule.wake_at != due.key[2]:
            right = None if schedule is None or schedule.wake_at is None else (*DUE, schedule.wake_at, name)
            await self._keys.write_keys(moved(due, entry, right))
            return
        try:
            await self._fire(entry, schedule, now)
        except Exception as error:
            await self._record(entry, schedule, now, error)

    async def _fire(self, entry: KeyEntry, schedule: Schedule, now: int) -> None:
        """Push the message of the next due time and advance the schedule, in one write."""
        spec, due_at = schedule.spec, schedule.next_at
        timing, anchor = spec.timing, schedule.anchor
        assert due_at is not None, "it has a key of its time"
        skips: list[tuple[int, Skip]] = []
        runs: list[Run] = []
        missed_until = now - MISSED_AFTER - spec.jitter - 1
        done_until = due_at
        if due_at <= missed_until and spec.catch_up != "all":
            done_until = timing.last(due_at, missed_until, anchor)
            # With `latest` the last one is pushed.
            end = done_until + (spec.catch_up == "none")
            if number := timing.count(due_at, end):
                text = f"{number} due times were missed and are not caught up (catchUp: {spec.catch_up})"
                last = timing.last(due_at, end - 1, anchor)
                skips.append((number, Skip(at=now, due_at=last, reason="missed", text=text)))
        if due_at > missed_until or spec.catch_up != "none":
            if (overlap := await self._overlap(schedule, done_until, now)) is not None:
                skips.append((1, overlap))
            else:
                text = f"{schedule.name}@{time_text(done_until)}"
                runs.append(Run(at=now, due_at=done_until, transaction_id=text))
        plain = self._open(spec.message) if runs else spec.message
        messages = [msgspec.structs.replace(plain, transaction_id=run.transaction_id) for run in runs]
        changed = msgspec.structs.replace(
            schedule,
            spec=msgspec.structs.replace(spec, message=self._seal(plain)),  # Encrypted as the queue is now.
            runs=schedule.runs + len(runs),
            skipped=schedule.skipped + sum(number for number, _ in skips),
            last_skip=skips[-1][1] if skips else schedule.last_skip,
            recent=(*runs, *schedule.recent)[:KEPT_RUNS],
            failures=0,
        )
        changed = scheduled(changed, timing.after(done_until, anchor), now)
        written = await self._keys.write_keys(changes(schedule.name, entry, schedule, changed, messages=messages))
        if not written.success:
            return  # Another server was first, or a caller changed the schedule.
        self.counts["runs"] += len(messages)
        for number, skip in skips:
            self.counts[skip.reason] += number
            log.info("schedule %s skipped the due time %s: %s", schedule.name, time_text(skip.due_at), skip.text)
        if schedule.failures:
            log.info("schedule %s runs again", schedule.name)

    async def _record(self, entry: KeyEntry, schedule: Schedule, now: int, error: Exception) -> None:
        """Record why a run failed. The due time stays, and is tried again later."""
        if isinstance(error, HarkError):
            text, code = error.text, error.code
        else:
            log.error("schedule %s failed", schedule.name, exc_info=error)
            text, code = f"the server failed: {error!r}", "internal_error"
        changed = msgspec.structs.replace(
            schedule,
            wake_at=now + _BACKOFF[min(schedule.failures, len(_BACKOFF) - 1)],
            last_error=ScheduleError(at=now, code=code, error=text[:_MAX_ERROR]),
            failures=schedule.failures + 1,
        )
        # If the store is unavailable, this fails, too, and nothing changed.
        if await self._write(schedule.name, entry, schedule, changed):
            self.counts["failures"] += 1
            if not schedule.failures:
                log.warning("schedule %s cannot push; it is tried again: %s", schedule.name, text)


def _busy() -> Conflict:
    return Conflict("the schedule is changed by others at this moment; retry", code="schedule_busy")
