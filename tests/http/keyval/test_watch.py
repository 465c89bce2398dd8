"""Watching keys and prefixes as server-sent events: /keyval/api/watch and /keyval/api/watch/prefix"""

from __future__ import annotations

import json
import time

import httpx
import pytest

from hark.settings import Limits, Queue, Settings
from tests.http.api import read, refusal
from tests.http.keyval.keys import BASE, Keys, watching
from tests.http.keyval.work import Work
from tests.http.streaming import PATIENCE, Inside, deaf, inside

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


def test_pings_go_on_while_nothing_happens() -> None:
    with (
        inside(Settings(queue=Queue(ping_interval_ms=10))) as server,
        watching(server.url, "/watch/prefix", prefix="a") as watch,
    ):
        assert [watch.frame() for _ in range(3)] == [b"event: ping\ndata: \n\n"] * 3


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


def test_initial_false_leaves_out_what_is_there(server_url: str, keys: Keys) -> None:
    keys.put("a", value=1)
    with watching(server_url, keys=f"{keys.root}/a", initial=False) as watch:
        keys.put("a", value=2)
        assert watch.change() == (keys.key("a"), 2)


def test_a_write_of_several_keys_is_one_change(server_url: str, keys: Keys) -> None:
    with watching(server_url, keys=f"{keys.root}/a,{keys.root}/b", initial=False) as watch:
        answer = keys.atomic(*({"type": "set", "key": keys.key(name), "value": name} for name in "ab"))
        changes = watch.changes()
        assert [entry["value"] for entry in changes] == ["a", "b"]
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


def test_an_entry_that_expires_is_told_as_gone_at_its_time(server_url: str, keys: Keys) -> None:
    with watching(server_url, keys=f"{keys.root}/a", initial=False) as watch:
        written = time.monotonic()
        keys.put("a", value=1, expiresIn=200)
        assert watch.change() == (keys.key("a"), 1)
        assert watch.change() == (keys.key("a"), ...)
        assert 0.2 <= time.monotonic() - written < 5
        assert keys.get("a") is None


def test_values_of_megabytes_are_told_whole(server_url: str, keys: Keys) -> None:
    value = ["x" * 1000] * 3000
    with watching(server_url, keys=f"{keys.root}/a", initial=False) as watch:
        keys.put("a", value=value)
        assert watch.change() == (keys.key("a"), value)


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


def test_removed_keys_keep_the_types_of_their_parts(server_url: str, keys: Keys) -> None:
    for part in ("1", 1, True, 1.5):
        keys.put_exactly("p", part, value=1)
    with watching(server_url, "/watch/prefix", prefix=f"{keys.root}/p", initial=False) as watch:
        assert keys.delete("p") == 4
        gone = watch.changes()
        assert [entry["key"][2:] for entry in gone] == [["1"], [1], [1.5], [True]]
        assert [type(entry["key"][2]) for entry in gone] == [str, int, float, bool]


def test_a_prefix_watch_sees_as_many_keys_as_its_limit(server_url: str, keys: Keys) -> None:
    for number in range(5):
        keys.put("p", str(number), value=number)
    with watching(server_url, "/watch/prefix", prefix=f"{keys.root}/p", limit=2) as watch:
        assert [entry["value"] for entry in watch.changes()] == [0, 1]
        keys.put("p", "4", value="out of sight")
        keys.delete("p", "0")
        assert watch.change() == (keys.key("p", 0), ...)
        assert watch.change() == (keys.key("p", 2), 2)


def test_undelivered_messages_wake_those_who_watch_their_keys(server_url: str, keys: Keys, work: Work) -> None:
    with watching(server_url, "/watch/prefix", prefix=f"{keys.root}/failed") as watch:
        undelivered = [keys.key("failed", "u-1"), keys.key("elsewhere")]
        work.kill({"charge": 5}, keysIfUndelivered=undelivered)
        assert watch.change() == (keys.key("failed", "u-1"), {"charge": 5})
        assert keys.value("elsewhere") == {"charge": 5}


# Clients ---------------------------------------------------------------------------------------------------


