"""The verbs of `Engine` for those who look on PostgreSQL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from hark.engine.api import Answers
from hark.engine.postgres import admin, browse, explaining, queue_views, records, views
from hark.engine.postgres.explaining import Explainer
from hark.engine.postgres.pool import Pool
from hark.ids import IdCodec
from hark.model import (
    Census,
    DeadLetterFilter,
    DeadLetters,
    Explain,
    Facts,
    GroupStats,
    LeaseFilter,
    Leases,
    MessageFilter,
    MessageView,
    NewTrace,
    PartitionStats,
    QueueFilter,
    QueueInfo,
    QueuePage,
    Survey,
    Trace,
    TraceName,
    TrackStats,
)


class LookingVerbs(ABC):
    """Lists, counts and traces."""

    _pool: Pool
    _codec: IdCodec

    @property
    @abstractmethod
    def _now(self) -> int | None: ...

    @abstractmethod
    async def _applied(self) -> int | None: ...

    async def queue_infos(self, names: Sequence[str] | None = None) -> list[QueueInfo]:
        """See `Engine.queue_infos`."""
        return await admin.queue_infos(self._pool, names)

    async def queue_stats(self, where: QueueFilter) -> QueuePage:
        """See `Engine.queue_stats`."""
        return await queue_views.queue_stats(self._pool, await self._applied(), where)

    async def survey(self, after: tuple[int, str] = (0, ""), limit: int = 1000) -> Survey:
        """See `Engine.survey`."""
        return await queue_views.survey(self._pool, after, limit)

    async def census(self) -> Census:
        """See `Engine.census`."""
        return await queue_views.census(self._pool, self._now)

    async def partition_stats(
        self, queue: str, search: str | None = None, limit: int = 1000, offset: int = 0
    ) -> list[PartitionStats]:
        """See `Engine.partition_stats`."""
        now = await self._applied()
        return await views.partition_stats(self._pool, self._codec, now, queue, search, limit, offset)

    async def group_stats(self, group: str | None = None, queue: str | None = None) -> list[GroupStats]:
        """See `Engine.group_stats`."""
        return await views.group_stats(self._pool, await self._applied(), group, queue)

    async def track_stats(
        self,
        group: str | None = None,
        queue: str | None = None,
        min_lag_seconds: int = 0,
        limit: int = 1000,
        partitions: Sequence[str] | None = None,
    ) -> list[TrackStats]:
        """See `Engine.track_stats`."""
        now = await self._applied()
        return await views.track_stats(self._pool, self._codec, now, group, queue, min_lag_seconds, limit, partitions)

    async def dead_letters(self, where: DeadLetterFilter) -> DeadLetters:
        """See `Engine.dead_letters`."""
        await self._applied()
        return await records.dead_letters(self._pool, self._codec, where)

    async def messages(self, where: MessageFilter) -> list[MessageView]:
        """See `Engine.messages`."""
        return await browse.messages(self._pool, self._codec, await self._applied(), where)

    async def message(self, partition_id: str, transaction_id: str) -> MessageView | None:
        """See `Engine.message`."""
        return await browse.message(self._pool, self._codec, await self._applied(), partition_id, transaction_id)

    async def explain(self, requests: Sequence[Explain]) -> Answers[Facts]:
        """See `Engine.explain`."""
        return await Explainer(self._pool, self._codec, await self._applied()).explain(requests)

    async def leases(self, where: LeaseFilter) -> Leases:
        """See `Engine.leases`."""
        return await explaining.leases(self._pool, self._codec, await self._applied(), where)

    async def queues_of(self, ids: Sequence[str]) -> list[str | None]:
        """See `Engine.queues_of`."""
        return await explaining.queues_of(self._pool, self._codec, ids)

    async def trace(self, traces: Sequence[NewTrace]) -> Answers[str]:
        """See `Engine.trace`."""
        return await admin.trace(self._pool, self._codec, self._now, traces)

    async def traces(
        self,
        partition_id: str | None = None,
        transaction_id: str | None = None,
        name: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> tuple[list[Trace], int]:
        """See `Engine.traces`."""
        await self._applied()
        return await records.traces(self._pool, self._codec, partition_id, transaction_id, name, limit, offset)

    async def trace_names(self, limit: int = 50, offset: int = 0) -> tuple[list[TraceName], int]:
        """See `Engine.trace_names`."""
        return await records.trace_names(self._pool, limit, offset)
