"""What goes wrong between a client and the store: by script, by chance from a seed, and where a test wants to stop.

faults = Faults()
faults.next(Fault.RESET, kind="put", key="log/")      # the next record is written and its reply is lost
stop = faults.stop("before", kind="put", key="log/")  # the next record waits until the test says `stop.go()`
"""

from __future__ import annotations

import asyncio
import inspect
import random
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future
from enum import StrEnum
from typing import Literal

import msgspec

from tests.s3.stub.store import NO_ANSWER, Answer, Kind, Request, StubStore

Hook = Callable[[Request], Awaitable[None] | None]
"""Called with a request that matches; what it awaits delays the request."""
Sleep = Callable[[float], Awaitable[None]]
Point = Literal["before", "after"]


class Fault(StrEnum):
    """One way to fail. Those that begin with `lost` happen after the request was carried out."""

    CONFLICT = "conflict"
    """409, nothing happened: another request for the key was in flight."""
    ERROR = "error"
    """500, nothing happened."""
    SLOW_DOWN = "slow-down"
    """503, nothing happened."""
    DROP = "drop"
    """The connection breaks, nothing happened."""
    LOST_ERROR = "lost-error"
    """It happened, and the answer is 500."""
    LOST_SLOW_DOWN = "lost-slow-down"
    """It happened, and the answer is 503."""
    RESET = "lost-reset"
    """It happened, and the connection breaks before the answer."""
    TWICE = "twice"
    """It happens twice, as behind a proxy that retries: who created an object is told that it was there (412)."""
    LATE = "late"
    """The connection breaks; it happens after the next request was answered, so that a look does not see it yet."""
    TIMEOUT = "timeout"
    """Nothing happened, and no answer ever comes."""
    LOST_TIMEOUT = "lost-timeout"
    """It happened, and no answer ever comes."""


_ANSWERS = {
    Fault.CONFLICT: Answer(409, "ConditionalRequestConflict"),
    Fault.ERROR: Answer(500, "InternalError"),
    Fault.SLOW_DOWN: Answer(503, "SlowDown"),
    Fault.LOST_ERROR: Answer(500, "InternalError"),
    Fault.LOST_SLOW_DOWN: Answer(503, "SlowDown"),
}
_HAPPENED = {Fault.LOST_ERROR, Fault.LOST_SLOW_DOWN, Fault.RESET, Fault.LOST_TIMEOUT, Fault.TWICE}
_OF_READS = (Fault.ERROR, Fault.SLOW_DOWN, Fault.DROP)
# Timeouts are left out: over HTTP each costs the whole patience of the client, and to it they are like the broken ones.
_OF_WRITES = tuple(fault for fault in Fault if fault not in {Fault.TIMEOUT, Fault.LOST_TIMEOUT})
_OF_DELETES = tuple(fault for fault in _OF_WRITES if fault is not Fault.CONFLICT)


class Broken(Exception):
    """The connection breaks; the client hears nothing."""


class Silent(Broken):
    """The connection stays, and the client hears nothing for as long as it waits."""


class Stop:
    """A place where a request waits for a test; both may be in any thread and any event loop."""

    def __init__(self) -> None:
        self._reached: Future[Request] = Future()
        self._gone: Future[None] = Future()

    async def __call__(self, request: Request) -> None:
        """Hold a request here; the ones that come after `go` pass."""
        if not self._reached.done():
            self._reached.set_result(request)
        await asyncio.shield(asyncio.wrap_future(self._gone))

    async def reached(self) -> Request:
        """Wait until a request is here."""
        return await asyncio.shield(asyncio.wrap_future(self._reached))

    def go(self) -> None:
        """Let the request go on."""
        if not self._gone.done():
            self._gone.set_result(None)


class _Rule(msgspec.Struct):
    """What is to happen to requests of a kind (None: any) with a text in their key."""

    does: Fault | Hook
    point: Point
    kind: Kind | None
    key: str
    skip: int
    times: float

    def takes(self, request: Request) -> bool:
        """Whether it is for this request; it counts how often."""
        if self.times <= 0 or self.kind not in (None, request.kind) or self.key not in request.key:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.times -= 1
        return True


