"""A message in the hands of a program without an event loop."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from hark.client.delivery.message import Message as AsyncMessage
from hark.client.delivery.received import Received
from hark.model import Status
from hark.sync.facade import blocking
from hark.sync.portal import Portal


class Message(Received):
    """A message in a consumer's hands, to be settled once: by `with`, or by `ack`, `nack` and their like.

    `with message:` acks at its end, and nacks with the error when it ends by an exception, which goes on. Ctrl-C hands
    the message back, uncounted. Meanwhile its lease is renewed.
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
        """What was said of it; None as long as it is open."""
        return self.inner.settled

    @property
    def lost(self) -> bool:
        """Whether its lease is known to have ended: somebody else may have it by now."""
        return self.inner.lost

    def __enter__(self) -> Self:
        """Begin: its lease is renewed from now on."""
        self.begin()
        self.inner.open_span()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Settle it, unless that was done inside."""
        try:
            self._leave(error)
        finally:
            self.inner.close_span(error)

    def __repr__(self) -> str:
        return repr(self.inner)
