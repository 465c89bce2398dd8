"""Watches of keys, against a real server and with a clock of our own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hark.client.calling import Caller, CallPolicy
from hark.client.keys.entries import Change
from hark.client.keys.kv import KeyValue
from hark.client.keys.watching import KeyWatch
from hark.client.transport.api import Answer, ConnectionFailed
from hark.client.transport.http import HttpTransport
from hark.clock import SystemClock
from hark.connecting import connect
from hark.engine.sqlite import SqliteEngine
from hark.errors import HarkError, InvalidInput
from tests.client.transports import Recorder, Script, problem
from tests.conftest import running_server

SECONDS = 20.0
"""Until something must have happened that happens at once."""


@pytest.fixture
def kv(caller: Caller) -> KeyValue:
    return KeyValue(caller)


async def next_of(watch: KeyWatch) -> Change:
    """The next change, which must come."""
    return await asyncio.wait_for(anext(watch), SECONDS)


# Of a real server ----------------------------------------------------------------------------------------------


async def test_what_is_there_comes_first_then_each_change(kv: KeyValue, queue: str) -> None:
    stamp = await kv.set((queue, 1), "old")
    watch = kv.watch([(queue, 1), (queue, "1")])
    first = await next_of(watch)
    assert first.entry is not None
    assert (first.key, first.value, first.entry.versionstamp) == ((queue, 1), "old", stamp)
    coming = asyncio.create_task(next_of(watch))
    await kv.set((queue, "1"), "text")
    assert (await coming).key == (queue, "1")
    await kv.delete((queue, 1))
    gone = await next_of(watch)
    assert (gone.key, gone.entry, gone.value) == ((queue, 1), None, None)


async def test_without_initial_only_changes_come(kv: KeyValue, queue: str) -> None:
    await kv.set((queue,), "old")
    watch = await kv.watch([(queue,)], initial=False).begin()
    await kv.set((queue,), "new")
    assert (await next_of(watch)).value == "new"


async def test_a_prefix_is_watched_with_keys_that_come_later(kv: KeyValue, queue: str) -> None:
    await kv.set((queue, "a"), 1)
    watch = kv.watch_prefix((queue,))
    assert (await next_of(watch)).key == (queue, "a")
    coming = asyncio.create_task(next_of(watch))
    await kv.set((f"{queue}-other", "x"), 0)
    await kv.set((queue, "b", 2), 2)
    assert (await coming).key == (queue, "b", 2)
    await kv.delete((queue,), exact=False)
    gone = [await next_of(watch), await next_of(watch)]
    assert {(one.key, one.entry) for one in gone} == {((queue, "a"), None), ((queue, "b", 2), None)}


async def test_a_thousand_keys_can_be_watched(kv: KeyValue, queue: str) -> None:
    prefix = queue[-6:]
    write = kv.atomic()
    for number in range(1000):
        write.set((prefix, number), number)
    await write.commit()
    below = await kv.watch_prefix((prefix,), limit=1000, initial=False).begin()
    several = await kv.watch([(prefix, number) for number in range(1000)], initial=False).begin()
    await kv.set((prefix, 999), "new")
    for watch in (below, several):
        assert (await next_of(watch)).value == "new"


async def test_more_than_an_address_can_say_is_refused_in_words(kv: KeyValue, queue: str) -> None:
    keys = [(queue, f"a key with spaces, commas and ü {number:04}") for number in range(1000)]
    with pytest.raises(InvalidInput, match="keys: too many, or too long, for one watch"):
        await kv.watch(keys).begin()
    watch = await kv.watch(keys[:300]).begin()
    await kv.set(keys[7], "new")
    assert (await next_of(watch)).value == "new"


async def test_a_watch_that_was_left_in_the_middle_goes_on(kv: KeyValue, queue: str) -> None:
    watch = await kv.watch([(queue,)]).begin()
    left = asyncio.create_task(anext(watch))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    await kv.set((queue,), 1)
    assert (await next_of(watch)).value == 1


async def test_nothing_is_asked_while_nothing_changes(url: str, queue: str) -> None:
    way = Recorder(HttpTransport(url))
    kv = KeyValue(Caller(way))
    watch = await kv.watch([(queue,)]).begin()
    way.changed.clear()
    coming = asyncio.create_task(next_of(watch))
    await way.changed.wait()
    await kv.set((queue,), 1)
    await coming
    assert [request.method for request in way.requests] == ["GET", "GET", "PUT"]
    await way.close()


async def test_it_goes_on_when_the_server_was_away(tmp_path: Path) -> None:
    with running_server(tmp_path, engine="sqlite:///hark.db") as first_url:
        transport = HttpTransport(first_url)
        kv = KeyValue(Caller(transport, CallPolicy(first_delay=0.01, max_delay=0.05)))
        watch = kv.watch([("a",)])
        await kv.set(("a",), "before")
        assert (await next_of(watch)).value == "before"
        coming = asyncio.create_task(next_of(watch))
        await asyncio.sleep(0)
    port = first_url.rpartition(":")[2]
    with running_server(tmp_path, engine="sqlite:///hark.db", arguments=("--port", port)):
        await kv.set(("a",), "after")
        assert (await coming).value == "after"
    await transport.close()


async def test_a_server_that_was_never_there_is_an_error() -> None:
    script = Script(ConnectionFailed("no server", sent=False))
    watch = KeyValue(Caller(script, CallPolicy(attempts=1))).watch([("a",)])
    with pytest.raises(ConnectionFailed):
        await anext(watch)


@pytest.mark.parametrize("where", ["elsewhere", "in this process"])
async def test_every_transport_has_it_and_a_closed_client_ends_it(url: str, queue: str, where: str) -> None:
    target = url if where == "elsewhere" else SqliteEngine(":memory:", clock=SystemClock())
    async with connect(target) as client:
        watch = client.kv.watch_prefix((queue,))
        coming = asyncio.create_task(next_of(watch))
        await client.kv.set((queue, 1), "new")
        assert (await coming).value == "new"
        waiting = asyncio.create_task(next_of(watch))
        await client.kv.get((queue, 1))
    with pytest.raises(HarkError) as caught:
        await waiting
    assert caught.value.code == "client_closed"


async def test_wrong_keys_are_refused_and_named(kv: KeyValue) -> None:
    with pytest.raises(InvalidInput, match="keys: expected a list of keys"):
        kv.watch("users")
    with pytest.raises(InvalidInput, match="prefix: Key cannot be empty"):
        kv.watch_prefix(())
    with pytest.raises(InvalidInput, match="limit must be a positive number"):
        await anext(kv.watch_prefix(("a",), limit=0))


# With a clock of our own ---------------------------------------------------------------------------------------

NOTHING = Answer(200, b'{"entries": [], "versionstamps": [""]}')
NEWS = Answer(200, b'{"entries": [{"key": ["a"], "value": 1, "versionstamp": "07"}], "versionstamps": ["07"]}')


class Clock:
    """Counts the pauses; asking takes no time."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        """Always the same."""
        return 0.0

    async def sleep(self, seconds: float) -> None:
        """Not really."""
        self.pauses.append(seconds)


def scripted(script: Script, clock: Clock) -> KeyWatch:
    """A watch of the key `a` over a script."""
    caller = Caller(script, CallPolicy(attempts=1, first_delay=1.0, max_delay=8.0))
    return KeyWatch(caller, "/keyval/api/watch/poll", {"keys": '[["a"]]'}, monotonic=clock.monotonic, sleep=clock.sleep)


async def test_empty_answers_that_come_at_once_are_not_asked_for_in_a_busy_loop() -> None:
    script, clock = Script(NOTHING, NOTHING, NOTHING, NOTHING, NEWS), Clock()
    assert (await anext(scripted(script, clock))).value == 1
    assert len(script.requests) == 5
    assert [low <= pause <= 2 * low for low, pause in zip((0.5, 1, 2), clock.pauses, strict=True)] == [True] * 3


async def test_a_server_that_is_away_is_asked_again_after_longer_and_longer_pauses() -> None:
    away = ConnectionFailed("away", sent=True)
    script, clock = Script(NOTHING, away, away, problem(503, "stopping", retry_after=5), NEWS), Clock()
    assert (await anext(scripted(script, clock))).value == 1
    short, longer, asked_for = clock.pauses
    assert 0.5 <= short <= 1 <= longer <= 2
    assert asked_for == 5


async def test_what_is_known_is_told_with_each_question() -> None:
    script = Script(NEWS, NOTHING)
    watch = scripted(script, Clock())
    await anext(watch)
    with pytest.raises(InvalidInput):
        script = Script(NEWS, problem(400, "invalid_input"))
        watch = scripted(script, Clock())
        await anext(watch)
        await anext(watch)
    first, second = (request.query or {} for request in script.requests)
    assert (first["versionstamps"], first["wait"]) == (None, False)
    assert (second["versionstamps"], second["wait"]) == ("07", True)
