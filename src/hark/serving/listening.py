"""The TCP and UDP ports: bound before the processes start."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hark.access.authenticator import Authenticator
from hark.broker.peers import Directory, Peers
from hark.clock import Clock, SystemClock
from hark.errors import InvalidSetting, StoreUnusable
from hark.settings import Address, Settings, Tls, peer_addresses
from hark.settings.sections import ANY_ORIGIN

log = logging.getLogger(__name__)


def make_authenticator(settings: Settings, clock: Clock, listener: socket.socket) -> Authenticator:
    """Authentication for a server on this socket.

    Raises `InvalidSetting` if other machines or the pages of every web site had access without it.
    """
    authenticator = Authenticator(settings, clock)
    if not authenticator.enabled and ANY_ORIGIN in settings.cors.origins:
        raise InvalidSetting(
            "setting cors.origins: * allows the pages of every web site, but authentication is off, so every page "
            "could read and push messages; name the origins, create a token "
            f"(hark token create NAME --role admin --data {settings.data}), or enable JWTs (auth.jwt_enabled)"
        )
    if not authenticator.enabled and not _is_loopback(listener):
        host = listener.getsockname()[0]
        if not settings.insecure_bind:
            raise InvalidSetting(
                f"setting host: other machines can reach {host}, but authentication is off; create a token "
                f"(hark token create NAME --role admin --data {settings.data}), enable JWTs (auth.jwt_enabled), or use "
                "--insecure-bind (insecure_bind) to give every client full access"
            )
        log.warning(
            "authentication is off: every client that can connect to %s has full access; create a token with "
            "hark token create, or enable JWTs",
            host,
        )
    return authenticator


def remembering(settings: Settings, listener: socket.socket) -> Settings:
    """The settings for the processes of one server: if authentication is on now, it is on in all later processes."""
    if not make_authenticator(settings, SystemClock(), listener).enabled:
        return settings
    return msgspec.structs.replace(settings, auth=msgspec.structs.replace(settings.auth, required=True))


def tls_context(tls: Tls) -> ssl.SSLContext | None:
    """TLS 1.2 or newer with the server's certificate, or None without a certificate. Raises `InvalidSetting`."""
    if not tls.certificate:
        return None
    for name, path in (("certificate", tls.certificate), ("key", tls.key)):
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise InvalidSetting(
                f"setting tls.{name}: cannot read {path}: {error.strerror}; check the path and its permissions"
            ) from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise InvalidSetting(
            f"setting tls.certificate: {tls.certificate} and {tls.key} are not a matching certificate and private key: "
            f"{error}; both must be PEM files, and the key must have no password"
        ) from error
    return context


def reload_certificate(context: ssl.SSLContext | None, tls: Tls) -> None:
    """Use the certificate and key in the files for new connections. If they cannot be used, the old ones stay."""
    if context is None:
        return
    try:
        tls_context(tls)
    except InvalidSetting as error:
        log.error("the certificate was not renewed, and the old one stays in use: %s", error)
        return
    context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
    log.info("read the certificate %s", tls.certificate)


def _no_password() -> str:
    """Called for a key with a password. Without this function OpenSSL would prompt on the terminal."""
    raise ValueError("the key has a password")


def _is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine can connect."""
    if listener.family not in (socket.AF_INET, socket.AF_INET6):
        return True
    address = ipaddress.ip_address(listener.getsockname()[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


BACKLOG = 4096


def bound(host: str, port: int) -> socket.socket:
    """A socket with exclusive use of the port: a second server must fail before it opens the store."""
    with _refusal(f"on {host}:{port}", "--port"):
        listener, address = _resolved(host, port, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return _bind(listener, address)


def reserved(host: str, port: int) -> socket.socket:
    """A socket that does not listen, but reserves the port for `joined` sockets of the same user."""
    holder = bound(host, port)
    # Set after binding: with it, the socket would not notice another server on the port.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return holder


def joined(family: int, host: str, port: int) -> socket.socket:
    """One of several sockets on a reserved port. The system distributes connections over the listening sockets."""
    with _refusal(f"on {host}:{port}", "--port"):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return _bind(listener, (host, port))


def listen(listener: socket.socket) -> None:
    """Start to queue connections, until the server accepts them."""
    host, port = listener.getsockname()[:2]
    with _refusal(f"on {host}:{port}", "--port"):
        listener.listen(BACKLOG)


def shown(listener: socket.socket, *, secure: bool = False) -> str:
    """The address as a URL."""
    host, port = listener.getsockname()[:2]
    scheme = "https" if secure else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _resolved(host: str, port: int, kind: socket.SocketKind) -> tuple[socket.socket, Any]:
    """A socket for an address, and the address."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=kind, flags=socket.AI_PASSIVE)[0]
    return socket.socket(family, kind, protocol), address


def _bind(listener: socket.socket, address: Any) -> socket.socket:
    try:
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


@contextmanager
def _refusal(where: str, other: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnusable(
            f"cannot listen {where}: {error.strerror}; check whether another server is running, or choose "
            f"another {other}",
            code="address_in_use",
        ) from error


DEFAULT_PORT = 6633
"""The default port for notifications, if `peers` is set."""

_REACHED_AT = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""The local address of a socket that is bound to all addresses."""


class Endpoint(NamedTuple):
    """The UDP socket of one server process, and the addresses of its peers."""

    udp: socket.socket
    others: tuple[Address, ...]
    siblings: int = 0
    """Number of peers, at the start of `others`, that are processes of the same server."""


def endpoints(settings: Settings) -> list[Endpoint]:
    """One endpoint for each server process, or none without peers.

    The peers of a process are the other processes of this server, and the peers in the settings.
    """
    sockets = _sockets(settings)
    names = [udp.getsockname()[:2] for udp in sockets]
    here: list[Address] = [(_REACHED_AT.get(host, host), port) for host, port in names]
    named = tuple(address for entry in settings.peers for address in peer_addresses(entry))
    return [
        Endpoint(udp, (*here[:number], *here[number + 1 :], *named), len(here) - 1)
        for number, udp in enumerate(sockets)
    ]


def make_peers(endpoint: Endpoint, settings: Settings, clock: Clock) -> Peers:
    """The peers of this process."""
    return Peers(
        endpoint.udp,
        Directory(endpoint.others, endpoint.udp.family),
        clock,
        sender=os.urandom(16),
        linger_seconds=settings.peer.linger_ms / 1000,
        siblings=endpoint.others[: endpoint.siblings],
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
    with _refusal(f"for peers on UDP {host}:{port}", "peer.port or peer.host"):
        # The port must not be shared: of several sockets on a UDP port only one receives a datagram.
        return _bind(*_resolved(host, port, socket.SOCK_DGRAM))
