"""Traces of the program that the client is part of, if that uses OpenTelemetry; else nothing is done, and at no cost.

Only a program that has imported OpenTelemetry can have spans, so that this never imports it by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hark.client.delivery.sources import Delivered
    from hark.client.producing.new_message import NewMessage
    from hark.client.producing.pushing import Pushed

_API = "opentelemetry.trace"

Note = Callable[[str, BaseException | None], None]
"""Says how the work on messages ended, and by what error."""


def headers() -> Mapping[str, str] | None:
    """What a request says about the trace that it belongs to."""
    if _API not in sys.modules:
        return None
    from hark.client.spans import current_context

    return current_context()


def stamped(message: NewMessage) -> NewMessage:
    """The message with the context of the current span, if there is one and the message has none."""
    if _API not in sys.modules:
        return message
    from hark.client.spans import with_context

    return with_context(message)


def pushing(messages: Sequence[NewMessage]) -> Push | None:
    """A span around a push; None when nobody would see it, or the messages belong to a trace already."""
    if _API not in sys.modules:
        return None
    from hark.client.spans import push_span

    return push_span(messages)


def processing(messages: Sequence[Delivered]) -> AbstractContextManager[Note]:
    """A span around the work on messages that were delivered together, in the trace of whoever pushed them."""
    if _API not in sys.modules:
        return _UNTRACED
    from hark.client.spans import process_span

    return process_span(messages)


class Push(Protocol):
    """A push within a span."""

    messages: Sequence[NewMessage]
    """The messages; within the span they have its context."""

    def __enter__(self) -> Push: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def done(self, pushed: Sequence[Pushed]) -> None:
        """The server took them."""


def _note_nothing(_outcome: str, _error: BaseException | None) -> None:
    pass


_UNTRACED = nullcontext(_note_nothing)
