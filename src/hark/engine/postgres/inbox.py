"""The inbox: messages that applications sent with `hark.send`, and how servers move them (see `inbox.sql`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import asyncpg

from hark.clock import MILLISECOND
from hark.engine.api import NoteMoved, Seal
from hark.engine.postgres.partitions import Store
from hark.engine.postgres.pool import Pool
from hark.engine.postgres.push import PUSH, Notifications, Pushes
from hark.errors import EngineFailure, HarkError
from hark.model import NewMessage

log = logging.getLogger(__name__)

CHANNEL = "hark_inbox"
_MOVE = PUSH.replace("hark.push_v1", "hark.move_inbox_v1").removesuffix(")") + ", $24::bigint[], $25::int[])"
_PLAN = "select * from hark.plan_inbox_v1($1, $2, $3::text[], $4)"
_READ = "select * from hark.read_inbox_v1($1::bigint[])"
_REFUSE = "update hark.inbox set error = $2 where id = any ($1::bigint[])"

POLL_SECONDS = 1.0
"""Between two looks while notifications arrive: they are for what no notification announced."""
FAST_POLL_SECONDS = 0.1
"""Between two looks while they do not, as behind a pooler."""
_DOUBT_SECONDS = 60.0
"""How long looks are frequent after one found what no notification had announced."""
_BUSY_SECONDS = 0.05
"""Before the next look while another server moves messages: it may end at any time."""
_BEHIND_SECONDS = 0.02
"""How long a notification waits on a server that was not the first one the last time."""
_DEFER_SECONDS = 1.0
"""Before messages that a queue refused are tried again."""
_WHOLE_SECONDS = 60.0
"""Between two looks at the whole table: an operator may have changed rows by hand."""
_PLANNED = 50_000
"""Maximum number of rows whose order is read at a time."""
_ROWS, _BYTES = 500, 4 << 20
"""Maximum size of one move: pushes to the same partitions wait for it."""
_OF_THE_ROW = ("22", "23", "54")
"""Classes of errors that are about the data."""


class _Busy(Exception):
    """Another server moves messages now."""


class _Plan(NamedTuple):
    snapshot: str
    ids: Sequence[int]
    sizes: Sequence[int]

    @property
    def full(self) -> bool:
        """Whether there may be more."""
        return len(self.ids) == _PLANNED

    def chunks(self) -> Iterator[Sequence[int]]:
        """The ids in order, few enough to be moved at once."""
        start = size = 0
        for index, length in enumerate(self.sizes):
            if index > start and (index - start >= _ROWS or size + length > _BYTES):
                yield self.ids[start:index]
                start, size = index, 0
            size += length
        if start < len(self.ids):
            yield self.ids[start:]


class PostgresInbox:
    """What one server knows of the inbox. The table has the facts, and each move is one transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._wakeup = asyncio.Event()
        self._listens = False
        self._doubted_until = 0.0
        self._announced = True
        self._behind = False
        self._seen: str | None = None
        """Of what this snapshot showed everything was moved, except in deferred queues; None: nothing is known."""
        self._whole_at = 0.0
        self._deferred: dict[str, float] = {}
        """Queues that refused messages, and when to try again."""
        self._busy = False
        self.moved = 0
        """Messages that this server moved."""

    # When to look ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._listen())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def wait(self) -> None:
        self._announced = True
        if not self._wakeup.is_set():
            self._announced = False
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wakeup.wait(), self._seconds_to_wait())
                self._announced = True
        if self._announced and self._behind:
            await asyncio.sleep(_BEHIND_SECONDS)
        self._wakeup.clear()

    def _seconds_to_wait(self) -> float:
        now = _loop_time()
        seconds = POLL_SECONDS if self._listens and now >= self._doubted_until else FAST_POLL_SECONDS
        if self._busy:
            seconds = _BUSY_SECONDS
        for due in self._deferred.values():
            seconds = min(seconds, due - now)
        return max(0.0, seconds)

    async def _listen(self) -> None:
        """Keep a session that hears of commits; without one, looks are frequent."""
        while True:
            lost = asyncio.Event()
            connection: asyncpg.Connection | None = None
            try:
                connection = await self._store.pool.session()
                if connection is None:
                    return
                connection.add_termination_listener(lambda _, lost=lost: lost.set())
                await connection.add_listener(CHANNEL, self._notified)
                self._listens = True
                # What was committed before it listened; and after a failover, other transactions may have old numbers.
                self._whole_at = 0.0
                self._wakeup.set()
                await lost.wait()
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
                log.debug("cannot listen for messages of the inbox; polling: %s", error)
            finally:
                self._listens = False
                if connection is not None:
                    with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
                        await connection.close(timeout=POLL_SECONDS)
            await asyncio.sleep(POLL_SECONDS)

    def _notified(self, *_notification: object) -> None:
        self._wakeup.set()

    # Moving ------------------------------------------------------------------------------------------------

    async def move(self, seal: Seal, note: NoteMoved) -> bool:
        announced = self._announced or self._busy
        self._busy = False
        mover = _Mover(self._store, seal, note)
        try:
            await self._move_deferred(mover)
            found = await self._move_new(mover)
        except _Busy:
            self._busy = self._behind = True
            return False
        finally:
            self.moved += mover.moved
        self._behind = self._announced and not mover.moved
        if found and not announced:
            self._doubted_until = _loop_time() + _DOUBT_SECONDS
        return mover.mismatched

    async def _move_deferred(self, mover: _Mover) -> None:
        """Try the queues again that refused messages; those of them that are free are not deferred any more."""
        now = _loop_time()
        for queue in [queue for queue, due in self._deferred.items() if due <= now]:
            while True:
                plan = await self._plan(queue)
                await self._follow(plan, mover)
                if queue in mover.refused:
                    self._defer(mover)
                    break
                if not plan.full:
                    # What came after the plan came after the last snapshot as well: the next look finds it.
                    del self._deferred[queue]
                    break

    async def _move_new(self, mover: _Mover) -> int:
        """Move what this server has not seen yet; how many rows there were."""
        now = _loop_time()
        if now >= self._whole_at:
            self._whole_at, self._seen = now + _WHOLE_SECONDS, None
        found = 0
        while True:
            plan = await self._plan(None)
            found += len(plan.ids)
            await self._follow(plan, mover)
            self._defer(mover)
            if not plan.full:
                self._seen = plan.snapshot
                return found

    async def _plan(self, queue: str | None) -> _Plan:
        row = await self._store.pool.fetchrow(_PLAN, self._seen, queue, list(self._deferred), _PLANNED)
        assert row is not None
        return _Plan(row["o_snapshot"], row["o_ids"] or (), row["o_bytes"] or ())

    async def _follow(self, plan: _Plan, mover: _Mover) -> None:
        for ids in plan.chunks():
            await mover.move(ids)

    def _defer(self, mover: _Mover) -> None:
        for queue, why in mover.refused.items():
            if why and queue not in self._deferred:
                log.warning("messages for queue %r wait in hark.inbox: %s", queue, why)
            self._deferred[queue] = _loop_time() + (_DEFER_SECONDS if why else 0)


