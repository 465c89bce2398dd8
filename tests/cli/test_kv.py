"""`hark kv`: what it sends and what it prints, and all of it against a server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from urllib.parse import unquote, urlsplit

import pytest

from .conftest import Run, runner
from .stub import Stub
from .test_messages import query
from .test_tail import PING, events

ENTRY = {"key": ["users", 17], "value": {"n": 1}, "versionstamp": "00000000000000000009"}


def path(stub: Stub) -> str:
    """Give the path of the last request, as it was sent."""
    return urlsplit(stub.last.target).path


# Keys ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "segments"),
    [
        ("users/17", ["users", "17"]),
        ("users/a b/é?#%", ["users", "a b", "é?#%"]),
        ("17", ["17"]),
        ("count", ['["count"]']),
        ("a/../b", ['["a","..","b"]']),
        ("./17", ['[".",17]']),
        ("./-9007199254740991", ['[".",-9007199254740991]']),
        ("./9007199254740992", ['[".","9007199254740992"]']),
        ("9007199254740992", ['["9007199254740992"]']),
        ('["a/b", 1, true]', ['["a/b", 1, true]']),
    ],
)
def test_a_key_is_a_path_or_json_and_never_another_route(hark: Run, stub: Stub, key: str, segments: list[str]) -> None:
    stub.answer(200, ENTRY)
    assert hark("kv", "get", key).exit_code == 0
    assert path(stub).startswith("/keyval/api/keys/")
    assert [unquote(one) for one in path(stub).removeprefix("/keyval/api/keys/").split("/")] == segments


def test_get_prints_the_value_and_with_json_the_entry(hark: Run, stub: Stub) -> None:
    body = b'{"key":["a"],"value":{"n":  1},"versionstamp":"00000000000000000009"}'
    stub.answer(200, body)
    assert hark("kv", "get", "a").stdout == '{"n":  1}\n'
    stub.answer(200, body)
    assert hark("kv", "get", "a", "--json").stdout == body.decode() + "\n"


def test_get_says_that_there_is_no_such_key(hark: Run, stub: Stub) -> None:
    stub.answer(404, {"error": "Key not found", "code": "key_not_found"})
    result = hark("kv", "get", "a")
    assert (result.exit_code, result.stderr) == (1, "hark: Key not found (key_not_found)\n")
    result = hark("kv", "get", "")
    assert result.exit_code == 2


# Writing ---------------------------------------------------------------------------------------------------


def test_put_sends_the_value_as_it_is(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"ok": True, "versionstamp": "00000000000000000009"})
    result = hark("kv", "put", "users/17", '{"n":  1}', "--expires-in", "5000")
    assert (result.exit_code, result.stdout) == (0, "version 00000000000000000009\n")
    assert (stub.last.method, stub.last.body) == ("PUT", b'{"n":  1}')
    assert (path(stub), query(stub.last.target)) == ("/keyval/api/keys/users/17", {"expiresIn": "5000"})


def test_put_reads_text_and_stdin(hark: Run, stub: Stub) -> None:
    for arguments, stdin in ((("--text", "a b"), None), (("--text", "--stdin"), "a b")):
        stub.answer(200, {"ok": True, "versionstamp": "00000000000000000009"})
        assert hark("kv", "put", "a/b", *arguments, "--json", stdin=stdin).stdout.startswith("{")
        assert stub.last.json == "a b"


def test_put_explains_what_is_wrong_with_a_value(hark: Run, stub: Stub) -> None:
    result = hark("kv", "put", "a", "{x}")
    assert result.exit_code == 2
    assert "the value is not JSON: {x}" in result.stderr
    assert "--text" in result.stderr
    assert hark("kv", "put", "a").exit_code == 2
    assert hark("kv", "put", "a", "1", "--stdin").exit_code == 2
    assert "not UTF-8" in hark("kv", "put", "a", "--text", "--stdin", stdin=b"\xff").stderr
    assert stub.seen == []


def test_delete_takes_one_key_unless_it_is_told_to_take_the_tree(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"deletedCount": 1})
    assert hark("kv", "delete", "users/17").stdout == "deleted 1 key\n"
    assert (stub.last.method, query(stub.last.target)) == ("DELETE", {"exact": "true"})
    result = hark("kv", "delete", "users", "--tree")
    assert (result.exit_code, len(stub.seen)) == (2, 1)
    assert "add --yes" in result.stderr
    stub.answer(200, {"deletedCount": 5})
    assert hark("kv", "delete", "users", "--tree", "--yes").stdout == "deleted 5 keys\n"
    assert query(stub.last.target) == {"exact": "false"}


# Looking ---------------------------------------------------------------------------------------------------


def test_list_shows_keys_versions_and_values(hark: Run, stub: Stub) -> None:
    stub.answer(200, [ENTRY])
    result = hark("kv", "list", "users", "--start", "users/1", "--end", "users/9", "--limit", "5", "--reverse")
    assert query(stub.last.target) == {
        "prefix": "users",
        "start": "users/1",
        "end": "users/9",
        "limit": "5",
        "reverse": "true",
    }
    assert result.stdout.splitlines()[-1].split() == ['["users",17]', "9", '{"n":1}']
    stub.answer(200, [])
    assert hark("kv", "list").stdout == "no keys\n"


def test_count_prints_a_number(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"count": 17})
    assert hark("kv", "count", "users").stdout == "17\n"
    assert (path(stub), query(stub.last.target)) == ("/keyval/api/keys/count", {"prefix": "users"})


# Watching --------------------------------------------------------------------------------------------------


def change(*entries: object) -> str:
    """Give an event."""
    return f"event: change\ndata: {json.dumps(entries)}"


def test_watch_shows_changes_and_no_pings(hark: Run, stub: Stub) -> None:
    gone = {"key": ["b"], "value": None, "versionstamp": None}
    stub.answer(200, events("retry: 1000", "event: ping\ndata: ", change(ENTRY, gone)))
    result = hark("kv", "watch", "users/17", "b", '["c", "1"]', "--limit", "2")
    assert result.exit_code == 0, result.output
    assert result.stdout == '["users", 17]  {"n": 1}\n["b"]  gone\n'
    assert path(stub) == "/keyval/api/watch"
    asked = query(stub.last.target)
    assert (json.loads(asked["keys"]), asked["initial"]) == ([["users", 17], ["b"], ["c", "1"]], "true")


def test_watch_of_a_prefix_prints_the_bytes_of_the_server(hark: Run, stub: Stub) -> None:
    stub.answer(200, events(change(ENTRY)))
    result = hark("kv", "watch", "--prefix", "users", "--new", "--json", "--limit", "1")
    assert json.loads(result.stdout) == ENTRY
    assert path(stub) == "/keyval/api/watch/prefix"
    assert query(stub.last.target) == {"prefix": "users", "initial": "false"}


def test_watch_says_why_it_ended(hark: Run, stub: Stub) -> None:
    stub.answer(200, events('event: error\ndata: {"error": "no key", "code": "encryption_key_missing"}'))
    assert hark("kv", "watch", "a").stderr == "hark: no key (encryption_key_missing)\n"
    stub.answer(200, events(PING))
    assert hark("kv", "watch", "a").stderr == "hark: the server ended the stream\n"


@pytest.mark.parametrize("arguments", [(), ("a", "--prefix", "b"), ("--prefix", ""), ("[1",)])
def test_watch_wants_keys_or_a_prefix(hark: Run, stub: Stub, arguments: tuple[str, ...]) -> None:
    assert hark("kv", "watch", *arguments).exit_code == 2
    assert stub.seen == []


# A server --------------------------------------------------------------------------------------------------


def test_all_of_it_works_with_a_server(server_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARK_URL", server_url)
    hark = runner()
    assert hark("kv", "put", "shop/orders/17", '{"n": 1}').stdout.startswith("version ")
    assert hark("kv", "put", "count", "--text", "mine").exit_code == 0
    assert hark("kv", "get", "count").stdout == '"mine"\n'
    assert hark("kv", "get", '["shop","orders",17]').stdout == '{"n": 1}\n'
    assert hark("kv", "count", "shop").stdout == "1\n"
    assert '["shop","orders",17]' in hark("kv", "list", "shop").stdout
    assert hark("kv", "delete", "shop").stdout == "deleted 0 keys\n"
    assert hark("kv", "delete", "shop", "--tree", "--yes").stdout == "deleted 1 key\n"
    assert hark("kv", "get", "shop/orders/17").exit_code == 1


def test_watch_follows_a_server_until_it_is_interrupted(server_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARK_URL", server_url)
    assert runner()("kv", "put", "w/1", "1").exit_code == 0
    command = [sys.executable, "-c", "from hark.cli import main; main()", "kv", "watch", "--prefix", "w"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        assert watch.stdout.readline() == '["w",1]  1\n'
        assert runner()("kv", "delete", "w/1").exit_code == 0
        assert watch.stdout.readline() == '["w",1]  gone\n'
        watch.send_signal(signal.SIGINT)
        assert watch.wait(20) == 0
