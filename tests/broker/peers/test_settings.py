"""The settings of peers: addresses that are understood or refused, and the ports that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hark.errors import InvalidSetting, StoreUnusable
from hark.serving.listening import Endpoint, endpoints
from hark.serving.server import serve
from hark.settings import Peer, Settings, load, peer_addresses, shown
from tests.broker.peers.ports import free_ports, udp_socket

Open = Callable[[Settings], list[Endpoint]]


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hark.toml of whoever runs the tests must not matter."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def opened() -> Iterator[Open]:
    """Makes endpoints that are closed when the test is over."""
    with ExitStack() as sockets:

        def opening(settings: Settings) -> list[Endpoint]:
            made = endpoints(settings)
            for endpoint in made:
                sockets.enter_context(endpoint.udp)
            return made

        yield opening


# Addresses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("b.internal:6633", [("b.internal", 6633)]),
        ("10.0.0.2:6633-6635", [("10.0.0.2", 6633), ("10.0.0.2", 6634), ("10.0.0.2", 6635)]),
        ("[::1]:1", [("::1", 1)]),
        ("b:65535-65535", [("b", 65_535)]),
    ],
)
def test_an_address_is_a_host_and_a_port_or_several(entry: str, expected: list[tuple[str, int]]) -> None:
    assert peer_addresses(entry) == expected


@pytest.mark.parametrize(
    "entry",
    [
        *(f"b{port}" for port in ("", ":", ":0", ":65536", ":2-1", ":1-", ":1-2000", ":x", ":1/x", ": 1")),
        *(":1", "::1:1", "udp://b:1", "a b:1"),
    ],
)
def test_what_is_no_address_is_refused_with_its_source(entry: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        load({}, {"QUEEN_UDP_PEERS": f"a:1,{entry}"})
    assert caught.value.text == (
        f"setting peers: invalid value {entry!r} from QUEEN_UDP_PEERS (alias), "
        "expected a list of host:port or host:first-last, with ports from 1 to 65535"
    )


def test_a_short_secret_is_refused_and_no_secret_is_shown() -> None:
    with pytest.raises(InvalidSetting) as caught:
        load({}, {"HARK_PEER_SECRET": "too short"})
    assert "too short" not in caught.value.text
    settings = load({}, {"HARK_PEER_SECRET": "long enough to be one"}).settings
    assert shown(settings, "peer.secret") == "******"
    assert "long enough" not in repr(settings)


# Ports -----------------------------------------------------------------------------------------------------


def test_one_server_with_peers_takes_the_port_that_it_is_notified_and_without_peers_none(opened: Open) -> None:
    assert opened(Settings()) == []
    port = free_ports(1)
    [endpoint] = opened(Settings(peers=("b:1-2", "c:3"), peer=Peer(port=port)))
    assert endpoint.udp.getsockname() == ("127.0.0.1", port)
    assert endpoint.others == (("b", 1), ("b", 2), ("c", 3))


def test_workers_without_a_port_are_peers_on_this_machine_alone(opened: Open) -> None:
    made = opened(Settings(workers=3, host="0.0.0.0"))
    here = [endpoint.udp.getsockname() for endpoint in made]
    assert {host for host, _ in here} == {"127.0.0.1"}
    assert [set(endpoint.others) for endpoint in made] == [set(here) - {own} for own in here]


def test_workers_with_a_port_take_those_that_follow_also_on_all_addresses(opened: Open) -> None:
    port = free_ports(2)
    one, other = opened(Settings(workers=2, peers=("b:1",), peer=Peer(port=port)))
    assert one.others == (("127.0.0.1", port + 1), ("b", 1))
    assert other.others == (("127.0.0.1", port), ("b", 1))
    port = free_ports(2)
    one, _ = opened(Settings(workers=2, host="127.0.0.1", peer=Peer(port=port, host="0.0.0.0")))
    assert one.udp.getsockname() == ("0.0.0.0", port)
    assert one.others == (("127.0.0.1", port + 1),)


def test_a_port_that_is_taken_or_too_high_is_an_error_that_says_what_to_do(opened: Open) -> None:
    port = free_ports(2)
    with udp_socket(port + 1), pytest.raises(StoreUnusable) as caught:
        opened(Settings(workers=2, peer=Peer(port=port)))
    assert caught.value.code == "address_in_use"
    assert f"UDP 127.0.0.1:{port + 1}" in caught.value.text
    assert "peer.port" in caught.value.text
    # Nothing is held when not all can be had.
    opened(Settings(workers=2, peer=Peer(port=port)))
    with pytest.raises(InvalidSetting, match="2 processes need 2 ports from 65535"):
        opened(Settings(workers=2, peer=Peer(port=65_535)))


@pytest.mark.parametrize(
    ("variable", "text", "name"), [("HARK_PEERS", "b:1", "peers"), ("HARK_PEER_PORT", "1", "peer.port")]
)
def test_peers_of_a_sqlite_store_are_refused(variable: str, text: str, name: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        serve(load({}, {variable: text}))
    assert caught.value.text == (
        f"setting {name}: a SQLite store has one server and no peers; remove it, or use PostgreSQL or S3"
    )
