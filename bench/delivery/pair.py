"""Two servers on one database, told of each other by UDP, or kept from hearing each other."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import msgspec

from bench.measure import Bench
from bench.servers import Server, running


def free_udp_ports(number: int) -> list[int]:
    """Ports at which nobody listens now."""
    with ExitStack() as sockets:
        probes = [sockets.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def peer_settings(own: int, other: int) -> dict[str, str]:
    """What a server is told of its own UDP port and of that of the other one."""
    return {"HARK_PEER_PORT": str(own), "HARK_PEERS": f"127.0.0.1:{other}"}


@contextmanager
def two_servers(bench: Bench, *, blocked: bool) -> Iterator[tuple[Server, Server]]:
    """Both on the same new database; blocked: what each says goes to a port at which nobody listens."""
    first, second, unused = free_udp_ports(3)
    store = bench.stores.create(bench.new_folder("first"))
    beside = msgspec.structs.replace(store, folder=bench.new_folder("second"))
    try:
        with (
            running("hark", store, peer_settings(first, unused if blocked else second)) as one,
            running("hark", beside, peer_settings(second, unused if blocked else first)) as other,
        ):
            yield one, other
    finally:
        bench.stores.remove(store)
