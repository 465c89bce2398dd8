"""The checks of input: what is accepted, and that each error names its field."""

from __future__ import annotations

import pytest

from hark.clock import EARLIEST, LATEST, format_time, format_time_ms
from hark.errors import InvalidInput
from hark.http.checks import (
    check_name,
    check_status,
    decode_json,
    parse_time,
    path_segments,
)
from hark.http.items import ITEM_TEXTS, PushBody
from hark.http.routing import BoolParam, IntParam

BATCH = IntParam("batch", "", 5, 1, 10)
WAIT = BoolParam("wait", "", True)
MOMENT = 1_767_323_045_678_901


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "must not be empty"),
        ("a\0b", "NUL"),
        ("x" * 256, "must be at most 255 bytes of UTF-8, got 256"),
        ("Ω" * 128, "got 256"),
        ("🙂" * 64, "got 256"),
    ],
)
def test_names_of_up_to_255_bytes_are_accepted_and_others_refused_with_the_field(name: str, problem: str) -> None:
    for right in ("a", "a b", "a/b", "Ω" * 127, "x" * 255, "🙂" * 63):
        assert check_name(right, "queue") == right
    with pytest.raises(InvalidInput, match=f"queue: .*{problem}"):
        check_name(name, "queue")


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("2026-01-02T03:04:05.678901Z", MOMENT),
        ("2026-01-02T03:04:05.678901", MOMENT),
        ("2026-01-02T05:04:05.678901+02:00", MOMENT),
        ("2026-01-02T03:04:05Z", MOMENT - 678_901),
        ("2026-01-02", MOMENT - 678_901 - 11_045_000_000),
        ("1767323045678", MOMENT - 901),
        ("1969-12-31T23:59:59Z", -1_000_000),
    ],
)
def test_times_are_iso_8601_or_milliseconds(text: str, us: int) -> None:
    assert parse_time(text, "from") == us


@pytest.mark.parametrize("text", ["", "now", "yesterday", "2026-13-01", "-1", "9" * 18, "9" * 30, "1.5", "٣"])
def test_other_times_are_refused_with_the_field(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^from: expected"):
        parse_time(text, "from")


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-00:01", "9999-12-31T01:00-23:59", "0001-01-01T00:00+00:01"])
def test_an_offset_does_not_lead_out_of_the_years_that_can_be_written(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^from: expected a time in the years 1 to 9999 in UTC, got '"):
        parse_time(text, "from")
    assert parse_time("9999-12-31T23:59:59.999999Z", "from") == LATEST
    assert parse_time("0001-01-01T00:00Z", "from") == EARLIEST


def test_times_that_cannot_be_written_are_shown_as_the_nearest_that_can() -> None:
    assert (format_time(LATEST), format_time(LATEST + 1)) == (
        "9999-12-31T23:59:59.999999Z",
        "9999-12-31T23:59:59.000000Z",
    )
    assert format_time_ms(1 << 62).startswith("9999-12-31T23:59:59.")
    assert format_time_ms(EARLIEST - 1).startswith("0001-01-01T00:00:00.")
    assert format_time(-(1 << 62)).startswith("0001-01-01T00:00:00.")


@pytest.mark.parametrize("us", [0, 1, 999_999, 1_000_000, MOMENT, -1, -1_000_000])
def test_times_are_formatted_in_utc_with_fixed_width_and_read_back_as_themselves(us: int) -> None:
    assert parse_time(format_time(us), "at") == us
    assert parse_time(format_time_ms(us), "at") == us // 1000 * 1000
    assert format_time(MOMENT) == "2026-01-02T03:04:05.678901Z"
    assert format_time(1_000_001) == "1970-01-01T00:00:01.000001Z"
    assert format_time_ms(MOMENT) == "2026-01-02T03:04:05.678Z"


@pytest.mark.parametrize("text", ["", "0", "11", "-1", "1.0", "1e1", " 1", "1_0", "٣", "x", "9" * 30, "0x1"])
def test_integers_within_bounds_are_accepted_and_others_refused_with_the_parameter(text: str) -> None:
    right = {"1": 1, "10": 10, "007": 7}
    assert {given: BATCH.of({"batch": given}) for given in right} == right
    assert BATCH.of({}) == 5
    with pytest.raises(InvalidInput, match=r"^batch: expected an integer from 1 to 10, got"):
        BATCH.of({"batch": text})


def test_switches_are_true_1_false_0_or_empty() -> None:
    values = {text: WAIT.of({"wait": text}) for text in ("true", "1", "false", "0", "")}
    assert values == {"true": True, "1": True, "false": False, "0": False, "": False}
    assert WAIT.of({}) is True
    with pytest.raises(InvalidInput, match=r"^wait: expected true or false, got 'yes'"):
        WAIT.of({"wait": "yes"})


def test_success_is_another_word_for_completed() -> None:
    assert check_status("success", "status") == "completed"
    assert check_status("dlq", "status") == "dlq"
    with pytest.raises(InvalidInput, match=r"^status: expected completed, failed, retry or dlq, got 'done'"):
        check_status("done", "status")


def test_path_segments_are_split_before_they_are_decoded() -> None:
    assert path_segments(b"/api/v1/a%2Fb/c%20d/%C3%A9") == ["api", "v1", "a/b", "c d", "é"]
    assert path_segments(b"/plain/path") == ["plain", "path"]
    with pytest.raises(InvalidInput, match="UTF-8"):
        path_segments(b"/a%FF")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "Empty request body"),
        (b"{", "Invalid JSON: "),
        (b'{"items":[{"queue":"a","payload":"\xff"}]}', "Invalid JSON: not valid UTF-8 at byte 34"),
        (b'{"items":[{"queue":"\xff"}]}', "Invalid JSON: not valid UTF-8"),
        (b'{"items":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "items[0]: expected an object, got an array"),
        (b'{"other":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "Invalid JSON: nested too deeply"),
        (b"[]", "push: expected an object, got an array"),
        (b'{"items":null}', "items array is required"),
        (b'{"items":[{}]}', "items[0].queue: Queue must be a string"),
        (b'{"items":[{"queue":"a"},{"queue":1}]}', "items[1].queue: Queue must be a string"),
        (b'{"items":[{"queue":"a","partition":null}]}', "items[0].partition: Partition must be a string"),
        (b'{"items":[{"queue":"a","transactionId":1}]}', "items[0].transactionId: TransactionId must be a string"),
        (b'{"items":[{"queue":"a","traceId":1}]}', "items[0].traceId: TraceId must be a string"),
        (b'{"items":[{"queue":"a","priority":true}]}', "expected an integer, got true or false"),
    ],
)
def test_wrong_bodies_are_refused_with_the_place(body: bytes, text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        decode_json(body, PushBody, "push", ITEM_TEXTS)
    assert text in refused.value.text
    assert refused.value.status == 400
