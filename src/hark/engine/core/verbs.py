"""The verbs of the engines with the tables of `schema.py` (SQLite and S3), and the calls that carry them to a thread.

A verb is bound to the function that does its work. The engine decides which thread runs a call, and when a write
counts as committed. `engine/api.py` documents the verbs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

import apsw

from hark import model
from hark.batching import Answer
from hark.clock import Clock
from hark.engine.api import Answers, KeyListener, Listener
from hark.engine.core import browse, explain, groups, keyvalue, push, queues, settle, views
from hark.engine.core.claim import Claimer
from hark.engine.core.collect import Collector
from hark.engine.core.explain import Explainer, LeaseView
from hark.engine.core.loader import Loader
from hark.engine.core.ordered import Draft
from hark.engine.core.position import Position
from hark.engine.core.state import Group, State
from hark.engine.core.store import rows_of, run
from hark.engine.core.transaction import WriteTransaction
from hark.engine.keyvalue import StatsMemory, written_of
from hark.errors import DiskFull, EngineFailure, HarkError
from hark.ids import IdCodec

P = ParamSpec("P")
T = TypeVar("T")
Async = Coroutine[Any, Any, T]

_FLAG = "flag:"


log = logging.getLogger(__name__)


@dataclass(eq=False)
class Call:
    """A call to an engine thread, with the future of the caller."""

    future: asyncio.Future[Any] | None
    result: Any = field(default=None, init=False)
    error: Exception | None = field(default=None, init=False)


@dataclass(eq=False)
class Write(Call):
    """A call that changes the store, answered after the commit."""

    body: Callable[[WriteTransaction], object]


class Expire(Write):
    """The verb `expire`. Every transaction expires leases; one with only this call expires at most `limit`."""

    def __init__(self, future: asyncio.Future[Any], limit: int) -> None:
        super().__init__(
            future, lambda transaction: model.Expired(transaction.expired, transaction.state.next_expiry())
        )
        self.limit = limit


@dataclass(eq=False)
class Look(Call):
    """A call that needs only memory, such as a renewal, answered at once."""

    body: Callable[[State, int], object]


@dataclass(eq=False)
class Claim(Call):
    """Pops, answered at once, or with `auto_ack` after the commit that settles the messages."""

    requests: Sequence[model.PopRequest]
    answers: list[model.PopResult | HarkError | None] = field(init=False)
    uncommitted: dict[int, model.PopResult | HarkError | None] = field(default_factory=dict, init=False)
    """Answers that become valid with the commit of their transaction, by the index of the request."""

    def __post_init__(self) -> None:
        self.answers = [None] * len(self.requests)

    @property
    def open(self) -> list[int]:
        """Indexes of the requests without an answer."""
        return [index for index, answer in enumerate(self.answers) if answer is None]


class Stop(Call):
    """The last call of a thread."""


class Outbox:
    """Answers, hints and key notifications on their way to the event loop, in the order of their commits."""

    def __init__(self, listener: Listener, key_listener: KeyListener) -> None:
        self._listener = listener
        self._key_listener = key_listener
        loop = asyncio.get_running_loop()
        self.deliver: Callable[[], object] = partial(loop.call_soon_threadsafe, self._empty)
        """Lets the event loop empty it. The lock must be free: waking up the loop can cost a turn."""
        self.deliver_soon: Callable[[], object] = partial(loop.call_soon, self._empty)
        """Does the same from the event loop itself."""
        self._waiting: deque[tuple[Sequence[Call], Sequence[model.Hint], model.KeyNotification | None]] = deque()

    def post(
        self, answers: Sequence[Call], hints: Sequence[model.Hint], keys: model.KeyNotification | None = None
    ) -> None:
        """Add answers and hints. The caller holds the lock, so that no answer is older than a hint before it."""
        if answers or hints or keys is not None:
            self._waiting.append((answers, hints, keys))

    def _empty(self) -> None:
        while self._waiting:
            answers, hints, keys = self._waiting.popleft()
            for call in answers:
                future = call.future
                if future is None or future.done():
                    continue
                if call.error is not None:
                    future.set_exception(call.error)
                else:
                    future.set_result(call.result)
            try:
                if keys is not None:
                    self._key_listener(keys)
                if hints:
                    self._listener(hints)
            except Exception:
                log.exception("hint listener raised; remaining responses are still sent")


def translate(error: Exception) -> HarkError:
    """The error for the caller, if the store failed with `error`."""
    if isinstance(error, HarkError):
        return error
    if isinstance(error, apsw.FullError):
        return DiskFull("the disk of the store is full; the request had no effect; free disk space")
    if isinstance(error, apsw.Error):
        return EngineFailure(f"the store failed: {error}; the request had no effect; see the server log")
    log.exception("the engine failed because of a bug; please report it", exc_info=error)
    text = f"internal error: {type(error).__name__}; the request had no effect; see the server log"
    return EngineFailure(text, code="internal")


class Notes:
    """Changes that claims make in memory, to be saved with the next transaction.

    These are positions that moved past removed messages, counts of expired messages, and groups that were seen.
    """

    def __init__(self) -> None:
        self._stepped: dict[Position, set[int]] = {}
        self._expired: dict[str, int] = {}
        self._seen: dict[Group, None] = {}
        self.waiting = False
        """Whether there is anything to save."""

    def add(self, claimer: Claimer) -> None:
        """Add the notes of a claimer."""
        for position, changed in claimer.hand_out.stepped.items():
            self._stepped.setdefault(position, set()).update(changed)
        self._stepped.update({position: set() for position in claimer.picker.stepped if position not in self._stepped})
        for queue, number in (*claimer.hand_out.expired.items(), *claimer.picker.expired.items()):
            self._expired[queue] = self._expired.get(queue, 0) + number
        self._seen.update(claimer.seen)
        self.waiting = bool(self._stepped or self._expired or self._seen)
        claimer.note_endings()

    def save(self, transaction: WriteTransaction, state: State) -> None:
        """Save all notes in a transaction, and clear them."""
        for position, changed in self._stepped.items():
            if position.group.positions.get(position.partition.id) is position:
                draft = transaction.draft(position)
                if isinstance(draft, Draft):
                    draft.changed_ranges.update(changed)
            queue = state.queues.get(position.group.queue_name)
            if queue is not None:
                transaction.settled_many(queue)
        for name, number in self._expired.items():
            transaction.count(name, "expired", number)
        for group in self._seen:
            sql = "update groups set last_seen = ?1 where id = ?2"
            run(transaction.connection, sql, group.last_seen, group.id)
        self.clear()

    def clear(self) -> None:
        """Drop all notes, because memory is reloaded."""
        self._stepped, self._expired, self._seen = {}, {}, {}
        self.waiting = False


def _writes(body: Callable[Concatenate[WriteTransaction, P], T]) -> Callable[Concatenate[TableVerbs, P], Async[T]]:
    """Bind a verb that runs inside a transaction of the writer."""

    async def verb(self: TableVerbs, /, *args: P.args, **named: P.kwargs) -> T:
        return await self._write(lambda transaction: body(transaction, *args, **named))

    return verb


def _reads(
    body: Callable[Concatenate[apsw.Connection, LeaseView, P], T],
) -> Callable[Concatenate[TableVerbs, P], Async[T]]:
    """Bind a verb that queries the tables, with the leases of the same moment, beside the writer."""

    async def verb(self: TableVerbs, /, *args: P.args, **named: P.kwargs) -> T:
        return await self._read(lambda connection, leases: body(connection, leases, *args, **named))

    return verb


def _looks(body: Callable[Concatenate[State, int, P], T]) -> Callable[Concatenate[TableVerbs, P], Async[T]]:
    """Bind a verb that needs only memory."""

    async def verb(self: TableVerbs, /, *args: P.args, **named: P.kwargs) -> T:
        return await self._look(lambda state, now: body(state, now, *args, **named))

    return verb


def _queries(body: Callable[Concatenate[apsw.Connection, int, P], T]) -> Callable[Concatenate[TableVerbs, P], Async[T]]:
    """Bind a verb that queries the committed tables, without leases."""

    async def verb(self: TableVerbs, /, *args: P.args, **named: P.kwargs) -> T:
        now = self._clock.now()
        return await self._read_committed(lambda connection: body(connection, now, *args, **named))

    return verb


class Readers:
    """Two threads that query the committed tables beside the writer, each with its own connection."""

    def __init__(
        self, threads: str, what: str, connect: Callable[[], apsw.Connection], generation: Callable[[], int]
    ) -> None:
        self._pool = ThreadPoolExecutor(2, thread_name_prefix=threads)
        self._what = what
        """The name of the tables in errors."""
        self._connect = connect
        self._generation = generation
        """Another number: connections must be opened again."""
        self._local = threading.local()
        self._connections: list[apsw.Connection] = []

    async def run(self, body: Callable[[apsw.Connection], T]) -> T:
        """Run a query."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._run, body)

    def _run(self, body: Callable[[apsw.Connection], T]) -> T:
        known: tuple[int, apsw.Connection] | None = getattr(self._local, "connection", None)
        try:
            if known is None or known[0] != self._generation():
                if known is not None:
                    self._connections.remove(known[1])
                    known[1].close()
                known = self._local.connection = (self._generation(), self._connect())
                self._connections.append(known[1])
            return body(known[1])
        except apsw.Error as error:
            raise EngineFailure(f"cannot read {self._what}: {error}; see the server log") from error

    def close(self) -> None:
        """Finish what runs, and close the connections."""
        self._pool.shutdown()
        for connection in self._connections:
            connection.close()


