"""The key-value store and its watches, against a real server and with a clock of our own."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from hark.api import operations
from hark.client.arguments import KeyParts
from hark.client.calling import Caller, CallPolicy
from hark.client.keys import Change, Entry, KeyValue, KeyWatch
from hark.client.queue_admin import QueueAdmin
from hark.client.transport.api import Answer, ConnectionFailed
from hark.clock import SystemClock
from hark.connecting import connect
from hark.engine.sqlite import SqliteEngine
from hark.errors import Conflict, HarkError, InvalidInput, Overloaded
from tests.client.deliveries import pop
from tests.client.transports import Pauses, Recorder, Script, first_of, no_sleep, problem

ATOMIC = "/keyval/api/atomic"


@pytest.fixture
def kv(caller: Caller) -> KeyValue:
    return KeyValue(caller)


async def value_of(kv: KeyValue, *key: str | float | bool) -> object:
    """The value of a key that is there."""
    entry = await kv.get(key)
    assert entry is not None
    return entry.value


# Entries -------------------------------------------------------------------------------------------------------


class User(msgspec.Struct):
    """A value with a shape."""

    name: str


async def test_what_is_set_is_got_with_its_version(kv: KeyValue, queue: str) -> None:
    assert await kv.get((queue, "ada")) is None
    stamp = await kv.set((queue, "ada"), {"name": "Ada"})
    entry = await kv.get((queue, "ada"))
    assert entry == Entry((queue, "ada"), msgspec.Raw(b'{"name":"Ada"}'), stamp)
    assert entry is not None
    assert entry.value == {"name": "Ada"}
    assert entry.decode(User) == User("Ada")
    with pytest.raises(InvalidInput, match="does not have the expected type"):
        entry.decode(list[int])
    assert await kv.set((queue, "ada"), None) > stamp
    assert await value_of(kv, queue, "ada") is None
    await kv.set((queue, "ada"), msgspec.Raw(b'{ "a":1.50 }'))
    entry = await kv.get((queue, "ada"))
    assert entry is not None
    assert bytes(entry.raw) == b'{ "a":1.50 }'


@pytest.mark.parametrize(
    "part", ["17", 17, 17.5, True, "true", "a/b", "[1]", "", "ü?#%", "count", -3], ids=lambda part: f"{part!r}"
)
async def test_the_types_of_the_parts_of_a_key_are_exact(kv: KeyValue, queue: str, part: str | float | bool) -> None:
    others: list[KeyParts] = [(queue, other) for other in ("17", 17, 17.5, True, "true", "count") if other != part]
    await kv.set((queue, part), "mine")
    assert await kv.get_many(others) == [None] * len(others)
    entry = await kv.get((queue, part))
    assert entry is not None
    assert (entry.key, type(entry.key[1])) == ((queue, part), type(part))
    assert await kv.delete((queue, part)) == 1


async def test_get_many_keeps_the_order_and_any_number_is_taken(kv: KeyValue, queue: str) -> None:
    await kv.set((queue, 3), "three")
    await kv.set((queue, 1500), "last")
    found = await kv.get_many([(queue, number) for number in range(1501)])
    assert len(found) == 1501
    assert {index: entry.value for index, entry in enumerate(found) if entry} == {3: "three", 1500: "last"}
    assert await kv.get_many([]) == []


async def test_an_entry_is_gone_when_its_time_is_over(kv: KeyValue, queue: str) -> None:
    await kv.set((queue,), 1, expires_in=timedelta(hours=1))
    assert await value_of(kv, queue) == 1
    watch = await kv.watch([(queue,)], initial=False).begin()
    await kv.set((queue,), 2, expires_in=0.05)
    while (change := await anext(watch)).entry is not None:
        assert change.value == 2
    assert await kv.get((queue,)) is None


async def test_delete_takes_keys_alone_or_all_below_them(kv: KeyValue, queue: str) -> None:
    for key in ((queue,), (queue, 1), (queue, 1, "x"), (queue, 2), (queue, 3)):
        await kv.set(key, 0)
    assert [await kv.delete((queue, 2)) for _ in range(2)] == [1, 0]
    assert await kv.delete_many([(queue, 3), (queue, 4)]) == 1
    assert await kv.delete_many([]) == 0
    assert await kv.delete_many([(queue, 1)], exact=False) == 2
    await kv.set((queue, 1), 0)
    assert await kv.delete((queue,), exact=False) == 2


# Ranges --------------------------------------------------------------------------------------------------------


async def test_list_goes_through_all_pages_in_the_order_of_keys(kv: KeyValue, queue: str) -> None:
    for number in range(7):
        await kv.set((queue, number), number)
    await kv.set((f"{queue}-other", 0), "not below")
    assert [entry.value async for entry in kv.list((queue,), page_size=3)] == list(range(7))
    assert [entry.value async for entry in kv.list((queue,), page_size=3, reverse=True)] == list(reversed(range(7)))
    assert [entry.value async for entry in kv.list((queue,), limit=5, page_size=3)] == list(range(5))
    assert [entry.value async for entry in kv.list((queue,), limit=3, page_size=3)] == list(range(3))
    middle = [entry.value async for entry in kv.list((queue,), start=(queue, 2), end=(queue, 5))]
    assert middle == [2, 3, 4]
    assert await kv.count((queue,)) == 7
    async for entry in kv.list((queue,), page_size=2):
        await kv.delete(entry.key)  # On the way.
        await kv.set(("then", *entry.key), entry.value)
    assert (await kv.count((queue,)), await kv.count(("then", queue))) == (0, 7)
    assert await kv.count() >= 8
    keys = {entry.key async for entry in kv.list(page_size=1000)}
    assert {("then", queue, 0), (f"{queue}-other", 0)} <= keys


# Atomic writes -------------------------------------------------------------------------------------------------


async def test_an_atomic_write_does_all_of_it(kv: KeyValue, queue: str) -> None:
    await kv.set((queue, "gone"), 1)
    await kv.set((queue, "least"), 5)
    await kv.set((queue, "most"), 5)
    await kv.set((queue, "list"), [2])
    done = await (
        kv.atomic()
        .check((queue, "seat"), None)
        .set((queue, "seat"), "ada")
        .delete((queue, "gone"))
        .sum((queue, "sold"), 2)
        .min((queue, "least"), 3)
        .max((queue, "most"), 3)
        .append((queue, "list"), [3])
        .prepend((queue, "list"), [1])
        .commit()
    )
    assert done
    assert done.ok
    assert done.ids == ()
    found = {entry.key[1]: entry.value async for entry in kv.list((queue,))}
    assert found == {"seat": "ada", "sold": 2, "least": 3, "most": 5, "list": [1, 2, 3]}
    entry = await kv.get((queue, "seat"))
    assert entry is not None
    assert entry.versionstamp == done.versionstamp


async def test_a_check_that_fails_is_an_answer_and_nothing_happens(kv: KeyValue, queue: str) -> None:
    stamp = await kv.set((queue,), 1)
    refused = await kv.atomic().check((queue,), None).set((queue,), 2).commit()
    assert not refused
    assert (refused.ok, refused.versionstamp) == (False, None)
    assert await kv.atomic().check((queue,), stamp).set((queue,), 3, expires_in=60).commit()
    assert await value_of(kv, queue) == 3


async def test_messages_are_enqueued_with_their_options(caller: Caller, kv: KeyValue, queue: str) -> None:
    done = await (
        kv.atomic()
        .enqueue({"to": "ada"}, queue=queue, priority=5, retry_delays=[0.5], ttl=3600, keys_if_undelivered=[(queue,)])
        .enqueue("later", queue=queue, delay=timedelta(hours=1))
        .enqueue("at", queue=queue, deliver_at=datetime.now(UTC) + timedelta(hours=1))
        .commit()
    )
    assert len(done.ids) == 3
    [message] = await pop(caller, queue)
    assert (message.id, message.data) == (done.ids[0], {"to": "ada"})


async def test_a_change_that_does_not_fit_and_a_full_queue_are_refused_at_once(
    caller: Caller, kv: KeyValue, queue: str
) -> None:
    await kv.set((queue,), "text")
    with pytest.raises(Conflict) as conflict:
        await kv.atomic().sum((queue,), 1).commit()
    await QueueAdmin(caller, queue).configure(max_size=1)
    await kv.atomic().enqueue(1, queue=queue).commit()
    with pytest.raises(Overloaded) as full:
        await kv.atomic().enqueue(2, queue=queue).commit()
    assert (conflict.value.code, full.value.code) == ("value_mismatch", "queue_full")


async def test_a_lost_reply_is_requested_again_only_where_twice_is_once(caller: Caller, queue: str) -> None:
    lossy = Recorder(caller.transport, lose=first_of(ATOMIC))
    kv = KeyValue(Caller(lossy, sleep=no_sleep))
    assert await kv.atomic().set((queue, "a"), 1).max((queue, "b"), 2).delete((queue, "c")).commit()
    assert lossy.count(ATOMIC) == 2
    writes = [
        kv.atomic().sum((queue, "n"), 1),
        kv.atomic().append((queue, "l"), [1]),
        kv.atomic().enqueue(1, queue=queue),
        kv.atomic().check((queue, "x"), None).set((queue, "x"), 1),
    ]
    for write in writes:
        lossy.lose = first_of(ATOMIC)
        before = lossy.count(ATOMIC)
        with pytest.raises(ConnectionFailed):
            await write.commit()
        assert lossy.count(ATOMIC) == before + 1
    assert (await value_of(kv, queue, "n"), await value_of(kv, queue, "l")) == (1, [1])


# Watches of a real server --------------------------------------------------------------------------------------


SECONDS = 20.0
"""Until something must have happened that happens at once."""


async def next_of(watch: KeyWatch) -> Change:
    """The next change, which must come."""
    return await asyncio.wait_for(anext(watch), SECONDS)


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


async def test_a_thousand_keys_can_be_watched_and_more_than_an_address_can_say_is_refused_in_words(
    kv: KeyValue, queue: str
) -> None:
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
    keys = [(queue, f"a key with spaces, commas and ü {number:04}") for number in range(1000)]
    with pytest.raises(InvalidInput, match="keys: too many or too long for one watch"):
        await kv.watch(keys).begin()
    watch = await kv.watch(keys[:300]).begin()
    await kv.set(keys[7], "new")
    assert (await next_of(watch)).value == "new"
    with pytest.raises(InvalidInput, match="limit must be a positive number"):
        await anext(kv.watch_prefix(("a",), limit=0))


async def test_a_watch_that_was_left_goes_on_and_nothing_is_requested_while_nothing_changes(
    recorder: Recorder, queue: str
) -> None:
    kv = KeyValue(Caller(recorder))
    watch = await kv.watch([(queue,)]).begin()
    left = asyncio.create_task(anext(watch))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    recorder.requests.clear()
    recorder.changed.clear()
    coming = asyncio.create_task(next_of(watch))
    await recorder.changed.wait()
    await kv.set((queue,), 1)
    assert (await coming).value == 1
    assert [request.method for request in recorder.requests] == ["GET", "PUT"]


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


# With a clock of our own ---------------------------------------------------------------------------------------

NOTHING = Answer(200, b'{"entries": [], "versionstamps": [""]}')
CHANGED_ENTRY = Answer(200, b'{"entries": [{"key": ["a"], "value": 1, "versionstamp": "07"}], "versionstamps": ["07"]}')


def scripted(pauses: Pauses, *answers: Answer | Exception) -> tuple[KeyWatch, Script]:
    """A watch of the key `a` over a script."""
    script = Script(*answers)
    caller = Caller(script, CallPolicy(attempts=1, first_delay=1.0, max_delay=8.0))
    query = {"keys": '[["a"]]'}
    watch = KeyWatch(caller, operations.KEYVAL_POLL_KEYS, query, monotonic=pauses.monotonic, sleep=pauses.sleep)
    return watch, script


async def test_empty_answers_that_come_at_once_are_not_requested_in_a_busy_loop() -> None:
    pauses = Pauses()
    watch, script = scripted(pauses, NOTHING, NOTHING, NOTHING, NOTHING, CHANGED_ENTRY)
    assert (await anext(watch)).value == 1
    assert len(script.requests) == 5
    assert [low <= pause <= 2 * low for low, pause in zip((0.5, 1, 2), pauses.seconds, strict=True)] == [True] * 3


async def test_a_server_that_is_away_is_requested_again_after_longer_and_longer_pauses() -> None:
    away = ConnectionFailed("away", sent=True)
    pauses = Pauses()
    watch, _ = scripted(pauses, NOTHING, away, away, problem(503, "stopping", retry_after=5), CHANGED_ENTRY)
    assert (await anext(watch)).value == 1
    short, longer, requested = pauses.seconds
    assert 0.5 <= short <= 1 <= longer <= 2
    assert requested == 5
    never, _ = scripted(pauses, away)
    with pytest.raises(ConnectionFailed):  # One that was never there.
        await anext(never)


async def test_what_is_known_is_notified_with_each_question() -> None:
    watch, script = scripted(Pauses(), CHANGED_ENTRY, problem(400, "invalid_input"))
    await anext(watch)
    with pytest.raises(InvalidInput):
        await anext(watch)
    first, second = (request.query or {} for request in script.requests)
    assert (first["versionstamps"], first["wait"]) == (None, False)
    assert (second["versionstamps"], second["wait"]) == ("07", True)
