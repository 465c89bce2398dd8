"""A queue as lines of JSON, on every engine."""

from __future__ import annotations

import msgspec
import pytest

from hark.broker.export import export_queue
from hark.broker.sealing import SealedQueues
from hark.clock import SECOND, FakeClock
from hark.engine import hints
from hark.errors import NotFound
from hark.model import Limits, QueueOptions, QueueSpec
from hark.model.export import DeadLetterLine, EndLine, ExportLine, GroupLine, MessageLine, PositionLine, QueueLine
from hark.settings import Encryption

from .driver import NEW, Driver

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def exported(q: Driver, queue: str = "orders") -> list[ExportLine]:
    """All lines of a queue."""
    text = b"".join([part async for part in export_queue(q.engine, SealedQueues(q.engine, Encryption()), queue)])
    return [msgspec.json.decode(line, type=ExportLine) for line in text.splitlines()]


async def messages(q: Driver) -> list[tuple[str, int, object]]:
    """What an export has of messages: partition, offset, payload."""
    return [
        (line.partition, line.offset, msgspec.json.decode(line.payload))
        for line in await exported(q)
        if isinstance(line, MessageLine)
    ]


async def positions(q: Driver) -> dict[tuple[str, str], int]:
    """Where an export says that groups stand."""
    return {(line.group, line.partition): line.offset for line in await exported(q) if isinstance(line, PositionLine)}


async def test_an_export_has_the_queue_its_groups_its_messages_and_an_end(q: Driver, clock: FakeClock) -> None:
    options = QueueOptions(lease_time=7, retry_limit=0)
    await q.engine.configure([QueueSpec(name="orders", namespace="shop", task="sell", options=options)])
    await q.push("orders", "p1", {"n": 1}, transaction_id="t-1", priority=2)
    await q.push(
        "orders",
        "p1",
        2,
        delay_ms=1000,
        ttl_ms=5000,
        backoff_ms=(1, 2),
        undelivered_keys=(("a", 1),),
        trace_context=f"{PARENT} vendor=1",
    )
    await q.pop("orders", group="billing", auto_ack=True)
    await q.engine.limit_group("orders", "billing", Limits(max_in_flight=3))
    first, group, *rest, end = await exported(q)
    assert first == QueueLine(
        format=2, name="orders", namespace="shop", task="sell", options={"leaseTime": 7, "retryLimit": 0}, messages=2
    )
    assert group == GroupLine(name="billing", mode="ordered", limits=Limits(max_in_flight=3))
    plain, special = [line for line in rest if isinstance(line, MessageLine)]
    assert (plain.transaction_id, plain.priority, bytes(plain.payload)) == ("t-1", 2, b'{"n":1}')
    assert (plain.deliver_at, plain.expires_at, plain.backoff_schedule) == (None, None, None)
    assert (plain.traceparent, plain.tracestate) == (None, None)
    assert (special.traceparent, special.tracestate) == (PARENT, "vendor=1")
    assert (special.deliver_at, special.expires_at) == (clock.now() + SECOND, clock.now() + 5 * SECOND)
    assert (special.backoff_schedule, special.keys_if_undelivered) == ((1, 2), (("a", 1),))
    assert end == EndLine(messages=2)


async def test_what_was_removed_is_not_exported_and_a_payload_with_line_breaks_can_not_pass_for_others(
    q: Driver,
) -> None:
    await q.push("orders", "p1", msgspec.Raw(b'[1,\r\n{"type":"end","messages":0}\n,2]'))
    gone = await q.push_id("orders", "p1", 2)
    await q.push("orders", "p1", 3)
    await q.engine.delete_messages([gone])
    assert await messages(q) == [("p1", 1, [1, {"type": "end", "messages": 0}, 2]), ("p1", 3, 3)]


async def test_every_message_is_exported_once_in_order_whatever_groups_did(q: Driver) -> None:
    for partition in ("p1", "p2"):
        for start in range(0, 1500, 500):
            await q.push("orders", partition, *range(start, start + 500))
    leased = await q.pop("orders", "p1", batch=5)
    await q.ack_all(leased[:2])
    assert await messages(q) == [(name, n + 1, n) for name in ("p1", "p2") for n in range(1500)]


async def test_an_ordered_group_stands_behind_what_it_has_settled(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    await q.push("orders", "p2", 4)
    leased = await q.pop("orders", "p1", group="billing", batch=3)
    await q.ack_all([leased[0], leased[2]])
    assert await positions(q) == {("billing", "p1"): 2, ("billing", "p2"): 1}
    await q.ack(leased[1])
    clock.advance(1)
    assert await q.pop("orders", group="late", subscription=NEW) == []
    late = {("late", "p1"): 4, ("late", "p2"): 2}
    assert await positions(q) == {("billing", "p1"): 4, ("billing", "p2"): 1, **late}, (
        "one for new messages: at the end"
    )


async def test_a_shared_group_stands_at_its_oldest_open_message(q: Driver, clock: FakeClock) -> None:
    for payload in range(1, 4):
        await q.push("orders", "p1", payload)
        clock.advance(1)
    first = await q.pop("orders", group="work", group_mode="shared")
    second = await q.pop("orders", group="work")
    await q.ack_all(second)
    assert await positions(q) == {("work", "p1"): 1}
    await q.ack_all(first)
    assert await positions(q) == {("work", "p1"): 3}
    await q.ack_all(await q.pop("orders", group="work"))
    assert await positions(q) == {("work", "p1"): 4}


async def test_dead_letters_are_exported_with_everything_from_the_oldest_failure_on(
    q: Driver, clock: FakeClock
) -> None:
    await q.configure("orders", retry_limit=0)
    for number in range(1, 251):
        await q.push(
            "orders", "p1", number, transaction_id=f"t{number}", priority=1, trace_context=f"{PARENT} vendor=1"
        )
    for leased in await q.pop("orders", group="billing", batch=120):
        await q.kill(leased, "boom")
    clock.advance(1)
    for leased in await q.pop("orders", group="billing", batch=130):
        await q.kill(leased, "bang")
    lines = await exported(q)
    letters = [line for line in lines if isinstance(line, DeadLetterLine)]
    assert [line.transaction_id for line in letters] == [f"t{number}" for number in range(1, 251)]
    assert [line.error for line in letters] == ["boom"] * 120 + ["bang"] * 130
    first = letters[0]
    assert (first.partition, first.group, first.attempts, bytes(first.payload)) == ("p1", "billing", 1, b"1")
    assert (first.priority, first.traceparent, first.tracestate) == (1, PARENT, "vendor=1")
    assert (first.created_at, first.failed_at) == (clock.now() - SECOND, clock.now() - SECOND)
    assert lines[-1] == EndLine(messages=250, dead_letters=250)


async def test_dead_letters_that_are_too_large_together_are_exported_one_by_one(
    q: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [1, 1, 1, 1000, 1000, 1, 1000, 1]
    await q.push("orders", "p1", *("x" * size for size in sizes))
    for leased in await q.pop("orders", group="billing", batch=10):
        await q.kill(leased)
    monkeypatch.setattr(hints, "CALL_BYTES", 100)
    letters = [line for line in await exported(q) if isinstance(line, DeadLetterLine)]
    assert [len(line.payload) - 2 for line in letters] == sizes


async def test_a_queue_that_is_not_there_can_not_be_exported(q: Driver) -> None:
    with pytest.raises(NotFound):
        await exported(q, "nowhere")
