"""Serves the servers that Hark is compared with; the floors run on the wire that Hark runs on."""

from __future__ import annotations

import asyncio
import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any

import uvloop

from hark.http.app import App
from hark.http.exchange import Exchange
from hark.http.responses import Receive, Scope, Send
from hark.http.wire.server import Server

HOST = "127.0.0.1"
HEADERS = ((b"content-type", b"application/json"),)


class PushServer(ABC):
    """What a floor is to the wire: an application that takes every request as a push."""

    def is_revoked(self, exchange: Exchange) -> bool:
        """Never: there are no tokens."""
        del exchange
        return False

    def admit(self, exchange: Exchange) -> None:
        """Admit everything."""
        del exchange

    begin = staticmethod(App.begin)

    def body_limit(self, exchange: Exchange) -> int:
        """Return the limit of every request."""
        del exchange
        return 2**20

    def answer_now(self, exchange: Exchange) -> bool:
        """Take a request; `answer` follows."""
        self.take(exchange)
        return True

    @abstractmethod
    def take(self, exchange: Exchange) -> None:
        """Begin a push."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Never called: all requests are answered without a task."""
        raise NotImplementedError


def answer(exchange: Exchange, body: bytes) -> None:
    """Say that something was made, and what."""
    exchange.carrier.respond(exchange, 201, HEADERS, body)


def serve(app: PushServer, port: int) -> None:
    """Serve on Hark's wire until a signal comes."""

    async def start() -> None:
        await Server(app).start(socket.create_server((HOST, port)))

    run_until_signal(start())


def run_until_signal(start: Coroutine[Any, Any, None]) -> None:
    """Start a server on uvloop, and end with the process's signal; requests in progress are dropped."""

    async def run() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await start
        await stop.wait()

    uvloop.run(run())
