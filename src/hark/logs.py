"""The log of servers and workers: one line for each event, as text on a terminal and as JSON everywhere else.

Structured values of an event are passed as fields: `log.info("...", extra={"fields": {"removed": 7}})`.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import TextIO

import msgspec

from hark.settings import LogFormat
from hark.settings.sections import HIDDEN

Filter = logging.Filter | Callable[[logging.LogRecord], bool]

_PREFIX = "hark."
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_NOT_FIELDS = _STANDARD | {"fields", "request_id", "color_message"}
_OURS = ("at", "level", "logger", "event", "request_id", "error")
_LEVEL_COLORS = {logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "1;31", logging.DEBUG: "2"}
_NEEDS_QUOTES = re.compile(r'[\s"=]|^$')

_SECRETS = re.compile(
    # A match never crosses the end of a string, so that a JSON line stays valid JSON.
    r"(?P<url>://[^\s:/@\"]*:)[^\s/@\"]+(?=@)"  # The password of a URL.
    r"|(?P<query>[?&]password=)[^\s&\"]+"  # The same, in its query.
    r"|hark_[a-z0-9]{8}_[A-Za-z0-9_-]{43}"  # An API token.
    r"|\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+"  # A JWT.
)
"""Secrets that are masked in every line, even if a library quotes them in an error."""

_encode = msgspec.json.Encoder(enc_hook=str).encode


def log_to(
    stream: TextIO,
    level: str,
    log_format: LogFormat = "auto",
    fields: Mapping[str, object] | None = None,
    *filters: Filter,
) -> None:
    """Send the log of this process to a stream. `fields` are added to every line; filters see every record."""
    use_handler(logging.StreamHandler(stream), level, formatter_for(stream, log_format, fields), *filters)


def use_handler(handler: logging.Handler, level: str, formatter: logging.Formatter, *filters: Filter) -> None:
    """Send the log of this process to a handler, including uncaught exceptions."""
    handler.setFormatter(formatter)
    for one in filters:
        handler.addFilter(one)
    logging.basicConfig(level=level.upper(), handlers=[handler])
    sys.excepthook = _log_the_end


def formatter_for(
    stream: TextIO, log_format: LogFormat = "auto", fields: Mapping[str, object] | None = None
) -> logging.Formatter:
    """The format of lines on a stream: `auto` is text on a terminal, otherwise JSON."""
    terminal = stream.isatty()
    if log_format == "json" or (log_format == "auto" and not terminal):
        return JsonLines(fields)
    return TextLines(fields, colors=terminal and not os.environ.get("NO_COLOR"))


class JsonLines(logging.Formatter):
    """Formats each event as one line of JSON."""

    def __init__(self, fields: Mapping[str, object] | None = None) -> None:
        super().__init__()
        self._fields = dict(fields or {})

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name.removeprefix(_PREFIX),
            "event": _text(record),
        }
        if request_id := getattr(record, "request_id", ""):
            line["request_id"] = request_id
        line |= self._fields
        line |= {name: value for name, value in _fields(record) if name not in _OURS}
        if error := _error(record):
            stack = self.formatException(error) if error[2] is not None else ""
            line["error"] = {"type": error[0].__name__, "text": str(error[1]), "stack": stack}
        try:
            text = _encode(line).decode()
        except (TypeError, ValueError, RecursionError):
            # A field with a key that is not text, or a number outside JSON.
            text = _encode({name: str(value) for name, value in line.items()}).decode()
        return _without_secrets(text)


class TextLines(logging.Formatter):
    """Formats each event as one line of text; a traceback follows in separate lines."""

    def __init__(self, fields: Mapping[str, object] | None = None, *, colors: bool = False) -> None:
        super().__init__()
        self._fields = dict(fields or {})
        self._colors = colors

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        at = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        level = self._colored(f"{record.levelname:<7}", _LEVEL_COLORS.get(record.levelno))
        fields = [*self._fields.items(), *_fields(record)]
        if request_id := getattr(record, "request_id", ""):
            fields.append(("request_id", request_id))
        shown = "".join(f" {_escaped(name)}={_value(value)}" for name, value in fields)
        line = f"{at} {level} {record.name.removeprefix(_PREFIX)}: {_escaped(_text(record))}{self._colored(shown, '2')}"
        if error := _error(record):
            trace = self.formatException(error) if error[2] is not None else f"{error[0].__name__}: {error[1]}"
            line += "\n" + "\n".join(f"    {_escaped(row)}" for row in trace.splitlines())
        return _without_secrets(line)

    def _colored(self, text: str, color: str | None) -> str:
        return f"\x1b[{color}m{text}\x1b[0m" if self._colors and color and text else text


def _text(record: logging.LogRecord) -> str:
    """The text of an event. An event with invalid format arguments is still logged."""
    try:
        return record.getMessage()
    except Exception:
        return f"{record.msg} {record.args!r}"


def _fields(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    """The structured values of a record: from `fields`, and other simple values passed as `extra`."""
    fields = getattr(record, "fields", None)
    if isinstance(fields, Mapping):
        yield from fields.items()
    for name, value in vars(record).items():
        if name not in _NOT_FIELDS and isinstance(value, (str, int, float, list, tuple, dict)):
            yield name, value


def _error(record: logging.LogRecord) -> tuple[type[BaseException], BaseException, TracebackType | None] | None:
    return record.exc_info if record.exc_info and record.exc_info[0] is not None else None


def _value(value: object) -> str:
    """A value on a terminal, quoted if its end would not be visible."""
    plain = isinstance(value, (int, float)) or (isinstance(value, str) and not _NEEDS_QUOTES.search(value))
    return _escaped(str(value) if plain else _encode(value).decode())


def _escaped(text: str) -> str:
    """One line without control characters: texts can quote data from clients."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _without_secrets(line: str) -> str:
    return _SECRETS.sub(lambda found: (found["url"] or found["query"] or "") + HIDDEN, line)


def _log_the_end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Log an uncaught exception."""
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    logging.getLogger(__name__).critical(
        "the process exits because of a bug; please report it", exc_info=(kind, error, trace)
    )
