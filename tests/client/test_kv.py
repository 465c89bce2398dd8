"""The key-value store, against a real server."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from hark.client.administration.queue_admin import QueueAdmin
from hark.client.calling import Caller
from hark.client.keys.entries import Entry
from hark.client.keys.kv import KeyValue
from hark.client.parameters import KeyParts
from hark.client.transport.api import ConnectionFailed
from hark.errors import Conflict, InvalidInput, Overloaded
from tests.client.deliveries import pop
from tests.client.transports import Recorder, first_of, no_sleep

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
    stamp = await kv.set((queue, "ada"), {"name": "Ada"})
    entry = await kv.get((queue, "ada"))
    assert entry == Entry((queue, "ada"), msgspec.Raw(b'{"name":"Ada"}'), stamp)
    assert entry is not None
    assert entry.value == {"name": "Ada"}
    assert entry.decode(User) == User("Ada")
    with pytest.raises(InvalidInput, match="is not what was expected"):
        entry.decode(list[int])
    assert await kv.set((queue, "ada"), 1) > stamp


async def test_a_key_without_an_entry_is_none_and_null_is_a_value(kv: KeyValue, queue: str) -> None:
    assert await kv.get((queue,)) is None
    await kv.set((queue,), None)
    entry = await kv.get((queue,))
    assert entry is not None
    assert entry.value is None


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


async def test_a_raw_value_is_kept_byte_for_byte(kv: KeyValue, queue: str) -> None:
    await kv.set((queue,), msgspec.Raw(b'{ "a":1.50 }'))
    entry = await kv.get((queue,))
    assert entry is not None
    assert bytes(entry.raw) == b'{ "a":1.50 }'


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


async def test_delete_takes_the_key_alone_or_all_below_it(kv: KeyValue, queue: str) -> None:
    for key in ((queue,), (queue, 1), (queue, 1, "x"), (queue, 2)):
        await kv.set(key, 0)
    assert await kv.delete((queue, 1)) == 1
    assert await kv.delete((queue, 1)) == 0
    assert await kv.delete((queue,), exact=False) == 3


async def test_delete_many_is_one_commit(kv: KeyValue, queue: str) -> None:
    for key in ((queue, 1), (queue, 1, "x"), (queue, 2), (queue, 3)):
        await kv.set(key, 0)
    assert await kv.delete_many([(queue, 2), (queue, 4)]) == 1
    assert await kv.delete_many([(queue, 1), (queue, 3)], exact=False) == 3
    assert await kv.delete_many([]) == 0


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
    assert await kv.count() >= 8
    keys = {entry.key async for entry in kv.list(page_size=1000)}
    assert {(queue, 0), (f"{queue}-other", 0)} <= keys


async def test_entries_may_be_deleted_on_the_way(kv: KeyValue, queue: str) -> None:
    for number in range(7):
        await kv.set((queue, number), number)
    async for entry in kv.list((queue,), page_size=2):
        await kv.delete(entry.key)
    assert await kv.count((queue,)) == 0


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


async def test_a_change_that_does_not_fit_is_a_conflict(kv: KeyValue, queue: str) -> None:
    await kv.set((queue,), "text")
    with pytest.raises(Conflict) as caught:
        await kv.atomic().sum((queue,), 1).commit()
    assert caught.value.code == "value_mismatch"


async def test_a_full_queue_is_told_at_once(caller: Caller, kv: KeyValue, queue: str) -> None:
    await QueueAdmin(caller, queue).configure(max_size=1)
    await kv.atomic().enqueue(1, queue=queue).commit()
    with pytest.raises(Overloaded) as caught:
        await kv.atomic().enqueue(2, queue=queue).commit()
    assert caught.value.code == "queue_full"


async def test_of_many_who_check_the_same_version_one_wins(kv: KeyValue, queue: str) -> None:
    writes = [kv.atomic().check((queue,), None).set((queue,), number).commit() for number in range(8)]
    assert sum(done.ok for done in await asyncio.gather(*writes)) == 1


async def test_a_lost_reply_is_asked_for_again_only_where_twice_is_once(caller: Caller, queue: str) -> None:
    lossy = Recorder(caller.transport, lose=first_of(ATOMIC))
    kv = KeyValue(Caller(lossy, sleep=no_sleep))
    assert await kv.atomic().set((queue, "a"), 1).max((queue, "b"), 2).delete((queue, "c")).commit()
    assert lossy.asked(ATOMIC) == 2
    writes = [
        kv.atomic().sum((queue, "n"), 1),
        kv.atomic().append((queue, "l"), [1]),
        kv.atomic().enqueue(1, queue=queue),
        kv.atomic().check((queue, "x"), None).set((queue, "x"), 1),
    ]
    for write in writes:
        lossy.lose = first_of(ATOMIC)
        before = lossy.asked(ATOMIC)
        with pytest.raises(ConnectionFailed):
            await write.commit()
        assert lossy.asked(ATOMIC) == before + 1
    assert (await value_of(kv, queue, "n"), await value_of(kv, queue, "l")) == (1, [1])


# Wrong input ---------------------------------------------------------------------------------------------------
