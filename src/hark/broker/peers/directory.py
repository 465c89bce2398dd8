"""The addresses of peers: names are resolved in the background, and again periodically."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence

from hark.settings import Address

log = logging.getLogger(__name__)

_RETRY_SECONDS = 5.0
_REFRESH_SECONDS = 60.0
"""A name may come to mean another machine: a restarted container, for one."""

SocketAddress = tuple[str | int | bytes, ...]
"""A numeric address as sockets take it: host, port and, for IPv6, two more numbers."""
LookUp = Callable[[str], Awaitable[Sequence[SocketAddress]]]
"""Finds the addresses of a host name, without a port; raises `OSError`."""
Pause = Callable[[float], Awaitable[None]]


class Directory:
    """The addresses of all peers that are known by now.

    A numeric address is known at once. A name may stand for several machines: all of them are peers.
    """

    def __init__(
        self,
        peers: Sequence[Address],
        family: socket.AddressFamily,
        look_up: LookUp | None = None,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self._family = family
        self._look_up = look_up or self._ask_system
        self._pause = pause
        self._ports: dict[str, list[int]] = {}
        for host, port in peers:
            self._ports.setdefault(host, []).append(port)
        self._hosts = {host: self._numeric(host) for host in self._ports}
        self._names = [host for host, found in self._hosts.items() if not found]
        self.found: tuple[SocketAddress, ...] = ()
        self._join()

    def __bool__(self) -> bool:
        """Whether there are peers, resolved or not."""
        return bool(self._ports)

    async def keep_looking(self) -> None:
        """Resolve names until cancelled. A name that fails does not delay the others."""
        await asyncio.gather(*(self._keep_looking_for(name) for name in self._names))

    async def _keep_looking_for(self, name: str) -> None:
        complained = False
        while True:
            try:
                self._hosts[name] = await self._look_up(name)
            except OSError as error:
                # Keep the addresses found before: an outage of the name server must not separate the peers.
                if not complained:
                    log.warning(
                        "cannot resolve peer %s; retrying, check the setting peers and DNS: %s",
                        name,
                        error.strerror or error,
                    )
                    complained = True
                await self._pause(_RETRY_SECONDS)
            else:
                complained = False
                self._join()
                await self._pause(_REFRESH_SECONDS)

    def _join(self) -> None:
        """Combine hosts and ports, without duplicates."""
        found = (
            (host, port, *rest)
            for name, addresses in self._hosts.items()
            for host, _, *rest in addresses
            for port in self._ports[name]
        )
        self.found = tuple(dict.fromkeys(found))

    def _numeric(self, host: str) -> Sequence[SocketAddress]:
        try:
            return [answer[4] for answer in socket.getaddrinfo(host, 0, **self._kind(socket.AI_NUMERICHOST))]
        except OSError:
            return ()

    async def _ask_system(self, name: str) -> Sequence[SocketAddress]:
        return [answer[4] for answer in await asyncio.get_running_loop().getaddrinfo(name, 0, **self._kind())]

    def _kind(self, flags: int = 0) -> dict[str, int]:
        """What to ask for: only addresses that our socket can send to."""
        if self._family == socket.AF_INET6:
            flags |= socket.AI_V4MAPPED
        return {"family": self._family, "type": socket.SOCK_DGRAM, "flags": flags}
