"""How explanations name times, groups and consumers."""

from __future__ import annotations

from datetime import UTC, datetime

from hark.clock import MILLISECOND, SECOND
from hark.model import QUEUE_MODE

_LONGEST_ERROR = 200
_LATEST = 253_402_300_799 * SECOND
"""The last second of the year 9999. Later times have no text."""
_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def moment(us: int) -> str:
    """A time as ISO text in UTC, with milliseconds."""
    seconds, rest = divmod(min(us, _LATEST), SECOND)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest // MILLISECOND:03d}Z"


def in_time(us: int) -> str:
    """The time until a future moment, in a word or two."""
    return f"in {_span(us)}"


def ago(us: int) -> str:
    """The time since a past moment."""
    return f"{_span(us)} ago"


def _span(us: int) -> str:
    us = max(us, 0)
    if us < SECOND:
        return f"{-(-us // MILLISECOND)} ms"
    seconds = us // SECOND
    for size, unit in _UNITS:
        if seconds >= 2 * size or size == 1:
            return f"{seconds // size} {unit}"
    raise AssertionError("the last unit fits all")


def seconds_text(seconds: int) -> str:
    """A configured duration."""
    return f"{seconds} s"


def the_group(name: str, *, start: bool = False) -> str:
    """A group by its name. The group of consumers without a group is the default group."""
    text = "the default group" if name == QUEUE_MODE else f"group {quoted(name)}"
    return f"{text[0].upper()}{text[1:]}" if start else text


def who(consumer: str) -> str:
    """A consumer by its own name."""
    return quoted(consumer) if consumer else "a consumer without a name"


def quoted(text: str) -> str:
    """A text from a client in one line, shortened if it is long."""
    line = " ".join(text.split())
    if len(line) > _LONGEST_ERROR:
        line = f"{line[: _LONGEST_ERROR - 1]}…"
    return f'"{line}"'
