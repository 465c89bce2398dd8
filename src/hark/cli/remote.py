"""The server, as commands see it: one request, one answer, and errors that say what to do."""

from __future__ import annotations

import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from hark.cli.command import USAGE, Failure
from hark.cli.server_url import ServerUrl
from hark.client.transport.credentials import AUTHORIZATION, bearer, checked_token, refused_by_tls, trusting
from hark.errors import InvalidInput

T = TypeVar("T")
Query = Mapping[str, str | int | bool | None]

API = "/api/v1"
TIMEOUT_SECONDS = 30.0
SILENCE_SECONDS = 60.0
"""Servers say something on a stream every 15 seconds."""
_PART_BYTES = 64 * 1024
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class Answer(msgspec.Struct, frozen=True):
    """What the server said: its JSON, byte for byte."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    """By their names in small letters."""

    def read(self, shape: type[T]) -> T:
        """Decode the body."""
        return decode(self.body, shape)


def decode(body: bytes | msgspec.Raw, shape: type[T]) -> T:
    """Decode what a server said; one that says something else is not Hark."""
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Failure(f"the server's answer is not Hark's: {error}; check --url or HARK_URL") from error


class Problem(msgspec.Struct):
    """The body of an error."""

    error: str
    code: str | None = None


def path(*segments: str) -> str:
    """Make a path under the API; an empty segment would name another route."""
    if not all(segments):
        raise Failure("names and ids must not be empty", exit_code=USAGE)
    return "/".join((API, *(quote(segment, safe="") for segment in segments)))


def is_local(url: str) -> bool:
    """Say whether a server's URL means this machine."""
    try:
        return urlsplit(url).hostname in LOOPBACK
    except ValueError:
        return False


def call(
    url: str,
    method: str,
    route: str,
    *,
    query: Query | None = None,
    body: object = None,
    timeout: float = TIMEOUT_SECONDS,
) -> Answer:
    """Send one request; raise `Failure` with the server's own words if it is refused."""
    answer = send(url, method, route, query=query, body=body, timeout=timeout)
    if answer.status >= 400:
        raise _refusal(url, method, route, answer.status, answer.body)
    return answer


def _refusal(url: str, method: str, route: str, status: int, body: bytes) -> Failure:
    """Say no in the server's own words, if it is one of ours."""
    try:
        problem = msgspec.json.decode(body, type=Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Failure(f"{url} answered {status} to {method} {route}; is it a Hark server?")
    more = "; give one with --token or HARK_TOKEN" if status == 401 else ""
    return Failure(problem.error + more, code=problem.code)


def send(
    url: str,
    method: str,
    route: str,
    *,
    query: Query | None = None,
    body: object = None,
    timeout: float = TIMEOUT_SECONDS,
) -> Answer:
    """Send one request and give back the answer, whatever its status; `None` in a query means absent."""
    with _opened(url, method, route, query, body, timeout) as response:
        headers = {name.lower(): value for name, value in response.headers.items()}
        return Answer(response.status, response.read(), headers)


def stream(url: str, route: str, *, query: Query, silence: float = SILENCE_SECONDS) -> Iterator[bytes]:
    """Give the parts of an answer as they come; a server that says nothing for so many seconds is not there."""
    with _opened(url, "GET", route, query, None, silence) as response:
        if response.status >= 400:
            raise _refusal(url, "GET", route, response.status, response.read())
        while part := response.read1(_PART_BYTES):
            yield part


def events(parts: Iterator[bytes]) -> Iterator[tuple[str, bytes]]:
    """Give the names and the data of server-sent events."""
    rest = b""
    for part in parts:
        *complete, rest = (rest + part).split(b"\n\n")
        for event in complete:
            fields = dict(line.split(b": ", 1) for line in event.split(b"\n") if b": " in line)
            yield fields.get(b"event", b"message").decode(), fields.get(b"data", b"")


class _AsItIs(urllib.request.HTTPErrorProcessor):
    """Takes every status for an answer: neither an exception nor a way to somewhere else."""

    def http_response(
        self, request: urllib.request.Request, response: http.client.HTTPResponse
    ) -> http.client.HTTPResponse:
        """Hand it on."""
        del request
        return response

    https_response = http_response


@contextmanager
def _opened(
    url: str, method: str, route: str, query: Query | None, body: object, timeout: float
) -> Iterator[http.client.HTTPResponse]:
    """Send a request and give the answer to be read; errors on the way say what to do."""
    # The standard library, because it is there at once: a command is one request, and should not take longer.
    handlers: list[urllib.request.BaseHandler] = [_AsItIs()]
    if is_local(url):
        # A proxy from the environment has no business between us and our own machine.
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
    """Make a request of what the API is asked."""
    parts = {name: _text(value) for name, value in (query or {}).items() if value is not None}
    content = None if body is None else msgspec.json.encode(body)
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
        expected = "expected something like http://127.0.0.1:6632"
        if url.startswith("s3://"):
            expected = "this command needs one; start it on the bucket with: hark serve --engine s3://..."
        raise Failure(
            f"{url!r} is not the URL of a server (--url, HARK_URL): {expected}",
            exit_code=USAGE,
        ) from error


def _trust(url: str) -> Iterator[urllib.request.BaseHandler]:
    """Whom to trust, if that was said."""
    if isinstance(url, ServerUrl) and url.ca_file is not None:
        yield urllib.request.HTTPSHandler(context=_usable(trusting, url.ca_file, "--ca-file, HARK_CA_FILE"))


def _usable(check: Callable[[str, str], T], value: str, name: str) -> T:
    try:
        return check(value, name)
    except InvalidInput as error:
        raise Failure(error.text, exit_code=USAGE) from error


def _text(value: str | int | bool) -> str:
    """Write a query value as the API reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unreachable(url: str, error: str | BaseException, timeout: float, *, connecting: bool) -> str:
    """Say why there is no answer, and what to do about it."""
    if isinstance(error, TimeoutError):
        return f"no answer from {url} within {timeout:g} seconds"
    if isinstance(error, ssl.SSLError):
        return refused_by_tls(url, error)
    if connecting:
        return f"no server at {url}: {error}\nstart one with: hark serve"
    return f"the connection to {url} broke: {error or type(error).__name__}; is it a Hark server?"
