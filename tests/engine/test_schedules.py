"""Schedules on every engine: each due time exactly once, whichever servers run, are killed, or have wrong clocks."""

from __future__ import annotations

import asyncio
import random
from itertools import count

import msgspec
import pytest

from hark.broker import Broker, schedules
from hark.broker.schedule_state import DUE, Spec, Timing
from hark.broker.schedules import Schedules
from hark.clock import SECOND, FakeClock
from hark.model import KeyRange, MessageFilter, NewMessage
from hark.settings import Settings
from hark.testing.server import FakeTimers

from .engines import ENGINES, EngineKind, Open

INTERVALS = {"seven": 7, "half": 30, "minute": 60, "odd": 97}
ROUNDS = 40


class Server:
    """A server with a clock of its own, which can be killed."""

    def __init__(self, open_engine: Open, clock: FakeClock, start: int) -> None:
        self.timers = FakeTimers(FakeClock(start))
        self.broker = Broker(open_engine(clock), Settings(), self.timers.clock, timers=self.timers)

    def kill(self) -> None:
        """Kill what runs schedules, whatever it does at this moment, and start another one."""
        broker, killed = self.broker, self.broker.schedules
        assert killed._task is not None
        killed._task.cancel()
        killed._wakeup.cancel()
        parts = (broker.keyvalue, broker.engine, broker.sealed, broker.queue_lookup)
        broker.schedules = Schedules(*parts, self.timers, random.random)
        broker.schedules.start()

    async def look(self) -> None:
        """Let it notice its time."""
        self.timers.advance(0)
        await asyncio.sleep(0)


async def next_due(server: Server) -> int:
    """The first due time in the store."""
    [keys] = await server.broker.engine.list_keys([KeyRange(prefix=DUE, limit=1)])
    return int(keys[0].key[2])


@pytest.mark.parametrize("kind", ENGINES, ids=lambda kind: kind.name)
async def test_each_due_time_is_pushed_exactly_once_by_three_servers_that_are_killed_and_have_wrong_clocks(
    kind: EngineKind, request: pytest.FixtureRequest, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every attempt has another transaction id, so that a second push of a due time would not be a duplicate.
    numbers = count()
    monkeypatch.setattr(schedules, "time_text", lambda due: f"{due}@{next(numbers)}")
    chance = random.Random(17)
    start = latest = clock.now()
    with kind.store(request) as open_engine:
        servers = [Server(open_engine, clock, start) for _ in range(1 if kind.exclusive else 3)]
        for server in servers:
            await server.broker.start()
        for name, seconds in INTERVALS.items():
            spec = Spec(timing=Timing(every=seconds * SECOND), message=NewMessage(f"of-{name}"), catch_up="all")
            await servers[0].broker.schedules.put(name, spec, lambda _: None)
        for _ in range(ROUNDS):
            for server in servers:
                # A clock jumps ahead, or back behind what others ran already.
                server.timers.clock._now += round(chance.uniform(-20, 40) * SECOND)
                latest = max(latest, server.timers.now())
            for _ in range(chance.randrange(30)):
                await chance.choice(servers).look()
            chance.choice(servers).kill()
        while await next_due(servers[0]) <= latest:
            for server in servers:
                server.timers.clock._now = max(latest, server.timers.now())
                await server.look()
        for name, seconds in INTERVALS.items():
            messages = await servers[0].broker.engine.messages(
                MessageFilter(queue=f"of-{name}", since=0, limit=100_000)
            )
            pushed = [int(message.transaction_id.split("@")[1]) for message in messages]
            interval = seconds * SECOND
            assert sorted(pushed) == list(range(start + interval, latest + 1, interval)), name
            schedule = await servers[0].broker.schedules.get(name, lambda _: None)
            assert schedule.runs == len(pushed)
        for server in servers:
            await server.broker.close()


@pytest.mark.parametrize("kind", ENGINES, ids=lambda kind: kind.name)
async def test_schedules_survive_a_restart_and_what_was_due_meanwhile_is_caught_up(
    kind: EngineKind, request: pytest.FixtureRequest, clock: FakeClock
) -> None:
    with kind.store(request) as open_engine:
        for round_ in range(3):
            server = Server(open_engine, clock, clock.now())
            await server.broker.start()
            if not round_:
                spec = Spec(timing=Timing(every=3600 * SECOND), message=NewMessage("q", payload=b"1"))
                await server.broker.schedules.put("s", spec, lambda _: None)
            while await next_due(server) <= clock.now():
                await server.look()
            schedule = await server.broker.schedules.get("s", lambda _: None)
            assert (schedule.runs, schedule.skipped) == (round_, round_ * 2)
            assert len(schedule.recent) == round_
            assert all(run.message_id is not None for run in schedule.recent)
            assert msgspec.json.decode(schedule.spec.message.payload) == 1
            await server.broker.close()
            clock.advance(3 * 3600 + 120)


@pytest.mark.parametrize("kind", ENGINES, ids=lambda kind: kind.name)
async def test_many_that_are_due_at_once_are_shared_by_the_servers_and_none_is_left(
    kind: EngineKind, request: pytest.FixtureRequest, clock: FakeClock
) -> None:
    number = 250
    with kind.store(request) as open_engine:
        servers = [Server(open_engine, clock, clock.now()) for _ in range(1 if kind.exclusive else 3)]
        for server in servers:
            await server.broker.start()
        spec = Spec(timing=Timing(every=60 * SECOND), message=NewMessage("q"), catch_up="none")
        put = servers[0].broker.schedules.put
        await asyncio.gather(*(put(f"s{one}", spec, lambda _: None) for one in range(number)))
        # Others are due later: a server that looks for work must not take them for what is due.
        later = Spec(timing=Timing(every=3600 * SECOND), message=NewMessage("q"))
        await asyncio.gather(*(put(f"later{one}", later, lambda _: None) for one in range(number)))
        for server in servers:
            server.timers.clock.advance(60)

        def runs() -> int:
            return sum(server.broker.schedules.counts["runs"] for server in servers)

        # A server counts its runs only after the store has answered.
        while await next_due(servers[0]) <= servers[0].timers.now() or runs() < number:
            for server in servers:
                await server.look()
        assert runs() == number
        messages = await servers[0].broker.engine.messages(MessageFilter(queue="q", since=0, limit=1000))
        assert len(messages) == number
        for server in servers:
            await server.broker.close()
