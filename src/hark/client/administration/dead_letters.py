"""Dead letters: look at them, put them back, remove them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import msgspec

from hark.client.administration.message_results import DeadLetter, DeadLetterPage, Requeued
from hark.client.calling import Caller, path
from hark.client.parameters import optional_moment
from hark.errors import Conflict, InvalidInput, NotFound

_AT_ONCE = 100
_NOT_FOUND = "dead_letter_not_found"
_GRAIN = timedelta(milliseconds=1)
"""What times of failure are told to."""


class DeadLetters:
    """The dead letters of all queues, or of one queue, or of one group.

    `async for letter in dead_letters` goes through all of them, newest failure first. They may be requeued or deleted
    on the way.
    """

    def __init__(self, caller: Caller, queue: str | None = None, group: str | None = None) -> None:
        self._caller = caller
        self.queue = queue
        self.group = group

    def __aiter__(self) -> AsyncIterator[DeadLetter]:
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
        """A page of them, newest failure first, and how many match in all; the times are those of failure.

        `search` is what the error contains; capital letters of ASCII count as small ones.
        """
        query = self._filter(since, until, partition, search) | {"limit": limit, "offset": offset}
        return await self._caller.read(DeadLetterPage, "GET", path("dlq"), query=query)

    async def all(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        partition: str | None = None,
        search: str | None = None,
        page_size: int = 100,
    ) -> AsyncIterator[DeadLetter]:
        """All that match, page by page."""
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
            # By time and not by place: places move when letters are taken out on the way. Those that failed in the
            # same millisecond are seen again, and when a page has nothing else they are stepped over.
            ids = {letter.dead_letter_id for letter in page.items}
            end = page.items[-1].failed_at + _GRAIN
            if until is None or end < until:
                seen, offset, until = ids, 0, end
            elif fresh:
                seen |= ids
            else:
                offset += page_size

    async def get(self, id: str, *, group: str | None = None) -> DeadLetter:
        """One, by its own id or by that of the message; raises `NotFound`, or `Conflict` if it is one of several."""
        query = {"id": id, "queue": self.queue, "consumerGroup": group or self.group, "limit": 2}
        found = (await self._caller.read(DeadLetterPage, "GET", path("dlq"), query=query)).items
        if not found:
            raise NotFound(f"there is no dead letter {id}", code=_NOT_FOUND)
        if len(found) > 1:
            raise Conflict(
                f"message {id} is a dead letter in several groups; name the group, or use its dead_letter_id",
                code="ambiguous",
            )
        return found[0]

    async def requeue(self, id: str, *, group: str | None = None) -> Requeued:
        """Put one back in front of its partition, for its group alone; raises what `get` raises."""
        query = {"consumerGroup": group or self.group}
        return await self._caller.read(Requeued, "POST", path("dlq", id, "requeue"), query=query)

    async def requeue_all(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        partition: str | None = None,
        search: str | None = None,
    ) -> int:
        """Put all that are there now back, the one that failed first in front; how many that were."""
        # All are known before the first one goes back: one that fails again at once is not put back once more.
        letters = self.all(since=since, until=until, partition=partition, search=search, page_size=_AT_ONCE)
        ids = [*reversed(dict.fromkeys([letter.dead_letter_id async for letter in letters]))]
        requeued = 0
        for start in range(0, len(ids), _AT_ONCE):
            body = {"ids": ids[start : start + _AT_ONCE]}
            # One that is not there any more was requeued by somebody else, who was faster.
            requeued += (
                await self._caller.read(_Requeued, "POST", path("dlq", "requeue"), body=body, safe=True)
            ).requeued
        return requeued

    async def delete(self, id: str, *, group: str | None = None) -> bool:
        """Remove one, by its own id or by that of the message; whether it was there."""
        try:
            await self._caller.call("DELETE", path("dlq", id), query={"consumerGroup": group or self.group})
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
        """Remove all that match, of one queue; how many that were."""
        if self.queue is None:
            raise InvalidInput("queue: is required to purge dead letters; take those of one queue")
        query = self._filter(since, until, partition, search)
        return (await self._caller.read(_Deleted, "DELETE", path("dlq"), query=query)).deleted

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


class _Deleted(msgspec.Struct):
    deleted: int


class _Requeued(msgspec.Struct):
    requeued: int
