"""Keys that are watched on one server and written through another, told by a datagram or found by a look."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.broker.peers.ports import free_ports
from tests.http.api import Api
from tests.http.keyval.keys import Keys, watching
from tests.postgres.serving import serving
from tests.postgres.test_peers import NO_LOOKS

Pair = tuple[Keys, Keys]


@pytest.fixture
def peers(postgres_url: str, tmp_path: Path, queue: str) -> Iterator[Pair]:
    """The keys of one store through two servers that tell each other, and never look for themselves."""
    port = free_ports(2)
    one, other = (
        NO_LOOKS | {"HARK_PEER_PORT": str(port + mine), "HARK_PEERS": f"127.0.0.1:{port + 1 - mine}"} for mine in (0, 1)
    )
    with serving(tmp_path, postgres_url, **one) as here, serving(tmp_path, postgres_url, **other) as there:
        yield Keys(here.client, queue), Keys(there.client, queue)


@pytest.fixture
def strangers(postgres_url: str, tmp_path: Path, queue: str) -> Iterator[Pair]:
    """The keys of one store through two servers that do not know each other."""
    with serving(tmp_path, postgres_url) as here, serving(tmp_path, postgres_url) as there:
        yield Keys(here.client, queue), Keys(there.client, queue)


def url(keys: Keys) -> str:
    """The server of these keys."""
    return str(keys.client.base_url)


def check_that_writes_through_one_are_told_by_the_other(one: Keys, other: Keys) -> None:
    """Watch on one server, write through the other."""
    with (
        watching(url(one), keys=f"{one.root}/a", initial=False) as key,
        watching(url(one), "/watch/prefix", prefix=f"{one.root}/p", initial=False) as prefix,
    ):
        for value in range(3):
            other.put("a", value=value)
            assert key.change() == (one.key("a"), value)
            other.put_exactly("p", "1", True, value=value)
            assert prefix.change() == (one.key("p", "1", True), value)
        other.delete("p")
        assert prefix.change() == (one.key("p", "1", True), ...)
        one.delete("a")
        assert key.change() == (one.key("a"), ...)


def test_a_watch_is_told_by_the_peer_that_wrote(peers: Pair) -> None:
    check_that_writes_through_one_are_told_by_the_other(*peers)
    check_that_writes_through_one_are_told_by_the_other(*peers[::-1])


def test_a_watch_finds_what_nobody_told_it(strangers: Pair) -> None:
    check_that_writes_through_one_are_told_by_the_other(*strangers)


def test_a_watch_is_told_of_a_message_that_died_on_another_server(peers: Pair) -> None:
    one, other = peers
    with watching(url(one), "/watch/prefix", prefix=f"{one.root}/failed") as watch:
        Api(other.client).kill(one.root, "payload", keysIfUndelivered=[one.key("failed", 1)])
        assert watch.change() == (one.key("failed", 1), "payload")


def test_a_watch_is_told_of_an_expiry_without_a_word_from_anybody(peers: Pair) -> None:
    one, other = peers
    with watching(url(one), keys=f"{one.root}/a", initial=False) as watch:
        other.put("a", value=1, expiresIn=300)
        assert watch.change() == (one.key("a"), 1)
        assert watch.change() == (one.key("a"), ...)
        assert (one.get("a"), other.get("a")) == (None, None)


def test_a_poll_that_waits_is_answered_by_a_write_through_the_other(peers: Pair) -> None:
    one, other = peers
    stamp = one.put("a", value=1)
    with ThreadPoolExecutor(1) as thread:
        poll = thread.submit(one.poll, keys=f"{one.root}/a", versionstamps=stamp, wait=True, timeout=20_000)
        newer = other.put("a", value=2)
        assert poll.result()["versionstamps"] == [newer]


def test_checks_hold_over_both_servers(strangers: Pair) -> None:
    strangers[0].put("n", value=0)

    def add(keys: Keys) -> None:
        while True:
            entry = keys.get("n")
            check = {"key": keys.key("n"), "versionstamp": entry["versionstamp"]}
            write = {"type": "set", "key": keys.key("n"), "value": entry["value"] + 1}
            if keys.atomic(write, checks=[check])["ok"]:
                return

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(add, strangers[number % 2]) for number in range(20)]:
            done.result()
    assert strangers[0].value("n") == strangers[1].value("n") == 20
