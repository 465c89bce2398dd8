"""The ASGI application: hot routes from a table, everything else through starlette."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from hark.broker import Broker
from hark.errors import HarkError, InvalidInput, MethodNotAllowed, NotFound
from hark.http.hot import HotRoutes
from hark.http.responses import Receive, Scope, Send, encode, error_body, error_headers, internal_error, send_error
from hark.http.routes import routes
from hark.http.stream.line import PING_SECONDS
from hark.http.stream.sse import EventStreams
from hark.http.stream.websocket import PATH, WebSockets
from hark.settings import Settings

Handler = Callable[[Scope, Receive, Send], Awaitable[None]]
_POP = "/api/v1/pop"
_LISTEN = "/api/v1/listen"


class App:
    """Everything that Hark answers over HTTP."""

    def __init__(self, broker: Broker, settings: Settings, ping_seconds: float = PING_SECONDS) -> None:
        hot = HotRoutes(broker, settings)
        self._posts: dict[str, Handler] = {
            "/api/v1/push": hot.push,
            "/api/v1/ack": hot.ack,
            "/api/v1/ack/batch": hot.ack_batch,
        }
        self._gets: dict[str, Handler] = {
            _POP: hot.pop,
            _LISTEN: EventStreams(broker, settings, ping_seconds).listen,
        }
        self._consume = WebSockets(broker, settings, ping_seconds).consume
        self._rest = Starlette(
            routes=routes(),
            exception_handlers={HarkError: _answer_error, HTTPException: _answer_http_error, Exception: _answer_bug},
        )
        self._rest.state.broker = broker
        self._rest.state.settings = settings

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve one request. (Not a coroutine itself: every level costs at every turn of the loop.)"""
        if scope["type"] == "http":
            path, method = scope["path"], scope["method"]
            handler = self._posts.get(path)
            if handler is not None:
                if method == "POST":
                    return handler(scope, receive, send)
                return send_error(send, MethodNotAllowed(f"{path} takes POST, not {method}", allow="POST"))
            for prefix, handler in self._gets.items():
                if path == prefix or path.startswith(prefix + "/"):
                    if method == "GET":
                        return handler(scope, receive, send)
                    return send_error(send, MethodNotAllowed(f"{prefix} takes GET, not {method}", allow="GET"))
            if path == PATH:
                return send_error(send, InvalidInput(f"{path} is a WebSocket: connect to it with ws://"))
        elif scope["type"] == "websocket":
            return self._consume(scope, receive, send)
        return self._rest(scope, receive, send)


def _respond(error: HarkError) -> Response:
    return Response(
        encode(error_body(error)), error.status, headers=error_headers(error), media_type="application/json"
    )


async def _answer_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HarkError)
    return _respond(error)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return _respond(NotFound(f"no such route: {request.method} {request.url.path}", code="route_not_found"))
    if error.status_code == 405:
        allow = (error.headers or {}).get("Allow", "")
        return _respond(MethodNotAllowed(f"{request.url.path} takes {allow}, not {request.method}", allow=allow))
    known = HarkError(str(error.detail))
    known.status = error.status_code
    return _respond(known)


async def _answer_bug(_request: Request, error: Exception) -> Response:
    return _respond(internal_error(error))
