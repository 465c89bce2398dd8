"""Matches pushed messages against expectations, and explains a difference."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from hark.testing.messages import StoredMessage

_SHOWN = 10


class Anything(msgspec.Struct, frozen=True):
    """Matches any value. `None` cannot mean this, because it is a valid value."""

    def __repr__(self) -> str:
        return "..."


ANYTHING: Final = Anything()


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What a test expects of a message. Fields that are not given match anything."""

    queue: str
    data: Any = ANYTHING
    """A value that the decoded payload must equal, or a function that checks it."""
    partition: str | None = None
    key: str | None = None
    task: str | None = None
    arguments: Any = ANYTHING

    def differences(self, message: StoredMessage) -> list[str]:
        """The differences from the expectation, as text."""
        pairs = (
            ("partition", self.partition, message.partition),
            ("key", self.key, message.transaction_id),
            ("task", self.task, message.task),
        )
        found = [f"{name} is {was!r}" for name, wanted, was in pairs if wanted is not None and wanted != was]
        if not _fits(self.arguments, message.arguments):
            found.append(_difference("arguments", self.arguments, message.arguments))
        if not _fits(self.data, message.data):
            found.append(_difference("data", self.data, message.data))
        return found

    def __str__(self) -> str:
        fields = (
            ("data", self.data),
            ("partition", self.partition if self.partition is not None else ANYTHING),
            ("key", self.key if self.key is not None else ANYTHING),
            ("task", self.task if self.task is not None else ANYTHING),
            ("arguments", self.arguments),
        )
        said = [f"{name}={_written(value)}" for name, value in fields if value is not ANYTHING]
        return " with " + ", ".join(said) if said else ""


def check_count(expected: Expected, pushed: Sequence[StoredMessage], times: int | None) -> list[StoredMessage]:
    """The matching messages. Raises `AssertionError` unless there are `times` of them (None: at least one)."""
    __tracebackhide__ = True
    matches = [message for message in pushed if not expected.differences(message)]
    if (times is None and matches) or len(matches) == times:
        return matches
    wanted = "at least 1" if times is None else "no" if times == 0 else str(times)
    plural = "" if wanted in ("1", "at least 1") else "s"
    lines = [
        f"expected {wanted} message{plural} in queue {expected.queue!r}{expected}, "
        f"but {len(matches)} of {len(pushed)} pushed messages match"
    ]
    raise AssertionError("\n".join((*lines, *_shown(expected, pushed, bool(matches)))))


def _shown(expected: Expected, pushed: Sequence[StoredMessage], any_matched: bool) -> list[str]:
    """The pushed messages, with those first that are closest to the expectation."""
    if not pushed:
        return [f"no message was pushed to queue {expected.queue!r}"]
    target = _written(expected.arguments if expected.arguments is not ANYTHING else expected.data)

    def distance(message: StoredMessage) -> tuple[int, float]:
        likeness = difflib.SequenceMatcher(None, target, _written(message.data), autojunk=False).ratio()
        return len(expected.differences(message)), -likeness

    lines = []
    for message in sorted(pushed, key=distance)[:_SHOWN]:
        differences = expected.differences(message)
        lines.append(f"  {_line(message)}")
        lines += [f"      {text}" for text in differences] if not any_matched else []
    if len(pushed) > _SHOWN:
        lines.append(f"  and {len(pushed) - _SHOWN} more")
    return ["pushed messages, closest match first:", *lines]


def _line(message: StoredMessage) -> str:
    options = f" priority={message.priority}" if message.priority else ""
    options += f" deliver_at={message.deliver_at.isoformat()}" if message.deliver_at else ""
    return f"{message.partition}  {message.transaction_id}  {message.state}{options}  {_written(message.data)}"


def _fits(wanted: object, was: object) -> bool:
    if wanted is ANYTHING:
        return True
    if callable(wanted):
        judge: Callable[[object], object] = wanted
        return bool(judge(was))
    return bool(wanted == was)


def _difference(name: str, wanted: object, was: object) -> str:
    """The differing fields of two objects, or the whole value."""
    if isinstance(wanted, dict) and isinstance(was, dict):
        names = [*wanted, *(key for key in was if key not in wanted)]
        parts = [
            f"{key!r} {'is missing' if key not in was else f'is {_written(was[key])}'}"
            + (", which was not expected" if key not in wanted else f", expected {_written(wanted[key])}")
            for key in names
            if key not in was or key not in wanted or wanted[key] != was[key]
        ]
        return f"{name}: {'; '.join(parts)}"
    return f"{name} is {_written(was)}"


def _written(value: object) -> str:
    if value is ANYTHING:
        return ""
    if callable(value):
        return f"<{getattr(value, '__name__', 'a function')}>"
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 400 else text[:397] + "..."
