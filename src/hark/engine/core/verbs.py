"""What claims leave to be written down with the next transaction: worth saving, not worth waiting for."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar, cast

import apsw

from hark.batching import Answer
from hark.clock import SECOND, Clock
from hark.engine.api import Answers
from hark.engine.core import browse, explain, groups, keyvalue, push, queues, settle, views
from hark.engine.core.browse import Browser
from hark.engine.core.calls import Call, Claim, Expire
from hark.engine.core.claim import Claimer
from hark.engine.core.collect import Collector
from hark.engine.core.explain import Explainer, LeaseView
from hark.engine.core.groups import note_seen
from hark.engine.core.loader import Loader
from hark.engine.core.ordered import Draft
from hark.engine.core.position import Position
from hark.engine.core.state import Group, State
from hark.engine.core.store import rows_of, run
from hark.engine.core.transaction import WriteTransaction
from hark.engine.keyvalue import StatsMemory, written_of
from hark.errors import HarkError
from hark.ids import IdCodec
from hark.model import (
    BrowseFrom,
    CancelOutcome,
    Collected,
    DeadLetterFilter,
    DeadLetters,
    Expired,
    Explain,
    Facts,
    GroupDeletion,
    GroupStats,
    Key,
    KeyEntry,
    KeyRange,
    KeyStats,
    KeyWrite,
    KeyWritten,
    LeaseFilter,
    Leases,
    Limits,
    MessageFilter,
    MessageView,
    NewDeadLetter,
    NewMessage,
    NewTrace,
    PartitionOffset,
    PartitionStats,
    PopRequest,
    PopResult,
    PositionStats,
    PushOutcome,
    QueueFilter,
    QueueInfo,
    QueuePage,
    QueueSpec,
    Read,
    ReadResult,
    Renewal,
    RenewOutcome,
    Seek,
    SeekOutcome,
    Settlement,
    SettleOutcome,
    Survey,
    Totals,
    Trace,
    TraceName,
    Transaction,
    TransactionOutcome,
)


class Notes:
    """Places that moved over what is gone, messages whose time to live was over, groups that were seen."""

    def __init__(self) -> None:
        self._stepped: dict[Position, set[int]] = {}
        self._expired: dict[str, int] = {}
        self._seen: dict[Group, None] = {}
        self.waiting = False
        """Whether there is anything to write down."""

    def add(self, claimer: Claimer) -> None:
        """Take over what a claimer has noted."""
        for position, changed in claimer.hand_out.stepped.items():
            self._stepped.setdefault(position, set()).update(changed)
        self._stepped.update({position: set() for position in claimer.picker.stepped if position not in self._stepped})
        for queue, number in (*claimer.hand_out.expired.items(), *claimer.picker.expired.items()):
            self._expired[queue] = self._expired.get(queue, 0) + number
        self._seen.update(claimer.seen)
        self.waiting = bool(self._stepped or self._expired or self._seen)
        claimer.note_endings()

    def save(self, transaction: WriteTransaction, state: State) -> None:
        """Write all of it down, and forget it."""
        for position, changed in self._stepped.items():
            if position.group.positions.get(position.partition.id) is position:
                draft = transaction.draft(position)
                if isinstance(draft, Draft):
                    draft.changed_ranges.update(changed)
            queue = state.queues.get(position.group.queue_name)
            if queue is not None:
                queue.open = None
        for name, number in self._expired.items():
            transaction.count(name, "expired", number)
        note_seen(transaction, self._seen)
        self.clear()

    def clear(self) -> None:
        """Forget all of it: memory was thrown away."""
        self._stepped, self._expired, self._seen = {}, {}, {}
        self.waiting = False


T = TypeVar("T")


class KeyVerbs(ABC):
    """Written on the writer, read beside it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._key_stats = StatsMemory(self._count_all)
        self._refusal: Callable[[], HarkError | None] = lambda: None
        """Why nothing may be added to the store now. In the thread that writes."""

    @abstractmethod
    def _write(self, body: Callable[[WriteTransaction], T]) -> Awaitable[T]: ...

    def _chore(self, body: Callable[[WriteTransaction], T]) -> Awaitable[T]:
        """Write what will be tried again by itself."""
        return self._write(body)

    @abstractmethod
    async def _read_committed(self, body: Callable[[apsw.Connection], T]) -> T: ...

    def _transacted(
        self, transaction: WriteTransaction, requests: Sequence[Transaction]
    ) -> Answers[TransactionOutcome]:
        refusal = self._refusal()
        if refusal is None:
            return list(settle.transact(transaction, requests))
        # What only settles and deletes makes room.
        return [refusal if _adds(request) else settle.transact(transaction, [request])[0] for request in requests]

    async def read_keys(self, keys: Sequence[Key]) -> list[KeyEntry | None]:
        """See `KeyValueEngine.read_keys`."""
        now = self._clock.now()
        return await self._read_committed(lambda connection: keyvalue.read_keys(connection, now, keys))

    async def list_keys(self, ranges: Sequence[KeyRange]) -> list[list[KeyEntry]]:
        """See `KeyValueEngine.list_keys`."""
        now = self._clock.now()
        return await self._read_committed(lambda connection: keyvalue.list_keys(connection, now, ranges))

    async def count_keys(self, prefix: Key) -> int:
        """See `KeyValueEngine.count_keys`."""
        now = self._clock.now()
        return await self._read_committed(lambda connection: keyvalue.count_keys(connection, now, prefix))

    async def write_keys(self, requests: Sequence[KeyWrite]) -> Answers[KeyWritten]:
        """See `KeyValueEngine.write_keys`."""
        transactions = [Transaction((), keys=request) for request in requests]
        outcomes = await self._write(lambda transaction: self._transacted(transaction, transactions))
        return [outcome if isinstance(outcome, HarkError) else written_of(outcome) for outcome in outcomes]

    async def sweep_keys(self, limit: int = 1000) -> int:
        """See `KeyValueEngine.sweep_keys`."""
        return await self._chore(lambda transaction: transaction.key_book().sweep(limit))

    async def key_stats(self) -> KeyStats:
        """See `KeyValueEngine.key_stats`."""
        return await self._key_stats.stats(self._clock.now())

    async def _count_all(self) -> KeyStats:
        now = self._clock.now()
        return await self._read_committed(lambda connection: keyvalue.key_stats(connection, now))


