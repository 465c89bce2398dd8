"""Messages that an application sends in its own transaction: which arrive, in what order, and who is kept waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg
import msgspec
import pytest

from hark.clock import FakeClock
from hark.engine.postgres import PostgresEngine
from hark.engine.postgres.inbox import PostgresInbox
from hark.errors import EngineFailure, HarkError
from hark.model import NewMessage, PushOutcome, Read, StoredMessage
from tests.engine.driver import Driver, given, payloads
from tests.postgres_server import OwnPostgresServer, PostgresServer

from .pools import soon, until

SEND = "select hark.send($1, $2::jsonb, $3)"


def plain(messages: Sequence[NewMessage]) -> Sequence[NewMessage]:
    """No queue is encrypted."""
    return messages


def uncounted(_messages: Sequence[NewMessage], _outcomes: Sequence[PushOutcome]) -> None:
    """Counts nothing."""


def inbox_of(driver: Driver) -> PostgresInbox:
    """The inbox as this server knows it."""
    assert isinstance(driver.engine, PostgresEngine)
    return driver.engine.inbox


async def move(driver: Driver) -> int:
    """Move what is committed; how many messages that were."""
    inbox = inbox_of(driver)
    before = inbox.moved
    await inbox.move(plain, uncounted)
    return inbox.moved - before


async def send(connection: asyncpg.Connection, queue: str, payload: object, partition: str = "p") -> str:
    """Send in the transaction of the connection."""
    sent: str = await connection.fetchval(SEND, queue, msgspec.json.encode(payload).decode(), partition)
    return sent


async def stored(driver: Driver, queue: str, group: str = "all") -> list[object]:
    """What a group gets, in order."""
    return payloads(await driver.pop(queue, "p", batch=1000, group=group))


async def first(driver: Driver) -> StoredMessage:
    """The first message, without receiving it."""
    [answer] = await driver.engine.read([Read(queue="orders", partition="p", offset=0)])
    return given(answer).messages[0]


@pytest.fixture
async def app(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection of an application."""
    async with connected(postgres_url) as connection:
        yield connection


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    """One more."""
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def test_a_message_arrives_when_its_transaction_commits_and_not_before(
    here: Driver, app: asyncpg.Connection
) -> None:
    async with app.transaction():
        sent = await send(app, "orders", {"id": 1})
        assert await move(here) == 0
    assert await move(here) == 1
    [leased] = await here.pop("orders", "p")
    assert leased.payload == {"id": 1}
    assert leased.message.transaction_id == sent
    assert await move(here) == 0


async def test_what_was_rolled_back_never_arrives_nor_does_a_savepoint(here: Driver, app: asyncpg.Connection) -> None:
    with pytest.raises(ZeroDivisionError):
        async with app.transaction():
            await send(app, "orders", 1)
            raise ZeroDivisionError
    async with app.transaction():
        await send(app, "orders", 2)
        with pytest.raises(ZeroDivisionError):
            async with app.transaction():
                await send(app, "orders", 3)
                raise ZeroDivisionError
        async with app.transaction():
            await send(app, "orders", 4)
    assert await move(here) == 2
    assert await stored(here, "orders") == [2, 4]


async def test_the_order_is_that_of_the_calls_and_of_transactions_that_follow_each_other(
    here: Driver, app: asyncpg.Connection, postgres_url: str
) -> None:
    async with connected(postgres_url) as other:
        older = other.transaction()
        await older.start()
        await other.execute("select pg_current_xact_id()")  # Its number is lower than those of what it follows.
        for number in range(3):
            async with app.transaction():
                await send(app, "orders", number)
                await send(app, "orders", number + 0.5)
        await send(other, "orders", 9)
        await older.commit()
    assert await move(here) == 7
    assert await stored(here, "orders") == [0, 0.5, 1, 1.5, 2, 2.5, 9]


