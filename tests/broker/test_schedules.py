"""Schedules in a broker: what is missed, what overlaps, pauses, failures, encrypted queues and damaged values."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime

import msgspec
import pytest

from hark.broker import Broker
from hark.broker.broker import PUSH_MAINTENANCE
from hark.broker.keyvalue import AT_ONCE
from hark.broker.schedule_state import DUE, SCHEDULES, CatchUp, Overlap, Schedule, Spec, Timing, jitter_of, key_of
from hark.clock import SECOND
from hark.engine.api import Answers
from hark.engine.sqlite import SqliteEngine
from hark.errors import EngineFailure, NotFound
from hark.model import (
    Key,
    KeyEntry,
    KeyMutation,
    KeyRange,
    KeyWrite,
    KeyWritten,
    MessageFilter,
    NewMessage,
    PopRequest,
    QueueOptions,
    QueueSpec,
    Settlement,
)
from hark.settings import Encryption, Settings
from hark.testing.server import FakeTimers

KEY, OTHER_KEY = "ab" * 32, "cd" * 32
MINUTE = 60


class CountingEngine(SqliteEngine):
    """A store in memory that counts calls of keys, and can fail."""

    def __init__(self, timers: FakeTimers) -> None:
        super().__init__(":memory:", clock=timers)
        self.lists = 0
        self.writes: list[int] = []
        self.failures = 0

    async def list_keys(self, ranges: Sequence[KeyRange]) -> list[list[KeyEntry]]:
        """Count."""
        self.lists += 1
        return await super().list_keys(ranges)

    async def write_keys(self, requests: Sequence[KeyWrite]) -> Answers[KeyWritten]:
        """Count, or fail."""
        if self.failures:
            self.failures -= 1
            raise EngineFailure("the disk does not answer", code="store_unavailable")
        self.writes.append(len(requests))
        return await super().write_keys(requests)


class Fixture:
    """A broker whose clock the test moves."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.timers = FakeTimers()
        self.engine = CountingEngine(self.timers)
        self.broker = Broker(self.engine, settings or Settings(), self.timers.clock, timers=self.timers)
        self.start = self.timers.now()

    async def put(
        self,
        name: str = "s",
        seconds: float = MINUTE,
        *,
        payload: bytes = b"1",
        queue: str = "q",
        overlap: Overlap = "allow",
        catch_up: CatchUp = "latest",
        jitter: float = 0,
    ) -> Schedule:
        """Put a schedule with an interval."""
        spec = Spec(
            timing=Timing(every=round(seconds * SECOND)),
            message=NewMessage(queue, payload=payload),
            overlap=overlap,
            catch_up=catch_up,
            jitter=round(jitter * SECOND),
        )
        schedule, _ = await self.broker.schedules.put(name, spec, lambda _: None)
        return schedule

    async def get(self, name: str = "s") -> Schedule:
        """A schedule."""
        return await self.broker.schedules.get(name, lambda _: None)

    async def caught_up(self) -> None:
        """Wait until nothing is due, and the task rests until the next due time."""
        schedules = self.broker.schedules
        while True:
            [keys] = await SqliteEngine.list_keys(self.engine, [KeyRange(prefix=DUE, limit=1)])
            due = int(keys[0].key[2]) if keys else None
            rests_until = schedules._wakeup.due if schedules._wakeup else None
            if due == rests_until and (due is None or due > self.timers.now()) and not schedules._rang.is_set():
                return
            self.timers.advance(0)  # The task may have set a timer for a time that is over.
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Move the clock from one timer to the next, as time does."""
        await self.caught_up()
        end = self.timers.now() + round(seconds * SECOND)
        while (due := self.timers.next_due()) is not None and due <= end:
            self.timers.advance((due - self.timers.now()) / SECOND)
            await self.caught_up()
        await self.jump((end - self.timers.now()) / SECOND)

    async def jump(self, seconds: float) -> None:
        """Move the clock at once, as if no server had run."""
        self.timers.clock.advance(seconds)
        await self.caught_up()

    async def runs(self, queue: str = "q") -> list[float]:
        """The due times of the messages that were pushed, in seconds since the start, in order."""
        messages = await self.engine.messages(MessageFilter(queue=queue, since=0, limit=100_000))
        assert len({one.transaction_id for one in messages}) == len(messages)
        return [
            round(time_in(one.transaction_id) - self.start / SECOND, 3)
            for one in sorted(messages, key=lambda one: one.offset)
        ]


def time_in(transaction_id: str) -> float:
    """The due time in a transaction id."""
    return datetime.fromisoformat(transaction_id.partition("@")[2]).timestamp()


@pytest.fixture
async def one() -> AsyncIterator[Fixture]:
    fixture = Fixture(Settings(encryption=Encryption(key=KEY)))
    await fixture.broker.start()
    yield fixture
    await fixture.broker.close()


async def test_each_due_time_is_pushed_once_and_the_schedule_knows_its_runs(one: Fixture) -> None:
    assert (await one.put(payload=b'{"x": 1}')).next_at == one.start + 60 * SECOND
    await one.advance(59.9)
    assert await one.runs() == []
    await one.advance(300)
    assert await one.runs() == [60, 120, 180, 240, 300]
    schedule = await one.get()
    assert (schedule.runs, schedule.next_at) == (5, one.start + 360 * SECOND)
    assert [run.due_at for run in schedule.recent] == [
        one.start + second * SECOND for second in (300, 240, 180, 120, 60)
    ]
    popped = await one.broker.pop(PopRequest(queue="q", batch=5))
    assert [bytes(message.payload) for message in popped.messages] == [b'{"x": 1}'] * 5
    assert [run.message_id for run in schedule.recent] == [message.id for message in reversed(popped.messages)]


@pytest.mark.parametrize(
    ("catch_up", "expected", "skipped"),
    [
        # The clock is at 330: 300 is late by 30 seconds only, so it was not missed.
        ("none", [300, 360], 4),
        ("latest", [240, 300, 360], 3),
        ("all", [60, 120, 180, 240, 300, 360], 0),
    ],
)
async def test_catch_up_decides_what_happens_with_missed_due_times(
    one: Fixture, catch_up: CatchUp, expected: list[int], skipped: int
) -> None:
    await one.put(catch_up=catch_up)
    await one.jump(330)
    await one.advance(30)
    assert await one.runs() == expected
    schedule = await one.get()
    assert (schedule.runs, schedule.skipped) == (len(expected), skipped)
    if skipped:
        assert schedule.last_skip is not None
        assert (schedule.last_skip.reason, f"{skipped} due times" in schedule.last_skip.text) == ("missed", True)
        assert schedule.last_skip.due_at == one.start + 60 * skipped * SECOND


async def test_a_schedule_with_many_missed_due_times_does_not_delay_the_others(one: Fixture) -> None:
    await one.put("many", 1, catch_up="all")
    for number in range(5):
        await one.put(f"other-{number}", 301)
    await one.jump(301)
    messages = await one.engine.messages(MessageFilter(queue="q", since=0, limit=1000))
    assert len(messages) == 306
    others = [one.offset for one in messages if one.transaction_id.startswith("other")]
    assert max(others) <= 12, "they take turns"


async def test_an_overlapping_run_is_skipped_with_the_reason_until_the_message_is_settled(one: Fixture) -> None:
    await one.put(overlap="skip")
    await one.advance(120)
    schedule = await one.get()
    assert (await one.runs(), schedule.skipped) == ([60], 1)
    assert schedule.last_skip is not None
    text = f"the message {schedule.recent[0].message_id} of the run before is pending for a group"
    assert (schedule.last_skip.reason, schedule.last_skip.text) == ("overlap", text)
    popped = await one.broker.pop(PopRequest(queue="q", group="workers", lease_ms=3_600_000))
    await one.advance(60)
    schedule = await one.get()
    assert schedule.last_skip is not None
    assert "is processing in group workers" in schedule.last_skip.text
    [message] = popped.messages
    await one.broker.settle(
        [Settlement(message.transaction_id, message.partition_id, "retry", popped.lease_id, None, 90_000, "workers")]
    )
    await one.advance(60)
    schedule = await one.get()
    assert schedule.last_skip is not None
    assert "is scheduled in group workers" in schedule.last_skip.text
    await one.advance(60)
    popped = await one.broker.pop(PopRequest(queue="q", group="workers"))
    [message] = popped.messages
    await one.broker.settle(
        [Settlement(message.transaction_id, message.partition_id, "completed", popped.lease_id, None, None, "workers")]
    )
    await one.advance(60)
    assert await one.runs() == [60, 360]


async def test_an_overlap_is_found_after_a_restart_and_after_the_queue_was_deleted(one: Fixture) -> None:
    for partition in range(150):  # The partition is not among the first.
        await one.broker.push([NewMessage("q", f"0Default{partition}")])
    await one.put(overlap="skip")
    await one.advance(60)
    one.broker.queue_lookup._ids.clear()
    await one.advance(60)
    assert (await one.get()).skipped == 1
    await one.broker.delete_queues(["q"])
    await one.advance(60)
    assert await one.runs() == [180]
    await one.advance(60)
    assert ((await one.get()).skipped, await one.runs()) == (2, [180])


async def test_an_equal_schedule_changes_nothing_and_other_settings_keep_the_due_times(one: Fixture) -> None:
    await one.put()
    [before] = await one.broker.keyvalue.fetch([key_of("s")])
    await one.advance(30)
    await one.put()
    assert await one.broker.keyvalue.fetch([key_of("s")]) == [before]
    changed = await one.put(payload=b"2")
    assert changed.next_at == one.start + 60 * SECOND
    assert (await one.put(seconds=90)).next_at == one.start + 120 * SECOND
    await one.advance(90)
    assert await one.runs() == [120]
    [keys] = await one.engine.list_keys([KeyRange(prefix=DUE)])
    assert len(keys) == 1, "the keys of the times before are gone"


async def test_due_times_during_a_pause_are_not_missed_and_a_declaration_does_not_resume(one: Fixture) -> None:
    await one.put(catch_up="all")
    await one.advance(70)
    paused = await one.broker.schedules.pause("s", lambda _: None)
    assert (paused.paused, paused.next_at) == (True, None)
    await one.put(catch_up="all")
    await one.put(catch_up="all", payload=b"2")
    await one.advance(600)
    assert await one.runs() == [60]
    resumed = await one.broker.schedules.resume("s", lambda _: None)
    assert resumed.next_at == one.start + 720 * SECOND
    await one.advance(50)
    assert await one.runs() == [60, 720]
    assert (await one.get()).skipped == 0


async def test_a_schedule_that_catches_up_can_be_paused(one: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run changes the schedule, and so refuses a change by a caller that has read it before."""
    for name in ("s", "t", "u"):
        await one.put(name, seconds=1, catch_up="all")
    schedules = one.broker.schedules
    fetch = schedules._keys.fetch

    async def read_slowly(keys: Sequence[Key]) -> list[KeyEntry | None]:
        entries = await fetch(keys)
        if len(keys) == 1:  # The caller. The task that runs schedules reads more.
            before = schedules.counts["runs"]
            for _ in range(100_000):
                if schedules.counts["runs"] >= before + 4:
                    break
                await asyncio.sleep(0)
        return entries

    monkeypatch.setattr(schedules._keys, "fetch", read_slowly)
    one.timers.advance(100_000)
    await schedules.pause("s", lambda _: None)
    assert len(await one.runs()) < 1000


