"""Dead letters: list, requeue and delete them."""

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
        """A page of dead letters, newest failure first, with the number of all matches.

        `since` and `until` select by the time of failure. `search` matches a part of the error text; ASCII letters
        match in any case.
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

    async def get(self, id: str, *, group: str | None = None) -> DeadLetter:
        """One dead letter, by its own id or by the message id.

        Raises `NotFound` if there is none, and `Conflict` if the message is a dead letter in several groups.
        """
        query = {"id": id, "queue": self.queue, "consumerGroup": group or self.group, "limit": 2}
        found = (await self._caller.read(DeadLetterPage, "GET", path("dlq"), query=query)).items
        if not found:
            raise NotFound(f"dead letter {id} not found", code=_NOT_FOUND)
        if len(found) > 1:
            raise Conflict(
                f"message {id} is a dead letter in several groups; give the group, or use the dead_letter_id",
                code="ambiguous",
            )
        return found[0]

    async def requeue(self, id: str, *, group: str | None = None) -> Requeued:
        """Requeue one dead letter: it goes to the front of its partition, for its group only.

        Raises the same errors as `get`.
        """
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
            requeued += (
                await self._caller.read(_Requeued, "POST", path("dlq", "requeue"), body=body, safe=True)
            ).requeued
        return requeued

    async def delete(self, id: str, *, group: str | None = None) -> bool:
        """Delete one dead letter, by its own id or by the message id. Returns whether it existed."""
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
        """Delete all matching dead letters of the queue. Returns their number. The filters are those of `list`."""
        if self.queue is None:
            raise InvalidInput('queue: is required to purge dead letters; use client.dlq("orders").purge()')
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
