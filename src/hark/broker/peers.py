"""Peers: the other servers on the same store, notified of ready work by UDP."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence

from hark.broker.datagrams import MAX_BYTES, Packer, Refusal, Unpacker
from hark.clock import SECOND, Clock
from hark.keys import encode_key
from hark.model import Hint, HintKind, Key, KeyNotification
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

    async def keep_resolving(self) -> None:
        """Resolve names until cancelled. A name that fails does not delay the others."""
        await asyncio.gather(*(self._keep_resolving(name) for name in self._names))

    async def _keep_resolving(self, name: str) -> None:
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


MAX_PARTITIONS = 1000
"""Maximum number of partitions of one queue and group; above it, peers look anywhere in the queue."""
MAX_KEYS = 1000
"""Maximum number of keys; above it, peers assume that any key may have changed."""

_Subject = tuple[HintKind, str, str | None]


class Gathering:
    """The hints of the last few milliseconds, by news, queue and group."""

    def __init__(self) -> None:
        self._subjects: dict[_Subject, _MergedHints] = {}
        self._keys: dict[bytes, Key] | None = {}
        """By their bytes; None: any."""

    def __bool__(self) -> bool:
        return bool(self._subjects) or self._keys != {}

    def add(self, hints: Iterable[Hint]) -> None:
        """Add hints that peers need. Arrivals for one group are left out, because the general hint covers them."""
        for hint in hints:
            if hint.kind == "message" and hint.group is not None:
                continue
            subject = (hint.kind, hint.queue, hint.group)
            merged = self._subjects.get(subject)
            if merged is None:
                merged = self._subjects[subject] = _MergedHints()
            merged.add(hint)

    def add_keys(self, notification: KeyNotification) -> None:
        """Take which keys were changed."""
        if self._keys is None:
            return
        if notification.keys is not None:
            self._keys |= {encode_key(key): key for key in notification.keys}
        if notification.keys is None or len(self._keys) > MAX_KEYS:
            self._keys = None

    def take_keys(self) -> KeyNotification | None:
        """The keys that were gathered; then there are none."""
        keys, self._keys = self._keys, {}
        if keys is None:
            return KeyNotification(None)
        return KeyNotification(tuple(keys.values())) if keys else None

    def take(self) -> list[Hint]:
        """All hints that were gathered; then there are none."""
        subjects, self._subjects = self._subjects, {}
        return [
            Hint(
                queue,
                group,
                partitions=None if merged.partitions is None else tuple(merged.partitions),
                kind=kind,
                ended=tuple(merged.ended),
                counts=merged.counts(),
            )
            for (kind, queue, group), merged in subjects.items()
        ]


class _MergedHints:
    """The merged hints of one subject; `ended` is a set that keeps its order."""

    def __init__(self) -> None:
        self.partitions: dict[str, int] | None = {}
        """Partitions with the number of messages that became ready; 0: not counted."""
        self.ended: dict[str, None] = {}

    def add(self, hint: Hint) -> None:
        self.ended |= dict.fromkeys(hint.ended)
        if self.partitions is None or hint.partitions is None:
            self.partitions = None
            return
        if hint.counts:
            for partition, count in zip(hint.partitions, hint.counts, strict=True):
                self.partitions[partition] = self.partitions.get(partition, 0) + count
        else:
            for partition in hint.partitions:
                self.partitions.setdefault(partition, 0)
        if len(self.partitions) > MAX_PARTITIONS:
            self.partitions = None

    def counts(self) -> tuple[int, ...]:
        if self.partitions is None or not any(self.partitions.values()):
            return ()
        return tuple(max(1, count) for count in self.partitions.values())


_DATAGRAMS_AT_ONCE = 64
"""Maximum number of datagrams to read in one turn of the event loop."""
_SILENCE = 60 * SECOND
"""Minimum time between two log lines about the same problem: any sender could cause them."""

_REMEDIES = {
    "version": "run the same version of Hark on all servers",
    "signature": "use the same store and the same peer.secret on all servers",
    "time": "synchronise the clocks of the servers",
    "replay": "it was received before; no action is needed unless this repeats",
}

OnHints = Callable[[Sequence[Hint]], None]
OnKeys = Callable[[KeyNotification], None]


class Peers:
    """Sends this server's hints to all peers in the directory, merged over a few milliseconds.

    Datagrams can be lost, so waiting consumers also poll. This class neither blocks nor buffers without limit: a
    datagram that the socket does not accept immediately is dropped and counted. Received hints go to the broker, and to
    the other processes of this server (`siblings`): a peer may know the address of only one process.
    """

    def __init__(
        self,
        udp: socket.socket,
        directory: Directory,
        clock: Clock,
        *,
        sender: bytes,
        linger_seconds: float,
        siblings: Sequence[Address] = (),
    ) -> None:
        self._udp = udp
        self._udp.setblocking(False)
        self._directory = directory
        self._siblings = tuple(siblings)
        self._clock = clock
        self._sender = sender
        self._linger = linger_seconds
        self._gathering = Gathering()
        self._packer: Packer | None = None
        self._timer: asyncio.Handle | None = None
        self._resolving: asyncio.Task[None] | None = None
        self._counts: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._complained_at: dict[str, int] = {}

    async def start(self, secret: bytes, on_hints: OnHints, on_keys: OnKeys) -> None:
        """Begin to hear and to tell; does not wait until the others are found."""
        self._packer = Packer(secret, self._sender, self._clock)
        unpacker = Unpacker(secret, self._sender, self._clock)
        asyncio.get_running_loop().add_reader(self._udp, self._receive, unpacker, on_hints, on_keys)
        self._resolving = asyncio.create_task(self._directory.keep_resolving(), name="peers")

    async def close(self) -> None:
        """Tell what is left to tell and close the socket."""
        if self._udp.fileno() < 0:
            return
        self._send_gathered()
        self._packer = None
        if self._resolving is not None:
            self._resolving.cancel()
            await asyncio.gather(self._resolving, return_exceptions=True)
            asyncio.get_running_loop().remove_reader(self._udp)
        self._udp.close()

    def notify(self, hints: Sequence[Hint]) -> None:
        """Tell the others soon, together with what follows within the linger."""
        if not self._directory or self._packer is None:
            return
        self._gathering.add(hints)
        self._send_soon()

    def notify_keys(self, notification: KeyNotification) -> None:
        """Tell the others soon which keys were changed."""
        if not self._directory or self._packer is None:
            return
        self._gathering.add_keys(notification)
        self._send_soon()

    def _send_soon(self) -> None:
        if self._timer is None and self._gathering:
            self._timer = asyncio.get_running_loop().call_later(self._linger, self._send_gathered)

    def metrics(self) -> dict[str, float]:
        """Counts since the start; datagrams and hints are counted for each peer they went to."""
        counters = ("datagrams_sent", "hints_sent", "send_errors", "datagrams_received", "hints_received")
        return {
            "peers": len(self._directory.found),
            **{name: self._counts[name] for name in counters},
            "datagrams_refused": self._refused.total(),
            **{f"refused_{reason}": count for reason, count in self._refused.items()},
        }

    def _send_gathered(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        hints, keys = self._gathering.take(), self._gathering.take_keys()
        if self._packer is None:
            return
        for datagram, notices in self._packer.pack(hints, keys):
            for address in self._directory.found:
                self._send(datagram, notices, address)

    def _send(self, datagram: bytes, notices: int, address: SocketAddress) -> None:
        try:
            self._udp.sendto(datagram, address)
        except OSError as error:  # Also when the buffers of the system are full: then peers find the work by looking.
            self._counts["send_errors"] += 1
            self._complain(
                "send", f"cannot notify peer {_shown(address)}: {error.strerror}; check the network and peer.host"
            )
        else:
            self._counts["datagrams_sent"] += 1
            self._counts["hints_sent"] += notices

    def _receive(self, unpacker: Unpacker, on_hints: OnHints, on_keys: OnKeys) -> None:
        received: list[Hint | KeyNotification] = []
        for _ in range(_DATAGRAMS_AT_ONCE):
            try:
                # One byte more than allowed: a longer datagram is cut off and must not pass for a whole one.
                datagram, address = self._udp.recvfrom(MAX_BYTES + 1)
            except BlockingIOError:
                break
            except OSError:
                continue  # An earlier datagram had no receiver; this socket still works.
            self._counts["datagrams_received"] += 1
            accepted = self._accepted(unpacker, datagram, address)
            received += accepted
            if accepted and address[:2] not in self._siblings:
                for sibling in self._siblings:
                    self._send(datagram, len(accepted), sibling)
        self._counts["hints_received"] += len(received)
        hints = [one for one in received if isinstance(one, Hint)]
        if hints:
            on_hints(hints)
        for one in received:
            if isinstance(one, KeyNotification):
                on_keys(one)

    def _accepted(self, unpacker: Unpacker, datagram: bytes, address: SocketAddress) -> list[Hint | KeyNotification]:
        try:
            return unpacker.unpack(datagram)
        except Refusal as refusal:
            self._refused[refusal.reason] += 1
            # One list of peers for all servers names each server to itself. What a sibling forwards may come twice.
            expected = refusal.reason == "own" or (refusal.reason == "replay" and bool(self._siblings))
            if not expected:
                remedy = _REMEDIES.get(refusal.reason, "it is not from a Hark server; check who can reach this port")
                self._complain(
                    refusal.reason, f"rejected a datagram from {_shown(address)} ({refusal.reason}): {remedy}"
                )
            return []

    def _complain(self, about: str, text: str) -> None:
        now = self._clock.now()
        if now - self._complained_at.get(about, -_SILENCE) >= _SILENCE:
            self._complained_at[about] = now
            log.warning("%s", text)


def _shown(address: SocketAddress) -> str:
    return ":".join(map(str, address[:2]))
