"""Leases of received messages, renewed until all of their messages are settled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

import msgspec

from hark.client.calling import Caller, CallPolicy, decode, path
from hark.client.choices import MAX_LEASE_SECONDS, RENEWED_LEASE_SECONDS, an_integer
from hark.client.delivery.leases import LeaseKeeper
from hark.client.delivery.line import Line
from hark.client.delivery.sources import Delivered
from hark.client.transport.api import Transport
from hark.errors import HarkError, LeaseLost

Extend = Callable[[str, int], Awaitable[datetime]]
"""Renews a lease for a number of seconds from now. Returns when it expires."""


class _Extended(msgspec.Struct, rename="camel"):
    success: bool
    error: str | None = None
    expires_at: datetime | None = None


async def extend(caller: Caller, lease_id: str, seconds: int) -> datetime:
    """Renew a lease for a number of seconds from now. Returns when it expires. Raises `LeaseLost` if it has expired."""
    route = path("lease", lease_id, "extend")
    body = {"seconds": an_integer(seconds, "seconds", 1, MAX_LEASE_SECONDS)}
    answer = await caller.call("POST", route, body=body, safe=True)
    extended = decode(answer.body, _Extended)
    if not extended.success or extended.expires_at is None:
        raise LeaseLost(f"lease {lease_id} was not renewed: {extended.error}; its messages are redelivered")
    return extended.expires_at


class Holds:
    """The lease keeper of a client, in a separate thread. Both are created with the first lease."""

    def __init__(self, transport: Transport, retry: CallPolicy | None = None) -> None:
        self._transport = transport
        self._retry = retry
        self._line: Line | None = None
        self._keeper: LeaseKeeper | None = None
        self._running: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._closed = False

    async def keeper(self) -> LeaseKeeper:
        """The running lease keeper."""
        if self._closed:
            # A handler that outlives the client would start it again, and nothing would close it.
            raise HarkError("the client is closed; create a new one with connect()", code="client_closed")
        if self._keeper is None:
            async with self._starting:
                if self._keeper is None:
                    await self._start()
        assert self._keeper is not None
        return self._keeper

    async def close(self) -> None:
        """Stop renewing leases, and end the thread."""
        self._closed = True
        keeper, line = self._keeper, self._line
        if keeper is not None and line is not None:
            keeper.close()
            try:
                await line.run(self._ended)
            finally:
                await line.close()
                self._keeper = self._running = self._line = None

    async def _start(self) -> None:
        line = Line(self._transport, self._retry)
        await line.start()
        self._line, self._keeper = line, LeaseKeeper(line.caller)
        # Immediately, not in a task of this loop: a handler may block the loop first.
        if line.in_place:
            self._run()
        else:
            line.post(self._run)

    def _run(self) -> None:
        assert self._keeper is not None
        self._running = asyncio.ensure_future(self._keeper.run())

    async def _ended(self) -> None:
        if self._running is not None:
            await self._running


class _Fate:
    """Whether a lease was lost. Separate from the lease, so that the keeper does not keep the lease object alive."""

    __slots__ = ("lost",)

    def __init__(self) -> None:
        self.lost = False

    def lose(self) -> None:
        """Mark the lease as lost. The keeper calls this on its own thread."""
        self.lost = True


class Lease:
    """The lease that some messages share. It is renewed while one of them is unsettled and referenced.

    If a message is dropped without settlement, the lease is not renewed any more and expires.
    """

    __slots__ = ("_every", "_fate", "_holds", "_keeper", "_loop", "_open", "_seconds", "id", "released")

    def __init__(
        self, lease_id: str, messages: int, holds: Holds | None, seconds: int | None, every: float | None = None
    ) -> None:
        self.id = lease_id
        self._open = messages
        self._holds = holds
        """None: the lease is not renewed."""
        self._seconds = seconds
        """Lease time in seconds. None if only the server knows it."""
        self._every = every
        """Seconds between renewals, if not a third of the lease time."""
        self._keeper: LeaseKeeper | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fate = _Fate()
        self.released: set[str] = set()
        """Ids of partitions with a message that was not completed. In an ordered group all later messages are
        redelivered."""

    @property
    def lost(self) -> bool:
        """Whether the lease is known to have expired."""
        return self._fate.lost

    async def begin(self, extend: Extend) -> None:
        """Renew the lease from now on."""
        if self._holds is None or self._keeper is not None:
            return
        keeper = await self._holds.keeper()
        if self._seconds is None:
            await extend(self.id, RENEWED_LEASE_SECONDS)
            self._seconds = RENEWED_LEASE_SECONDS
        if self._keeper is None and self._open:
            self._loop = asyncio.get_running_loop()
            self._keeper = keeper
            keeper.hold(self.id, self._seconds, self._fate.lose, self._every)

    def let_go(self) -> None:
        """One message less needs the lease."""
        self._open -= 1
        if not self._open and self._keeper is not None:
            keeper, self._keeper = self._keeper, None
            keeper.drop(self.id, self._fate.lose)

    def __del__(self) -> None:
        keeper, loop = self._keeper, self._loop
        if keeper is not None and loop is not None:
            # Not here: garbage collection can run anywhere, also while the keeper's lock is held.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(keeper.drop, self.id, self._fate.lose)


def leases_of(
    delivered: Sequence[Delivered], holds: Holds | None, seconds: int | None, every: float | None = None
) -> dict[str, Lease]:
    """The leases of delivered messages, by id."""
    counts: dict[str, int] = {}
    for message in delivered:
        counts[message.lease_id] = counts.get(message.lease_id, 0) + 1
    return {
        lease_id: Lease(lease_id, messages, holds if lease_id else None, seconds, every)
        for lease_id, messages in counts.items()
    }
