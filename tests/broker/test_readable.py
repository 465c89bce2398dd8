"""Rule 26: one message that can't be read never holds up the rest."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

import msgspec
import pytest

from hark.broker import Broker
from hark.engine.sqlite import SqliteEngine
from hark.errors import EngineFailure, HarkError
from hark.model import (
    DeadLetterFilter,
    GroupMode,
    KeyMutation,
    KeyRange,
    KeyWrite,
    NewDeadLetter,
    NewMessage,
    PopRequest,
    PopResult,
    QueueOptions,
    QueueSpec,
    Settlement,
    SettleOutcome,
)
from hark.model.export import EndLine, ExportLine, MessageLine, UnreadableLine
from hark.settings import Encryption, Settings
from tests.broker.delivery.harness import Server, payloads, serving

KEY, OTHER_KEY = "ab" * 32, "cd" * 32
both_modes = pytest.mark.parametrize("mode", ["ordered", "shared"])


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving(Settings(encryption=Encryption(key=KEY, old_keys=(OTHER_KEY,)))) as server:
        options = QueueOptions(encryption_enabled=True, dead_letter_queue=False, retry_limit=0)
        await server.broker.configure(QueueSpec(name="secrets", options=options))
        yield server


async def push(broker: Broker, *numbers: int, partition: str = "p") -> None:
    """Numbers, each as a message."""
    await broker.push([NewMessage("secrets", partition, str(number).encode()) for number in numbers])


async def damage(server: Server, offset: int, partition: str = "p") -> None:
    """Change a stored payload, as a broken disk would."""
    sql = (
        "update messages set payload = substr(payload, 1, length(payload) - 9) || 'AAAAAAA' || '\"'"
        f" where offset = {offset} and partition = (select id from partitions where name = '{partition}')"
    )
    engine = cast(SqliteEngine, server.engine)
    await engine._write(lambda transaction: transaction.connection.execute(sql).fetchall())


def without_the_key(server: Server, key: str = KEY) -> None:
    """The server is started again without a key that messages are sealed with."""
    left = Encryption(key=OTHER_KEY if key == KEY else KEY)
    sealed = server.broker.sealed
    sealed._sealer = type(sealed._sealer)([left.key])


def with_both_keys(server: Server) -> None:
    """The operator has added it again."""
    sealed = server.broker.sealed
    sealed._sealer = type(sealed._sealer)([KEY, OTHER_KEY])


def request(mode: GroupMode = "ordered", **fields: object) -> PopRequest:
    """A pop."""
    wanted = {"group": "g", "batch": 10} | fields
    return PopRequest(queue="secrets", group_mode=mode, **wanted)  # type: ignore[arg-type]  # of any kind


async def drained(server: Server, request: PopRequest) -> list[list[bytes]]:
    """What comes of the queue, batch by batch, each of them completed."""
    batches = []
    while (got := await server.broker.pop(request)).messages:
        batches.append(payloads(got))
        if got.lease_id:
            outcomes = await server.settle(got, group="g")
            assert all(outcome.success for outcome in outcomes)
    return batches


@both_modes
@pytest.mark.parametrize("auto_ack", [False, True])
async def test_rule_26_a_damaged_message_is_a_dead_letter_at_once_and_the_batch_comes_without_it(
    server: Server, mode: GroupMode, auto_ack: bool
) -> None:
    await push(server.broker, 1, 2, 3, 4)
    await push(server.broker, 5, 6, partition="q")
    await damage(server, 1)
    await damage(server, 3)
    await damage(server, 2, "q")
    batches = await drained(server, request(mode, partitions=2, auto_ack=auto_ack))
    assert sorted(number for batch in batches for number in batch) == [b"2", b"4", b"5"]
    assert len(batches[0]) >= 2, "together"
    letters = (await server.broker.dead_letters(DeadLetterFilter())).items
    assert sorted((one.partition, one.attempts) for one in letters) == [("p", 1), ("p", 1), ("q", 1)]
    assert {one.error.split(":")[0] for one in letters} == {"payload_corrupt"}
    assert server.broker.readable.damaged == 3


@pytest.mark.parametrize("known", [True, False])
async def test_rule_26_streams_and_pops_that_may_wait_go_on_without_a_damaged_message(
    server: Server, known: bool
) -> None:
    stream = await server.stream(0, request())
    await push(server.broker, 1, 2)
    await damage(server, 1)
    if not known:
        await server.broker.configure(QueueSpec(name="secrets"))  # It is not encrypted any more.
    else:
        assert payloads(await server.broker.pop(request(group="other"), 60)) == [b"2"]
    stream.grant(10)
    await server.quiet()
    arrival = await stream.next()
    assert arrival is not None and arrival.error is None
    assert payloads(arrival.result) == [b"2"]


@both_modes
async def test_rule_26_what_is_sealed_with_a_missing_key_is_withheld_and_the_rest_comes_where_order_allows(
    server: Server, mode: GroupMode
) -> None:
    await push(server.broker, 1, 2)
    without_the_key(server)
    await push(server.broker, 3, partition="q")
    with_both_keys(server)
    await push(server.broker, 4, partition="r")
    without_the_key(server)
    await push(server.broker, 5, partition="r")
    batches = await drained(server, request(mode, partitions=10))
    came = [number for batch in batches for number in batch]
    assert came == [b"3"] if mode == "ordered" else sorted(came) == [b"3", b"5"]
    assert (await server.broker.dead_letters(DeadLetterFilter())).total == 0
    assert server.broker.readable.withheld >= 2
    assert server.broker.sealed.missing_keys()
    await server.advance(3600)
    assert await drained(server, request(mode, partitions=10)) == [], "withheld for as long as the key is missing"
    with_both_keys(server)
    await server.advance(10)
    attempts: dict[bytes, int] = {}
    while (got := await server.broker.pop(request(mode, partitions=10))).messages:
        attempts |= {bytes(one.payload): one.attempt for one in got.messages}
        await server.settle(got, group="g")
    assert attempts == {b"1": 1, b"2": 1, b"4": 1} | ({b"5": 1} if mode == "ordered" else {})


@both_modes
async def test_readable_messages_before_one_that_is_withheld_come_first(server: Server, mode: GroupMode) -> None:
    without_the_key(server)
    await push(server.broker, 1, 2)
    with_both_keys(server)
    await push(server.broker, 3)
    without_the_key(server)
    await push(server.broker, 4)
    batches = await drained(server, request(mode))
    assert batches[0] == [b"1", b"2"]
    assert batches[1:] == ([] if mode == "ordered" else [[b"4"]])


async def test_a_waiting_pop_gets_what_was_withheld_when_the_key_is_back(server: Server) -> None:
    await push(server.broker, 1)
    without_the_key(server)
    waiting = await server.parked(request(), seconds=60)
    with_both_keys(server)
    await server.advance(10)
    assert payloads(await waiting) == [b"1"]


@both_modes
@pytest.mark.parametrize("batch", [1, 10])
async def test_a_readable_message_behind_many_that_are_withheld_comes(
    server: Server, mode: GroupMode, batch: int
) -> None:
    for number in range(100):
        await push(server.broker, number, partition="p" if mode == "shared" else f"p{number}")
    without_the_key(server)
    await push(server.broker, 999, partition="p" if mode == "shared" else "readable")
    assert payloads(await server.broker.pop(request(mode, batch=batch))) == [b"999"]


async def test_explain_says_that_the_key_is_missing(server: Server) -> None:
    await push(server.broker, 1)
    without_the_key(server)
    assert not (await server.broker.pop(request())).messages
    with_both_keys(server)
    got = await server.broker.pop(request(group="other"))
    without_the_key(server)
    explained = await server.broker.explain(got.messages[0].id, "g")
    [explanation] = explained.explanations
    assert explanation.reason == "key_missing"
    assert explanation.data == {"key": server.broker.sealed.missing_keys()[0]}
    with_both_keys(server)
    [explanation] = (await server.broker.explain(got.messages[0].id, "g")).explanations
    assert explanation.reason == "retry"


async def test_a_queue_that_is_not_encrypted_any_more_goes_on_without_a_damaged_message(server: Server) -> None:
    await push(server.broker, 1, 2)
    await damage(server, 1)
    await server.broker.configure(QueueSpec(name="secrets"))
    with pytest.raises(EngineFailure):  # It is found out by this one.
        await server.broker.pop(request())
    assert await drained(server, request()) == [[b"2"]]


@both_modes
@pytest.mark.parametrize("lost", ["damaged", "no key"])
async def test_rule_26_auto_ack_loses_nothing_of_a_queue_that_was_not_known_to_be_encrypted(
    server: Server, mode: GroupMode, lost: str
) -> None:
    await push(server.broker, 1, 2)
    await push(server.broker, 3, partition="q")
    await server.broker.configure(QueueSpec(name="secrets"))
    await push(server.broker, 4, partition="r")
    if lost == "damaged":
        await damage(server, 1)
    else:
        without_the_key(server)
    came = [number for batch in await drained(server, request(mode, partitions=3, auto_ack=True)) for number in batch]
    letters = (await server.broker.dead_letters(DeadLetterFilter())).items
    if lost == "damaged":
        assert (sorted(came), [one.error.split(":")[0] for one in letters]) == ([b"2", b"3", b"4"], ["payload_corrupt"])
        return
    assert (came, letters) == ([b"4"], [])
    with_both_keys(server)
    await server.advance(10)
    came = [number for batch in await drained(server, request(mode, partitions=3, auto_ack=True)) for number in batch]
    assert sorted(came) == [b"1", b"2", b"3"]


async def test_auto_ack_of_an_encrypted_queue_delivers_only_what_it_settled(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease can end between the pop and the settlement: then others get the message."""
    await push(server.broker, 1, 2)
    settle = server.broker.readable._settle

    async def settle_late(items: list[Settlement]) -> list[SettleOutcome]:
        await server.broker.engine.release([items[0].lease_id or ""])
        return await settle(items)

    monkeypatch.setattr(server.broker.readable, "_settle", settle_late)
    got = await server.broker.pop(request(auto_ack=True))
    assert (list(got.messages), got.lease_id) == ([], "")
    monkeypatch.undo()
    assert payloads(await server.broker.pop(request(auto_ack=True))) == [b"1", b"2"]


