"""Requests to the server: one request, one response, and errors that say what to do next."""

from __future__ import annotations

import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from hark.api import operations, types
from hark.api.operations import Operation
from hark.cli.command import USAGE, Failure, ServerUrl
from hark.client.transport.credentials import AUTHORIZATION, bearer, checked_token, refused_by_tls, trusting
from hark.errors import InvalidInput, did_you_mean

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Query = Mapping[str, str | int | bool | None]

TIMEOUT_SECONDS = 30.0
SILENCE_SECONDS = 60.0
"""Longest silence on a stream: servers send at least a ping every 15 seconds."""
_PART_BYTES = 64 * 1024
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class Answer(msgspec.Struct, Generic[T_co], frozen=True):
    """A response of the server, with its JSON byte for byte."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    """By lower-case name."""
    shape: Callable[[], type[T_co]]

    def read(self) -> T_co:
        """Decode the body as the answer of its operation."""
        return decode(self.body, self.shape())


def decode(body: bytes | msgspec.Raw, shape: type[T]) -> T:
    """Decode a response; a server that sends something else is not Hark."""
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Failure(
            f"the response is not from a Hark server of this version: {error}", hint="check --url and HARK_URL"
        ) from error


def _path_of(operation: Operation[Any], names: Sequence[str]) -> str:
    """Return the path of an operation; an empty name would make it that of another one."""
    if not all(names) and not operation.path.endswith(":path}"):
        raise Failure("a name or an ID is empty; names and IDs must not be empty", exit_code=USAGE)
    return operation.at(*names)


def is_local(url: str) -> bool:
    """Tell whether a server's URL means this machine."""
    try:
        return urlsplit(url).hostname in LOOPBACK
    except ValueError:
        return False


def call(
    url: str,
    operation: Operation[T],
    *names: str,
    query: Query | None = None,
    body: object = None,
    timeout: float = TIMEOUT_SECONDS,
) -> Answer[T]:
    """Call an operation with the names in its path; raise `Failure` with the server's text if the server rejects it."""
    answer = send(url, operation, *names, query=query, body=body, timeout=timeout)
    if answer.status >= 400:
        raise _refusal(url, operation.method, _path_of(operation, names), answer.status, answer.body)
    return answer


def missing_queue(url: str, queue: str) -> str | None:
    """Return None if a queue exists, or else a hint for the end of a text: the visible queue with the nearest name."""
    return _nearest(url, queue) if _messages_of(url, queue) is None else None


def near_older_queue(url: str, queue: str, pushed: int) -> str:
    """Return the same hint if a queue has only the messages that were just pushed: the push created it."""
    return _nearest(url, queue) if _messages_of(url, queue) == pushed else ""


def _messages_of(url: str, queue: str) -> int | None:
    """Return how many messages a queue has. None: it does not exist. In doubt -1: a hint is not worth an error."""
    try:
        answer = send(url, operations.SHOW_QUEUE, queue, query={"limit": 1, "offset": 0})
        return None if answer.status == 404 else answer.read().totals.total
    except Failure:
        return -1


def _nearest(url: str, queue: str) -> str:
    try:
        queues = send(url, operations.LIST_QUEUES).read().queues
    except Failure:
        return ""
    return did_you_mean(queue, [one.name for one in queues if one.name != queue])


