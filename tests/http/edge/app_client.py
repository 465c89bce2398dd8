"""A server without sockets: requests go straight to the application, with a few tokens that everybody knows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import unquote, urlencode

from hark.access.authenticator import Authenticates
from hark.access.tokens import UNRESTRICTED, Identity
from hark.api.operations import Role
from hark.broker import Broker
from hark.clock import SystemClock
from hark.engine.sqlite import SqliteEngine
from hark.errors import Unauthorized
from hark.http.app import App
from hark.settings import Settings

Json = Any
WHO = {
    "reader": Identity("reader", Role.READ_ONLY),
    "writer": Identity("writer", Role.READ_WRITE),
    "admin": Identity("admin", Role.ADMIN),
    "mine-reader": Identity("mine-reader", Role.READ_ONLY, ("mine*",)),
    "mine-writer": Identity("mine-writer", Role.READ_WRITE, ("mine*",)),
    "mine-admin": Identity("mine-admin", Role.ADMIN, ("mine*",)),
    "inbox-writer": Identity("inbox-writer", Role.READ_WRITE, ("billing.inbox.*",)),
}
"""Who comes with which token: the token is the name."""


class Tokens:
    """Knows everybody in `WHO`, and nobody else."""

    enabled = True

    def identify(self, credential: str | None) -> Identity:
        """Who comes with this token."""
        if credential is None:
            raise Unauthorized("this server requires a token")
        if credential not in WHO:
            raise Unauthorized("the token is unknown")
        return WHO[credential]


class Off:
    """Authentication is off."""

    enabled = False

    def identify(self, credential: str | None) -> Identity:
        """Anybody."""
        del credential
        return UNRESTRICTED


class Answer:
    """What came back."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""

    @property
    def json(self) -> Json:
        """The body, read."""
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of an error."""
        return str(self.json["code"]) if self.status >= 400 else ""


class AppClient:
    """Asks an application."""

    def __init__(self, app: App, broker: Broker) -> None:
        self.app = app
        self.broker = broker

    async def __call__(
        self,
        method: str,
        path: str,
        token: str | None = None,
        body: Json = None,
        *,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        client: str = "10.0.0.9",
        scheme: str = "http",
    ) -> Answer:
        """Ask once; the answer to what never ends is its beginning."""
        sent = {"host": "localhost:6632"} | ({} if token is None else {"authorization": f"Bearer {token}"})
        scope = {
            "type": "http",
            "method": method,
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": urlencode(query or {}).encode(),
            "headers": [(name.encode(), value.encode()) for name, value in (sent | dict(headers or {})).items()],
            "client": (client, 5000),
            "scheme": scheme,
            "state": {},
        }
        content = b"" if body is None else json.dumps(body).encode()
        exchange = _Exchange(content)
        task = asyncio.ensure_future(self.app(scope, exchange.receive, exchange.send))
        done, _ = await asyncio.wait(
            [task, asyncio.ensure_future(exchange.done.wait())], return_when=asyncio.FIRST_COMPLETED, timeout=20
        )
        assert done, f"no answer to {method} {path}"
        exchange.left.set()
        task.cancel()
        with suppress(asyncio.CancelledError, KeyError):  # A stream without a socket ends where it looks for it.
            await task
        assert exchange.answer.status, f"no answer to {method} {path}"
        return exchange.answer


class _Exchange:
    """One request and its answer."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self.answer = Answer()
        self.done = asyncio.Event()
        self.left = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        """The body, then the end."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, event: Mapping[str, Any]) -> None:
        """Take a part of the answer."""
        if event["type"] == "http.response.start":
            names = [name.decode() for name, _ in event["headers"]]
            assert len(names) == len(set(names)), f"headers come twice: {names}"
            self.answer.status = event["status"]
            self.answer.headers = {name.decode(): value.decode() for name, value in event["headers"]}
            if self.answer.headers.get("content-type") == "text/event-stream":
                self.done.set()
        else:
            self.answer.body += event.get("body", b"")
            if not event.get("more_body"):
                self.done.set()


@asynccontextmanager
async def serving(
    settings: Settings | None = None, authenticator: Authenticates | None = None
) -> AsyncIterator[AppClient]:
    """A server on a store in memory, with the tokens of `WHO` unless it is told otherwise."""
    chosen = settings or Settings()
    clock = SystemClock()
    broker = Broker(SqliteEngine(":memory:", clock=clock), chosen, clock)
    await broker.start()
    try:
        yield AppClient(App(broker, chosen, authenticator=authenticator or Tokens()), broker)
    finally:
        await broker.close()