def stopping() -> EngineFailure:
    """The error for calls to an engine that is not running, or not for long."""
    return EngineFailure("the server is shutting down; retry", code="stopping")


def refuse(_call: Call) -> NoReturn:
    """Refuse a call to an engine that is not running."""
    raise stopping()


class TableVerbs(ABC):
    """The verbs of an engine with tables."""

    _collector: Collector
    _codec: IdCodec
    _submit: Callable[[Call], object]
    _submit_write: Callable[[Write], object]
    """Hand a call to the threads of the engine. Bound at the start, because each call passes one of them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._submit = self._submit_write = refuse
        self._key_stats = StatsMemory(self._count_all)

    # Calls -------------------------------------------------------------------------------------------------

    def _write(self, body: Callable[[WriteTransaction], T]) -> Awaitable[T]:
        answer: Answer[T] = Answer()
        self._submit_write(Write(answer, body))
        return answer

    def _chore(self, body: Callable[[WriteTransaction], T]) -> Awaitable[T]:
        """Run a write that upkeep repeats periodically."""
        return self._write(body)

    def _look(self, body: Callable[[State, int], T]) -> Awaitable[T]:
        answer: Answer[T] = Answer()
        self._submit(Look(answer, body))
        return answer

    @abstractmethod
    def _memory(self) -> State:
        """The state itself, which other threads may be changing."""

    @abstractmethod
    async def _examine(self, body: Callable[[apsw.Connection, State, int], T]) -> T:
        """Read memory and tables together. Nothing is delivered meanwhile, so the body must be short."""

    @abstractmethod
    async def _read(self, body: Callable[[apsw.Connection, LeaseView], T]) -> T: ...

    @abstractmethod
    async def _read_committed(self, body: Callable[[apsw.Connection], T]) -> T: ...

    # Messages ----------------------------------------------------------------------------------------------

    lease_ends = _looks(explain.lease_ends)
    shorten = _looks(explain.shorten)
    release = _writes(settle.release)

    def push(self, requests: Sequence[Sequence[model.NewMessage]]) -> Awaitable[Answers[list[model.PushOutcome]]]:
        answer: Answer[Answers[list[model.PushOutcome]]] = Answer()
        self._submit_write(Write(answer, partial(push.push, requests=requests)))
        return answer

    def pop(self, requests: Sequence[model.PopRequest]) -> Awaitable[Answers[model.PopResult]]:
        answer: Answer[Answers[model.PopResult]] = Answer()
        self._submit(Claim(answer, requests))
        return answer

    def settle(self, requests: Sequence[Sequence[model.Settlement]]) -> Awaitable[Answers[list[model.SettleOutcome]]]:
        answer: Answer[Answers[list[model.SettleOutcome]]] = Answer()
        self._submit_write(Write(answer, partial(settle.settle, requests=requests)))
        return answer

    def transact(self, requests: Sequence[model.Transaction]) -> Awaitable[Answers[model.TransactionOutcome]]:
        return self._write(partial(settle.transact, requests=requests))

    def renew(self, requests: Sequence[model.Renewal]) -> Awaitable[Answers[model.RenewOutcome]]:
        return self._look(lambda state, now: explain.renew(state, now, requests))

    async def expire(self, limit: int = 1000) -> model.Expired:
        answer: Answer[model.Expired] = Answer()
        self._submit_write(Expire(answer, limit))
        return await answer

    async def collect(self, limit: int = 1000) -> model.Collected:
        collector = self._collector
        if collector.is_empty:
            # Claims note in memory when a group was last seen. The search reads it from the tables.
            await self._chore(lambda _transaction: None)
            leases = await self._look(LeaseView)
            collector.take(await self._read_committed(lambda connection: collector.search(connection, leases)))
        part = collector.part(limit)
        removed = 0
        if part.messages or part.swept is not None:
            removed = await self._chore(lambda transaction: collector.remove(transaction, part))
            collector.note_removed(part, removed)
        return model.Collected(len(part.messages), removed, part.more)

    async def read(self, requests: Sequence[model.Read]) -> Answers[model.ReadResult]:
        return await self._read_committed(lambda connection: browse.read(connection, self._codec, requests))

    async def offsets(
        self,
        queue: str,
        start: model.BrowseFrom,
        partition: str | None = None,
        changed_since: int | None = None,  # noqa: ARG002  # for engines that share a store
    ) -> list[model.PartitionOffset]:
        return await self._read_committed(lambda connection: browse.offsets(connection, queue, start, partition))

    cancel = _writes(queues.cancel)
    delete_messages = _writes(queues.delete_messages)

    # Queues and groups -------------------------------------------------------------------------------------

    configure = _writes(queues.configure)
    make_queues = _writes(queues.make_queues)
    delete_queues = _writes(queues.delete_queues)
    purge = _writes(queues.purge)
    pause = _writes(queues.pause)
    queue_stats = _reads(views.queue_stats)
    partition_stats = _reads(views.partition_stats)

    async def queue_infos(self, names: Sequence[str] | None = None) -> list[model.QueueInfo]:
        wanted = None if names is None else set(names)
        return await self._look(
            lambda state, _: [q.info for q in state.queues.values() if wanted is None or q.name in wanted]
        )

    async def survey(self, after: views.SurveyPoint = (0, ""), limit: int = 1000) -> model.Survey:
        leases = await self._look(LeaseView)
        return await self._read_committed(lambda connection: views.survey(connection, leases, after, limit))

    async def totals(self) -> model.Totals:
        leased = await self._look(lambda state, _: views.leased_counts(state))
        return await self._read_committed(lambda connection: views.totals(connection, leased))

    seek = _writes(groups.seek)
    delete_group = _writes(groups.delete_group)
    limit_group = _writes(groups.limit_group)
    resubscribe = _writes(groups.resubscribe)
    group_names = _reads(views.group_names)
    group_stats = _reads(views.group_stats)
    position_stats = _reads(views.position_stats)

    # Dead letters, lists, traces ---------------------------------------------------------------------------

    requeue = _writes(groups.requeue)
    import_dead_letters = _writes(groups.import_letters)
    delete_dead_letters = _writes(groups.delete_dead_letters)
    dead_letters = _reads(browse.dead_letters)
    messages = _reads(browse.messages)
    message = _reads(browse.message)
    trace = _writes(queues.trace)
    traces = _reads(browse.traces)
    trace_names = _reads(browse.trace_names)

    async def explain(self, requests: Sequence[model.Explain]) -> Answers[model.Facts]:
        return await self._examine(lambda connection, state, now: Explainer(connection, state, now).explain(requests))

    async def leases(self, where: model.LeaseFilter) -> model.Leases:
        return await self._examine(lambda _connection, state, _now: explain.page(state, where))

    async def queues_of(self, ids: Sequence[str]) -> list[str | None]:
        decoded = [self._codec.decode(one) for one in ids]
        numbers = [None if one is None else one.partition for one in decoded]
        # This reads without a lock, because the queue of a partition never changes.
        known = self._memory().partitions
        missing = [number for number in numbers if number is not None and number not in known]
        if missing:
            await self._examine(lambda connection, state, _: Loader(connection, state).partitions_by_id(missing))
            known = self._memory().partitions
        found = [None if number is None else known.get(number) for number in numbers]
        return [None if partition is None else partition.queue.name for partition in found]

    # Keys --------------------------------------------------------------------------------------------------

    read_keys = _queries(keyvalue.read_keys)
    list_keys = _queries(keyvalue.list_keys)
    count_keys = _queries(keyvalue.count_keys)

    async def write_keys(self, requests: Sequence[model.KeyWrite]) -> Answers[model.KeyWritten]:
        transactions = [model.Transaction((), keys=request) for request in requests]
        outcomes = await self._write(partial(settle.transact, requests=transactions))
        return [outcome if isinstance(outcome, HarkError) else written_of(outcome) for outcome in outcomes]

    async def sweep_keys(self, limit: int = 1000) -> int:
        return await self._chore(lambda transaction: transaction.key_book().sweep(limit))

    async def key_stats(self) -> model.KeyStats:
        return await self._key_stats.stats(self._clock.now())

    _count_all = _queries(keyvalue.key_stats)

    # Flags of the server -----------------------------------------------------------------------------------

    async def read_flags(self) -> dict[str, bool]:
        def read(connection: apsw.Connection) -> dict[str, bool]:
            rows = rows_of(connection, "select key, value from meta where key like 'flag:%'")
            return {key.removeprefix(_FLAG): bool(value) for key, value in rows}

        return await self._read_committed(read)

    async def write_flag(self, name: str, value: bool) -> None:
        await self._write(
            lambda t: run(t.connection, "insert or replace into meta values (?1, ?2)", _FLAG + name, int(value))
        )