def _refusal(url: str, method: str, route: str, status: int, body: bytes) -> Failure:
    """Make a failure from an error response, with the server's text if it is a Hark server."""
    try:
        problem = msgspec.json.decode(body, type=types.base.ErrorAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Failure(
            f"{url} returned status {status} for {method} {route}, without an error text of Hark",
            hint="check --url and HARK_URL, and any proxy in between",
        )
    hint = "pass an API token with --token or HARK_TOKEN" if status == 401 else ""
    return Failure(problem.error, code=problem.code, hint=hint)


def send(
    url: str,
    operation: Operation[T],
    *names: str,
    query: Query | None = None,
    body: object = None,
    timeout: float = TIMEOUT_SECONDS,
) -> Answer[T]:
    """Call an operation and return the response, whatever its status; `None` in a query means absent."""
    with _opened(url, operation.method, _path_of(operation, names), query, body, timeout) as response:
        headers = {name.lower(): value for name, value in response.headers.items()}
        return Answer(response.status, response.read(), headers, operation.answer)


def stream(
    url: str, operation: Operation[str], *names: str, query: Query, silence: float = SILENCE_SECONDS
) -> Iterator[bytes]:
    """Yield the parts of a response as they arrive; fail after that many seconds of silence."""
    route = _path_of(operation, names)
    with _opened(url, operation.method, route, query, None, silence) as response:
        if response.status >= 400:
            raise _refusal(url, operation.method, route, response.status, response.read())
        while part := response.read1(_PART_BYTES):
            yield part


def events(parts: Iterator[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield the names and the data of server-sent events."""
    rest = b""
    for part in parts:
        *complete, rest = (rest + part).split(b"\n\n")
        for event in complete:
            fields = dict(line.split(b": ", 1) for line in event.split(b"\n") if b": " in line)
            yield fields.get(b"event", b"message").decode(), fields.get(b"data", b"")


def ended() -> Failure:
    """Make the failure of a stream that the server ended."""
    return Failure("the server closed the stream, for example because it shuts down; run the command again")


class _AsItIs(urllib.request.HTTPErrorProcessor):
    """Returns every status as a response: no exceptions, no redirects."""

    def http_response(
        self, request: urllib.request.Request, response: http.client.HTTPResponse
    ) -> http.client.HTTPResponse:
        """Return the response unchanged."""
        del request
        return response

    https_response = http_response


@contextmanager
def _opened(
    url: str, method: str, route: str, query: Query | None, body: object, timeout: float
) -> Iterator[http.client.HTTPResponse]:
    """Send a request and give the response to read; connection errors say what to do."""
    # The standard library, because it loads fast: a command is one request and must start quickly.
    handlers: list[urllib.request.BaseHandler] = [_AsItIs()]
    if is_local(url):
        # Requests to this machine do not go through a proxy from the environment.
        handlers.append(urllib.request.ProxyHandler({}))
    handlers += _trust(url)
    try:
        with urllib.request.build_opener(*handlers).open(
            _request(url, method, route, query, body), timeout=timeout
        ) as response:
            yield response
    except urllib.error.URLError as error:
        raise Failure(_unreachable(url, error.reason, timeout, connecting=True)) from error
    except (http.client.HTTPException, OSError) as error:
        raise Failure(_unreachable(url, error, timeout, connecting=False)) from error


def _request(url: str, method: str, route: str, query: Query | None, body: object) -> urllib.request.Request:
    """Build the HTTP request."""
    parts = {name: _text(value) for name, value in (query or {}).items() if value is not None}
    content = None if body is None else types.base.encode(body)
    headers = {} if body is None else {"Content-Type": "application/json"}
    if isinstance(url, ServerUrl) and url.token is not None:
        headers[AUTHORIZATION] = bearer(_usable(checked_token, url.token, "--token, HARK_TOKEN"))
    try:
        base = urlsplit(url)
        if base.scheme not in ("http", "https") or not base.hostname or base.port == 0:
            raise ValueError(url)
        whole = url.rstrip("/") + route + (f"?{urlencode(parts)}" if parts else "")
        return urllib.request.Request(whole, data=content, headers=headers, method=method)
    except (ValueError, http.client.InvalidURL) as error:
        expected = "use a URL such as http://127.0.0.1:6632"
        if url.startswith("s3://"):
            expected = "this command needs a server; start one on the bucket with: hark serve --engine s3://..."
        raise Failure(
            f"{url!r} is not the URL of a server (--url, HARK_URL); {expected}",
            exit_code=USAGE,
        ) from error


def _trust(url: str) -> Iterator[urllib.request.BaseHandler]:
    """Trust the certificate authority that the user named, if any."""
    if isinstance(url, ServerUrl) and url.ca_file is not None:
        yield urllib.request.HTTPSHandler(context=_usable(trusting, url.ca_file, "--ca-file, HARK_CA_FILE"))


def _usable(check: Callable[[str, str], T], value: str, name: str) -> T:
    try:
        return check(value, name)
    except InvalidInput as error:
        raise Failure(error.text, exit_code=USAGE) from error


def _text(value: str | int | bool) -> str:
    """Format a query value for the API."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unreachable(url: str, error: str | BaseException, timeout: float, *, connecting: bool) -> str:
    """Describe why there is no response, and what to do next."""
    if isinstance(error, TimeoutError):
        return f"no response from {url} within {timeout:g} seconds\n{_check(url)}"
    if isinstance(error, ssl.SSLError):
        return refused_by_tls(url, error)
    if connecting:
        return f"cannot connect to {url}: {error}\nstart a server with `hark serve`, or check --url and HARK_URL"
    return f"the connection to {url} was lost: {error or type(error).__name__}\n{_check(url)}"


def _check(url: str) -> str:
    return f"check the server with: hark doctor --url {url}"