async def test_a_long_transaction_keeps_nobody_waiting_and_its_messages_arrive_at_its_end(
    here: Driver, there: Driver, app: asyncpg.Connection, postgres_url: str
) -> None:
    async with connected(postgres_url) as other:
        long = other.transaction()
        await long.start()
        await send(other, "orders", "long")
        for number in range(3):
            await send(app, "orders", number)
            assert await move(here) == 1
            assert await move(there) == 0
        await here.push("orders", "p", "pushed")
        await here.configure("orders", lease_time=5)
        await long.commit()
    assert await move(there) == 1, "its number is older than all that this server saw"
    assert await move(here) == 0
    assert await stored(here, "orders") == [0, 1, 2, "pushed", "long"]


async def test_two_servers_move_each_message_once_and_in_order(
    here: Driver, there: Driver, app: asyncpg.Connection
) -> None:
    number = 3000
    sending = asyncio.create_task(_send_many(app, number))
    moved = 0
    while moved < number:
        moved += sum(await asyncio.gather(move(here), move(there)))
    await sending
    for partition in ("p0", "p1", "p2"):
        found = payloads(await here.pop("orders", partition, batch=number))
        assert found == [one for one in range(number) if partition == f"p{one % 3}"]


async def _send_many(app: asyncpg.Connection, number: int) -> None:
    for first in range(0, number, 50):
        async with app.transaction():
            for one in range(first, first + 50):
                await send(app, "orders", one, f"p{one % 3}")


async def test_a_full_queue_keeps_its_messages_in_the_inbox_in_order_and_no_others(
    here: Driver, app: asyncpg.Connection
) -> None:
    await here.configure("small", max_size=2)
    for number in range(5):
        await send(app, "small", number)
    await send(app, "orders", "free")
    assert await move(here) == 3
    assert await stored(here, "orders") == ["free"]
    await here.ack_all(await here.pop("small", "p", batch=2))
    await send(app, "small", 5)
    found: list[object] = []
    while len(found) < 4:
        await inbox_of(here).wait()
        await move(here)
        leased = await here.pop("small", "p", batch=9)
        found += payloads(leased)
        await here.ack_all(leased)
    assert found == [2, 3, 4, 5]
    assert await app.fetchval("select count(*) from hark.inbox") == 0


async def test_a_message_that_cannot_be_stored_stays_with_its_error_and_keeps_nobody_waiting(
    here: Driver, app: asyncpg.Connection
) -> None:
    mine = await here.push_id("orders", "p", "first")
    assert isinstance(here.engine, PostgresEngine)
    codec = here.engine.codec
    place = codec.decode(mine)
    assert place is not None
    later = codec.encode(place.partition, place.offset + 5)
    await app.execute("select hark.send('orders', '1', 'p', $1)", later)
    await app.execute("select hark.send('orders', '2', 'p')")
    await app.execute("select hark.send('orders', '3', 'p')")
    # No sender can do this; but whatever it is that PostgreSQL does not take, it is only that row that stays.
    await app.execute("update hark.inbox set deliver_at = 9223372036854775807, ttl = 9223372036854775807 where id = 2")
    await move(here)
    errors = [row["error"] for row in await app.fetch("select error from hark.inbox order by id")]
    assert len(errors) == 2
    assert "the transactionId is the id of a message that does not exist yet" in errors[0]
    assert "out of range" in errors[1]
    assert await stored(here, "orders") == ["first", 3]
    assert (await here.engine.store_metrics())["inbox_refused"] == 2
    assert await move(here) == 0


async def test_a_row_that_someone_has_locked_waits_and_others_do_not(
    here: Driver, app: asyncpg.Connection, postgres_url: str
) -> None:
    await send(app, "orders", 1)
    await send(app, "free", 1)
    async with connected(postgres_url) as other:
        lock = other.transaction()
        await lock.start()
        await other.execute("select from hark.inbox where queue = 'orders' for update")
        assert await move(here) == 1
        assert await stored(here, "free") == [1]
        await lock.rollback()
    moved = 0
    while not moved:
        await inbox_of(here).wait()
        moved = await move(here)
    assert await stored(here, "orders") == [1]


