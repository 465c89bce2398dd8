"""Several keys at once: lists, pages, counts and batches."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.http.api import Json, read, refusal
from tests.http.keyval.keys import BASE, Keys

# Lists -----------------------------------------------------------------------------------------------------


def test_a_list_has_the_keys_below_a_prefix_in_their_order(keys: Keys) -> None:
    for parts in (("a", True), ("a", 10), ("a", 9), ("a", "z"), ("a", "10"), ("a",), ("a", 9, "deep"), ("b",)):
        keys.put_exactly(*parts, value=list(parts))
    assert keys.listed("a") == [["a", "10"], ["a", "z"], ["a", 9], ["a", 9, "deep"], ["a", 10], ["a", True]]
    assert [entry["value"] for entry in keys.list("a/9")] == [["a", 9, "deep"]]
    assert keys.listed("a", reverse=True) == [
        ["a", True],
        ["a", 10],
        ["a", 9, "deep"],
        ["a", 9],
        ["a", "z"],
        ["a", "10"],
    ]


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


def test_a_prefix_may_be_a_json_array(keys: Keys) -> None:
    keys.put_exactly("a/b", "17", 1)
    keys.put_exactly("a/b", 17, 2)
    query = {"prefix": json.dumps(keys.key("a/b", "17"))}
    assert [entry["key"][1:] for entry in read(keys.client.get(f"{BASE}/keys", params=query))] == [["a/b", "17", 1]]


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


@pytest.mark.parametrize("route", ["/keys", "/keys/paginate"])
@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "-1"}, "limit"),
        ({"limit": "ten"}, "limit"),
        ({"limit": ""}, "limit"),
        ({"limit": "1e2"}, "limit"),
        ({"reverse": "maybe"}, "reverse"),
        ({"prefix": "[1"}, "prefix"),
        ({"prefix": "[]"}, "prefix"),
        ({"start": "[{}]"}, "start"),
        ({"prefix": "x" * 1025}, "Key part too long"),
        ({"end": "/".join("x" * 21)}, "Key path too deep"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(
    http: httpx.Client, route: str, query: dict[str, str], field: str
) -> None:
    assert field in refusal(http.get(f"{BASE}{route}", params=query), 400)


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


def test_an_empty_page_is_the_last(keys: Keys) -> None:
    page = read(keys.client.get(f"{BASE}/keys/paginate", params={"prefix": keys.root}))
    assert page == {"entries": [], "cursor": None, "hasMore": False}


@pytest.mark.parametrize("cursor", ["!", "AAAA", "é", "Ag", "====", "a" * 5000])
def test_a_cursor_that_was_not_answered_is_refused(http: httpx.Client, cursor: str) -> None:
    assert "cursor: expected a cursor" in refusal(http.get(f"{BASE}/keys/paginate", params={"cursor": cursor}), 400)


# Bodies ----------------------------------------------------------------------------------------------------


def test_a_list_can_be_asked_for_with_exact_types(keys: Keys) -> None:
    for part in ("1", 1, 2, 3):
        keys.put_exactly("n", part, "x", value=part)
    ask = {"prefix": keys.key("n"), "start": keys.key("n", 1), "end": keys.key("n", 3), "reverse": True}
    assert [entry["value"] for entry in read(keys.client.post(f"{BASE}/keys/list", json=ask))] == [2, 1]
    ask = {"prefix": keys.key("n", "1"), "limit": 5000}
    assert [entry["value"] for entry in read(keys.client.post(f"{BASE}/keys/list", json=ask))] == ["1"]


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"prefix": []}, 400, "Key cannot be empty"),
        ({"prefix": "users"}, 400, "prefix"),
        ({"prefix": [None]}, 400, "Invalid key part at index 0"),
        ({"prefix": ["x" * 1025]}, 400, "Key part at index 0 too long"),
        ({"start": list("x" * 21)}, 400, "Key too deep: 21 parts (max 20)"),
        ({"limit": 0}, 400, "limit"),
        ({"limit": "5"}, 400, "limit"),
        ({"reverse": 1}, 400, "reverse"),
        ({"where": {"a": 1}}, 501, "where"),
        ([], 400, "body"),
        (None, 400, "body"),
    ],
)
def test_lists_that_make_no_sense_are_refused(http: httpx.Client, body: Json, status: int, text: str) -> None:
    assert text in refusal(http.post(f"{BASE}/keys/list", json=body), status)


def test_a_batch_has_the_entries_in_the_order_of_the_request(keys: Keys) -> None:
    stamp = keys.put("a", value=None)
    asked = [keys.key("a"), keys.key("b"), keys.key("a")]
    first, missing, second = read(keys.client.post(f"{BASE}/keys/batch", json={"keys": asked}))
    assert first == second == {"key": keys.key("a"), "value": None, "versionstamp": stamp}
    assert missing == {"key": keys.key("b"), "value": None, "versionstamp": None}


def test_a_batch_tells_apart_what_python_takes_for_equal(keys: Keys) -> None:
    keys.put_exactly(1, value="number")
    keys.put_exactly(True, value="boolean")
    asked = [keys.key(True), keys.key(1), keys.key(1.0), keys.key(False)]
    entries = read(keys.client.post(f"{BASE}/keys/batch", json={"keys": asked}))
    assert [entry["value"] for entry in entries] == ["boolean", "number", "number", None]


def test_a_batch_is_deleted_in_one_go(keys: Keys) -> None:
    for path in ("a", "a/1", "b", "b/1", "c"):
        keys.put(*path.split("/"), value=1)
    asked: Json = {"keys": [keys.key("a"), keys.key("nothing")], "exact": True}
    assert read(keys.client.post(f"{BASE}/keys/delete-batch", json=asked)) == {"deletedCount": 1}
    asked = {"keys": [keys.key("a"), keys.key("b"), keys.key("b", 1)]}
    assert read(keys.client.post(f"{BASE}/keys/delete-batch", json=asked)) == {"deletedCount": 3}
    assert keys.listed() == [["c"]]


@pytest.mark.parametrize("route", ["batch", "delete-batch"])
@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "Keys must be an array of key arrays"),
        ({"keys": "a"}, "Keys must be an array of key arrays"),
        ({"keys": []}, "Keys array cannot be empty"),
        ({"keys": [["a"]] * 1001}, "Too many keys: 1001 (max 1000)"),
        ({"keys": [["a"], []]}, "Invalid key at index 1: Key cannot be empty"),
        ({"keys": [["a"], ["b", {}]]}, "Invalid key at index 1: Invalid key part at index 1"),
        ({"keys": [["a"], "b"]}, "Invalid key at index 1: Key must be an array"),
        (None, "body"),
    ],
)
def test_batches_that_make_no_sense_are_refused(http: httpx.Client, route: str, body: Json, text: str) -> None:
    assert text in refusal(http.post(f"{BASE}/keys/{route}", json=body), 400)
    refusal(http.post(f"{BASE}/keys/{route}", content=b"{"), 400, "invalid_json")
    refusal(http.post(f"{BASE}/keys/{route}", content=b""), 400)


def test_a_batch_with_a_filter_deletes_nothing(keys: Keys) -> None:
    keys.put("a", value=1)
    body = {"keys": [keys.key("a")], "where": {"x": 1}}
    assert "where" in refusal(keys.client.post(f"{BASE}/keys/delete-batch", json=body), 501)
    assert keys.value("a") == 1
