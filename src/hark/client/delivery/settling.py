"""Settlements: sent in batches, and repeated if an answer is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import msgspec

from hark.api import operations
from hark.api.options import RETRY_DELAY, RETRY_MULTIPLIER
from hark.api.types.delivery import AckAnswer, AckBatchBody, AckBody, Delivered, TaskEndBody
from hark.batching import Batcher
from hark.client.calling import Caller, ConnectionFailed, after_lost, decode, is_lost, not_hark, parts_of
from hark.errors import HarkError, InvalidInput
from hark.model import Status

T = TypeVar("T")

MAX_ERROR_CHARACTERS = 10_000
"""The server stores at most this many characters of an error."""
MAX_BYTES = 1_000_000
"""Maximum size of one request in bytes. Only long errors reach it. A larger one would block the server and this
loop."""
_ITEM_BYTES = 250
_MOST_BYTES = 6
"""Maximum size in bytes of a settlement without its error, and of one character of an error."""
_LARGE_RESULT = 1000
_MAX_DELAY_MS = 2**53 - 1
_MOST_DOUBLINGS = 11
MOST_WITH_POP = 100
"""Maximum number of settlements that travel with a pop."""
_STATUSES = ("completed", "failed", "retry", "dlq")
_ARRIVED: dict[str, frozenset[str]] = {
    "completed": frozenset(),
    "failed": frozenset({"lease_invalid", "dead_lettered", "not_found"}),
    "retry": frozenset({"lease_invalid"}),
    "dlq": frozenset({"lease_invalid", "dead_lettered", "not_found"}),
}
"""Codes that answer a repeated settlement if the first one had arrived: there is nothing left to settle."""


class SettleDecision(msgspec.Struct, frozen=True):
    """How a consumer settles a message."""

    message: Delivered
    status: Status = "completed"
    error: str | None = None
    delay_ms: int | None = None
    """Milliseconds before the redelivery, only with `failed` (None: retry policy) and `retry` (None: immediately)."""
    task: TaskEndBody | None = None
    """How the run of a task ended, to be stored with the settlement."""

    @property
    def is_large(self) -> bool:
        """Whether it is too large to travel with a pop or on a socket, which decode it less carefully."""
        return bool(self.error) or (self.task is not None and len(bytes(self.task.result)) > _LARGE_RESULT)


class Settled(msgspec.Struct, frozen=True):
    """Result of a settlement."""

    success: bool
    """Whether the server accepted the settlement."""
    code: str | None = None
    """Error code if it did not, for example `lease_invalid`."""
    error: str | None = None
    """Error text if it did not."""
    dead_lettered: bool = False
    """Whether the message was dead-lettered."""


class Road(Protocol):
    """Another way to send settlements than a separate request."""

    async def settle(self, group: str, items: Sequence[AckBody]) -> list[AckAnswer]:
        """The answers. Raises `ConnectionFailed` if there are none (`sent`: the items may have arrived)."""


class PiggybackedAcks:
    """Settlements of one group that travel with the next pop of their consumer, in one request.

    A source sends `body` and reports the outcome, from any thread. If it cannot, the settler sends the settlements by
    themselves.
    """

    def __init__(self, decisions: Sequence[SettleDecision]) -> None:
        self.body = _encode(
            AckBatchBody([_item(decision) for decision in decisions], decisions[0].message.consumer_group)
        )
        self._answers: asyncio.Future[list[AckAnswer]] = asyncio.get_running_loop().create_future()

    def answered(self, line: bytes) -> None:
        """The server answered with this line."""
        try:
            answers = decode(line, list[AckAnswer])
        except HarkError as error:
            self.failed(error)
        else:
            self._notify(self._answers.set_result, answers)

    def failed(self, error: HarkError) -> None:
        """The request failed, unless the settlements were answered before."""
        self._notify(self._answers.set_exception, error)

    def _notify(self, settle: Callable[[T], None], outcome: T) -> None:
        """Record the first outcome, in the thread of the settler."""

        def first() -> None:
            if not self._answers.done():
                settle(outcome)

        loop = self._answers.get_loop()
        if asyncio.get_running_loop() is loop:
            first()
        else:
            loop.call_soon_threadsafe(first)

    def not_sent(self) -> None:
        """No pop follows."""
        self.failed(ConnectionFailed("the settlements were not sent", sent=False))

    async def settle(self, group: str, items: Sequence[AckBody]) -> list[AckAnswer]:
        del group, items  # They are in the body.
        return await self._answers


_log = logging.getLogger(__name__)
_Answers = list[Settled]
_encode = msgspec.json.Encoder().encode


class Settler:
    """Settles messages. Concurrent settlements share a request. Belongs to one event loop."""

    def __init__(
        self,
        caller: Caller,
        *,
        road: Road | None = None,
        max_items: int = 1000,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._caller = caller
        self._road = road
        self._max_items = max_items
        self._sleep = sleep
        self._batchers: dict[str, Batcher[list[AckBody], _Answers]] = {}
        self._carried: set[asyncio.Task[_Answers]] = set()
        """Settlements that another road carries."""

    async def settle(self, decision: SettleDecision) -> Settled:
        """Settle one message. A rejection is returned; a missing answer raises."""
        return (await self._submit(decision.message.consumer_group, [_item(decision)]))[0]

    async def settle_many(self, decisions: Sequence[SettleDecision], road: Road | None = None) -> list[Settled]:
        """Settle messages of any groups. The answers are in the same order. `road` carries them, if it can."""
        if road is not None:
            settling = self._ask(decisions[0].message.consumer_group, [_item(decision) for decision in decisions], road)
            task = asyncio.ensure_future(settling)
            self._carried.add(task)
            task.add_done_callback(self._carried.discard)
            return await task
        by_group: dict[str, list[AckBody]] = {}
        for decision in decisions:
            by_group.setdefault(decision.message.consumer_group, []).append(_item(decision))
        answers = await asyncio.gather(*(self._submit(group, items) for group, items in by_group.items()))
        settled = dict(zip(by_group, map(iter, answers), strict=True))
        return [next(settled[decision.message.consumer_group]) for decision in decisions]

    async def give_back(self, delivered: Sequence[Delivered]) -> None:
        """Release messages that no consumer received: they are redelivered, and no attempt is counted.

        If that fails, they are redelivered when their leases expire.
        """
        try:
            await self.settle_many([SettleDecision(message, "retry") for message in delivered])
        except HarkError as error:
            text = "%d messages could not be released: %s; they are redelivered when their leases expire"
            _log.warning(text, len(delivered), error)

    async def drain(self) -> None:
        """Wait until all settlements so far have an answer."""
        for batcher in list(self._batchers.values()):
            await batcher.drain()
        if self._carried:
            await asyncio.wait(self._carried)

    def _submit(self, group: str, items: list[AckBody]) -> asyncio.Future[_Answers]:
        batcher = self._batchers.get(group)
        if batcher is None:

            async def send(requests: Sequence[list[AckBody]]) -> Sequence[_Answers | HarkError]:
                return await self._send(group, requests)

            batcher = self._batchers[group] = Batcher(
                "settle", send, max_items=self._max_items, max_wait=0.005, max_pending=100_000, max_calls=2
            )
        return batcher.submit(items, len(items))

    async def _send(self, group: str, requests: Sequence[list[AckBody]]) -> Sequence[_Answers | HarkError]:
        """One entry per request. An invalid settlement of one caller does not fail the others."""
        items = [item for request in requests for item in request]
        try:
            answers: list[Settled] = []
            for part in parts_of(items, self._max_items, MAX_BYTES, _size):
                answers += await self._ask(group, part)
        except InvalidInput as error:
            if len(requests) == 1:
                return [error]
            return [answer for request in requests for answer in await self._send(group, [request])]
        except HarkError as error:
            return [error.again() for _ in requests]
        settled = iter(answers)
        return [[next(settled) for _ in request] for request in requests]

    async def _ask(self, group: str, items: Sequence[AckBody], road: Road | None = None) -> list[Settled]:
        """Send, and repeat while the answer is lost, as the retry policy allows."""
        lost = 0
        road = road or self._road
        while True:
            try:
                answers = await self._answers(group, items, None if lost else road)
            except HarkError as error:
                if not is_lost(error):
                    if lost and error.retryable:
                        raise after_lost(error) from error
                    raise
                lost += 1
                if lost >= self._caller.retry.attempts:
                    raise
                await self._sleep(self._caller.retry.delay(lost))
                continue
            if len(answers) != len(items):
                text = f"the server returned {len(answers)} results for {len(items)} settlements"
                raise not_hark(f"{text}; check that it is a Hark server")
            return [_settled(item, answer, lost > 0) for item, answer in zip(items, answers, strict=True)]

    async def _answers(self, group: str, items: Sequence[AckBody], road: Road | None) -> list[AckAnswer]:
        if road is not None and not any(item.task and _size(item) > _LARGE_RESULT for item in items):
            try:
                return await road.settle(group, items)
            except HarkError as error:
                if is_lost(error):
                    raise
        answer = await self._caller.send(operations.ACK_BATCH, body=AckBatchBody(list(items), group), safe=False)
        return decode(answer.body, list[AckAnswer])


def _size(item: AckBody) -> int:
    result = 0 if item.task is None else len(bytes(item.task.result))
    return _ITEM_BYTES + result + (_MOST_BYTES * len(item.error) if item.error else 0)


def _settled(ack: AckBody, answer: AckAnswer, again: bool) -> Settled:
    if not answer.success and again and answer.code in _ARRIVED[ack.status or "completed"]:
        return Settled(True, dead_lettered=answer.code == "dead_lettered")
    return Settled(answer.success, answer.code, answer.error, answer.dlq)


def _item(decision: SettleDecision) -> AckBody:
    """Check a settlement and convert it to the format of the API."""
    status, delay = decision.status, decision.delay_ms
    if status not in _STATUSES:
        raise InvalidInput(f"status: expected {', '.join(_STATUSES[:-1])} or {_STATUSES[-1]}, got {status!r}")
    if delay is not None:
        if status not in ("failed", "retry"):
            raise InvalidInput(f"delay_ms: only valid with status failed or retry, got {status}")
        if not isinstance(delay, int) or not 0 <= delay <= _MAX_DELAY_MS:
            raise InvalidInput(f"delay_ms: expected an integer from 0 to {_MAX_DELAY_MS}, got {delay!r}")
    message, error = decision.message, decision.error
    if error:  # JSON can carry the text then: its content must not prevent the settlement.
        error = error[:MAX_ERROR_CHARACTERS].encode("utf-8", "backslashreplace").decode()
    # The message id, not the transaction id: it is valid even if the message has been removed.
    return AckBody(
        message.id,
        message.partition_id,
        status=None if status == "completed" else status,
        lease_id=message.lease_id or None,
        error=error or None,
        delay=delay,
        task=decision.task,
        default_delay=_default_delay(message.delivery_attempt) if status == "failed" and delay is None else None,
    )


def _default_delay(attempt: int) -> int:
    """The delay in milliseconds if the queue and the message have no schedule: 1, 2, 4 seconds and so on."""
    return int(RETRY_DELAY * RETRY_MULTIPLIER ** min(attempt - 1, _MOST_DOUBLINGS))