MOVE_NOTHING = f"select o_busy from hark.move_inbox_v1({', '.join(['null'] * 23)}, '{{}}', '{{}}')"
ADVISORY_LOCKS = "select count(*) from pg_locks where pid = pg_backend_pid() and locktype = 'advisory'"


async def test_servers_take_turns_else_a_later_message_could_come_before_an_earlier_one(
    here: Driver, app: asyncpg.Connection, postgres_url: str
) -> None:
    await send(app, "orders", 1)
    async with connected(postgres_url) as other:
        turn = other.transaction()
        await turn.start()
        assert await other.fetchval(MOVE_NOTHING) is False
        assert await move(here) == 0
        assert await app.fetchval("select count(*) from hark.inbox") == 1
        assert await other.fetchval(ADVISORY_LOCKS) == 0, "any role can hold an advisory lock"
        await turn.rollback()
    await inbox_of(here).wait()
    assert await move(here) == 1


async def test_a_server_that_cannot_encrypt_a_queue_moves_the_others(here: Driver, app: asyncpg.Connection) -> None:
    await here.configure("secret", encryption_enabled=True)
    await send(app, "secret", 1)
    await send(app, "orders", 1)

    def fails(messages: Sequence[NewMessage]) -> Sequence[NewMessage]:
        if messages[0].queue == "secret":
            raise EngineFailure("there is no key")
        return messages

    inbox = inbox_of(here)
    assert not await inbox.move(fails, uncounted)
    assert await stored(here, "orders") == [1]
    async with asyncio.timeout(30):
        while not await inbox.move(plain, uncounted):
            await inbox.wait()
    assert await stored(here, "secret") == [], "it was not sealed"

    def seals(messages: Sequence[NewMessage]) -> Sequence[NewMessage]:
        return [msgspec.structs.replace(one, payload=b'"sealed"', sealed=True) for one in messages]

    while await inbox.move(seals, uncounted) or not inbox.moved - 1:
        await inbox.wait()
    assert await stored(here, "secret") == ["sealed"]


async def test_the_options_of_a_message_arrive(here: Driver, app: asyncpg.Connection) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    sent = await app.fetchval(
        "select hark.send('orders', '{\"a\": 1}', partition => 'p', transaction_id => 'mine', priority => 7,"
        " ttl => interval '1 hour', backoff_schedule => array[10, 20], trace_id => $1, traceparent => $2,"
        " deliver_at => '1980-01-01')",
        "7a3dd3a0-5ba5-4d6e-a3a6-9a2a7ea31e1e",
        trace,
    )
    await move(here)
    [message] = [one.message for one in await here.pop("orders", "p")]
    view = await first(here)
    assert sent == "mine" == message.transaction_id
    assert (message.priority, message.trace_id, message.trace_context) == (
        7,
        "7a3dd3a0-5ba5-4d6e-a3a6-9a2a7ea31e1e",
        trace,
    )
    assert view.backoff_ms == (10, 20)
    assert view.expires_at is not None and view.expires_at - view.created_at == 3600 * 1_000_000


@pytest.mark.parametrize("option", ["delay => interval '1 hour'", "deliver_at => now() + interval '1 hour'"])
async def test_a_delayed_message_waits(postgres_url: str, app: asyncpg.Connection, option: str) -> None:
    driver = Driver(lambda _: PostgresEngine(postgres_url), FakeClock())
    await driver.start()
    await app.execute(f"select hark.send('orders', '1', 'p', {option})")
    assert await move(driver) == 1
    assert await stored(driver, "orders") == []
    view = await first(driver)
    assert view.deliver_at is not None and abs(view.deliver_at - view.created_at - 3600 * 1_000_000) < 600 * 1_000_000
    await driver.engine.close()


