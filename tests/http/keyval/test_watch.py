"""Watching keys and prefixes: /keyval/api/watch and /watch/prefix as server-sent events, and /poll of both"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx
import pytest

from hark.settings import Limits, Settings
from tests.http.api import Json, read, refusal
from tests.http.keyval.keys import BASE, Keys, watching
from tests.http.keyval.work import WAIT, Work
from tests.http.streaming import WAIT_SECONDS, Inside, deaf, inside

PREFIX = "/watch/prefix/poll"


@pytest.fixture
def own() -> Iterator[Inside]:
    """A server to look into."""
    with inside() as server:
        yield server


@pytest.fixture
def own_keys(own: Inside) -> Iterator[Keys]:
    """Its keys."""
    with httpx.Client(base_url=own.url, timeout=30) as client:
        yield Keys(client, "r")


# Frames ----------------------------------------------------------------------------------------------------


def test_the_frames_are_those_of_the_contract(server_url: str, keys: Keys) -> None:
    with watching(server_url, keys=f"{keys.root}/a") as watch:
        assert watch.response.headers["content-type"] == "text/event-stream"
        assert "no-cache" in watch.response.headers["cache-control"]
        assert watch.frame() == b"event: ping\ndata: \n\n"
        stamp = read(keys.client.put(keys.url("a"), content=b'{"x" :\n 1}'))["versionstamp"]
        change = f'[{{"key":["{keys.root}","a"],"value":{{"x" :  1}},"versionstamp":"{stamp}"}}]'
        assert watch.frame() == b"event: change\ndata: " + change.encode() + b"\n\n"
        keys.delete("a")
        gone = f'[{{"key":["{keys.root}","a"],"value":null,"versionstamp":null}}]'
        assert watch.frame() == b"event: change\ndata: " + gone.encode() + b"\n\n"


# Keys ------------------------------------------------------------------------------------------------------


def test_what_is_there_comes_first_and_then_what_changes(server_url: str, keys: Keys) -> None:
    keys.put("a", value=None)
    keys.put("17", value="number")
    with watching(server_url, keys=f"{keys.root}/a,{keys.root}/17,{keys.root}/missing") as watch:
        assert [(entry["key"], entry["value"]) for entry in watch.changes()] == [
            (keys.key("a"), None),
            (keys.key(17), "number"),
        ]
        keys.put("other", value=1)
        keys.put("a", "below", value=1)
        keys.put("missing", value=1)
        assert watch.change() == (keys.key("missing"), 1)


def test_initial_false_leaves_out_what_is_there_and_a_write_of_megabytes_and_several_keys_is_one_change(
    server_url: str, keys: Keys
) -> None:
    keys.put("a", value=1)
    large = ["x" * 1000] * 3000
    with watching(server_url, keys=f"{keys.root}/a,{keys.root}/b", initial=False) as watch:
        values = {"a": large, "b": "b"}
        answer = keys.atomic(*({"type": "set", "key": keys.key(name), "value": values[name]} for name in values))
        changes = watch.changes()
        assert [entry["value"] for entry in changes] == [large, "b"]
        assert {entry["versionstamp"] for entry in changes} == {answer["versionstamp"]}


def test_keys_may_be_given_with_exact_types(server_url: str, keys: Keys) -> None:
    wanted = [keys.key("17"), keys.key("a,b:c/d"), keys.key(True)]
    with watching(server_url, keys=json.dumps(wanted), initial=False) as watch:
        keys.put_exactly(17, value="a number")
        for key in wanted:
            keys.atomic({"type": "set", "key": key, "value": "mine"})
            assert watch.change() == (key, "mine")
    with watching(server_url, keys=json.dumps(keys.key("17"))) as watch:
        assert watch.change() == (keys.key("17"), "mine")


def test_an_entry_that_expires_is_notified_as_gone_at_its_time(server_url: str, keys: Keys) -> None:
    with watching(server_url, keys=f"{keys.root}/a", initial=False) as watch:
        written = time.monotonic()
        keys.put("a", value=1, expiresIn=200)
        assert watch.change() == (keys.key("a"), 1)
        assert watch.change() == (keys.key("a"), ...)
        assert 0.2 <= time.monotonic() - written < 5
        assert keys.get("a") is None


# Prefixes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["prefix", "prefixes"])
def test_a_prefix_is_watched_exactly_to_the_part(server_url: str, keys: Keys, name: str) -> None:
    keys.put("user", "0", value="old")
    with watching(server_url, "/watch/prefix", **{name: f"{keys.root}/user"}) as watch:
        assert watch.change() == (keys.key("user", 0), "old")
        for path in ("user", "users/1", "user-archive/1"):
            keys.put(*path.split("/"), value="not told")
        keys.put("user", "1", "deep", value="new")
        assert watch.change() == (keys.key("user", 1, "deep"), "new")
        assert keys.delete("user", "1") == 1
        assert watch.change() == (keys.key("user", 1, "deep"), ...)


def test_a_watch_and_a_poll_of_a_prefix_see_as_many_keys_as_their_limit(server_url: str, keys: Keys) -> None:
    for number in range(5):
        keys.put("p", str(number), value=number)
    query: Json = {"prefix": f"{keys.root}/p", "limit": 2}
    polled = keys.poll(PREFIX, **query)
    with watching(server_url, "/watch/prefix", **query) as watch:
        shown = watch.changes()
        assert [entry["value"] for entry in shown] == [0, 1]
        assert polled["entries"] == shown
        keys.put("p", "4", value="out of sight")
        keys.delete("p", "0")
        assert watch.change() == (keys.key("p", 0), ...)
        assert watch.change() == (keys.key("p", 2), 2)
    again = keys.poll(PREFIX, **query, versionstamps=polled["versionstamps"])
    assert [(entry["key"][2], entry["value"]) for entry in again["entries"]] == [(0, None), (2, 2)]


def test_undelivered_messages_wake_those_who_watch_their_keys(server_url: str, keys: Keys, work: Work) -> None:
    with watching(server_url, "/watch/prefix", prefix=f"{keys.root}/failed") as watch:
        undelivered = [keys.key("failed", 7, True), keys.key("elsewhere")]
        work.kill({"charge": 9.99}, keysIfUndelivered=undelivered)
        assert watch.change() == (keys.key("failed", 7, True), {"charge": 9.99})
        assert keys.value("elsewhere") == {"charge": 9.99}


# Clients ---------------------------------------------------------------------------------------------------


def until_watched(server: Inside, number: int = 1) -> None:
    """Return when there are that many watchers."""
    until = time.monotonic() + WAIT_SECONDS
    while server.look(lambda: len(server.broker.keyvalue.watchers)) != number:
        assert time.monotonic() < until


def test_watches_that_are_over_leave_nothing_behind(own: Inside, own_keys: Keys) -> None:
    own_keys.put("a", value=1, expiresIn=1_000_000)
    for _ in range(5):
        with watching(own.url, keys="r/a") as watch:
            assert watch.change() == (["r", "a"], 1)
        with watching(own.url, "/watch/prefix", prefix="r", initial=False):
            pass
    until_watched(own, 0)
    registered = own.look(lambda: vars(own.broker.keyvalue.watchers))
    assert (registered["_by_key"], registered["_by_prefix"]) == ({}, {})


def test_a_client_that_does_not_read_holds_the_last_value_of_each_key_at_most() -> None:
    with inside(Settings(limits=Limits(stalled_seconds=1))) as server:
        with (
            httpx.Client(base_url=server.url, timeout=30) as client,
            deaf(server.url, f"GET {BASE}/watch?keys=r/a HTTP/1.1\nHost: localhost\n\n"),
        ):
            keys = Keys(client, "r")
            [watcher] = server.look(lambda: list(server.broker.keyvalue.watchers._all))
            for _ in range(20):
                keys.put("a", value="x" * 1_000_000)
            assert len(watcher._outdated) <= 1
        until_watched(server, 0)


def test_there_are_so_many_watchers_and_no_more() -> None:
    with (
        inside(Settings(limits=Limits(max_streams=1))) as server,
        httpx.Client(base_url=server.url, timeout=30) as client,
        watching(server.url, keys="a"),
    ):
        numbers = read(client.get("/api/v1/system/metrics"))["watching"]
        assert numbers == {"watchers": 1, "keys": 1, "prefixes": 0}
        for path in ("/watch?keys=b", "/watch/prefix?prefix=b", "/watch/poll?keys=b&wait=true"):
            response = client.get(f"{BASE}{path}")
            assert "limits.max_streams" in refusal(response, 429, "too_many_streams")
            assert response.headers["retry-after"]


def test_a_server_that_stops_ends_its_watches_and_answers_polls(own: Inside, own_keys: Keys) -> None:
    with watching(own.url, keys="a") as watch, ThreadPoolExecutor(1) as thread:
        poll = thread.submit(own_keys.poll, keys="r/a", **WAIT)
        until_watched(own, 2)
        own.look(own.broker.stop_waiting)
        with pytest.raises(StopIteration):
            while watch.frame():
                pass
        assert poll.result(WAIT_SECONDS) == {"entries": [], "versionstamps": [""]}


# Polls of keys ---------------------------------------------------------------------------------------------


def test_a_poll_gives_what_changed_since_the_versions_of_the_one_before(keys: Keys) -> None:
    requested = ",".join(f"{keys.root}/{name}" for name in ("a", "b", "c"))
    stamp = keys.put("b", value=1)
    answer = keys.poll(keys=requested)
    assert [entry["key"] for entry in answer["entries"]] == [keys.key("b")]
    assert answer["versionstamps"] == ["", stamp, ""]
    known = ",".join(answer["versionstamps"])
    begun = time.monotonic()
    waits: list[Json] = [{}, {"wait": True, "timeout": 100}]
    for waiting in waits:
        unchanged = keys.poll(keys=requested, versionstamps=known, **waiting)
        assert unchanged == {"entries": [], "versionstamps": ["", stamp, ""]}
    assert time.monotonic() - begun >= 0.1
    newer = keys.put("c", value=2)
    keys.delete("b")
    answer = keys.poll(keys=requested, versionstamps=known)
    assert answer["versionstamps"] == ["", "", newer]
    assert answer["entries"] == [
        {"key": keys.key("b"), "value": None, "versionstamp": None},
        {"key": keys.key("c"), "value": 2, "versionstamp": newer},
    ]


def test_a_poll_that_waits_is_answered_at_the_change(own: Inside, own_keys: Keys) -> None:
    stamp = own_keys.put("a", value=1)
    with ThreadPoolExecutor(2) as thread:
        poll = thread.submit(own_keys.poll, keys="r/a,r/b", versionstamps=stamp, **WAIT)
        prefix = thread.submit(own_keys.poll, PREFIX, prefix="r", versionstamps=f"r/a:{stamp}", **WAIT)
        until_watched(own, 2)
        own_keys.put("b", value=2)
        answer = poll.result(WAIT_SECONDS)
        assert [entry["value"] for entry in answer["entries"]] == [2]
        assert answer["versionstamps"][0] == stamp
        assert [entry["value"] for entry in prefix.result(WAIT_SECONDS)["entries"]] == [2]
    until_watched(own, 0)


def test_a_client_that_leaves_while_it_waits_leaves_nothing_behind(own: Inside) -> None:
    for path in (f"{BASE}/watch/poll?keys=a&wait=true", f"{BASE}{PREFIX}?prefix=a&wait=true"):
        with socket.create_connection(("127.0.0.1", urlsplit(own.url).port)) as client:
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            until_watched(own)
        until_watched(own, 0)


# Polls of prefixes -----------------------------------------------------------------------------------------


def test_a_poll_of_a_prefix_goes_on_from_what_it_was_answered(keys: Keys) -> None:
    for part in ("a", 1, "1", True, "a,b:c", "a/b", "~x", "é", 2**53, 1.5, "", "007"):
        keys.put_exactly("p", part, value=part)
    query = {"prefix": f"{keys.root}/p"}
    first = keys.poll(PREFIX, **query)
    assert len(first["entries"]) == 12
    assert f"{keys.root}/p/a:" in first["versionstamps"]
    assert keys.poll(PREFIX, **query, versionstamps=first["versionstamps"]) == {
        "entries": [],
        "versionstamps": first["versionstamps"],
    }
    keys.delete("p", "a,b:c")
    keys.put("p", "new", value=1)
    second = keys.poll(PREFIX, **query, versionstamps=first["versionstamps"])
    assert [(entry["key"][2], entry["value"]) for entry in second["entries"]] == [("a,b:c", None), ("new", 1)]
    assert second["entries"][0]["versionstamp"] is None


def test_versions_of_keys_that_are_not_below_the_prefix_are_left_out(keys: Keys) -> None:
    stamp = keys.put("p", value=1)
    known = f"{keys.root}/p:{stamp},{keys.root}/pp/1:{stamp},elsewhere:{stamp}"
    assert keys.poll(PREFIX, prefix=f"{keys.root}/p", versionstamps=known) == {"entries": [], "versionstamps": ""}
