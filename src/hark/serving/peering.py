"""The UDP ports of the server processes: bound before they start, so that each has one and all are known."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from typing import NamedTuple

from hark.broker.peers import Directory, Peers
from hark.clock import Clock
from hark.errors import InvalidSetting, StoreUnusable
from hark.settings import Address, Settings, peer_addresses

DEFAULT_PORT = 6633
"""Where a server with peers hears them, if it is not told."""

_REACHED_AT = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where this machine reaches a socket that is bound to all its addresses."""


class Endpoint(NamedTuple):
    """Where one server process hears its peers, and where they do."""

    udp: socket.socket
    others: tuple[Address, ...]


def endpoints(settings: Settings) -> list[Endpoint]:
    """One for each server process; none where there is nobody to hear.

    The peers of a process are the other ones of this server, and those that the settings name.
    """
    sockets = _sockets(settings)
    here = [_address(udp) for udp in sockets]
    named = tuple(address for entry in settings.peers for address in peer_addresses(entry))
    return [Endpoint(udp, (*here[:number], *here[number + 1 :], *named)) for number, udp in enumerate(sockets)]


def make_peers(endpoint: Endpoint, settings: Settings, clock: Clock) -> Peers:
    """The peers of this process."""
    return Peers(
        endpoint.udp,
        Directory(endpoint.others, endpoint.udp.family),
        clock,
        sender=os.urandom(16),
        linger_seconds=settings.peer.linger_ms / 1000,
    )


def _sockets(settings: Settings) -> list[socket.socket]:
    processes, host = settings.workers, settings.peer.host or settings.host
    first = settings.peer.port or (DEFAULT_PORT if settings.peers else 0)
    if first + processes > 65_536:
        raise InvalidSetting(f"peer.port: {processes} processes need as many ports, from {first} to 65535")
    if first:
        ports = list(range(first, first + processes))
    elif processes > 1:
        # They talk to each other alone: any port will do, and nobody outside needs to reach it.
        host, ports = "127.0.0.1", [0] * processes
    else:
        return []
    with ExitStack() as unless_all:
        sockets = [unless_all.enter_context(_bound(host, port)) for port in ports]
        unless_all.pop_all()
    return sockets


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
        )[0]
        with ExitStack() as unless_bound:
            udp = unless_bound.enter_context(socket.socket(family, kind, protocol))
            # Not to be shared: of several sockets on a UDP port only one would hear.
            udp.bind(address)
            unless_bound.pop_all()
    except OSError as error:
        raise StoreUnusable(
            f"can't hear peers on UDP {host}:{port}: {error.strerror}; is another server running? "
            "choose another peer.port or peer.host",
            code="address_in_use",
        ) from error
    return udp


def _address(udp: socket.socket) -> Address:
    host, port = udp.getsockname()[:2]
    return _REACHED_AT.get(host, host), port
