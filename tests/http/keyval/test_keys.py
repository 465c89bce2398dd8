"""Keys of the key-value API, one at a time and several: /keyval/api/keys and /keyval/api/atomic"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hark.broker.watch import Shown
from hark.http.checks import query_params
from hark.http.keyval.paths import cursor_of, key_at, keys_in_path, known_of_text, known_text
from hark.keys import encode_key
from hark.model import Key, KeyPart
from tests.http.api import Json, read, refusal
from tests.http.keyval.keys import BASE, Keys
from tests.http.keyval.work import POISON, Work

# Values ----------------------------------------------------------------------------------------------------


def test_a_value_is_read_as_it_was_written_with_its_key_and_version(keys: Keys) -> None:
    versionstamp = keys.put("a", value={"n": 1})
    assert len(versionstamp) == 20
    assert keys.get("a") == {"key": keys.key("a"), "value": {"n": 1}, "versionstamp": versionstamp}
    newer = keys.put("a", value=None)
    assert newer > versionstamp
    assert keys.get("a") == {"key": keys.key("a"), "value": None, "versionstamp": newer}


@pytest.mark.parametrize("value", POISON, ids=[str(value[:30]) for value in POISON])
def test_values_are_kept_byte_for_byte(keys: Keys, value: bytes) -> None:
    read(keys.client.put(keys.url("a"), content=b" " + value + b"\n"))
    body = keys.client.get(keys.url("a")).content
    assert b'"value":' + value + b',"versionstamp":' in body
    assert value in keys.client.get(f"{BASE}/keys", params={"prefix": keys.root}).content


# Keys in paths ---------------------------------------------------------------------------------------------


def test_integers_in_paths_are_numbers_and_everything_else_is_text(keys: Keys) -> None:
    for part, meant in [("123", 123), ("-7", -7), ("1.5", "1.5"), ("true", "true"), ("9007199254740993", None)]:
        keys.put("x", part, value=part)
        assert keys.list("x")[0]["key"] == keys.key("x", part if meant is None else meant)
        assert read(keys.client.get(f"{BASE}/keys//{keys.root}//x/{part}/"))["value"] == part, (
            "empty parts do not count"
        )
        assert keys.delete("x") == 1


def test_a_path_that_means_no_number_means_the_text(keys: Keys) -> None:
    keys.put_exactly("users", "17", value="text")
    assert keys.get("users", "17")["key"] == keys.key("users", "17")
    keys.put_exactly("users", 17, value="number")
    assert keys.value("users", "17") == "number"
    assert keys.get("users", "17", strings=True)["value"] == "text"
    assert keys.delete("users", "17", strings=False) == 1
    assert keys.get("users", "17", strings=False) is None
    assert keys.delete("users", "17") == 1
    keys.put("users", "17", value=1, strings=True)
    assert keys.listed() == [["users", "17"]]


HARD = ["a/b", "a@b.c", "100%", "%2F", "a,b:c?d#e", "+ space", "é☃💥", "\x00", "..", "[1]", '["x"]', "keys", "\u2028"]


@pytest.mark.parametrize("part", HARD)
def test_any_text_can_be_a_part_of_a_path_and_is_the_same_key_as_in_json(keys: Keys, part: str) -> None:
    # Escaped to the last byte, for clients take dots for a way up the path.
    read(keys.client.put(f"{keys.url()}/{quoted(part)}/end", content="1"))
    [entry] = read(keys.client.post(f"{BASE}/keys/batch", json={"keys": [keys.key(part, "end")]}))
    assert (entry["key"], entry["value"]) == (keys.key(part, "end"), 1)


def test_a_segment_that_begins_with_a_bracket_is_a_whole_key_in_json(keys: Keys) -> None:
    key = json.dumps(keys.key("17", 17, True, "", 1.5))
    url = f"{BASE}/keys/{quoted(key)}"
    read(keys.client.put(url, content="1"))
    assert keys.listed() == [["17", 17, True, "", 1.5]]
    assert read(keys.client.get(url))["value"] == 1
    assert read(keys.client.delete(url)) == {"deletedCount": 1}


def quoted(text: str) -> str:
    """Text as one segment."""
    return "".join(f"%{byte:02X}" for byte in text.encode())


@pytest.mark.parametrize("word", ["count", "paginate", "batch", "list", "delete-batch"])
def test_keys_that_have_the_name_of_a_route_can_be_reached(http: httpx.Client, word: str) -> None:
    read(http.put(f"{BASE}/keys/{word}", content='"mine"'))
    assert read(http.get(f"{BASE}/keys/{quoted(json.dumps([word]))}"))["value"] == "mine"
    assert read(http.post(f"{BASE}/keys/batch", json={"keys": [[word]]}))[0]["value"] == "mine"
    assert read(http.delete(f"{BASE}/keys/{word}")) == {"deletedCount": 1}


# Deleting --------------------------------------------------------------------------------------------------


def test_deleting_takes_all_that_is_below_and_no_sibling_or_exactly_the_key(keys: Keys) -> None:
    for path in ("user", "user/1", "user/1/x", "users/1", "user-archive/1"):
        keys.put(*path.split("/"), value=1)
    assert keys.delete("user", body={"exact": True}) == 1
    assert keys.delete("user", "1", exact=True) == 1
    assert keys.listed("user") == [["user", 1, "x"]]
    keys.put("user", value=1)
    assert keys.delete("user") == 2
    assert keys.listed() == [["user-archive", 1], ["users", 1]]
    assert keys.delete("user") == 0


def test_a_list_has_the_keys_below_a_prefix_in_their_order(keys: Keys) -> None:
    for parts in (("a", True), ("a", 10), ("a", 9), ("a", "z"), ("a", "10"), ("a",), ("a", 9, "deep"), ("b",)):
        keys.put_exactly(*parts, value=list(parts))
    assert keys.listed("a") == [["a", "10"], ["a", "z"], ["a", 9], ["a", 9, "deep"], ["a", 10], ["a", True]]
    assert [entry["value"] for entry in keys.list("a/9")] == [["a", 9, "deep"]]
    assert keys.listed("a", reverse=True) == keys.listed("a")[::-1]


def test_a_prefix_is_exact_to_the_part(keys: Keys) -> None:
    for path in ("user/1", "users/1", "user-archive/1", "use/1", "user\x00/1"):
        keys.put(*path.split("/"), value=1)
    assert keys.listed("user") == [["user", 1]]
    assert keys.listed("us") == []


def test_a_list_begins_at_its_start_and_ends_before_its_end(keys: Keys) -> None:
    for number in range(6):
        keys.put("n", str(number), value=number)
    root = f"{keys.root}/n"
    assert keys.listed("n", start=f"{root}/2", end=f"{root}/4") == [["n", 2], ["n", 3]]
    assert keys.listed("n", start=f"{root}/4", reverse=True) == [["n", 5], ["n", 4]]
    assert keys.listed("n", end=f"{root}/0") == []
    assert keys.listed("n", start="", end="", limit=1) == [["n", 0]]


def test_without_a_prefix_all_keys_are_listed(fresh_server_url: str) -> None:
    with httpx.Client(base_url=fresh_server_url) as client:
        assert read(client.get(f"{BASE}/keys")) == []
        for key in ("b", "a", "c/d"):
            read(client.put(f"{BASE}/keys/{key}", content="1"))
        assert [entry["key"] for entry in read(client.get(f"{BASE}/keys"))] == [["a"], ["b"], ["c", "d"]]
        assert read(client.get(f"{BASE}/keys/count")) == {"count": 3}
        assert len(read(client.post(f"{BASE}/keys/list", json={}))) == 3


def test_a_list_is_as_long_as_its_limit_and_never_longer_than_1000(keys: Keys) -> None:
    for start in (0, 1000):
        keys.atomic(*({"type": "set", "key": keys.key("n", start + n), "value": 1} for n in range(1000)))
    assert [len(keys.list("n", **limit)) for limit in ({}, {"limit": 7}, {"limit": 10**9})] == [100, 7, 1000]
    assert read(keys.client.get(f"{BASE}/keys/count", params={"prefix": f"{keys.root}/n"})) == {"count": 2000}


# Pages -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True])
def test_pages_give_every_key_once(keys: Keys, reverse: bool) -> None:
    parts: list[Json] = [*range(5), "a+b/c", "ÿÿ", True, False, 0.5, "\x00", ""]
    keys.atomic(*({"type": "set", "key": keys.key("n", part), "value": part} for part in parts))
    query: dict[str, Any] = {"prefix": f"{keys.root}/n", "limit": 3, "reverse": str(reverse).lower()}
    found, pages, cursor = [], 0, None
    while pages == 0 or cursor is not None:
        # As a client that encodes nothing would send it.
        url = f"{BASE}/keys/paginate?" + str(httpx.QueryParams(query)) + (f"&cursor={cursor}" if cursor else "")
        page = read(keys.client.get(url))
        assert page["hasMore"] == (page["cursor"] is not None)
        found += [entry["value"] for entry in page["entries"]]
        pages, cursor = pages + 1, page["cursor"]
    everything = [entry["value"] for entry in keys.list("n", reverse=reverse)]
    assert (pages, len(found)) == (4, 12)
    assert list(map(repr, found)) == list(map(repr, everything))


def test_pages_go_on_behind_a_key_that_was_removed(keys: Keys) -> None:
    for number in range(4):
        keys.put("n", str(number), value=number)
    query = {"prefix": f"{keys.root}/n", "limit": "2"}
    page = read(keys.client.get(f"{BASE}/keys/paginate", params=query))
    keys.delete("n", "1")
    page = read(keys.client.get(f"{BASE}/keys/paginate", params=query | {"cursor": page["cursor"]}))
    assert [entry["value"] for entry in page["entries"]] == [2, 3]
    assert (page["cursor"], page["hasMore"]) == (None, False)
    page = read(keys.client.get(f"{BASE}/keys/paginate", params={"prefix": f"{keys.root}/nothing"}))
    assert page == {"entries": [], "cursor": None, "hasMore": False}


# Bodies ----------------------------------------------------------------------------------------------------


def test_a_list_can_be_requested_with_exact_types(keys: Keys) -> None:
    for part in ("1", 1, 2, 3):
        keys.put_exactly("n", part, "x", value=part)
    ask = {"prefix": keys.key("n"), "start": keys.key("n", 1), "end": keys.key("n", 3), "reverse": True}
    assert [entry["value"] for entry in read(keys.client.post(f"{BASE}/keys/list", json=ask))] == [2, 1]
    ask = {"prefix": keys.key("n", "1"), "limit": 5000}
    assert [entry["value"] for entry in read(keys.client.post(f"{BASE}/keys/list", json=ask))] == ["1"]
    query = {"prefix": json.dumps(keys.key("n", "1"))}
    assert [entry["value"] for entry in read(keys.client.get(f"{BASE}/keys", params=query))] == ["1"]


def test_a_batch_has_the_entries_in_the_order_of_the_request(keys: Keys) -> None:
    stamp = keys.put("a", value=None)
    requested = [keys.key("a"), keys.key("b"), keys.key("a")]
    first, missing, second = read(keys.client.post(f"{BASE}/keys/batch", json={"keys": requested}))
    assert first == second == {"key": keys.key("a"), "value": None, "versionstamp": stamp}
    assert missing == {"key": keys.key("b"), "value": None, "versionstamp": None}


def test_a_batch_is_deleted_in_one_go(keys: Keys) -> None:
    for path in ("a", "a/1", "b", "b/1", "c"):
        keys.put(*path.split("/"), value=1)
    requested: Json = {"keys": [keys.key("a"), keys.key("nothing")], "exact": True}
    assert read(keys.client.post(f"{BASE}/keys/delete-batch", json=requested)) == {"deletedCount": 1}
    requested = {"keys": [keys.key("a"), keys.key("b"), keys.key("b", 1)]}
    assert read(keys.client.post(f"{BASE}/keys/delete-batch", json=requested)) == {"deletedCount": 3}
    assert keys.listed() == [["c"]]


# Atomic writes: checks, changes and messages that happen together or not at all ----------------------------


def test_everything_happens_with_one_version(keys: Keys) -> None:
    keys.put("old", value=1)
    answer = keys.atomic(
        {"type": "set", "key": keys.key("a"), "value": {"x": 1}},
        {"type": "delete", "key": keys.key("old")},
        {"type": "sum", "key": keys.key("n"), "value": 5},
        {"type": "sum", "key": keys.key("n"), "value": -2},
    )
    assert answer["ok"] is True
    assert keys.listed() == [["a"], ["n"]]
    assert keys.value("n") == 3
    assert {entry["versionstamp"] for entry in keys.list()} == {answer["versionstamp"]}
    nothing = keys.atomic()
    assert (nothing["ok"], len(nothing["versionstamp"])) == (True, 20)


def test_a_check_that_fails_is_no_error_and_nothing_happens(keys: Keys, work: Work) -> None:
    stamp = keys.put("a", value=1)
    writes = ({"type": "set", "key": keys.key("b"), "value": 1}, {"type": "enqueue", "value": 1})
    for check in ({"key": keys.key("a"), "versionstamp": None}, {"key": keys.key("x"), "versionstamp": stamp}):
        assert keys.atomic(*writes, checks=[check], queue=keys.root) == {"ok": False}
    assert (keys.listed(), work.stats()) == ([["a"]], (0, 0, 0))
    checks = [{"key": keys.key("a"), "versionstamp": stamp}, {"key": keys.key("x"), "versionstamp": None}]
    assert keys.atomic(*writes, checks=checks, queue=keys.root)["ok"] is True
    assert (keys.value("b"), work.stats()) == (1, (1, 0, 0))


def test_numbers_are_combined_and_arrays_grow_at_both_ends(keys: Keys) -> None:
    keys.put("n", value=10)
    for kind, value, result in [
        ("min", 12, 10),
        ("min", 3, 3),
        ("max", 7, 7),
        ("sum", "5", 12),
        ("sum", {"__type": "bigint", "value": "-2"}, 10),
        ("sum", 0.5, 10.5),
        ("sum", 9007199254740991 - 20, 9007199254740981.5),
    ]:
        assert keys.atomic({"type": kind, "key": keys.key("n"), "value": value})["ok"] is True
        assert keys.value("n") == pytest.approx(result)
    for kind, values in [("append", [1]), ("append", [{"a": 2}, 3]), ("prepend", [0]), ("append", [])]:
        keys.atomic({"type": kind, "key": keys.key("list"), "value": values})
    assert keys.value("list") == [0, 1, {"a": 2}, 3]


def test_what_does_not_fit_the_stored_value_is_a_conflict_and_nothing_happens(keys: Keys) -> None:
    keys.put("text", value="x")
    for kind, value in [("sum", 1), ("append", [1])]:
        response = keys.try_atomic(
            {
                "mutations": [
                    {"type": "enqueue", "value": 1},
                    {"type": "set", "key": keys.key("a"), "value": 1},
                    {"type": kind, "key": keys.key("text"), "value": value},
                ]
            },
            queue=keys.root,
        )
        assert "mutations[2]" in refusal(response, 409, "value_mismatch")
    assert keys.listed() == [["text"]]


# Writes with messages --------------------------------------------------------------------------------------


def test_a_message_is_enqueued_with_what_is_written(keys: Keys, work: Work) -> None:
    answer = keys.atomic(
        {"type": "set", "key": keys.key("order"), "value": "placed"},
        {"type": "enqueue", "value": {"task": "ship"}, "options": {"priority": 3}},
        {"type": "enqueue", "value": "elsewhere", "queue": f"{keys.root}-other"},
        queue=keys.root,
    )
    assert answer["ok"] is True
    message = work.take()
    assert (message["value"], message["priority"], message["id"]) == ({"task": "ship"}, 3, answer["ids"][0])
    assert Work(keys.client, f"{keys.root}-other").take()["id"] == answer["ids"][1]
    assert keys.value("order") == "placed"


# Text: whatever goes out comes back as it was ------------------------------------------------------------

_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_number = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False, width=32)
_part: st.SearchStrategy[KeyPart] = _text | _number | st.booleans() | st.sampled_from(["17", "-0", "007", "~x", "[1]"])
_keys = st.lists(_part, min_size=1, max_size=4).map(tuple)


@given(key=_keys)
def test_a_cursor_means_its_key_and_needs_no_encoding(key: Key) -> None:
    cursor = cursor_of(key)
    assert quote(cursor, safe="") == cursor
    assert encode_key(key_at(cursor, "cursor")) == encode_key(key)


@given(keys=st.lists(_keys, max_size=10), encoded=st.booleans())
def test_what_a_client_was_notified_it_can_send_back_encoded_or_not(keys: Sequence[Key], encoded: bool) -> None:
    below: list[Key] = [("p", *key) for key in keys]
    shown = {encode_key(key): Shown(key, version) for version, key in enumerate(below)}
    text = known_text(shown)
    sent = f"versionstamps={quote(text, safe='') if encoded else text}"
    known = known_of_text(query_params(sent.encode()).get("versionstamps", ""), ("p",), "versionstamps")
    assert {identity: one.version for identity, one in known.items()} == {
        identity: one.version for identity, one in shown.items()
    }


@given(parts=st.lists(_text.filter(bool), min_size=2, max_size=5))
def test_a_path_can_always_mean_its_text(parts: list[str]) -> None:
    assert keys_in_path(parts, {"strings": "true"}) == [tuple(parts)]
    forms = keys_in_path(parts, {})
    assert tuple(map(str, forms[-1])) == tuple(parts)
    assert len(forms) == (2 if forms[0] != tuple(parts) else 1)
