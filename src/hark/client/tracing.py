"""OpenTelemetry support: active only in a program that uses OpenTelemetry, and free of cost in any other.

Only a program that imported OpenTelemetry can have spans, so this module never imports it first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hark.api.types.delivery import Delivered
    from hark.client.arguments import NewMessage
    from hark.client.pushing import Pushed

_API = "opentelemetry.trace"

Note = Callable[[str, BaseException | None], None]
"""Records how the processing of messages ended, and the error if there was one."""


def headers() -> Mapping[str, str] | None:
    """The trace headers of a request."""
    if _API not in sys.modules:
        return None
    from hark.client.spans import current_context

    return current_context()


def stamped(message: NewMessage) -> NewMessage:
    """The message with the context of the current span, unless there is no span or the message has a context."""
    if _API not in sys.modules:
        return message
    from hark.client.spans import with_context

    return with_context(message)


def pushing(messages: Sequence[NewMessage]) -> Push | None:
    """A span around a push. None if there is no current span, or if the messages belong to a trace."""
    if _API not in sys.modules:
        return None
    from hark.client.spans import push_span

    return push_span(messages)


def processing(messages: Sequence[Delivered]) -> AbstractContextManager[Note]:
    """A span around the processing of messages that were delivered together, in the trace of their producer."""
    if _API not in sys.modules:
        return _UNTRACED
    from hark.client.spans import process_span

    return process_span(messages)


class Push(Protocol):
    """A push within a span."""

    messages: Sequence[NewMessage]
    """The messages. Within the span they carry its context."""

    def __enter__(self) -> Push: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def done(self, pushed: Sequence[Pushed]) -> None:
        """Record that the server stored the messages."""


def _note_nothing(_outcome: str, _error: BaseException | None) -> None:
    pass


_UNTRACED = nullcontext(_note_nothing)