def _adds(request: Transaction) -> bool:
    """Whether a transaction stores messages or values."""
    keys = request.keys
    return any(isinstance(one, NewMessage) for one in request.operations) or (
        keys is not None and (bool(keys.messages) or not all(one.kind.startswith("delete") for one in keys.mutations))
    )


# Who runs them, and when something counts as committed, is the engine's own business: it says how a write, a look at
# memory and a read of the tables travel.


_FLAG = "flag:"


class TableVerbs(KeyVerbs):
    """See the module's text."""

    _collector: Collector
    _codec: IdCodec

    @abstractmethod
    def _submit(self, call: Call) -> None: ...

    @abstractmethod
    def _look(self, body: Callable[[State, int], T]) -> Awaitable[T]: ...

    @abstractmethod
    def _memory(self) -> State:
        """Memory itself, which others may be changing."""

    @abstractmethod
    async def _examine(self, body: Callable[[apsw.Connection, State, int], T]) -> T:
        """Look at memory and, beside it, at the tables that it is about; briefly, as nobody gets anything meanwhile."""

    @abstractmethod
    async def _read(self, body: Callable[[apsw.Connection, LeaseView], T]) -> T: ...

    async def _browse(self, body: Callable[[Browser], T]) -> T:
        return await self._read(lambda connection, leased: body(Browser(connection, leased, self._codec)))

    # Messages ----------------------------------------------------------------------------------------------

    def push(self, requests: Sequence[Sequence[NewMessage]]) -> Awaitable[Answers[list[PushOutcome]]]:
        """See `Engine.push`."""
        return self._write(partial(push.push, requests=requests, refusal=self._refusal))

    def pop(self, requests: Sequence[PopRequest]) -> Awaitable[Answers[PopResult]]:
        """See `Engine.pop`."""
        answer: Answer[Answers[PopResult]] = Answer()
        self._submit(Claim(answer, requests))
        return answer

    def settle(self, requests: Sequence[Sequence[Settlement]]) -> Awaitable[Answers[list[SettleOutcome]]]:
        """See `Engine.settle`."""
        return cast("Awaitable[Answers[list[SettleOutcome]]]", self._write(partial(settle.settle, requests=requests)))

    def transact(self, requests: Sequence[Transaction]) -> Awaitable[Answers[TransactionOutcome]]:
        """See `Engine.transact`."""
        return cast("Awaitable[Answers[TransactionOutcome]]", self._write(lambda t: self._transacted(t, requests)))

    def renew(self, requests: Sequence[Renewal]) -> Awaitable[Answers[RenewOutcome]]:
        """See `Engine.renew`."""
        return self._look(lambda state, now: explain.renew(state, now, list(requests)))

    async def lease_ends(self, lease_ids: Sequence[str]) -> list[int | None]:
        """See `Engine.lease_ends`."""
        return await self._look(lambda state, now: explain.lease_ends(state, now, lease_ids))

    async def shorten(self, lease_ids: Sequence[str], microseconds: int) -> None:
        """See `Engine.shorten`."""
        await self._look(lambda state, now: explain.shorten(state, now, lease_ids, microseconds))

    async def release(self, lease_ids: Sequence[str]) -> None:
        """See `Engine.release`."""
        await self._write(lambda t: settle.release(t, lease_ids))

    async def expire(self, limit: int = 1000) -> Expired:
        """See `Engine.expire`."""
        future: asyncio.Future[Expired] = asyncio.get_running_loop().create_future()
        self._submit(Expire(future, limit))
        return await future

    async def collect(self, limit: int = 1000) -> Collected:
        """See `Engine.collect`."""
        collector = self._collector
        if collector.is_empty:
            # Claims note in memory when a group was last seen. The search reads it from the tables.
            await self._chore(lambda _transaction: None)
            leased = await self._look(LeaseView)
            collector.take(await self._read_committed(lambda connection: collector.search(connection, leased)))
        part = collector.part(limit)
        removed = 0
        if part.messages or part.swept is not None:
            removed = await self._chore(lambda transaction: collector.remove(transaction, part))
            collector.note_removed(part, removed)
        return Collected(len(part.messages), removed, part.more)

    async def read(self, requests: Sequence[Read]) -> Answers[ReadResult]:
        """See `Engine.read`."""
        return cast(
            "Answers[ReadResult]",
            await self._read_committed(lambda connection: browse.read(connection, self._codec, requests)),
        )

    async def offsets(
        self,
        queue: str,
        start: BrowseFrom,
        partition: str | None = None,
        changed_since: int | None = None,  # noqa: ARG002  # for those who share a store
    ) -> list[PartitionOffset]:
        """See `Engine.offsets`."""
        return await self._read_committed(lambda connection: browse.offsets(connection, queue, start, partition))

    async def cancel(self, message_ids: Sequence[str]) -> list[CancelOutcome]:
        """See `Engine.cancel`."""
        return await self._write(lambda t: queues.cancel(t, message_ids))

    async def delete_messages(self, message_ids: Sequence[str]) -> list[bool]:
        """See `Engine.delete_messages`."""
        return await self._write(lambda t: queues.delete_messages(t, message_ids))

    # Queues ------------------------------------------------------------------------------------------------

    async def configure(self, specs: Sequence[QueueSpec]) -> Answers[QueueInfo]:
        """See `Engine.configure`."""
        return cast("Answers[QueueInfo]", await self._write(lambda t: queues.configure(t, specs)))

    async def make_queues(self, specs: Sequence[QueueSpec]) -> None:
        """See `Engine.make_queues`."""
        await self._write(lambda t: queues.make_queues(t, specs))

    async def delete_queues(self, names: Sequence[str]) -> list[bool]:
        """See `Engine.delete_queues`."""
        return await self._write(lambda t: queues.delete_queues(t, names))

    async def purge(self, queue: str, group: str | None = None) -> int:
        """See `Engine.purge`."""
        return await self._write(lambda t: queues.purge(t, queue, group))

    async def pause(self, queue: str, group: str | None, paused: bool) -> bool:
        """See `Engine.pause`."""
        return await self._write(lambda t: queues.pause(t, queue, group, paused))

    async def queue_infos(self, names: Sequence[str] | None = None) -> list[QueueInfo]:
        """See `Engine.queue_infos`."""
        wanted = None if names is None else set(names)
        return await self._look(
            lambda state, _: [q.info for q in state.queues.values() if wanted is None or q.name in wanted]
        )

    async def queue_stats(self, where: QueueFilter) -> QueuePage:
        """See `Engine.queue_stats`."""
        return await self._read(lambda connection, leased: views.queue_stats(connection, leased, where))

    async def survey(self, after: tuple[int, str] = (0, ""), limit: int = 1000) -> Survey:
        """See `Engine.survey`."""
        return await self._read_committed(lambda connection: views.survey(connection, self._clock.now(), after, limit))

    async def totals(self) -> Totals:
        """See `Engine.totals`."""
        leased = await self._look(lambda state, _: views.leased_counts(state))
        return await self._read_committed(lambda connection: views.totals(connection, leased))

    async def partition_stats(
        self, queue: str, search: str | None = None, limit: int = 1000, offset: int = 0
    ) -> list[PartitionStats]:
        """See `Engine.partition_stats`."""
        return await self._read(
            lambda connection, leased: views.partition_stats(
                connection, leased, self._codec, queue, search, limit, offset
            )
        )

    # Groups ------------------------------------------------------------------------------------------------

    async def seek(self, requests: Sequence[Seek]) -> Answers[SeekOutcome]:
        """See `Engine.seek`."""
        return await self._write(lambda t: groups.seek(t, requests))

    async def delete_group(self, group: str, queue: str | None, forget_subscription: bool) -> GroupDeletion:
        """See `Engine.delete_group`."""
        return await self._write(lambda t: groups.delete_group(t, group, queue, forget_subscription))

    async def limit_group(self, queue: str, group: str, limits: Limits) -> bool:
        """See `Engine.limit_group`."""
        return await self._write(lambda t: groups.limit_group(t, queue, group, limits))

    async def resubscribe(self, group: str, since: int) -> int:
        """See `Engine.resubscribe`."""
        return await self._write(lambda t: groups.resubscribe(t, group, since))

    async def group_names(self, queue: str | None = None) -> list[str]:
        """See `Engine.group_names`."""
        sql = "select distinct name from groups where ?1 is null or queue = ?1 order by name"
        return await self._read(lambda connection, _leased: [row[0] for row in rows_of(connection, sql, queue)])

    async def group_stats(
        self,
        group: str | None = None,
        queue: str | None = None,
        queues: Sequence[str] | None = None,
        uncounted: Sequence[str] = (),
    ) -> list[GroupStats]:
        """See `Engine.group_stats`."""
        return await self._read(
            lambda connection, leased: views.group_stats(connection, leased, group, queue, queues, uncounted)
        )

    async def position_stats(
        self,
        group: str | None = None,
        queue: str | None = None,
        min_lag_seconds: int = 0,
        limit: int = 1000,
        partitions: Sequence[str] | None = None,
        queues: Sequence[str] | None = None,
    ) -> list[PositionStats]:
        """See `Engine.position_stats`."""
        before = self._clock.now() - min_lag_seconds * SECOND if min_lag_seconds else None
        return await self._read(
            lambda connection, leased: views.position_stats(
                connection, leased, self._codec, group, queue, before, limit, partitions, queues
            )
        )

    # Dead letters ------------------------------------------------------------------------------------------

    async def dead_letters(self, where: DeadLetterFilter) -> DeadLetters:
        """See `Engine.dead_letters`."""
        return await self._browse(lambda browser: browser.dead_letters(where))

    async def requeue(self, ids: Sequence[str]) -> Answers[str]:
        """See `Engine.requeue`."""
        return await self._write(lambda t: groups.requeue(t, ids))

    async def import_dead_letters(self, letters: Sequence[NewDeadLetter]) -> Answers[bool]:
        """See `Engine.import_dead_letters`."""
        return await self._write(lambda t: self._imported(t, letters))

    def _imported(self, transaction: WriteTransaction, letters: Sequence[NewDeadLetter]) -> Answers[bool]:
        refusal = self._refusal()
        return groups.import_letters(transaction, letters) if refusal is None else [refusal] * len(letters)

    async def delete_dead_letters(self, where: DeadLetterFilter) -> int:
        """See `Engine.delete_dead_letters`."""
        return await self._write(lambda t: groups.delete_dead_letters(t, where))

    # Looking -----------------------------------------------------------------------------------------------

    async def messages(self, where: MessageFilter) -> list[MessageView]:
        """See `Engine.messages`."""
        return await self._browse(lambda browser: browser.messages(where))

    async def message(self, partition_id: str, transaction_id: str) -> MessageView | None:
        """See `Engine.message`."""
        return await self._browse(lambda browser: browser.message(partition_id, transaction_id))

    async def trace(self, traces: Sequence[NewTrace]) -> Answers[str]:
        """See `Engine.trace`."""

        def body(transaction: WriteTransaction) -> Answers[str]:
            refusal = self._refusal()
            return queues.trace(transaction, traces) if refusal is None else [refusal] * len(traces)

        return await self._write(body)

    async def traces(
        self,
        partition_id: str | None = None,
        transaction_id: str | None = None,
        name: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> tuple[list[Trace], int]:
        """See `Engine.traces`."""
        return await self._browse(lambda browser: browser.traces(partition_id, transaction_id, name, limit, offset))

    async def trace_names(self, limit: int = 50, offset: int = 0) -> tuple[list[TraceName], int]:
        """See `Engine.trace_names`."""
        return await self._browse(lambda browser: browser.trace_names(limit, offset))

    async def explain(self, requests: Sequence[Explain]) -> Answers[Facts]:
        """See `Engine.explain`."""
        return await self._examine(lambda connection, state, now: Explainer(connection, state, now).explain(requests))

    async def leases(self, where: LeaseFilter) -> Leases:
        """See `Engine.leases`."""
        return await self._examine(lambda _connection, state, _now: explain.page(state, where))

    async def queues_of(self, ids: Sequence[str]) -> list[str | None]:
        """See `Engine.queues_of`."""
        addresses = [self._codec.decode(one) for one in ids]
        numbers = [None if address is None else address.partition for address in addresses]
        # Read without waiting for whoever changes it: where a partition is does not change.
        known = self._memory().partitions
        missing = [number for number in numbers if number is not None and number not in known]
        if missing:
            await self._examine(lambda connection, state, _: Loader(connection, state).partitions_by_id(missing))
            known = self._memory().partitions
        found = [None if number is None else known.get(number) for number in numbers]
        return [None if partition is None else partition.queue.name for partition in found]

    # The server's own notes --------------------------------------------------------------------------------

    async def read_flags(self) -> dict[str, bool]:
        """See `Engine.read_flags`."""

        def read(connection: apsw.Connection) -> dict[str, bool]:
            rows = rows_of(connection, "select key, value from meta where key like 'flag:%'")
            return {key.removeprefix(_FLAG): bool(value) for key, value in rows}

        return await self._read_committed(read)

    async def write_flag(self, name: str, value: bool) -> None:
        """See `Engine.write_flag`."""
        await self._write(
            lambda t: run(t.connection, "insert or replace into meta values (?1, ?2)", _FLAG + name, int(value))
        )
