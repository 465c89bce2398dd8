"""The UDP endpoint through which a server notifies its peers of work, and receives their notifications."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable, Sequence

from hark.broker.peers.datagrams import MAX_BYTES, Packer, Refusal, Unpacker
from hark.broker.peers.directory import Directory, SocketAddress
from hark.broker.peers.gathering import Gathering
from hark.clock import SECOND, Clock
from hark.model import Hint, KeyNews

log = logging.getLogger(__name__)

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

Heard = Callable[[Sequence[Hint]], None]
HeardKeys = Callable[[KeyNews], None]


class Peers:
    """Sends this server's hints to all peers in the directory, merged over a few milliseconds.

    Datagrams can be lost, so waiting consumers also poll. This class neither blocks nor buffers without limit: a
    datagram that the socket does not accept immediately is dropped and counted. Received hints go to the broker and are
    never forwarded.
    """

    def __init__(
        self, udp: socket.socket, directory: Directory, clock: Clock, *, sender: bytes, linger_seconds: float
    ) -> None:
        self._udp = udp
        self._udp.setblocking(False)
        self._directory = directory
        self._clock = clock
        self._sender = sender
        self._linger = linger_seconds
        self._gathering = Gathering()
        self._packer: Packer | None = None
        self._timer: asyncio.Handle | None = None
        self._looking: asyncio.Task[None] | None = None
        self._counts: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._complained_at: dict[str, int] = {}

    async def start(self, secret: bytes, heard: Heard, heard_keys: HeardKeys) -> None:
        """Begin to hear and to tell; does not wait until the others are found."""
        self._packer = Packer(secret, self._sender, self._clock)
        unpacker = Unpacker(secret, self._sender, self._clock)
        asyncio.get_running_loop().add_reader(self._udp, self._hear, unpacker, heard, heard_keys)
        self._looking = asyncio.create_task(self._directory.keep_looking(), name="peers")

    async def close(self) -> None:
        """Tell what is left to tell and close the socket."""
        if self._udp.fileno() < 0:
            return
        self._tell_gathered()
        self._packer = None
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
            asyncio.get_running_loop().remove_reader(self._udp)
        self._udp.close()

    def tell(self, hints: Sequence[Hint]) -> None:
        """Tell the others soon, together with what follows within the linger."""
        if not self._directory or self._packer is None:
            return
        self._gathering.add(hints)
        self._tell_soon()

    def tell_keys(self, news: KeyNews) -> None:
        """Tell the others soon which keys were changed."""
        if not self._directory or self._packer is None:
            return
        self._gathering.add_keys(news)
        self._tell_soon()

    def _tell_soon(self) -> None:
        if self._timer is None and self._gathering:
            self._timer = asyncio.get_running_loop().call_later(self._linger, self._tell_gathered)

    def metrics(self) -> dict[str, float]:
        """Counts since the start; datagrams and hints are counted for each peer they went to."""
        counted = ("datagrams_sent", "hints_sent", "send_errors", "datagrams_received", "hints_received")
        return {
            "peers": len(self._directory.found),
            **{name: self._counts[name] for name in counted},
            "datagrams_refused": self._refused.total(),
            **{f"refused_{reason}": count for reason, count in self._refused.items()},
        }

    def _tell_gathered(self) -> None:
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

    def _hear(self, unpacker: Unpacker, heard: Heard, heard_keys: HeardKeys) -> None:
        news: list[Hint | KeyNews] = []
        for _ in range(_DATAGRAMS_AT_ONCE):
            try:
                # One byte more than allowed: a longer datagram is cut off and must not pass for a whole one.
                datagram, address = self._udp.recvfrom(MAX_BYTES + 1)
            except BlockingIOError:
                break
            except OSError:
                continue  # An earlier datagram had no receiver; this socket still works.
            self._counts["datagrams_received"] += 1
            news += self._believed(unpacker, datagram, address)
        self._counts["hints_received"] += len(news)
        hints = [one for one in news if isinstance(one, Hint)]
        if hints:
            heard(hints)
        for one in news:
            if isinstance(one, KeyNews):
                heard_keys(one)

    def _believed(self, unpacker: Unpacker, datagram: bytes, address: SocketAddress) -> list[Hint | KeyNews]:
        try:
            return unpacker.unpack(datagram)
        except Refusal as refusal:
            self._refused[refusal.reason] += 1
            if refusal.reason != "own":  # One list of peers for all servers names each server to itself.
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
