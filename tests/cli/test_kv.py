"""`hark kv`: how keys are written, what is printed, and all of it against a server."""

from __future__ import annotations

import json
from urllib.parse import unquote, urlsplit

import pytest

from .commands import ENTRY, event, events
from .conftest import Run, hark_process, runner
from .stub import Stub


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
    path = urlsplit(stub.last.target).path
    assert path.startswith("/keyval/api/keys/")
    assert [unquote(one) for one in path.removeprefix("/keyval/api/keys/").split("/")] == segments


def test_values_are_sent_and_printed_as_they_are(hark: Run, stub: Stub) -> None:
    stub.answer(200, b'{"key":["a"],"value":{"n":  1},"versionstamp":"00000000000000000009"}')
    assert hark("kv", "get", "a").stdout == '{"n":  1}\n'
    for arguments, stdin, body in ((('{"n":  1}',), None, b'{"n":  1}'), (("--text", "--stdin"), "a b", b'"a b"')):
        stub.answer(200, {"ok": True, "versionstamp": "00000000000000000009"})
        assert hark("kv", "put", "a/b", *arguments, stdin=stdin).exit_code == 0
        assert stub.last.body == body


def test_list_and_delete_say_how_many_there_are(hark: Run, stub: Stub) -> None:
    stub.answer(200, [ENTRY])
    assert hark("kv", "list", "users").stdout.splitlines()[-1].split() == ['["users",17]', "9", '{"n":1}']
    stub.answer(200, [])
    assert hark("kv", "list").stdout == "no keys match\n"
    stub.answer(200, {"deletedCount": 5})
    assert hark("kv", "delete", "users", "--tree", "--yes").stdout == "deleted 5 keys\n"


def test_watch_shows_changes_and_no_pings(hark: Run, stub: Stub) -> None:
    gone = {"key": ["b"], "value": None, "versionstamp": None}
    stub.answer(200, events("retry: 1000", event("ping", ""), event("change", json.dumps([ENTRY, gone]))))
    result = hark("kv", "watch", "users/17", "b", "--limit", "2")
    assert result.exit_code == 0, result.output
    assert result.stdout == '["users",17]  {"n": 1}\n["b"]  (deleted)\n'
    stub.answer(200, events(event("change", json.dumps([ENTRY]))))
    assert json.loads(hark("kv", "watch", "--prefix", "users", "--json", "--limit", "1").stdout) == ENTRY


def test_all_of_it_works_with_a_server(server_url: str, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARK_URL", server_url)
    hark, shop = runner(), queue
    assert hark("kv", "put", f"{shop}/orders/17", '{"n": 1}').stdout.startswith("version ")
    assert hark("kv", "get", f'["{shop}","orders",17]').stdout == '{"n": 1}\n'
    assert hark("kv", "count", shop).stdout == "1\n"
    assert f'["{shop}","orders",17]' in hark("kv", "list", shop).stdout
    assert hark("kv", "delete", shop).stdout == "deleted 0 keys\n"
    assert hark("kv", "delete", shop, "--tree", "--yes").stdout == "deleted 1 key\n"
    assert hark("kv", "get", f"{shop}/orders/17").exit_code == 1
    # A key that is called as a route.
    assert hark("kv", "put", "count", "--text", "mine").exit_code == 0
    assert hark("kv", "get", "count").stdout == '"mine"\n'
    assert hark("kv", "delete", "count").stdout == "deleted 1 key\n"


def test_watch_follows_a_server_until_it_is_interrupted(
    server_url: str, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARK_URL", server_url)
    assert runner()("kv", "put", f"{queue}/1", "1").exit_code == 0
    with hark_process("kv", "watch", "--prefix", queue) as output:
        assert output.readline() == f'["{queue}",1]  1\n'
        assert runner()("kv", "delete", f"{queue}/1").exit_code == 0
        assert output.readline() == f'["{queue}",1]  (deleted)\n'
