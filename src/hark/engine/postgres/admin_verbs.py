"""The verbs of `Engine` for administrators on PostgreSQL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import cast

from hark.engine.api import Answers
from hark.engine.postgres import admin, records
from hark.engine.postgres.directory import Directory
from hark.engine.postgres.pool import Pool
from hark.engine.postgres.telling import Telling
from hark.errors import HarkError
from hark.ids import IdCodec
from hark.model import (
    CancelOutcome,
    DeadLetterFilter,
    GroupDeletion,
    Hint,
    Limits,
    QueueInfo,
    QueueSpec,
    Seek,
    SeekOutcome,
)


class AdminVerbs(ABC):
    """What changes queues, groups, dead letters and single messages."""

    _pool: Pool
    _codec: IdCodec
    _directory: Directory

    @property
    @abstractmethod
    def _now(self) -> int | None: ...

    @abstractmethod
    async def _applied(self) -> int | None: ...

    @abstractmethod
    def _hint(self, hints: Iterable[Hint]) -> None: ...

    # Messages ----------------------------------------------------------------------------------------------

    async def delete_messages(self, message_ids: Sequence[str]) -> list[bool]:
        """See `Engine.delete_messages`."""
        removed = await admin.delete_messages(self._pool, self._codec, await self._applied(), message_ids)
        await self._tell_removed(one for one, gone in zip(message_ids, removed, strict=True) if gone)
        return removed

    async def cancel(self, message_ids: Sequence[str]) -> list[CancelOutcome]:
        """See `Engine.cancel`."""
        outcomes = await admin.cancel(self._pool, self._codec, await self._applied(), message_ids)
        pairs = zip(message_ids, outcomes, strict=True)
        await self._tell_removed(one for one, outcome in pairs if outcome == "cancelled")
        return outcomes

    async def _tell_removed(self, message_ids: Iterable[str]) -> None:
        """What waited behind these messages need not wait for them."""
        decoded = [self._codec.decode(one) for one in message_ids]
        numbers = dict.fromkeys(one.partition for one in decoded if one is not None)
        await self._directory.load_places(numbers)
        telling = Telling(self._directory)
        known = self._directory.places_by_id
        telling.removed(known[number] for number in numbers if number in known)
        self._hint(telling.hints())

    # Queues ------------------------------------------------------------------------------------------------

    async def configure(self, specs: Sequence[QueueSpec]) -> Answers[QueueInfo]:
        """See `Engine.configure`."""
        infos = await admin.configure(self._pool, self._codec, await self._applied(), specs)
        for spec in specs:
            self._look_again(spec.name)
        self._hint(Hint(spec.name) for spec in specs)
        return cast("Answers[QueueInfo]", infos)

    async def make_queues(self, specs: Sequence[QueueSpec]) -> None:
        """See `Engine.make_queues`."""
        await admin.make_queues(self._pool, self._now, specs)

    def _look_again(self, queue: str) -> None:
        """What the groups of a queue wait for may have changed."""
        for group in self._directory.groups_of(queue):
            group.ready.forget()

    async def delete_queues(self, names: Sequence[str]) -> list[bool]:
        """See `Engine.delete_queues`."""
        distinct = list(dict.fromkeys(names))
        existed = await self._pool.fetchval("select hark.delete_queues_v1($1::text[])", distinct)
        for name in distinct:
            self._directory.forget_queue(name)
        answers = dict(zip(distinct, existed, strict=True))
        return [answers.pop(name, False) for name in names]

    async def purge(self, queue: str, group: str | None = None) -> int:
        """See `Engine.purge`."""
        now = await self._applied()
        number = int(await self._pool.fetchval("select hark.purge_v1($1, $2, $3)", now, queue, group))
        self._look_again(queue)
        return number

    async def pause(self, queue: str, group: str | None, paused: bool) -> bool:
        """See `Engine.pause`."""
        found = bool(await self._pool.fetchval("select hark.pause_v1($1, $2, $3)", queue, group, paused))
        if found and not paused:
            self._hint([Hint(queue, group)])
        return found

    # Groups ------------------------------------------------------------------------------------------------

    async def seek(self, requests: Sequence[Seek]) -> Answers[SeekOutcome]:
        """See `Engine.seek`."""
        answers: Answers[SeekOutcome] = []
        for request in requests:
            try:
                outcome, left = await admin.seek(self._pool, await self._applied(), request)
            except HarkError as error:
                answers.append(error)
                continue
            answers.append(outcome)
            self._look_again(request.queue)
            where = None if request.partition is None else (request.partition,)
            group = self._directory.groups.get((request.queue, request.group))
            counts = () if where is None or group is None or group.shared is None else (max(1, left),)
            self._hint([Hint(request.queue, request.group, where, counts=counts)])
        return answers

    async def delete_group(self, group: str, queue: str | None, forget_subscription: bool) -> GroupDeletion:
        """See `Engine.delete_group`."""
        deletion, queues = await admin.delete_group(
            self._pool, await self._applied(), group, queue, forget_subscription
        )
        for name in queues:
            known = self._directory.groups.get((name, group))
            if known is not None:
                self._directory.forget_group(known)
        self._hint(Hint(name, group) for name in queues)
        return deletion

    async def limit_group(self, queue: str, group: str, limits: Limits) -> bool:
        """See `Engine.limit_group`."""
        found = await admin.limit_group(self._pool, queue, group, limits)
        if found:
            self._hint([Hint(queue, group)])
        return found

    async def resubscribe(self, group: str, since: int) -> int:
        """See `Engine.resubscribe`."""
        rows = await self._pool.fetch("select * from hark.resubscribe_v1($1, $2, $3)", self._now, group, since)
        for _, queue in rows:
            self._look_again(queue)
        self._hint(Hint(queue, group) for _, queue in rows)
        return len(rows)

    # Dead letters ------------------------------------------------------------------------------------------

    async def requeue(self, ids: Sequence[str]) -> Answers[str]:
        """See `Engine.requeue`."""
        answers: Answers[str] = []
        for dead_letter in ids:
            try:
                message_id, queue, group = await admin.requeue(
                    self._pool, self._codec, await self._applied(), dead_letter
                )
            except HarkError as error:
                answers.append(error)
                continue
            self._look_again(queue)
            await self._tell_requeued(message_id, queue, group)
            answers.append(message_id)
        return answers

    async def _tell_requeued(self, message_id: str, queue: str, group: str) -> None:
        """One group may take what came; the others, and browsers, only see that something did."""
        place = self._codec.decode(message_id)
        number = 0 if place is None else place.partition
        await self._directory.load_places([number])
        known = self._directory.places_by_id.get(number)
        where = None if known is None else (known.name,)
        told = tuple(one.name for one in self._directory.groups_of(queue))
        self._hint([Hint(queue, None, where, "message", told), Hint(queue, group, where)])

    async def delete_dead_letters(self, where: DeadLetterFilter) -> int:
        """See `Engine.delete_dead_letters`."""
        await self._applied()
        matching = records.dead_letters_where(where, self._codec)
        return int(
            await self._pool.fetchval(
                f"with gone as (delete from hark.dead_letters where {matching} returning 1) select count(*) from gone",
                *matching.args,
            )
        )
