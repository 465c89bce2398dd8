"""Administration of consumer groups and dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta

from hark.api import operations
from hark.api.types.dead_letters import DeadLetterPage, ListedDeadLetter, RequeuedDeadLetter
from hark.api.types.groups import (
    DeletedGroup,
    LaggingPosition,
    ListedGroup,
    Resubscribed,
    SeekBody,
    ShownPosition,
    SubscriptionBody,
)
from hark.client.arguments import moment, optional_moment
from hark.client.calling import Caller
from hark.errors import Conflict, InvalidInput, NotFound
from hark.model import Limits, SeekOutcome


class Groups:
    """Administration of consumer groups, `client.groups`. The name of the default group is `hark.model.QUEUE_MODE`."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    # Inspection --------------------------------------------------------------------------------------------

    async def list(self, queue: str | None = None, *, limit: int = 10_000, offset: int = 0) -> list[ListedGroup]:
        """List groups, one entry per group and queue."""
        query = {"queue": queue, "limit": limit, "offset": offset}
        return await self._caller.ask(operations.LIST_GROUPS, query=query)

    async def get(self, name: str, *, limit: int = 1000) -> dict[str, tuple[ShownPosition, ...]]:
        """The position of a group in each partition, by queue. Empty for an unknown group."""
        queues = await self._caller.ask(operations.SHOW_GROUP, name, query={"limit": limit})
        return {queue: queue_positions.partitions for queue, queue_positions in queues.items()}

    async def lagging(self, *, min_lag_seconds: int = 3600, limit: int = 1000) -> tuple[LaggingPosition, ...]:
        """Partitions in which a message has waited at least this many seconds for a group."""
        query = {"minLagSeconds": min_lag_seconds, "limit": limit}
        return tuple(await self._caller.ask(operations.LIST_LAGGING, query=query))

    # Positions ---------------------------------------------------------------------------------------------

    async def seek(
        self,
        name: str,
        queue: str,
        *,
        to_end: bool = False,
        timestamp: datetime | None = None,
        offset: int | None = None,
        partition: str | None = None,
    ) -> SeekOutcome:
        """Move the position of a group in a queue, or in one of its partitions. Its leases there become invalid.

        Give exactly one of `to_end=True` (skip all messages), `timestamp` (continue after this time) and `offset`
        (deliver this message next).
        """
        if sum((to_end, timestamp is not None, offset is not None)) != 1:
            raise InvalidInput("seek: expected exactly one of to_end, timestamp, offset")
        body = SeekBody(to_end=to_end or None, timestamp=optional_moment(timestamp, "timestamp"), offset=offset)
        if partition is None:
            whole = await self._caller.ask(operations.SEEK_QUEUE, name, queue, body=body, safe=True)
            return SeekOutcome(whole.partitions_updated)
        moved = await self._caller.ask(operations.SEEK_PARTITION, name, queue, partition, body=body, safe=True)
        return SeekOutcome(int(moved.updated), moved.next_offset)

    async def set_subscription(self, name: str, timestamp: datetime) -> Resubscribed:
        """Set where the group starts in partitions that it has not consumed from yet."""
        return await self._caller.ask(
            operations.RESUBSCRIBE, name, body=SubscriptionBody(moment(timestamp, "timestamp")), safe=True
        )

    async def delete(self, name: str, queue: str | None = None, *, delete_metadata: bool = True) -> DeletedGroup:
        """Delete the positions of a group and invalidate its leases, in one queue or in all queues.

        `delete_metadata=False` keeps where the group started.
        """
        query = {"deleteMetadata": delete_metadata}
        if queue is None:
            return await self._caller.ask(operations.DELETE_GROUP, name, query=query)
        return await self._caller.ask(operations.DELETE_GROUP_OF_QUEUE, name, queue, query=query)

    async def pause(self, name: str, queue: str) -> None:
        """Stop deliveries from the queue to this group."""
        await self._caller.send(operations.PAUSE_GROUP, queue, name, safe=True)

    async def resume(self, name: str, queue: str) -> None:
        """Start deliveries from the queue to this group again."""
        await self._caller.send(operations.RESUME_GROUP, queue, name, safe=True)

    async def purge(self, name: str, queue: str) -> int:
        """Settle all open messages of the group in this queue. Returns their number. Other groups keep the messages."""
        return (await self._caller.ask(operations.PURGE_GROUP, queue, name, safe=True)).purged

    async def limits(self, name: str, queue: str) -> Limits:
        """The limits of the group in this queue. 0 means no limit."""
        return (await self._caller.ask(operations.SHOW_LIMITS, name, queue)).limits

    async def set_limits(
        self,
        name: str,
        queue: str,
        *,
        max_in_flight: int | None = None,
        rate_limit: float | None = None,
        rate_burst: int | None = None,
    ) -> Limits:
        """Replace all three limits. A limit that you do not give is removed."""
        body = {"maxInFlight": max_in_flight, "rateLimit": rate_limit, "rateBurst": rate_burst}
        return (await self._caller.ask(operations.LIMIT_GROUP, name, queue, body=body)).limits


_AT_ONCE = 100
_NOT_FOUND = "dead_letter_not_found"
_GRAIN = timedelta(milliseconds=1)
"""Resolution of failure times."""


