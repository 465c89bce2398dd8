"""Transports that lose what they are told to lose, in front of a real one; and messages for the tests of consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from hark.client.calling import Caller, path
from hark.client.transport.api import Answer, ConnectionFailed, Request, Transport

Judge = Callable[[Request], bool]


class LossyTransport:
    """Counts requests; loses the answers of some, refuses to send others."""

    def __init__(self, real: Transport, lose: Judge | None = None, refuse: Judge | None = None) -> None:
        self._real = real
        self.lose = lose or (lambda _: False)
        self.refuse = refuse or (lambda _: False)
        self.requests: list[Request] = []
        self.changed = asyncio.Event()

    @property
    def url(self) -> str:
        """Where to."""
        return self._real.url

    async def send(self, request: Request) -> Answer:
        """Ask, unless it is to be refused; forget the answer if it is to be lost."""
        self.requests.append(request)
        self.changed.set()
        if self.refuse(request):
            raise ConnectionFailed("refused by the test", sent=False)
        lose = self.lose(request)
        answer = await self._real.send(request)
        if lose:
            raise ConnectionFailed("lost by the test", sent=True)
        return answer

    def fork(self) -> Transport | None:
        """That of the real one: what is lost here is not lost there."""
        return self._real.fork()

    async def close(self) -> None:
        """Hang up."""
        await self._real.close()

    def asked(self, route: str) -> int:
        """How many requests went to a path."""
        return sum(request.path == route for request in self.requests)


def first_of(route: str, number: int = 1) -> Judge:
    """Says yes to the first requests to a path."""
    left = number

    def judge(request: Request) -> bool:
        nonlocal left
        if request.path != route or not left:
            return False
        left -= 1
        return True

    return judge


async def no_sleep(_seconds: float) -> None:
    """A pause that takes no time."""


async def push(caller: Caller, queue: str, payloads: Sequence[object], partition: str | None = None) -> None:
    """Push payloads into a partition; None: each into one of its own."""
    items = [
        {"queue": queue, "partition": partition or f"p{index}", "payload": payload}
        for index, payload in enumerate(payloads)
    ]
    await caller.call("POST", path("push"), body={"items": items})


async def configure(caller: Caller, queue: str, **options: object) -> None:
    """Set options of a queue."""
    await caller.call("POST", path("configure"), body={"queue": queue, "options": options})
