"""The helpers of `hark.postgres` with psycopg and SQLAlchemy, as an application uses them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from hark import postgres
from hark.errors import InvalidInput


class Rollback(Exception):
    """What goes wrong in an application."""


async def rows_of(url: str) -> list[tuple[str, bytes, str]]:
    """What was sent."""
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch("select partition, payload, transaction_id from hark.inbox order by id")
    finally:
        await connection.close()
    return [tuple(row) for row in rows]


def psycopg_sync(url: str, fails: bool) -> None:
    """With a connection of psycopg."""
    with psycopg.connect(url) as connection, connection.transaction():
        send_two_sync(connection)
        if fails:
            raise Rollback


async def psycopg_async(url: str, fails: bool) -> None:
    """With an async connection of psycopg."""
    async with await psycopg.AsyncConnection.connect(url) as connection, connection.transaction():
        await send_two(connection)
        if fails:
            raise Rollback


def sqlalchemy_connection(url: str, fails: bool) -> None:
    """With a connection of SQLAlchemy."""
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        with engine.begin() as connection:
            send_two_sync(connection)
            if fails:
                raise Rollback
    finally:
        engine.dispose()


def sqlalchemy_session(url: str, fails: bool) -> None:
    """With a session of SQLAlchemy."""
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        with Session(engine) as session, session.begin():
            send_two_sync(session)
            if fails:
                raise Rollback
    finally:
        engine.dispose()


def sqlalchemy_async_session(driver: str) -> Callable[[str, bool], Awaitable[None]]:
    """With an async session of SQLAlchemy."""

    async def work(url: str, fails: bool) -> None:
        engine = create_async_engine(url.replace("postgresql://", f"postgresql+{driver}://"))
        try:
            async with AsyncSession(engine) as session, session.begin():
                await send_two(session)
                if fails:
                    raise Rollback
        finally:
            await engine.dispose()

    return work


def sqlalchemy_async_connection(driver: str) -> Callable[[str, bool], Awaitable[None]]:
    """With an async connection of SQLAlchemy."""

    async def work(url: str, fails: bool) -> None:
        engine = create_async_engine(url.replace("postgresql://", f"postgresql+{driver}://"))
        try:
            async with engine.begin() as connection:
                await send_two(connection)
                if fails:
                    raise Rollback
        finally:
            await engine.dispose()

    return work


def send_two_sync(connection: postgres.Connection | postgres.Cursors) -> None:
    """Send with options and without."""
    assert postgres.send_sync(connection, "orders", {"a": "ä:b %s"}, key="one", retry_delays=[1]) == "one"
    when = datetime(2030, 1, 1, tzinfo=UTC)
    postgres.send_sync(connection, "orders", [1], partition="p", key="two", deliver_at=when, ttl=5, priority=2)


async def send_two(connection: postgres.AsyncConnection) -> None:
    """The same, async."""
    assert await postgres.send(connection, "orders", {"a": "ä:b %s"}, key="one", retry_delays=[1]) == "one"
    when = datetime(2030, 1, 1, tzinfo=UTC)
    await postgres.send(connection, "orders", [1], partition="p", key="two", deliver_at=when, ttl=5, priority=2)


WAYS = {
    "psycopg": psycopg_sync,
    "psycopg async": psycopg_async,
    "sqlalchemy connection": sqlalchemy_connection,
    "sqlalchemy session": sqlalchemy_session,
    "sqlalchemy async session, asyncpg": sqlalchemy_async_session("asyncpg"),
    "sqlalchemy async session, psycopg": sqlalchemy_async_session("psycopg"),
    "sqlalchemy async connection, asyncpg": sqlalchemy_async_connection("asyncpg"),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))
async def test_messages_are_sent_with_the_transaction_and_not_without_it(
    postgres_url: str, way: Callable[[str, bool], Awaitable[None] | None]
) -> None:
    async def run(fails: bool) -> None:
        if inspect.iscoroutinefunction(way):
            await way(postgres_url, fails)
        else:
            await asyncio.to_thread(way, postgres_url, fails)

    with pytest.raises(Rollback):
        await run(fails=True)
    assert await rows_of(postgres_url) == []
    await run(fails=False)
    assert await rows_of(postgres_url) == [
        ("Default", '{"a": "ä:b %s"}'.encode(), "one"),
        ("p", b"[1]", "two"),
    ]


async def test_a_connection_of_the_other_kind_is_refused_with_what_to_use(postgres_url: str) -> None:
    def blocking() -> None:
        with psycopg.connect(postgres_url) as connection:
            with pytest.raises(InvalidInput, match="use send_sync"):
                asyncio.run(postgres.send(connection, "orders", 1))  # type: ignore[arg-type]  # what is tested
            connection.rollback()

    await asyncio.to_thread(blocking)
    async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
        with pytest.raises(InvalidInput, match=r"await send"):
            postgres.send_sync(connection, "orders", 1)
    assert await rows_of(postgres_url) == []
