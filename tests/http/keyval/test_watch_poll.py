"""Asking what changed, and waiting for it: /keyval/api/watch/poll and /keyval/api/watch/prefix/poll"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tests.http.keyval.keys import BASE, Keys
from tests.http.streaming import PATIENCE, Inside, inside

PREFIX = "/watch/prefix/poll"
WAIT: dict[str, Any] = {"wait": True, "timeout": 20_000}


def until_watched(server: Inside, number: int = 1) -> None:
    """Return when so many watch."""
    until = time.monotonic() + PATIENCE
    while server.call(lambda: len(server.broker.keyvalue.watchers)) != number:
        assert time.monotonic() < until


# Keys ------------------------------------------------------------------------------------------------------


def test_a_poll_gives_what_changed_since_the_versions_of_the_one_before(keys: Keys) -> None:
    asked = ",".join(f"{keys.root}/{name}" for name in ("a", "b", "c"))
    stamp = keys.put("b", value=1)
    answer = keys.poll(keys=asked)
    assert [entry["key"] for entry in answer["entries"]] == [keys.key("b")]
    assert answer["versionstamps"] == ["", stamp, ""]
    known = ",".join(answer["versionstamps"])
    assert keys.poll(keys=asked, versionstamps=known) == {"entries": [], "versionstamps": ["", stamp, ""]}
    newer = keys.put("c", value=2)
    keys.delete("b")
    answer = keys.poll(keys=asked, versionstamps=known)
    assert answer["versionstamps"] == ["", "", newer]
    assert answer["entries"] == [
        {"key": keys.key("b"), "value": None, "versionstamp": None},
        {"key": keys.key("c"), "value": 2, "versionstamp": newer},
    ]


def test_a_poll_of_many_keys_gives_all_of_them(keys: Keys) -> None:
    keys.atomic(*({"type": "set", "key": keys.key(n), "value": n} for n in range(500)))
    answer = keys.poll(keys=json.dumps([keys.key(n) for n in range(500)]))
    assert [entry["value"] for entry in answer["entries"]] == list(range(500))
    assert len(answer["versionstamps"]) == 500


def test_a_poll_that_waits_is_answered_at_the_change() -> None:
    with inside() as server, httpx.Client(base_url=server.url, timeout=30) as client, ThreadPoolExecutor(1) as thread:
        keys = Keys(client, "r")
        stamp = keys.put("a", value=1)
        poll = thread.submit(keys.poll, keys="r/a,r/b", versionstamps=stamp, **WAIT)
        until_watched(server)
        keys.put("b", value=2)
        answer = poll.result(PATIENCE)
        assert [entry["value"] for entry in answer["entries"]] == [2]
        assert answer["versionstamps"][0] == stamp
        until_watched(server, 0)


def test_a_poll_that_waited_in_vain_knows_what_it_knew(keys: Keys) -> None:
    stamp = keys.put("a", value=1)
    asked = time.monotonic()
    answer = keys.poll(keys=f"{keys.root}/a", versionstamps=stamp, wait=True, timeout=100)
    assert answer == {"entries": [], "versionstamps": [stamp]}
    assert time.monotonic() - asked >= 0.1


def test_a_poll_hears_of_an_expiry() -> None:
    with inside() as server, httpx.Client(base_url=server.url, timeout=30) as client:
        keys = Keys(client, "r")
        stamp = keys.put("a", value=1, expiresIn=200)
        answer = keys.poll(keys="r/a", versionstamps=stamp, **WAIT)
        assert answer == {"entries": [{"key": ["r", "a"], "value": None, "versionstamp": None}], "versionstamps": [""]}


def test_a_client_that_leaves_while_it_waits_leaves_nothing_behind() -> None:
    with inside() as server:
        for path in (f"{BASE}/watch/poll?keys=a&wait=true", f"{BASE}{PREFIX}?prefix=a&wait=true"):
            with httpx.Client(base_url=server.url) as client, ThreadPoolExecutor(1) as thread:
                left = thread.submit(client.get, path, timeout=0.3)
                until_watched(server)
                assert isinstance(left.exception(PATIENCE), httpx.ReadTimeout)
            until_watched(server, 0)


def test_a_server_that_stops_answers_those_who_wait() -> None:
    with inside() as server, httpx.Client(base_url=server.url, timeout=30) as client, ThreadPoolExecutor(1) as thread:
        poll = thread.submit(Keys(client, "r").poll, keys="r/a", **WAIT)
        until_watched(server)
        server.call(server.broker.stop_waiting)
        assert poll.result(PATIENCE) == {"entries": [], "versionstamps": [""]}


# Prefixes --------------------------------------------------------------------------------------------------


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


def test_what_was_answered_can_be_sent_back_without_encoding(keys: Keys) -> None:
    for part in ("a,b:c", "+ %41&x=1#", 1):
        keys.put_exactly("p", part, value=part)
    first = keys.poll(PREFIX, prefix=f"{keys.root}/p")
    response = keys.client.get(f"{BASE}{PREFIX}?prefix={keys.root}/p&versionstamps={first['versionstamps']}")
    assert response.json() == {"entries": [], "versionstamps": first["versionstamps"]}


def test_versions_of_keys_that_are_not_below_the_prefix_are_left_out(keys: Keys) -> None:
    stamp = keys.put("p", value=1)
    known = f"{keys.root}/p:{stamp},{keys.root}/pp/1:{stamp},elsewhere:{stamp}"
    assert keys.poll(PREFIX, prefix=f"{keys.root}/p", versionstamps=known) == {"entries": [], "versionstamps": ""}


def test_a_poll_of_a_prefix_waits_for_the_change() -> None:
    with inside() as server, httpx.Client(base_url=server.url, timeout=30) as client, ThreadPoolExecutor(1) as thread:
        keys = Keys(client, "r")
        poll = thread.submit(keys.poll, PREFIX, prefix="r", **WAIT)
        until_watched(server)
        keys.put("a", value=1)
        assert [entry["value"] for entry in poll.result(PATIENCE)["entries"]] == [1]


def test_a_poll_of_a_prefix_gives_as_many_keys_as_its_limit(keys: Keys) -> None:
    for number in range(5):
        keys.put("p", str(number), value=number)
    first = keys.poll(PREFIX, prefix=f"{keys.root}/p", limit=2)
    assert [entry["value"] for entry in first["entries"]] == [0, 1]
    keys.delete("p", "0")
    second = keys.poll(PREFIX, prefix=f"{keys.root}/p", limit=2, versionstamps=first["versionstamps"])
    assert [(entry["key"][2], entry["value"]) for entry in second["entries"]] == [(0, None), (2, 2)]