def watchers(server: Inside) -> int:
    """How many watch."""
    return server.call(lambda: len(server.broker.keyvalue.watchers))


def test_watches_that_are_over_leave_nothing_behind() -> None:
    with inside() as server, httpx.Client(base_url=server.url, timeout=30) as client:
        keys = Keys(client, "r")
        keys.put("a", value=1, expiresIn=1_000_000)
        for _ in range(20):
            with watching(server.url, keys="r/a") as watch:
                assert watch.change() == (["r", "a"], 1)
            with watching(server.url, "/watch/prefix", prefix="r", initial=False):
                pass
        until = time.monotonic() + PATIENCE
        while watchers(server):
            assert time.monotonic() < until
        held = server.call(lambda: vars(server.broker.keyvalue.watchers))
        assert (held["_by_key"], held["_by_prefix"]) == ({}, {})


def test_a_client_that_does_not_read_holds_the_last_value_of_each_key_at_most() -> None:
    with inside(Settings(limits=Limits(stalled_seconds=1))) as server:
        with (
            httpx.Client(base_url=server.url, timeout=30) as client,
            deaf(server.url, f"GET {BASE}/watch?keys=r/a HTTP/1.1\nHost: localhost\n\n"),
        ):
            keys = Keys(client, "r")
            [watcher] = server.call(lambda: list(server.broker.keyvalue.watchers._all))
            for _ in range(20):
                keys.put("a", value="x" * 1_000_000)
            assert len(watcher._told) <= 1
        until = time.monotonic() + PATIENCE
        while watchers(server):
            assert time.monotonic() < until


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


def test_a_server_that_stops_ends_its_watches() -> None:
    with inside() as server, watching(server.url, keys="a") as watch:
        server.call(server.broker.stop_waiting)
        with pytest.raises(StopIteration):
            while watch.frame():
                pass


# Refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/watch", "Missing 'keys' query parameter"),
        ("/watch?keys=", "Missing 'keys' query parameter"),
        ("/watch?keys=a,,b", "Invalid key at index 1: Key cannot be empty"),
        ("/watch?keys=a/" + "x" * 1025, "Key part too long"),
        ("/watch?keys=[[1],2]", "Invalid key at index 1"),
        ("/watch?keys=[a", "keys: what begins with ["),
        ("/watch?keys=" + ",".join("a" * 1001), "Too many keys: 1001 (max 1000)"),
        ("/watch?keys=a&initial=perhaps", "initial"),
        ("/watch/poll", "Missing 'keys' query parameter"),
        ("/watch/poll?keys=a&versionstamps=1,2", "versionstamps: expected one for each of 1 keys"),
        ("/watch/poll?keys=a&versionstamps=x", "versionstamps[0]: expected a versionstamp"),
        ("/watch/poll?keys=a&timeout=-1", "timeout"),
        ("/watch/poll?keys=a&wait=2", "wait"),
        ("/watch/prefix", "Missing 'prefix' query parameter"),
        ("/watch/prefix?prefix=/", "Missing 'prefix' query parameter"),
        ("/watch/prefix?prefixes=a,b", "prefixes: expected one prefix"),
        ("/watch/prefix?prefix=a&limit=0", "limit"),
        ("/watch/prefix?prefix=[]", "Key cannot be empty"),
        ("/watch/prefix/poll", "Missing 'prefix' query parameter"),
        ("/watch/prefix/poll?prefix=a&versionstamps=a/b", "versionstamps: expected"),
        ("/watch/prefix/poll?prefix=a&versionstamps=a/b:x", "versionstamps: expected a versionstamp"),
        ("/watch/prefix/poll?prefix=a&versionstamps=~x:1", "versionstamps: expected a cursor"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(http: httpx.Client, path: str, text: str) -> None:
    assert text in refusal(http.get(f"{BASE}{path}"), 400)


def test_a_watch_is_a_get(http: httpx.Client) -> None:
    for path in ("/watch", "/watch/poll", "/watch/prefix", "/watch/prefix/poll"):
        refusal(http.post(f"{BASE}{path}", json={}), 405, "method_not_allowed")
    refusal(http.get(f"{BASE}/watch/nothing"), 404, "route_not_found")