async def test_a_transaction_id_that_the_partition_has_is_a_duplicate(here: Driver, app: asyncpg.Connection) -> None:
    for number in range(3):
        await app.execute("select hark.send('orders', $1::jsonb, 'p', 'same')", str(number))
    await move(here)
    await app.execute("select hark.send('orders', '9', 'p', 'same')")
    await move(here)
    assert await stored(here, "orders") == [0]
    assert await app.fetchval("select count(*) from hark.inbox") == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("'', '1'", "queue: expected a name of 1 to 255 bytes"),
        ("null, '1'", "queue: expected a name of 1 to 255 bytes"),
        ("repeat('ä', 128), '1'", "queue: expected a name of 1 to 255 bytes"),
        ("'q', null", "payload: expected JSON; null as a payload is 'null'::jsonb"),
        ("'q', to_jsonb(repeat('x', 11000000))", "payload: expected at most 10485760 bytes of JSON"),
        ("'q', (repeat('[', 257) || repeat(']', 257))::jsonb", "payload: must be nested at most 256 levels deep"),
        ("'q', '1', ''", "partition: expected a name of 1 to 255 bytes"),
        ("'q', '1', null", "partition: expected a name of 1 to 255 bytes"),
        ("'q', '1', transaction_id => repeat('x', 256)", "transaction_id: expected at most 255 bytes"),
        ("'q', '1', priority => 10", "priority: expected an integer from 0 to 9"),
        ("'q', '1', priority => null", "priority: expected an integer from 0 to 9"),
        ("'q', '1', delay => interval '-1 s'", "delay: expected an interval from 0 to 3650 days"),
        ("'q', '1', delay => '1 s', deliver_at => now()", "delay, deliver_at: expected one of them, got both"),
        ("'q', '1', deliver_at => 'infinity'", "deliver_at: expected a time from 1970 to 9998"),
        ("'q', '1', ttl => '0'", "ttl: expected an interval from 1 millisecond to 36500 days"),
        ("'q', '1', traceparent => 'x'", "traceparent: expected a W3C trace context"),
        (
            "'q', '1', tracestate => 'a=1'",
            "tracestate: expected up to 512 printable ASCII characters, and a traceparent",
        ),
        ("'q', '1', backoff_schedule => array[-1]", "backoff_schedule: expected at most 100 delays in milliseconds"),
        ("'q', '1', backoff_schedule => array[null::int8]", "backoff_schedule: expected at most 100 delays"),
        ("'q', '1', backoff_schedule => array[array[1::int8]]", "backoff_schedule: expected at most 100 delays"),
    ],
)
async def test_a_wrong_argument_is_refused_by_its_name(app: asyncpg.Connection, arguments: str, text: str) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError) as refused:
        await app.fetch(f"select hark.send({arguments})")
    assert f"hark.send: {text}" in str(refused.value)
    assert await app.fetchval("select count(*) from hark.inbox") == 0


async def test_a_payload_may_be_nested_256_levels_deep(here: Driver, app: asyncpg.Connection) -> None:
    await app.execute("select hark.send('orders', (repeat('[', 256) || repeat(']', 256))::jsonb, 'p')")
    assert await move(here) == 1


async def test_commits_are_heard_of_and_without_a_notification_they_are_found(
    here: Driver, app: asyncpg.Connection
) -> None:
    inbox = inbox_of(here)
    arrived = asyncio.Event()

    async def keep() -> None:
        async with inbox.listening():
            while True:
                await inbox.wait()
                await inbox.move(plain, uncounted)
                if inbox.moved:
                    arrived.set()

    keeping = asyncio.create_task(keep())
    try:
        await until(lambda: inbox._listens)
        for notify in (True, False):
            inbox.moved = 0
            arrived.clear()
            await app.execute("select hark.send('orders', '1', 'p', notify => $1)", notify)
            await soon(arrived)
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


async def test_one_notification_for_a_transaction(app: asyncpg.Connection, postgres_url: str) -> None:
    heard: list[object] = []
    done = asyncio.Event()
    async with connected(postgres_url) as listener:
        await listener.add_listener("hark_inbox", lambda *_: heard.append(1))
        await listener.add_listener("done", lambda *_: done.set())
        async with app.transaction():
            for number in range(5):
                await send(app, "orders", number)
        await app.execute("notify done")
        await soon(done)
    assert len(heard) == 1