async def test_a_requested_run_pushes_at_once_and_moves_no_due_time(one: Fixture) -> None:
    await one.put()
    await one.broker.schedules.pause("s", lambda _: None)
    run = await one.broker.schedules.run_now("s", lambda _: None)
    second = await one.broker.schedules.run_now("s", lambda _: None)
    popped = await one.broker.pop(PopRequest(queue="q", batch=9))
    assert [message.id for message in popped.messages] == [run.message_id, second.message_id]
    schedule = await one.get()
    assert (schedule.runs, schedule.paused, schedule.recent[0].due_at) == (2, True, None)


async def test_a_server_takes_any_page_of_many_due_times_also_while_one_of_them_is_changed(
    one: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other servers of the store take others, so that few of their writes are refused."""
    names = [f"s{number:03}" for number in range(AT_ONCE + 50)]
    for name in names:
        await one.put(name)
    await one.caught_up()
    one.timers.clock.advance(60)
    schedules = one.broker.schedules
    monkeypatch.setattr(schedules._engine, "shared", True)
    monkeypatch.setattr(schedules, "_random", lambda: 0.999)
    with schedules._tries(names[0]):
        await schedules._turn()
    messages = await one.engine.messages(MessageFilter(queue="q", since=0, limit=1000))
    first = sorted(messages, key=lambda message: message.offset)[:AT_ONCE]
    assert {message.transaction_id.partition("@")[0] for message in first} == set(names[-AT_ONCE:])


async def test_a_deleted_schedule_runs_no_more_and_leaves_no_key(one: Fixture) -> None:
    await one.put()
    await one.broker.schedules.delete("s", lambda _: None)
    await one.advance(120)
    assert await one.runs() == []
    assert await one.engine.list_keys([KeyRange(prefix=SCHEDULES), KeyRange(prefix=DUE)]) == [[], []]
    with pytest.raises(NotFound, match="Schedule not found"):
        await one.broker.schedules.delete("s", lambda _: None)


async def test_jitter_delays_each_due_time_by_the_same_part_whoever_computes_it(one: Fixture) -> None:
    await one.put(jitter=40)
    delay = jitter_of("s", one.start + 60 * SECOND, 40 * SECOND)
    assert 0 < delay < 40 * SECOND
    await one.advance(60 + delay / SECOND - 0.001)
    assert await one.runs() == []
    await one.advance(0.001)
    assert await one.runs() == [60]
    parts = {jitter_of("s", due, 40 * SECOND) // SECOND for due in range(0, 100_000 * SECOND, 60 * SECOND)}
    assert parts == set(range(40))


async def test_a_due_time_waits_while_pushes_are_stopped_and_the_error_is_recorded(one: Fixture) -> None:
    await one.put(catch_up="all")
    await one.broker.set_maintenance(PUSH_MAINTENANCE, True)
    await one.advance(130)
    schedule = await one.get()
    assert (schedule.runs, schedule.next_at, schedule.failures) == (0, one.start + 60 * SECOND, 7)
    assert schedule.last_error is not None
    assert (schedule.last_error.code, "maintenance" in schedule.last_error.error) == ("maintenance", True)
    await one.broker.set_maintenance(PUSH_MAINTENANCE, False)
    await one.advance(30)
    assert await one.runs() == [60, 120]
    schedule = await one.get()
    assert (schedule.failures, schedule.runs) == (0, 2)
    assert schedule.last_error is not None, "it stays visible"


async def test_a_full_queue_of_one_schedule_does_not_stop_the_others(one: Fixture) -> None:
    await one.broker.configure(QueueSpec(name="full", options=QueueOptions(max_size=1)))
    await one.broker.push([NewMessage("full")])
    await one.put("a", queue="full")
    await one.put("b")
    await one.advance(180)
    assert await one.runs() == [60, 120, 180]
    schedule = await one.get("a")
    assert schedule.last_error is not None
    assert schedule.last_error.code == "queue_full"
    assert one.broker.schedules.counts["failures"] == schedule.failures > 0


async def test_a_store_that_does_not_answer_loses_no_due_time(one: Fixture) -> None:
    await one.put()
    await one.put("t")
    await one.caught_up()
    one.engine.failures = 3
    schedules = one.broker.schedules
    while one.engine.failures:
        if schedules._wakeup and not schedules._rang.is_set():
            one.timers.advance((schedules._wakeup.due - one.timers.now()) / SECOND)
        await asyncio.sleep(0)
    assert await one.runs() == []
    await one.advance(5)
    assert await one.runs() == [60, 60]
    assert [(await one.get(name)).failures for name in ("s", "t")] == [0, 0]


async def test_payloads_of_encrypted_queues_are_stored_encrypted_and_pushed_as_the_queue_wants(one: Fixture) -> None:
    await one.broker.configure(QueueSpec(name="q", options=QueueOptions(encryption_enabled=True)))
    await one.put(payload=b'"secret"')
    [entry] = await one.broker.keyvalue.fetch([key_of("s")])
    assert entry is not None
    stored = msgspec.json.decode(entry.value, type=Schedule)
    assert (stored.spec.message.sealed, b"secret" in stored.spec.message.payload) == (True, False)
    assert (await one.get()).spec.message.payload == b'"secret"'
    await one.put(payload=b'"secret"')
    assert await one.broker.keyvalue.fetch([key_of("s")]) == [entry], "the same payload, so nothing changes"
    await one.advance(60)
    await one.broker.configure(QueueSpec(name="q"))
    await one.advance(60)
    await one.broker.configure(QueueSpec(name="q", options=QueueOptions(encryption_enabled=True)))
    await one.advance(60)
    popped = await one.broker.pop(PopRequest(queue="q", batch=9))
    assert [bytes(message.payload) for message in popped.messages] == [b'"secret"'] * 3
    sealed = [(await one.engine.message(message.partition_id, message.id)) for message in popped.messages]
    assert [view is not None and view.sealed for view in sealed] == [True, False, True]


async def test_without_the_key_a_schedule_waits_and_says_so() -> None:
    one = Fixture(Settings(encryption=Encryption(key=OTHER_KEY)))
    await one.broker.start()
    await one.broker.configure(QueueSpec(name="q", options=QueueOptions(encryption_enabled=True)))
    await one.put(payload=b'"secret"')
    await one.put("other", queue="plain")
    one.broker.sealed._sealer = type(one.broker.sealed._sealer)([KEY])
    await one.advance(60)
    schedule = await one.get()
    assert schedule.last_error is not None
    assert schedule.last_error.code == "encryption_key_missing"
    assert (schedule.spec.message.payload, "encryption_key_missing" in (schedule.unreadable or "")) == (b"null", True)
    assert await one.runs("plain") == [60]
    one.broker.sealed._sealer = type(one.broker.sealed._sealer)([KEY, OTHER_KEY])
    await one.advance(2)
    assert await one.runs() == [60]
    await one.broker.close()


async def test_a_schedule_that_cannot_be_read_does_not_stop_the_others_and_can_be_replaced(
    one: Fixture, caplog: pytest.LogCaptureFixture
) -> None:
    await one.put("a")
    await one.put("b")
    damage = KeyMutation(kind="set", key=key_of("a"), value=b'{"name": "a", "from": "the future"}')
    await one.broker.keyvalue.write_keys(KeyWrite(mutations=[damage]))
    await one.advance(180)
    assert await one.runs() == [60, 120, 180]
    assert "schedule 'a' cannot be read" in caplog.text
    found, total = await one.broker.schedules.list(10, 0, lambda _: True)
    assert ([schedule.name for schedule in found], total) == (["b"], 1)
    with pytest.raises(EngineFailure, match="cannot be read"):
        await one.get("a")
    await one.put("a", queue="again")
    await one.advance(70)
    assert await one.runs("again") == [60 + 180]
    await one.broker.keyvalue.write_keys(KeyWrite(mutations=[damage]))
    await one.broker.schedules.delete("a", lambda _: None)
    await one.advance(120)
    [keys] = await one.engine.list_keys([KeyRange(prefix=DUE)])
    assert [key.key[3] for key in keys] == ["b"], "a key of a time without a schedule is removed"


async def test_a_key_of_the_wrong_time_is_corrected(one: Fixture) -> None:
    await one.put(seconds=600)
    await one.broker.keyvalue.write_keys(
        KeyWrite(mutations=[KeyMutation(kind="set", key=(*DUE, one.start + SECOND, "s"))])
    )
    await one.advance(600)
    assert await one.runs() == [600]
    [keys] = await one.engine.list_keys([KeyRange(prefix=DUE)])
    assert [key.key[2:] for key in keys] == [(one.start + 1200 * SECOND, "s")]


async def test_an_idle_server_reads_nothing_whatever_the_number_of_schedules(one: Fixture) -> None:
    for start in range(0, 1000, 100):
        await asyncio.gather(*(one.put(f"s{number}", 3600 + number) for number in range(start, start + 100)))
    await one.caught_up()
    lists = one.engine.lists
    await one.advance(3000)
    assert one.engine.lists == lists


async def test_schedules_that_are_due_together_share_writes(one: Fixture) -> None:
    for start in range(0, 1000, 100):
        await asyncio.gather(*(one.put(f"s{number}") for number in range(start, start + 100)))
    one.engine.writes.clear()
    await one.advance(61)
    assert len(await one.runs()) == 1000
    assert sum(one.engine.writes) == 1000
    assert len(one.engine.writes) <= 20


async def test_a_clock_that_is_set_back_repeats_nothing(one: Fixture) -> None:
    await one.put(catch_up="all")
    await one.advance(300)
    one.timers.clock._now -= 200 * SECOND
    one.timers.advance(0)
    await one.caught_up()
    await one.advance(199)
    assert await one.runs() == [60, 120, 180, 240, 300]
    await one.advance(61)
    assert await one.runs() == [60, 120, 180, 240, 300, 360]
