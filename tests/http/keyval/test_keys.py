"""One key at a time: /keyval/api/keys/..."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.http.api import read, refusal
from tests.http.keyval.keys import BASE, Keys

# Values ----------------------------------------------------------------------------------------------------


def test_a_value_is_read_as_it_was_written_with_its_key_and_version(keys: Keys) -> None:
    versionstamp = keys.put("a", value={"n": 1})
    assert len(versionstamp) == 20
    assert keys.get("a") == {"key": keys.key("a"), "value": {"n": 1}, "versionstamp": versionstamp}
    assert keys.put("a", value=2) > versionstamp
    assert keys.value("a") == 2


def test_a_key_without_an_entry_is_not_found(keys: Keys) -> None:
    response = keys.client.get(keys.url("nothing"))
    assert (response.status_code, response.json()["error"]) == (404, "Key not found")


def test_null_is_a_value(keys: Keys) -> None:
    versionstamp = keys.put("a", value=None)
    assert keys.get("a") == {"key": keys.key("a"), "value": None, "versionstamp": versionstamp}


POISON = [
    b'{"$now":true,"$offset":5}',
    b'{"__type":"bigint","value":"12345678901234567890"}',
    b'{"__proto__":{"x":1},"constructor":null}',
    b"123456789012345678901234567890",
    b"1e400",
    b"-0.0",
    b'"\\u0000 \\ud83d\\ude00 \xc3\xa9 \\/"',
    b'{"a" :  1,\n "a":2}',
    b"[" * 256 + b"]" * 256,
    b'""',
]


@pytest.mark.parametrize("value", POISON, ids=[str(value[:30]) for value in POISON])
def test_values_are_kept_byte_for_byte(keys: Keys, value: bytes) -> None:
    read(keys.client.put(keys.url("a"), content=b" " + value + b"\n"))
    body = keys.client.get(keys.url("a")).content
    assert b'"value":' + value + b',"versionstamp":' in body
    assert value in keys.client.get(f"{BASE}/keys", params={"prefix": keys.root}).content


def test_a_value_of_megabytes_comes_back_whole(keys: Keys) -> None:
    value = ["x" * 1000] * 5000
    keys.put("a", value=value)
    assert keys.value("a") == value


@pytest.mark.parametrize(
    ("value", "status", "text"),
    [
        (b"", 400, "value: is required"),
        (b"  ", 400, "value: is required"),
        (b"{", 400, "Invalid JSON"),
        (b"{'a': 1}", 400, "Invalid JSON"),
        (b"NaN", 400, "Invalid JSON"),
        (b"1 2", 400, "Invalid JSON"),
        (b'"\xff"', 400, "Invalid JSON"),
        (b'"\\ud800"', 400, "Invalid JSON"),
        (b"[" * 257 + b"]" * 257, 400, "nested too deeply"),
        (b'"' + b"x" * (10 * 1024 * 1024) + b'"', 413, "max_body_bytes"),
    ],
)
def test_what_is_no_value_is_refused_and_nothing_is_stored(keys: Keys, value: bytes, status: int, text: str) -> None:
    assert text in refusal(keys.client.put(keys.url("a"), content=value), status)
    assert keys.get("a") is None


# Keys in paths ---------------------------------------------------------------------------------------------


def test_integers_in_paths_are_numbers_and_everything_else_is_text(keys: Keys) -> None:
    for part, meant in [("123", 123), ("-7", -7), ("1.5", "1.5"), ("true", "true"), ("9007199254740993", None)]:
        keys.put("x", part, value=part)
        assert keys.list("x")[0]["key"] == keys.key("x", part if meant is None else meant)
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
    assert keys.listed() == []


def test_a_put_can_be_told_to_mean_text(keys: Keys) -> None:
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
    assert "JSON array" in refusal(keys.client.get(f"{BASE}/keys/[draft]"), 400)
    assert "Invalid key part at index 0" in refusal(keys.client.get(f"{BASE}/keys/[null]"), 400)


def quoted(text: str) -> str:
    """Text as one segment."""
    return "".join(f"%{byte:02X}" for byte in text.encode())


@pytest.mark.parametrize("word", ["count", "paginate", "batch", "list", "delete-batch"])
def test_keys_that_have_the_name_of_a_route_can_be_reached(http: httpx.Client, word: str) -> None:
    read(http.put(f"{BASE}/keys/{word}", content='"mine"'))
    assert read(http.get(f"{BASE}/keys/{quoted(json.dumps([word]))}"))["value"] == "mine"
    assert read(http.post(f"{BASE}/keys/batch", json={"keys": [[word]]}))[0]["value"] == "mine"
    assert read(http.delete(f"{BASE}/keys/{word}")) == {"deletedCount": 1}


def test_empty_segments_are_left_out(keys: Keys) -> None:
    keys.put("a", "b", value=1)
    assert read(keys.client.get(f"{BASE}/keys//{keys.root}//a/b/"))["value"] == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/", "Key path cannot be empty"),
        ("//", "Key path cannot be empty"),
        ("/" + "/".join("x" * 21), "Key path too deep (max 20 parts)"),
        ("/" + "x" * 1025, "Key part too long (max 1024 chars)"),
        ("/" + "💥" * 513, "Key part too long (max 1024 chars)"),
        ("/" + "/".join(["x" * 1000] * 3), "Key too long"),
        ("/%FF", "the path is not valid UTF-8"),
        ("/a?strings=maybe", "strings: expected true or false"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_paths_that_are_no_keys_are_refused(http: httpx.Client, method: str, path: str, text: str) -> None:
    response = http.request(method, f"{BASE}/keys{path}", content=b"1" if method == "PUT" else b"")
    assert text in refusal(response, 400)


# Deleting --------------------------------------------------------------------------------------------------


def test_deleting_takes_all_that_is_below_and_no_sibling(keys: Keys) -> None:
    for path in ("user", "user/1", "user/1/x", "users/1", "user-archive/1"):
        keys.put(*path.split("/"), value=1)
    assert keys.delete("user") == 3
    assert keys.listed() == [["user-archive", 1], ["users", 1]]
    assert keys.delete("user") == 0


@pytest.mark.parametrize("how", [{"body": {"exact": True}}, {"exact": True}])
def test_deleting_exactly_takes_only_the_key(keys: Keys, how: dict[str, Any]) -> None:
    keys.put("user", value=1)
    keys.put("user", "1", value=1)
    assert keys.delete("user", **how) == 1
    assert keys.listed() == [["user", 1]]


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b'{"where":{"age":{"$gt":5}}}', 501, "where: this server has no filters"),
        (b'{"where":{}}', 501, "where"),
        (b'{"exact":"true"}', 400, "exact: expected true or false"),
        (b"exact=true", 400, "Invalid JSON"),
        (b"null", 400, "body"),
    ],
)
def test_a_deletion_that_is_not_understood_deletes_nothing(keys: Keys, body: bytes, status: int, text: str) -> None:
    keys.put("user", value=1)
    headers = {"content-type": "application/x-www-form-urlencoded"}
    response = keys.client.request("DELETE", keys.url("user"), content=body, headers=headers)
    assert text in refusal(response, status)
    assert keys.value("user") == 1


# Expiry ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["0", "-1", "1.5", "soon", "", "99999999999999999999"])
def test_an_expiry_that_makes_no_sense_is_refused(keys: Keys, given: str) -> None:
    response = keys.client.put(keys.url("a"), content="1", params={"expiresIn": given})
    assert "expiresIn: expected an integer" in refusal(response, 400)
    assert keys.get("a") is None


def test_the_routes_say_which_methods_they_take(keys: Keys) -> None:
    assert refusal(keys.client.post(keys.url("a"), json=1), 405, "method_not_allowed")
    assert refusal(keys.client.delete(f"{BASE}/keys"), 405, "method_not_allowed")
    assert refusal(keys.client.get(f"{BASE}/nothing"), 404, "route_not_found")
