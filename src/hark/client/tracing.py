"""OpenTelemetry support: active only in a program that uses OpenTelemetry, and free of cost in any other.

Only a program that imported OpenTelemetry can have spans, so this module never imports it first.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from hark.api.types.delivery import Delivered
    from hark.client.arguments import NewMessage
    from hark.client.pushing import Pushed

_API = "opentelemetry.trace"

PushMany: TypeAlias = "Callable[[Sequence[NewMessage]], Awaitable[list[Pushed]]]"
PushInSpan: TypeAlias = "Callable[[PushMany], Awaitable[list[Pushed]]]"
Note = Callable[[str, BaseException | None], None]
"""Records how the processing of messages ended, and the error if there was one."""


def headers() -> Mapping[str, str] | None:
    """The trace headers of a request."""
    if _API not in sys.modules:
        return None
    from hark.client import spans

    return spans.current_context()


def stamped(message: NewMessage) -> NewMessage:
    """The message with the context of the current span, unless there is no span or the message has a context."""
    if _API not in sys.modules:
        return message
    from hark.client.spans import with_context

    return with_context(message)


def pushing(messages: Sequence[NewMessage]) -> PushInSpan | None:
    """What pushes the messages within a span. None if there is no current span, or if they belong to a trace."""
    if _API not in sys.modules:
        return None
    from hark.client import spans

    return spans.pushing(messages)


def processing(messages: Sequence[Delivered]) -> AbstractContextManager[Note]:
    """A span around the processing of messages that were delivered together, in the trace of their producer."""
    if _API not in sys.modules:
        return _UNTRACED
    from hark.client.spans import process_span

    return process_span(messages)


_UNTRACED: AbstractContextManager[Note] = nullcontext(lambda _outcome, _error: None)
