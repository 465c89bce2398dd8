"""UDP ports for tests."""

from __future__ import annotations

import socket
from contextlib import ExitStack


def free_ports(number: int) -> int:
    """The first of so many UDP ports that nobody uses."""
    while True:
        with ExitStack() as sockets:
            first = sockets.enter_context(udp_socket()).getsockname()[1]
            try:
                for port in range(first + 1, first + number):
                    sockets.enter_context(udp_socket(port))
            except (OSError, OverflowError):
                continue
            return int(first)


def udp_socket(port: int = 0) -> socket.socket:
    """A socket on a UDP port of this machine; 0: a free one."""
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        udp.bind(("127.0.0.1", port))
    except (OSError, OverflowError):
        udp.close()
        raise
    return udp
