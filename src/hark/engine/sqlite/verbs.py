"""The verbs over the tables: what every engine has in common that keeps its state in them.

Who runs them, and when something counts as committed, is the engine's own business: it says how a write, a look at
memory and a read of the tables travel.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, cast

import apsw

from hark.clock import SECOND
from hark.engine.api import Answers
from hark.engine.sqlite import (
    deadletters,
    expire,
    groups,
    leases,
    messages,
    push,
    queue_views,
    queues,
    read,
    settle,
    survey,
    views,
)
from hark.engine.sqlite.browse import Browser
from hark.engine.sqlite.calls import Call, Claim, Expire
from hark.engine.sqlite.collect import Collector
from hark.engine.sqlite.explaining import Explainer
from hark.engine.sqlite.key_verbs import KeyVerbs
from hark.engine.sqlite.leases import LeaseView
from hark.engine.sqlite.loader import Loader
from hark.engine.sqlite.state import State
from hark.engine.sqlite.store import rows_of, run
from hark.ids import IdCodec
from hark.model import (
    BrowseFrom,
    CancelOutcome,
    Census,
    Collected,
    DeadLetterFilter,
    DeadLetters,
    Expired,
    Explain,
    Facts,
    GroupDeletion,
    GroupStats,
    LeaseFilter,
    Leases,
    Limits,
    MessageFilter,
    MessageView,
    NewMessage,
    NewTrace,
    PartitionStats,
    PopRequest,
    PopResult,
    Position,
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
    Trace,
    TraceName,
    TrackStats,
    Transaction,
    TransactionOutcome,
)

T = TypeVar("T")
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
        return await self._read(lambda connection, held: body(Browser(connection, held, self._codec)))

    # Messages ----------------------------------------------------------------------------------------------

    def push(self, requests: Sequence[Sequence[NewMessage]]) -> Awaitable[Answers[list[PushOutcome]]]:
        """See `Engine.push`."""
        return cast("Awaitable[Answers[list[PushOutcome]]]", self._write(lambda t: push.push(t, requests)))

    def pop(self, requests: Sequence[PopRequest]) -> Awaitable[Answers[PopResult]]:
        """See `Engine.pop`."""
        future: asyncio.Future[Answers[PopResult]] = asyncio.get_running_loop().create_future()
        self._submit(Claim(future, requests))
        return future

    def settle(self, requests: Sequence[Sequence[Settlement]]) -> Awaitable[Answers[list[SettleOutcome]]]:
        """See `Engine.settle`."""
        return cast("Awaitable[Answers[list[SettleOutcome]]]", self._write(lambda t: settle.settle(t, requests)))

    def transact(self, requests: Sequence[Transaction]) -> Awaitable[Answers[TransactionOutcome]]:
        """See `Engine.transact`."""
        return cast("Awaitable[Answers[TransactionOutcome]]", self._write(lambda t: settle.transact(t, requests)))

    def renew(self, requests: Sequence[Renewal]) -> Awaitable[Answers[RenewOutcome]]:
        """See `Engine.renew`."""
        return self._look(lambda state, now: leases.renew(state, now, list(requests)))

    async def lease_ends(self, lease_ids: Sequence[str]) -> list[int | None]:
        """See `Engine.lease_ends`."""
        return await self._look(lambda state, now: leases.lease_ends(state, now, lease_ids))

    async def release(self, lease_ids: Sequence[str]) -> None:
        """See `Engine.release`."""
        await self._write(lambda t: expire.release(t, lease_ids))

    async def expire(self, limit: int = 1000) -> Expired:
        """See `Engine.expire`."""
        future: asyncio.Future[Expired] = asyncio.get_running_loop().create_future()
        self._submit(Expire(future, limit))
        return await future

    async def collect(self, limit: int = 1000) -> Collected:
        """See `Engine.collect`."""
        return await self._write(lambda t: self._collector.step(t, limit))

    async def read(self, requests: Sequence[Read]) -> Answers[ReadResult]:
        """See `Engine.read`."""
        return cast(
            "Answers[ReadResult]",
            await self._read_committed(lambda connection: read.read(connection, self._codec, requests)),
        )

    async def positions(
        self,
        queue: str,
        start: BrowseFrom,
        partition: str | None = None,
        touched_since: int | None = None,  # noqa: ARG002  # for those who share a store
    ) -> list[Position]:
        """See `Engine.positions`."""
        return await self._read_committed(lambda connection: read.positions(connection, queue, start, partition))

    async def cancel(self, message_ids: Sequence[str]) -> list[CancelOutcome]:
        """See `Engine.cancel`."""
        return await self._write(lambda t: messages.cancel(t, message_ids))

    async def delete_messages(self, message_ids: Sequence[str]) -> list[bool]:
        """See `Engine.delete_messages`."""
        return await self._write(lambda t: messages.delete_messages(t, message_ids))

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
        return await self._read(lambda connection, held: queue_views.queue_stats(connection, held, where))

    async def survey(self, after: tuple[int, str] = (0, ""), limit: int = 1000) -> Survey:
        """See `Engine.survey`."""
        return await self._read_committed(lambda connection: survey.survey(connection, after, limit))

    async def census(self) -> Census:
        """See `Engine.census`."""
        held = await self._look(lambda state, _: survey.held_messages(state))
        return await self._read_committed(lambda connection: survey.census(connection, held))

    async def partition_stats(
        self, queue: str, search: str | None = None, limit: int = 1000, offset: int = 0
    ) -> list[PartitionStats]:
        """See `Engine.partition_stats`."""
        return await self._read(
            lambda connection, held: views.partition_stats(connection, held, self._codec, queue, search, limit, offset)
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

    async def group_stats(self, group: str | None = None, queue: str | None = None) -> list[GroupStats]:
        """See `Engine.group_stats`."""
        return await self._read(lambda connection, held: views.group_stats(connection, held, group, queue))

    async def track_stats(
        self,
        group: str | None = None,
        queue: str | None = None,
        min_lag_seconds: int = 0,
        limit: int = 1000,
        partitions: Sequence[str] | None = None,
    ) -> list[TrackStats]:
        """See `Engine.track_stats`."""
        before = self._clock.now() - min_lag_seconds * SECOND if min_lag_seconds else None
        return await self._read(
            lambda connection, held: views.track_stats(
                connection, held, self._codec, group, queue, before, limit, partitions
            )
        )

    # Dead letters ------------------------------------------------------------------------------------------

    async def dead_letters(self, where: DeadLetterFilter) -> DeadLetters:
        """See `Engine.dead_letters`."""
        return await self._browse(lambda browser: browser.dead_letters(where))

    async def requeue(self, ids: Sequence[str]) -> Answers[str]:
        """See `Engine.requeue`."""
        return await self._write(lambda t: deadletters.requeue(t, ids))

    async def delete_dead_letters(self, where: DeadLetterFilter) -> int:
        """See `Engine.delete_dead_letters`."""
        return await self._write(lambda t: deadletters.delete_dead_letters(t, where))

    # Looking -----------------------------------------------------------------------------------------------

    async def messages(self, where: MessageFilter) -> list[MessageView]:
        """See `Engine.messages`."""
        return await self._browse(lambda browser: browser.messages(where))

    async def message(self, partition_id: str, transaction_id: str) -> MessageView | None:
        """See `Engine.message`."""
        return await self._browse(lambda browser: browser.message(partition_id, transaction_id))

    async def trace(self, traces: Sequence[NewTrace]) -> Answers[str]:
        """See `Engine.trace`."""
        return await self._write(lambda t: messages.trace(t, traces))

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
        return await self._examine(lambda _connection, state, _now: leases.page(state, where))

    async def queues_of(self, ids: Sequence[str]) -> list[str | None]:
        """See `Engine.queues_of`."""
        places = [self._codec.decode(one) for one in ids]
        numbers = [None if place is None else place.partition for place in places]
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