async def test_a_transaction_in_two_phases_sends_without_a_notification(
    own_postgres_server: OwnPostgresServer,
) -> None:
    with own_postgres_server.fresh_database() as url:
        driver = Driver(lambda _: PostgresEngine(url), FakeClock())
        await driver.start()
        async with connected(url) as app:
            await app.execute("begin; select hark.send('orders', '1', 'p', notify => false); prepare transaction 'one'")
            assert await move(driver) == 0
            await send(app, "orders", 2)
            assert await move(driver) == 1
            await app.execute("commit prepared 'one'")
            assert await move(driver) == 1
            with pytest.raises(asyncpg.FeatureNotSupportedError):
                await app.execute("begin; select hark.send('orders', '3'); prepare transaction 'two'")
            await app.execute("rollback")
            assert await move(driver) == 0
        assert await stored(driver, "orders") == [2, 1]
        await driver.engine.close()


async def test_a_role_may_send_and_do_nothing_else(
    postgres_server: PostgresServer, here: Driver, app: asyncpg.Connection, postgres_url: str
) -> None:
    role = "hark_test_sender"
    postgres_server.execute(f"drop role if exists {role}")
    postgres_server.execute(f"create role {role} login password 'secret'")
    try:
        async with connected(f"postgresql://{role}:secret@{postgres_url.rpartition('@')[2]}") as sender:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await send(sender, "orders", 0)
            await app.execute("select hark.allow_send($1)", role)
            # What it makes itself must not run with the rights of Hark's role.
            await sender.execute("create temporary table stolen (by text)")
            await sender.execute(
                "create function pg_temp.octet_length(text) returns integer language plpgsql as"
                " $$ begin insert into stolen values (current_user); return 1; end $$"
            )
            await sender.execute("set search_path = pg_temp, pg_catalog")
            assert await send(sender, "orders", 1)
            assert await sender.fetchval("select count(*) from stolen") == 0
            tables = [row[0] for row in await app.fetch(_TABLES)]
            assert "hark.inbox" in tables
            for table in tables:
                for statement in (
                    f"select * from {table}",
                    f"delete from {table}",
                    f"insert into {table} default values",
                ):
                    with pytest.raises(asyncpg.InsufficientPrivilegeError):
                        await sender.execute(statement)
            allowed = await sender.fetch(_FUNCTIONS)
            assert [row[0] for row in allowed] == ["send"]
            await app.execute("select hark.deny_send($1)", role)
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await send(sender, "orders", 2)
        assert await move(here) == 1
        assert await stored(here, "orders") == [1]
    finally:
        postgres_server.execute(f"drop role {role}")


_TABLES = "select oid::regclass::text from pg_class where relnamespace = 'hark'::regnamespace and relkind in ('r', 'p')"
_FUNCTIONS = (
    "select proname::text from pg_proc where pronamespace = 'hark'::regnamespace"
    " and has_function_privilege(current_user, oid, 'execute')"
)


async def blocks(connection: asyncpg.Connection, seen: str | None) -> int:
    """How many blocks a look reads."""
    explained = await connection.fetchval(
        "explain (analyze, buffers, format json) select * from hark.plan_inbox_v1($1, null, '{}', 1000)", seen
    )
    plan = msgspec.json.decode(explained)[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


async def test_a_look_does_not_read_what_an_old_snapshot_keeps(
    here: Driver, app: asyncpg.Connection, postgres_url: str
) -> None:
    async with connected(postgres_url) as report, report.transaction(isolation="repeatable_read", readonly=True):
        await report.fetchval("select count(*) from hark.inbox")
        await app.execute("select hark.send('orders', to_jsonb(n), 'p') from generate_series(1, 5000) n")
        assert await move(here) == 5000
        await send(app, "orders", "last")
        for _ in range(2):  # The first one also reads what the session does not know yet.
            whole, new = await blocks(app, None), await blocks(app, inbox_of(here)._seen)
        assert await move(here) == 1
    assert whole > 80, "all rows that were there"
    assert new < 15


async def test_a_failing_look_says_so(here: Driver) -> None:
    inbox = inbox_of(here)
    await here.engine.close()
    with pytest.raises(HarkError):
        await inbox.move(plain, uncounted)
