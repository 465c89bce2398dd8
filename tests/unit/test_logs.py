"""What a line of the log looks like, for people and for machines."""

from __future__ import annotations

import json
import logging
import sys
from io import StringIO
from typing import Any

import pytest

from hark.logs import JsonLines, TextLines, formatter_for, log_to
from hark.settings import LogFormat


class Terminal(StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def record(text: str, *values: object, level: int = logging.INFO, **extra: object) -> logging.LogRecord:
    """An event of the server, half a second after a full one."""
    made = logging.makeLogRecord(
        {"name": "hark.serving.server", "msg": text, "args": values, "levelno": level, **extra}
    )
    made.levelname = logging.getLevelName(level)
    made.created = 1_800_000_000.5
    return made


def failure() -> Any:
    """What a bug leaves behind."""
    try:
        raise ValueError("first line\nsecond line")
    except ValueError as error:
        return type(error), error, error.__traceback__


def as_json(made: logging.LogRecord) -> dict[str, Any]:
    line = JsonLines().format(made)
    assert "\n" not in line
    parsed: dict[str, Any] = json.loads(line)
    return parsed


# JSON ----------------------------------------------------------------------------------------------------------


def test_a_line_of_json_has_time_level_logger_and_text() -> None:
    assert as_json(record("worker %d is up", 3)) == {
        "at": "2027-01-15T08:00:00.500Z",
        "level": "info",
        "logger": "serving.server",
        "event": "worker 3 is up",
    }


def test_fields_and_the_request_id_stand_beside_the_text() -> None:
    line = as_json(record("done", fields={"removed": 7, "queues": ["a", "b"]}, request_id="r-1", task="send"))
    assert (line["removed"], line["queues"], line["request_id"], line["task"]) == (7, ["a", "b"], "r-1", "send")
    assert json.loads(JsonLines({"worker": 2}).format(record("up")))["worker"] == 2


def test_a_field_does_not_replace_what_every_line_has() -> None:
    line = as_json(record("done", fields={"event": "forged", "level": "debug", "at": "never"}))
    assert (line["event"], line["level"], line["at"]) == ("done", "info", "2027-01-15T08:00:00.500Z")


def test_an_error_is_in_the_same_line_with_its_stack() -> None:
    error = as_json(record("a bug", level=logging.ERROR, exc_info=failure()))["error"]
    assert (error["type"], error["text"]) == ("ValueError", "first line\nsecond line")
    assert error["stack"].startswith("Traceback") and "in failure" in error["stack"]


def test_nothing_that_a_call_says_breaks_its_line() -> None:
    assert as_json(record("odd", fields={"thing": {1, 2}, "key": {(1, 2): 3}}))["event"] == "odd"
    assert set(as_json(record("up", websocket=object(), color_message="up"))) == {"at", "level", "logger", "event"}
    assert as_json(record("%d messages", "many"))["event"] == "%d messages ('many',)"


# Text ----------------------------------------------------------------------------------------------------------


def test_a_line_for_people_has_the_same_in_words() -> None:
    made = record("a round", fields={"removed": 7, "why": "old age"}, request_id="r-1", level=logging.WARNING)
    line = TextLines({"worker": 2}).format(made)
    assert line[23:] == ' WARNING serving.server: a round worker=2 removed=7 why="old age" request_id=r-1'


def test_texts_of_several_lines_stay_one_line_and_do_not_steer_the_terminal() -> None:
    line = TextLines().format(record("refused: %s", "a\nb\x1b[2J", fields={"queue": "x\ny", "\x1b": 1}))
    assert line.endswith('refused: a\\nb\\x1b[2J queue="x\\ny" \\x1b=1')


def test_a_stack_follows_for_people_to_read() -> None:
    lines = TextLines().format(record("a bug", exc_info=failure())).splitlines()
    assert lines[0].endswith("a bug")
    assert lines[1] == "    Traceback (most recent call last):"


def test_colors_are_for_terminals_without_a_request_against_them(monkeypatch: pytest.MonkeyPatch) -> None:
    warning = record("late", level=logging.WARNING)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[33mWARNING\x1b[0m" in formatter_for(Terminal()).format(warning)
    assert "\x1b" not in formatter_for(StringIO(), "text").format(warning)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in formatter_for(Terminal()).format(warning)


@pytest.mark.parametrize(
    ("stream", "log_format", "kind"),
    [
        pytest.param(Terminal(), "auto", TextLines, id="terminal"),
        pytest.param(StringIO(), "auto", JsonLines, id="pipe"),
        pytest.param(Terminal(), "json", JsonLines, id="terminal-json"),
        pytest.param(StringIO(), "text", TextLines, id="pipe-text"),
    ],
)
def test_a_terminal_gets_text_and_all_else_json_unless_the_setting_says(
    stream: StringIO, log_format: LogFormat, kind: type[logging.Formatter]
) -> None:
    assert type(formatter_for(stream, log_format)) is kind


# Secrets -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("formatter", [JsonLines(), TextLines()], ids=["json", "text"])
@pytest.mark.parametrize(
    "secret",
    [
        pytest.param("hark_a1b2c3d4_" + "s" * 43, id="token"),
        pytest.param("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl", id="jwt"),
        pytest.param("postgresql://hark:p4ss%20word@db/hark", id="password"),
        pytest.param("postgresql://db/hark?user=hark&password=p4ss%20word", id="password-in-query"),
    ],
)
def test_secrets_that_others_quote_in_texts_fields_and_errors_are_hidden(
    formatter: logging.Formatter, secret: str
) -> None:
    quoted = f"token {secret} refused"
    error = OSError(quoted)
    line = formatter.format(record("%s", quoted, fields={"said": quoted}, exc_info=(OSError, error, None)))
    assert secret not in line
    assert "p4ss" not in line
    assert "******" in line


def test_texts_that_look_like_parts_of_a_url_hide_nothing_else_of_a_line() -> None:
    made = record("%s", "moved", fields={"from": "http://127.0.0.1:6632", "to": "://x:", "subject": "bob@example.com"})
    fields = json.loads(JsonLines().format(made))
    assert (fields["from"], fields["to"], fields["subject"]) == ("http://127.0.0.1:6632", "://x:", "bob@example.com")


# The whole log -------------------------------------------------------------------------------------------------


def test_everything_from_a_level_on_goes_to_the_stream_and_what_ends_the_process_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])  # Those of pytest.
    monkeypatch.setattr(sys, "excepthook", None)
    stream, level = StringIO(), root.level
    try:
        log_to(stream, "warning", "auto", {"worker": 1}, lambda made: "noise" not in made.getMessage())
        logging.getLogger("hark.broker").info("unimportant")
        logging.getLogger("hark.broker").warning("noise")
        logging.getLogger("another.library").warning("late")
        sys.excepthook(*failure())
    finally:
        root.setLevel(level)
    late, end = map(json.loads, stream.getvalue().splitlines())
    assert (late["logger"], late["event"], late["worker"]) == ("another.library", "late", 1)
    assert (end["event"], end["error"]["type"]) == (
        "the process exits because of a bug; please report it",
        "ValueError",
    )