class DeadLetters:
    """The dead letters of all queues, of one queue, or of one group: `client.dlq()` or `queue.dlq()`.

    `async for letter in dead_letters` iterates over all of them, newest failure first. You can requeue or delete
    letters during the iteration.
    """

    def __init__(self, caller: Caller, queue: str | None = None, group: str | None = None) -> None:
        self._caller = caller
        self.queue = queue
        self.group = group

    def __aiter__(self) -> AsyncIterator[ListedDeadLetter]:
        return self.all()

    async def list(
        self,
        *,
        limit: int = 100,
        offset: int = 0,
        since: datetime | None = None,
        until: datetime | None = None,
        partition: str | None = None,
        search: str | None = None,
    ) -> DeadLetterPage:
        """A page of dead letters, newest failure first, with the number of all matches.

        `since` and `until` select by the time of failure. `search` matches a part of the error text; ASCII letters
        match in any case.
        """
        query = self._filter(since, until, partition, search) | {"limit": limit, "offset": offset}
        return await self._caller.ask(operations.LIST_DEAD_LETTERS, query=query)

    async def all(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        partition: str | None = None,
        search: str | None = None,
        page_size: int = 100,
    ) -> AsyncIterator[ListedDeadLetter]:
        """Iterate over all matching dead letters, page by page. The filters are those of `list`."""
        offset = 0
        seen: set[str] = set()
        while True:
            page = await self.list(
                limit=page_size, offset=offset, since=since, until=until, partition=partition, search=search
            )
            fresh = [letter for letter in page.items if letter.dead_letter_id not in seen]
            for letter in fresh:
                yield letter
            if len(page.items) < page_size:
                return
            # By time, not by offset: offsets move if letters are removed during the iteration. Letters that failed in
            # the same millisecond are read again, and skipped by offset if a page has nothing else.
            ids = {letter.dead_letter_id for letter in page.items}
            end = page.items[-1].failed_at + _GRAIN
            if until is None or end < until:
                seen, offset, until = ids, 0, end
            elif fresh:
                seen |= ids
            else:
                offset += page_size

    async def get(self, id: str, *, group: str | None = None) -> ListedDeadLetter:
        """One dead letter, by its own id or by the message id.

        Raises `NotFound` if there is none, and `Conflict` if the message is a dead letter in several groups.
        """
        query = {"id": id, "queue": self.queue, "consumerGroup": group or self.group, "limit": 2}
        found = (await self._caller.ask(operations.LIST_DEAD_LETTERS, query=query)).items
        if not found:
            raise NotFound(f"dead letter {id} not found", code=_NOT_FOUND)
        if len(found) > 1:
            raise Conflict(
                f"message {id} is a dead letter in several groups; give the group, or use the dead_letter_id",
                code="ambiguous",
            )
        return found[0]

    async def requeue(self, id: str, *, group: str | None = None) -> RequeuedDeadLetter:
        """Requeue one dead letter: it goes to the front of its partition, for its group only.

        Raises the same errors as `get`.
        """
        query = {"consumerGroup": group or self.group}
        return await self._caller.ask(operations.REQUEUE, id, query=query)

    async def requeue_all(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        partition: str | None = None,
        search: str | None = None,
    ) -> int:
        """Requeue all matching dead letters, with the earliest failure in front. Returns their number.

        Letters that fail again meanwhile are not requeued a second time.
        """
        # All ids are read before the first letter is requeued, so that a letter that fails again is not requeued twice.
        letters = self.all(since=since, until=until, partition=partition, search=search, page_size=_AT_ONCE)
        ids = [*reversed(dict.fromkeys([letter.dead_letter_id async for letter in letters]))]
        requeued = 0
        for start in range(0, len(ids), _AT_ONCE):
            body = {"ids": ids[start : start + _AT_ONCE]}
            # Letters that another client requeued meanwhile do not count.
            requeued += (await self._caller.ask(operations.REQUEUE_MANY, body=body, safe=True)).requeued
        return requeued

    async def delete(self, id: str, *, group: str | None = None) -> bool:
        """Delete one dead letter, by its own id or by the message id. Returns whether it existed."""
        try:
            await self._caller.send(operations.DELETE_DEAD_LETTER, id, query={"consumerGroup": group or self.group})
        except NotFound as error:
            if error.code != _NOT_FOUND:
                raise
            return False
        return True

    async def purge(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        partition: str | None = None,
        search: str | None = None,
    ) -> int:
        """Delete all matching dead letters of the queue. Returns their number. The filters are those of `list`."""
        if self.queue is None:
            raise InvalidInput('queue: is required to purge dead letters; use client.dlq("orders").purge()')
        query = self._filter(since, until, partition, search)
        return (await self._caller.ask(operations.PURGE_DEAD_LETTERS, query=query)).deleted

    def _filter(
        self, since: datetime | None, until: datetime | None, partition: str | None, search: str | None
    ) -> dict[str, str | int | None]:
        return {
            "queue": self.queue,
            "consumerGroup": self.group,
            "partition": partition,
            "from": optional_moment(since, "since"),
            "to": optional_moment(until, "until"),
            "search": search,
        }
