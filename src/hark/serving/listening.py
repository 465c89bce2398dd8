"""The port: taken before anything else, by one process or for several."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from hark.errors import StoreUnusable

BACKLOG = 4096


def bound(host: str, port: int) -> socket.socket:
    """A socket that has the port to itself: a second server must fail before it touches the store."""
    with _refusal(host, port):
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return _bind(socket.socket(family, kind, protocol), str(address[0]), int(address[1]))


def reserved(host: str, port: int) -> socket.socket:
    """A socket that nobody listens on and that keeps the port for `joined` ones of the same user."""
    holder = bound(host, port)
    # Only now: a socket that shares would not notice that another server listens on the port.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return holder


def joined(family: int, host: str, port: int) -> socket.socket:
    """One of several sockets on a reserved port; connections are spread over those that listen."""
    with _refusal(host, port):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        return _bind(listener, host, port)


def listen(listener: socket.socket) -> None:
    """Take connections: they wait until somebody accepts them."""
    host, port = listener.getsockname()[:2]
    with _refusal(host, port):
        listener.listen(BACKLOG)


def shown(listener: socket.socket, *, secure: bool = False) -> str:
    """The address as a URL."""
    host, port = listener.getsockname()[:2]
    scheme = "https" if secure else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _bind(listener: socket.socket, host: str, port: int) -> socket.socket:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener


@contextmanager
def _refusal(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnusable(
            f"can't listen on {host}:{port}: {error.strerror}; is another server running? choose another --port",
            code="address_in_use",
        ) from error