class Faults:
    """A plan of faults. With neither script nor rates everything works."""

    def __init__(
        self,
        *,
        seed: int = 0,
        rates: Mapping[Kind, Mapping[Fault, float]] | None = None,
        latency: Callable[[Request], float] = lambda _: 0.0,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.rates = {kind: dict(of_kind) for kind, of_kind in (rates or {}).items()}
        self.latency = latency
        self.happened: list[tuple[Fault, str]] = []
        """The faults so far, with the keys of their requests."""
        self.spared: str | None = None
        """What has this in its key never fails by chance."""
        self._sleep = sleep
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._rules: list[_Rule] = []
        self._late: list[Request] = []

    @classmethod
    def by_chance(
        cls,
        seed: int,
        rate: float,
        *,
        latency: Callable[[Request], float] = lambda _: 0.0,
        sleep: Sleep = asyncio.sleep,
        spare: str | None = None,
    ) -> Faults:
        """Of all requests that share fail, each in one of the ways that suit its kind; `spare`: but of these keys."""
        of_kinds: dict[Kind, Iterable[Fault]] = {"put": _OF_WRITES, "get": _OF_READS, "delete": _OF_DELETES}
        rates = {kind: {fault: rate / len(tuple(some)) for fault in some} for kind, some in of_kinds.items()}
        faults = cls(seed=seed, rates=rates, latency=latency, sleep=sleep)
        faults.spared = spare
        return faults

    def next(self, fault: Fault, *, kind: Kind | None = None, key: str = "", skip: int = 0, times: float = 1) -> None:
        """The next request of a kind with that text in its key fails so; `skip` some first, do it `times` times."""
        self._add(_Rule(fault, "before", kind, key, skip, times))

    def hook(
        self,
        point: Point,
        hook: Hook,
        *,
        kind: Kind | None = None,
        key: str = "",
        skip: int = 0,
        times: float = float("inf"),
    ) -> None:
        """Call something before such requests reach the store, or after they were carried out (if they were)."""
        self._add(_Rule(hook, point, kind, key, skip, times))

    def stop(self, point: Point, *, kind: Kind | None = None, key: str = "", skip: int = 0) -> Stop:
        """Hold the next such request before it reaches the store, or before its answer goes back."""
        stop = Stop()
        self.hook(point, stop, kind=kind, key=key, skip=skip, times=1)
        return stop

    def heal(self) -> None:
        """Forget the script and the rates: from now on everything works. Late requests still arrive."""
        with self._lock:
            self._rules.clear()
            self.rates.clear()

    async def perform(self, store: StubStore, request: Request) -> Answer:
        """Carry out a request, or what a fault makes of it. Raises `Broken` when the client hears nothing."""
        seconds = self.latency(request) / 2
        # Even without latency others have their turn, as while a real request is under way.
        await self._sleep(seconds)
        try:
            answer = await self._carry_out(store, request)
        except (Broken, asyncio.CancelledError):
            store.note(request, NO_ANSWER)
            raise
        store.note(request, answer.status)
        await self._sleep(seconds)
        return answer

    def deliver_late(self, store: StubStore) -> None:
        """Carry out the requests that are late."""
        with self._lock:
            late, self._late = self._late, []
        for request in late:
            store.execute(request)

    async def _carry_out(self, store: StubStore, request: Request) -> Answer:
        fault = self._fault(request)
        await self._call(request, "before")
        answer = Answer(NO_ANSWER)
        if fault is None or fault in _HAPPENED:
            answer = store.execute(request)
            if fault is Fault.TWICE:
                answer = store.execute(request)
            await self._call(request, "after")
        # What was late until now was not seen by this request: only now it arrives.
        self.deliver_late(store)
        if fault is None or fault is Fault.TWICE:
            return answer
        if fault is Fault.LATE:
            with self._lock:
                self._late.append(request)
        if fault in {Fault.TIMEOUT, Fault.LOST_TIMEOUT}:
            raise Silent(fault)
        if fault in {Fault.DROP, Fault.RESET, Fault.LATE}:
            raise Broken(fault)
        return _ANSWERS[fault]

    def _fault(self, request: Request) -> Fault | None:
        with self._lock:
            scripts = (rule for rule in self._rules if isinstance(rule.does, Fault))
            fault = next((rule.does for rule in scripts if rule.takes(request)), None)
            if not isinstance(fault, Fault):
                is_spared = self.spared is not None and self.spared in request.key
                fault = None if is_spared else self._by_chance(request.kind)
            if fault is not None:
                self.happened.append((fault, request.key))
            return fault

    def _by_chance(self, kind: Kind) -> Fault | None:
        rates = self.rates.get(kind)
        if not rates:
            return None
        drawn = self._random.random()
        for fault, rate in rates.items():
            drawn -= rate
            if drawn < 0:
                return fault
        return None

    async def _call(self, request: Request, point: Point) -> None:
        with self._lock:
            hooks = [
                rule.does
                for rule in self._rules
                if rule.point == point and not isinstance(rule.does, Fault) and rule.takes(request)
            ]
        for hook in hooks:
            waiting = hook(request)
            if inspect.isawaitable(waiting):
                await waiting

    def _add(self, rule: _Rule) -> None:
        with self._lock:
            self._rules.append(rule)
