"""A delivered message in a program without an event loop."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from hark.client.delivery.message import Message as AsyncMessage
from hark.client.delivery.received import Received
from hark.model import Status
from hark.sync.facade import blocking
from hark.sync.portal import Portal


class Message(Received):
    """A delivered message. Settle it once: with `with`, or with `ack`, `nack`, `retry` or `dead_letter`.

    ```python
    for message in client.queue("orders").group("billing").messages():
        with message:
            print(message.data)
    ```

    At the end of the `with` block the message is acknowledged. If the block raises, the message is rejected with the
    error text and the traceback, and the exception propagates. Ctrl-C releases the message without counting an attempt.
    Inside the block the lease is renewed.
    """

    __slots__ = ("inner", "portal")

    def __init__(self, inner: AsyncMessage, portal: Portal) -> None:
        super().__init__(inner.delivered)
        self.inner = inner
        self.portal = portal

    ack = blocking(AsyncMessage.ack)
    nack = blocking(AsyncMessage.nack)
    retry = blocking(AsyncMessage.retry)
    dead_letter = blocking(AsyncMessage.dead_letter)
    renew = blocking(AsyncMessage.renew)
    trace = blocking(AsyncMessage.trace)
    begin = blocking(AsyncMessage.begin)
    _leave = blocking(AsyncMessage.settle_at_end)

    @property
    def settled(self) -> Status | None:
        """The settlement: `completed`, `failed`, `retry` or `dlq`. None while the message is not settled."""
        return self.inner.settled

    @property
    def lost(self) -> bool:
        """Whether the lease is known to have expired: another consumer may have received the message."""
        return self.inner.lost

    def __enter__(self) -> Self:
        """Start to renew the lease."""
        self.begin()
        self.inner.open_span()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Settle the message, unless the block settled it."""
        try:
            self._leave(error)
        finally:
            self.inner.close_span(error)

    def __repr__(self) -> str:
        return repr(self.inner)