class _Mover:
    """One run over planned rows."""

    def __init__(self, store: Store, seal: Seal, note: NoteMoved) -> None:
        self._store = store
        self._seal = seal
        self._note = note
        self.moved = 0
        self.mismatched = False
        self.refused: dict[str, str] = {}
        """Queues that refused a message, and why: none of their later ones may be moved before it."""

    async def move(self, ids: Sequence[int]) -> None:
        """Move rows, as far as they are still there; raises `_Busy`."""
        gone: frozenset[int] = frozenset()
        while True:
            found = await self._store.pool.fetch(_READ, ids)
            for row in found:
                if row["id"] in gone:
                    self.refused.setdefault(row["queue"], "another session has locked a row")
            rows, messages = self._sealed(found)
            if not rows:
                return
            try:
                answer = await self._push(rows, messages)
                if answer is None:
                    return
                gone = answer
            except EngineFailure as failure:
                error = failure.__cause__
                if not isinstance(error, asyncpg.PostgresError) or (error.sqlstate or "")[:2] not in _OF_THE_ROW:
                    raise
                if len(rows) == 1:
                    await self._refuse(rows[0], str(error))
                    return
                # One of them must not keep the others waiting.
                half = len(rows) // 2
                await self.move([row["id"] for row in rows[:half]])
                await self.move([row["id"] for row in rows[half:]])
                return

    def _sealed(self, rows: list[asyncpg.Record]) -> tuple[list[asyncpg.Record], list[NewMessage]]:
        """The rows that can be stored, as messages."""
        kept: list[asyncpg.Record] = []
        messages: list[NewMessage] = []
        for row in rows:
            queue = row["queue"]
            if queue in self.refused:
                continue
            try:
                messages += self._seal([_message_of(row)])
            except HarkError as error:
                self.refused[queue] = error.text
            else:
                kept.append(row)
        return kept, messages

    async def _push(self, rows: Sequence[asyncpg.Record], messages: Sequence[NewMessage]) -> frozenset[int] | None:
        """Push the messages and remove their rows. If what was known is out of date: the rows that are gone."""
        store = self._store
        batch = Pushes(store)
        batch.add(messages)
        positions = [position + 1 for position in batch.items]
        ids = [row["id"] for row in rows]
        [row] = await store.pool.call(_MOVE, *batch.arguments(), ids, positions)
        busy, gone, stale, partition_ids, tails, offsets, codes = row
        if busy:
            raise _Busy
        if gone is not None:
            return frozenset(gone)
        if stale is not None:
            store.forget_partitions(stale)
            return frozenset()
        partitions = batch.adopt(partition_ids)
        outcomes = batch.outcomes(partitions, tails, offsets, codes)
        moved = [pair for pair in zip(messages, outcomes, strict=True) if pair[1].status != "failed"]
        self.moved += len(moved)
        self._note([message for message, _ in moved], [outcome for _, outcome in moved])
        for one, outcome in zip(rows, outcomes, strict=True):
            if outcome.status != "failed":
                continue
            if outcome.code == "sealing_mismatch":
                self.mismatched = True
                self.refused.setdefault(one["queue"], "")
            elif outcome.code == "queue_full":
                self.refused[one["queue"]] = str(outcome.error)
            else:
                await self._refuse(one, str(outcome.error))
        notifications = Notifications(store=store)
        notifications.pushed(batch.arrivals(partitions, codes))
        notifications.send()
        return None

    async def _refuse(self, row: asyncpg.Record, error: str) -> None:
        """Set a row aside that would be refused again and again."""
        log.error("message %s for queue %r stays in hark.inbox: %s", row["transaction_id"], row["queue"], error)
        await self._store.pool.fetch(_REFUSE, [row["id"]], error)


def _message_of(row: asyncpg.Record) -> NewMessage:
    return NewMessage(
        row["queue"],
        row["partition"],
        row["payload"],
        row["transaction_id"],
        trace_id=row["trace_id"],
        priority=row["priority"],
        deliver_at=row["deliver_at"],
        ttl_ms=None if row["ttl"] is None else row["ttl"] // MILLISECOND,
        backoff_ms=None if row["backoff"] is None else tuple(row["backoff"]),
        trace_context=row["trace_context"] or None,
    )


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


async def inbox_metrics(pool: Pool, inbox: PostgresInbox) -> dict[str, float]:
    """Numbers by name."""
    row = await pool.fetchrow("select * from hark.inbox_numbers_v1()")
    assert row is not None
    return {
        "inbox_rows": row["o_rows"],
        "inbox_oldest_seconds": row["o_oldest_seconds"],
        "inbox_refused": row["o_refused"],
        "inbox_moved": inbox.moved,
    }
