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
from hark.http.keyval.listen import QueueListeners
from hark.http.keyval.params import BASE
from hark.http.keyval.queue import QueueRoutes
from hark.http.keyval.watch import KeyWatches
from hark.http.responses import Receive, Scope, Send, encode, error_body, error_headers, internal_error, send_error
from hark.http.routes import routes
from hark.http.stream.line import PING_SECONDS
from hark.http.stream.sse import EventStreams
from hark.http.stream.websocket import PATH, WebSockets
from hark.settings import Settings

Handler = Callable[[Scope, Receive, Send], Awaitable[None]]
_POP = "/api/v1/pop"
_LISTEN = "/api/v1/listen"
_WORK = f"{BASE}/queue"


class App:
    """Everything that Hark answers over HTTP."""

    def __init__(self, broker: Broker, settings: Settings, ping_seconds: float = PING_SECONDS) -> None:
        hot = HotRoutes(broker, settings)
        work = QueueRoutes(broker, settings)
        watches = KeyWatches(broker, settings)
        self._posts: dict[str, Handler] = {
            "/api/v1/push": hot.push,
            "/api/v1/ack": hot.ack,
            "/api/v1/ack/batch": hot.ack_batch,
            f"{_WORK}/enqueue": work.enqueue,
            f"{_WORK}/ack": work.ack,
            f"{_WORK}/nack": work.nack,
            f"{_WORK}/cancel": work.cancel,
        }
        self._gets: dict[str, Handler] = {
            f"{_WORK}/poll": work.poll,
            f"{_WORK}/listen": QueueListeners(broker, settings).listen,
            f"{BASE}/watch": watches.watch,
            f"{BASE}/watch/poll": watches.poll,
            f"{BASE}/watch/prefix": watches.watch_prefix,
            f"{BASE}/watch/prefix/poll": watches.poll_prefix,
        }
        # These have places below them, in their paths.
        self._trees: dict[str, Handler] = {
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
            if (handler := self._posts.get(path)) is not None:
                return handler(scope, receive, send) if method == "POST" else _refuse(send, path, method, "POST")
            if (handler := self._gets.get(path)) is not None:
                return handler(scope, receive, send) if method == "GET" else _refuse(send, path, method, "GET")
            for prefix, handler in self._trees.items():
                if path == prefix or path.startswith(prefix + "/"):
                    return handler(scope, receive, send) if method == "GET" else _refuse(send, prefix, method, "GET")
            if path == PATH:
                return send_error(send, InvalidInput(f"{path} is a WebSocket: connect to it with ws://"))
        elif scope["type"] == "websocket":
            return self._consume(scope, receive, send)
        return self._rest(scope, receive, send)


def _refuse(send: Send, path: str, method: str, allow: str) -> Awaitable[None]:
    return send_error(send, MethodNotAllowed(f"{path} takes {allow}, not {method}", allow=allow))


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
