"""The TCP port: bound before anything else, by one process or for several."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from hark.errors import StoreUnusable

BACKLOG = 4096


def bound(host: str, port: int) -> socket.socket:
    """A socket with exclusive use of the port: a second server must fail before it opens the store."""
    with _refusal(host, port):
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return _bind(socket.socket(family, kind, protocol), str(address[0]), int(address[1]))


def reserved(host: str, port: int) -> socket.socket:
    """A socket that does not listen, but reserves the port for `joined` sockets of the same user."""
    holder = bound(host, port)
    # Set after binding: with it, the socket would not notice another server on the port.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return holder


def joined(family: int, host: str, port: int) -> socket.socket:
    """One of several sockets on a reserved port. The system distributes connections over the listening sockets."""
    with _refusal(host, port):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        return _bind(listener, host, port)


def listen(listener: socket.socket) -> None:
    """Start to queue connections, until the server accepts them."""
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
            f"cannot listen on {host}:{port}: {error.strerror}; check whether another server is running, or choose "
            "another --port",
            code="address_in_use",
        ) from error
