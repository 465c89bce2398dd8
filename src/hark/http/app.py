"""The ASGI application: one table of operations, and one form of error responses."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import cached_property
from typing import cast

from starlette.requests import Request
from starlette.responses import Response

from hark.access.authenticator import Authenticates, Open
from hark.broker import Broker
from hark.errors import HarkError
from hark.http.edge.admitting import Edge
from hark.http.edge.request_ids import current_scope
from hark.http.measuring import NO_ROUTE, Requests
from hark.http.metrics.scrape import Metrics
from hark.http.openapi import document
from hark.http.responses import Receive, Scope, Send, encode, send_failure
from hark.http.routes.router import Router
from hark.http.routes.table import WEBSOCKET, Endpoint
from hark.http.stream.line import PING_SECONDS
from hark.http.tables import all_routes
from hark.settings import Settings


class App:
    """The HTTP application of a server. Endpoints find it as `request.app`."""

    def __init__(
        self,
        broker: Broker,
        settings: Settings,
        ping_seconds: float = PING_SECONDS,
        *,
        authenticator: Authenticates | None = None,
    ) -> None:
        self.broker = broker
        self.settings = settings
        self.edge = Edge(settings, authenticator or Open())
        self.requests = Requests()
        self.metrics = Metrics(broker, self.requests, settings.workers)
        self.table = all_routes(broker, settings, ping_seconds)
        self._router = Router(self.table)

    @cached_property
    def openapi(self) -> bytes:
        """The OpenAPI document as JSON."""
        return encode(document(self.table))

    def route_of(self, scope: Scope) -> str:
        """Return the route pattern that matches the path of a request, or `NO_ROUTE`."""
        try:
            return self._router.find(scope).route
        except HarkError:
            return NO_ROUTE

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[object]:
        """Serve one request. (It is not a coroutine itself, because each level of coroutines costs time.)"""
        current_scope.set(scope)
        route = NO_ROUTE
        try:
            operation, params, route = self._router.find(scope)
            send = self.requests.noting(route, scope.get("method", WEBSOCKET), send)
            send = self.edge.admit(scope, operation, params, send)
        except HarkError as error:
            if route is NO_ROUTE:
                send = self.requests.noting(route, scope.get("method", WEBSOCKET), send)
            return self.edge.refuse(scope, receive, send, error)
        scope["path_params"] = params
        if operation.raw:
            return operation.endpoint(scope, receive, send)
        scope["app"] = self
        return _answer(cast(Endpoint, operation.endpoint), scope, receive, send)


async def _answer(endpoint: Endpoint, scope: Scope, receive: Receive, send: Send) -> None:
    try:
        response: Response = await endpoint(Request(scope, receive, send))
    except Exception as error:
        await send_failure(send, error)
    else:
        await response(scope, receive, send)
