"""The tables as the state of an engine that shares a log: payloads that are in the log, rows that have keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import apsw
import msgspec
import pytest

from hark.engine.core import schema
from hark.engine.core.push import push as push_verb
from hark.engine.core.store import Extra, PayloadLocation, Value, extra_of, set_locations
from hark.engine.core.transaction import WriteTransaction
from hark.engine.hints import MAX_REPLY_BYTES
from hark.engine.sqlite import SqliteEngine
from hark.errors import EngineFailure
from hark.model import (
    DeadLetterFilter,
    GroupMode,
    NewMessage,
    NewTrace,
    PopRequest,
    PopResult,
    PushOutcome,
    QueueOptions,
    QueueSpec,
    Read,
    ReadResult,
    Settlement,
)

RECORD = 7
MODES: tuple[GroupMode, ...] = get_args(GroupMode)
KEY = ("undelivered",)


class Record:
    """A record that takes payloads; what it says of their length may be a lie."""

    def __init__(self, length: int | None = None) -> None:
        self.body = b"header"
        self._length = length

    def locate(self, payload: bytes) -> PayloadLocation:
        offset = len(self.body)
        self.body += payload
        return PayloadLocation(RECORD, offset, len(payload) if self._length is None else self._length)

    def payload(self, location: object) -> bytes:
        """What is at a place, which some verb answered instead of a payload."""
        assert isinstance(location, PayloadLocation)
        assert location.seq == RECORD
        return self.body[location.offset : location.offset + location.length]


@pytest.fixture
def record() -> Record:
    return Record()


async def push(engine: SqliteEngine, record: Record, *messages: NewMessage) -> list[PushOutcome]:
    """Push messages whose payloads go to a record."""

    def body(transaction: WriteTransaction) -> list[PushOutcome]:
        (outcomes,) = push_verb(transaction, [messages])
        assert isinstance(outcomes, list)
        set_locations(transaction.messages, record.locate)
        return outcomes

    outcomes = await engine._write(body)
    assert [one.status for one in outcomes] == ["queued"] * len(messages)
    return outcomes


async def pop(engine: SqliteEngine, mode: GroupMode = "ordered") -> PopResult:
    (answer,) = await engine.pop([PopRequest(queue="jobs", group="workers", group_mode=mode, batch=10)])
    assert isinstance(answer, PopResult)
    return answer


async def read(engine: SqliteEngine) -> ReadResult:
    (answer,) = await engine.read([Read(queue="jobs", partition="Default", offset=1)])
    assert isinstance(answer, ReadResult)
    return answer


async def kill(engine: SqliteEngine, got: PopResult) -> None:
    """Make dead letters of what was popped."""
    items = [Settlement(one.id, one.partition_id, "dlq", got.lease_id, group="workers") for one in got.messages]
    (outcomes,) = await engine.settle([items])
    assert isinstance(outcomes, list)
    assert all(one.dead_lettered for one in outcomes)


# What verbs answer -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_a_claim_says_where_payloads_are(engine: SqliteEngine, record: Record, mode: GroupMode) -> None:
    await push(engine, record, NewMessage("jobs", payload=b'"one"'), NewMessage("jobs", payload=b'{"two":2}'))
    await engine.push([[NewMessage("jobs", payload=b"3")]])
    first, second, third = (await pop(engine, mode)).messages
    assert [record.payload(one.payload) for one in (first, second)] == [b'"one"', b'{"two":2}']
    assert bytes(third.payload) == b"3", "a payload that is here comes as ever"


async def test_a_read_says_where_payloads_are(engine: SqliteEngine, record: Record) -> None:
    await push(engine, record, NewMessage("jobs", payload=b'"one"'))
    await engine.push([[NewMessage("jobs", payload=b"2")]])
    first, second = (await read(engine)).messages
    assert (record.payload(first.payload), bytes(second.payload)) == (b'"one"', b"2")


async def test_the_view_of_a_message_and_its_traces_say_where_the_payload_is(
    engine: SqliteEngine, record: Record
) -> None:
    (outcome,) = await push(engine, record, NewMessage("jobs", payload=b'"one"'))
    partition_id, transaction_id = str(outcome.partition_id), str(outcome.transaction_id)
    view = await engine.message(partition_id, transaction_id)
    assert view is not None
    assert record.payload(view.payload) == b'"one"'
    await engine.trace([NewTrace(partition_id=partition_id, transaction_id=transaction_id, data=b"{}")])
    (event,), _ = await engine.traces(partition_id, transaction_id)
    assert record.payload(event.payload) == b'"one"'


@pytest.mark.parametrize("mode", MODES)
async def test_a_dead_letter_and_what_is_requeued_of_it_stay_where_they_were(
    engine: SqliteEngine, record: Record, mode: GroupMode
) -> None:
    await push(engine, record, NewMessage("jobs", payload=b'"one"'))
    (before,) = (got := await pop(engine, mode)).messages
    await kill(engine, got)
    (letter,) = (await engine.dead_letters(DeadLetterFilter(queue="jobs"))).items
    assert letter.payload == before.payload
    await engine.requeue([letter.id])
    (after,) = (await pop(engine, mode)).messages
    assert after.id != before.id
    assert after.payload == before.payload
    assert record.payload(after.payload) == b'"one"'


async def test_what_else_a_message_has_stays_with_it(engine: SqliteEngine, record: Record) -> None:
    await engine.configure([QueueSpec(name="jobs", options=QueueOptions(encryption_enabled=True))])
    message = NewMessage("jobs", payload=b'"sealed"', sealed=True, trace_id='a "trace"', producer="me", backoff_ms=(5,))
    await push(engine, record, message)
    (seen,) = (await read(engine)).messages
    (delivery,) = (got := await pop(engine)).messages
    await kill(engine, got)
    (letter,) = (await engine.dead_letters(DeadLetterFilter(queue="jobs"))).items
    for one in (seen, delivery, letter):
        assert (one.sealed, one.trace_id, one.producer) == (True, 'a "trace"', "me")
        assert record.payload(one.payload) == b'"sealed"'


# Sizes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_a_claim_is_bounded_by_the_payloads_it_stands_for(engine: SqliteEngine, mode: GroupMode) -> None:
    large = Record(length=MAX_REPLY_BYTES * 3 // 4)
    await push(engine, large, *(NewMessage("jobs", payload=b"1") for _ in range(4)))
    assert len((await pop(engine, mode)).messages) == 2


async def test_a_read_is_bounded_by_the_payloads_it_stands_for(engine: SqliteEngine) -> None:
    await push(engine, Record(length=600 << 10), *(NewMessage("jobs", payload=b"1") for _ in range(4)))
    got = await read(engine)
    assert (len(got.messages), got.next_offset, got.more) == (2, 3, True)


async def test_a_push_notes_how_large_payloads_really_are(engine: SqliteEngine, record: Record) -> None:
    await push(engine, record, NewMessage("jobs", payload=b'"%s"' % (b"x" * 998)))
    assert await engine._look(lambda state, _: state.largest_payload) == 1024


# Keys of what can't be delivered ---------------------------------------------------------------------------


async def test_a_payload_that_may_become_a_value_is_not_moved(engine: SqliteEngine, record: Record) -> None:
    await push(engine, record, NewMessage("jobs", payload=b'"one"', undelivered_keys=(KEY,)))
    (delivery,) = (got := await pop(engine)).messages
    assert bytes(delivery.payload) == b'"one"'
    await kill(engine, got)
    (entry,) = await engine.read_keys([KEY])
    assert entry is not None
    assert bytes(entry.value) == b'"one"'
    assert record.body == b"header"


async def test_a_payload_elsewhere_never_becomes_a_null_under_a_key(engine: SqliteEngine, record: Record) -> None:
    await push(engine, record, NewMessage("jobs", payload=b'"one"', undelivered_keys=(KEY,)))
    move = "update messages set payload = x'6e756c6c', extra = json_set(extra, '$.r', json('[7,0,5]'))"
    await engine._write(lambda transaction: transaction.connection.execute(move).fetchall())
    (leased,) = (got := await pop(engine)).messages
    with pytest.raises(EngineFailure, match="internal error"):
        await engine.settle([[Settlement(leased.id, leased.partition_id, "dlq", got.lease_id, group="workers")]])
    assert await engine.read_keys([KEY]) == [None]


# Moving ----------------------------------------------------------------------------------------------------


def row(payload: bytes, extra: Extra | None = None) -> list[Value]:
    """A row as a push collects it."""
    return [1, 1, 5, 0, None, "t", None if extra is None else msgspec.json.encode(extra).decode(), payload]


def only(flat: Sequence[Value]) -> tuple[Extra, Value]:
    """What a row says of its payload."""
    text, payload = flat[6:]
    assert text is None or isinstance(text, str)
    return extra_of(text), payload


@pytest.mark.parametrize("extra", [None, Extra(t="trace", s=True, b=(1, 2), x=9)], ids=["plain", "with extra"])
def test_a_row_that_is_moved_says_where_to_and_keeps_the_rest(extra: Extra | None) -> None:
    flat = row(b'"here"', extra)
    set_locations(flat, lambda payload: PayloadLocation(3, 40, len(payload)))
    assert flat[:6] == row(b"")[:6]
    expected = msgspec.structs.replace(extra or Extra(), r=PayloadLocation(3, 40, 6))
    assert only(flat) == (expected, b"null")


@pytest.mark.parametrize("extra", [None, Extra(t="trace")], ids=["plain", "with extra"])
def test_a_row_that_no_one_wants_is_left_as_it_is(extra: Extra | None) -> None:
    flat = row(b"1", extra)
    set_locations(flat, lambda _: None)
    assert flat == row(b"1", extra)


@pytest.mark.parametrize(
    "extra", [Extra(k=("00",)), Extra(r=PayloadLocation(1, 2, 3))], ids=["with keys", "moved before"]
)
def test_a_row_that_must_stay_is_not_even_offered(extra: Extra) -> None:
    offered: list[bytes] = []
    flat = row(b"1", extra)
    set_locations(flat, offered.append)
    assert (flat, offered) == (row(b"1", extra), [])


def test_each_row_is_decided_by_itself_and_in_order() -> None:
    flat = row(b'"large"') + row(b"1") + row(b'"again large"', Extra(u="me"))
    record = Record()
    set_locations(flat, lambda payload: record.locate(payload) if len(payload) > 1 else None)
    assert record.body == b'header"large""again large"'
    assert [only(flat[start : start + 8]) for start in (0, 8, 16)] == [
        (Extra(r=PayloadLocation(RECORD, 6, 7)), b"null"),
        (Extra(), b"1"),
        (Extra(u="me", r=PayloadLocation(RECORD, 13, 13)), b"null"),
    ]


# Rows have keys --------------------------------------------------------------------------------------------


def test_every_table_has_a_primary_key_or_sessions_would_not_see_its_rows() -> None:
    connection = apsw.Connection(":memory:")
    schema.migrate(connection)
    names = "select name from sqlite_schema where type = 'table' and name not like 'sqlite_%'"
    keyless = f"{names} and not exists (select 1 from pragma_table_info(sqlite_schema.name) where pk)"
    assert connection.execute(f"select count(*) from ({names})").get > 10
    assert connection.execute(keyless).fetchall() == []
    connection.close()


@pytest.mark.parametrize("deleted", [False, True], ids=["there", "deleted"])
async def test_groups_that_pop_by_namespace_travel_with_the_changes_of_a_transaction(
    engine: SqliteEngine, deleted: bool
) -> None:
    def changes(_: WriteTransaction) -> bytes:
        patchset = session.patchset()
        session.close()
        return patchset

    session = await engine._write(lambda transaction: apsw.Session(transaction.connection, "main"))
    await engine._write(lambda _: session.attach())
    await engine.pop([PopRequest(namespace="shop", group="workers"), PopRequest(task="mail", group="others")])
    if deleted:
        await engine.delete_group("workers", None, forget_subscription=True)
    replica = apsw.Connection(":memory:")
    schema.migrate(replica)
    apsw.Changeset.apply(await engine._write(changes), replica)
    labels = "select * from labels order by id"
    stored = await engine._read_committed(lambda connection: connection.execute(labels).fetchall())
    assert [label[1:4] for label in stored][-1] == ("others", None, "mail")
    assert len(stored) == (1 if deleted else 2)
    assert replica.execute(labels).fetchall() == stored
    replica.close()
