"""The UDP ports of the server processes. They are bound before the processes start, so that all ports are known."""

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
"""The default port for notifications, if `peers` is set."""

_REACHED_AT = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""The local address of a socket that is bound to all addresses."""


class Endpoint(NamedTuple):
    """The UDP socket of one server process, and the addresses of its peers."""

    udp: socket.socket
    others: tuple[Address, ...]


def endpoints(settings: Settings) -> list[Endpoint]:
    """One endpoint for each server process, or none without peers.

    The peers of a process are the other processes of this server, and the peers in the settings.
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
        raise InvalidSetting(
            f"setting peer.port: {processes} processes need {processes} ports from {first} on, but 65535 is the last; "
            "choose a lower port"
        )
    if first:
        ports = list(range(first, first + processes))
    elif processes > 1:
        # Only the processes of this server notify each other, so any local port is suitable.
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
            # The port must not be shared: of several sockets on a UDP port only one receives a datagram.
            udp.bind(address)
            unless_bound.pop_all()
    except OSError as error:
        raise StoreUnusable(
            f"cannot listen for peers on UDP {host}:{port}: {error.strerror}; check whether another server is running, "
            "or choose another peer.port or peer.host",
            code="address_in_use",
        ) from error
    return udp


def _address(udp: socket.socket) -> Address:
    host, port = udp.getsockname()[:2]
    return _REACHED_AT.get(host, host), port