async def test_a_failed_settlement_gives_what_was_popped_back(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    await push(server.broker, 1)

    async def fail(_items: list[Settlement]) -> list[SettleOutcome]:
        raise EngineFailure("the store is away")

    monkeypatch.setattr(server.broker.readable, "_settle", fail)
    with pytest.raises(EngineFailure):
        await server.broker.pop(request(auto_ack=True))
    monkeypatch.undo()
    await server.quiet()
    result: PopResult = await server.broker.pop(request())
    assert [one.attempt for one in result.messages] == [1]


# Those who look ---------------------------------------------------------------------------------------------


async def test_who_browses_sees_every_message_and_why_some_can_not_be_read(server: Server) -> None:
    await push(server.broker, 1, 2, 3)
    await damage(server, 2)
    browser = await server.broker.delivery.browsers.open("secrets", None, "head")
    seen = [(bytes(one.payload), (one.unreadable or "").split(":")[0]) for one in await browser.next()]
    assert seen == [(b"1", ""), (b"null", "payload_corrupt"), (b"3", "")]
    browser.close()


async def test_a_message_is_shown_with_the_reason_in_place_of_its_payload(server: Server) -> None:
    [pushed] = await server.broker.push([NewMessage("secrets", "p", b"1")])
    without_the_key(server)
    view = await server.broker.message(pushed.partition_id or "", pushed.message_id or "")
    assert view is not None and view.payload is not None and view.unreadable is not None
    assert (bytes(view.payload), view.unreadable.split(":")[0]) == (b"null", "encryption_key_missing")


async def test_dead_letters_and_keys_are_listed_with_the_reason_in_place_of_what_can_not_be_read(
    server: Server,
) -> None:
    await server.broker.push([NewMessage("secrets", "p", b"1", undelivered_keys=(("lost",),))])
    got = await server.broker.pop(request())
    item = Settlement(got.messages[0].id, status="dlq", lease_id=got.lease_id, group="g", damaged=True)
    await server.broker.settle([item])
    await server.broker.keyvalue.write_keys(KeyWrite(mutations=[KeyMutation(kind="set", key=("plain",), value=b"7")]))
    without_the_key(server)
    [letter] = (await server.broker.dead_letters(DeadLetterFilter())).items
    assert (bytes(letter.payload), (letter.unreadable or "").split(":")[0]) == (b"null", "encryption_key_missing")
    for entries in (
        await server.broker.keyvalue.list_keys(KeyRange()),
        await server.broker.keyvalue.read_keys([("lost",), ("plain",)]),
    ):
        lost, plain = [entry for entry in entries if entry is not None]
        assert (bytes(lost.value), (lost.unreadable or "").split(":")[0]) == (b"null", "encryption_key_missing")
        assert (bytes(plain.value), plain.unreadable) == (b"7", None)


async def test_an_export_names_what_can_not_be_read_and_has_the_rest(server: Server) -> None:
    await push(server.broker, 1, 2, 3)
    got = await server.broker.pop(request())
    item = Settlement(got.messages[2].id, status="dlq", lease_id=got.lease_id, group="g", damaged=True)
    await server.broker.settle([item])
    await damage(server, 2)
    sql = "update dead_letters set payload = cast('\"nonsense\"' as blob)"
    engine = cast(SqliteEngine, server.engine)
    await engine._write(lambda transaction: transaction.connection.execute(sql).fetchall())
    text = b"".join([part async for part in server.broker.export_queue("secrets")])
    lines = [msgspec.json.decode(line, type=ExportLine) for line in text.splitlines()]
    assert [bytes(line.payload) for line in lines if isinstance(line, MessageLine)] == [b"1", b"3"]
    left = [
        (line.kind, line.partition, line.reason.split(":")[0]) for line in lines if isinstance(line, UnreadableLine)
    ]
    assert left == [("message", "p", "payload_corrupt"), ("dead letter", "p", "payload_corrupt")]
    assert lines[-1] == EndLine(messages=2, unreadable=2)


async def test_imported_dead_letters_of_an_encrypted_queue_are_encrypted(server: Server) -> None:
    letter = NewDeadLetter(
        message=NewMessage("secrets", "p", b'"card"', "t1"),
        id="0189abcd-0000-7000-8000-000000000001",
        group="g",
        attempts=1,
        error="no such customer",
        created_at=1,
        failed_at=2,
    )
    assert await server.broker.import_dead_letters([letter]) == [True]
    [at_rest] = (await server.engine.dead_letters(DeadLetterFilter())).items
    assert at_rest.sealed and b"card" not in bytes(at_rest.payload) and "customer" not in at_rest.error
    [shown] = (await server.broker.dead_letters(DeadLetterFilter())).items
    assert (bytes(shown.payload), shown.error, shown.unreadable) == (b'"card"', "no such customer", None)
    await server.broker.set_maintenance("push_maintenance", True)
    with pytest.raises(HarkError) as refused:
        await server.broker.import_dead_letters([letter])
    assert refused.value.code == "maintenance"
