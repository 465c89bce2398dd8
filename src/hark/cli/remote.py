"""The server, as commands see it: one request, one answer, and errors that say what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from hark.cli.command import USAGE, Failure

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
Query = Mapping[str, str | int | bool | None]

API = "/api/v1"
TIMEOUT_SECONDS = 30.0
SILENCE_SECONDS = 60.0
"""Servers say something on a stream every 15 seconds."""
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class Answer(msgspec.Struct, frozen=True):
    """What the server said: its JSON, byte for byte."""

    status: int
    body: bytes
    headers: Mapping[str, str]

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
    return Failure(problem.error, code=problem.code)


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
    content = None if body is None else msgspec.json.encode(body)
    headers = {} if body is None else {"Content-Type": "application/json"}
    with _client(url, timeout) as client:
        response = client.request(method, route, params=_params(query), content=content, headers=headers)
        return Answer(response.status_code, response.content, response.headers)


def stream(url: str, route: str, *, query: Query, silence: float = SILENCE_SECONDS) -> Iterator[bytes]:
    """Give the parts of an answer as they come; a server that says nothing for so many seconds is not there."""
    with _client(url, silence) as client, client.stream("GET", route, params=_params(query)) as response:
        if response.status_code >= 400:
            raise _refusal(url, "GET", route, response.status_code, response.read())
        yield from response.iter_bytes()


def events(parts: Iterator[bytes]) -> Iterator[tuple[str, bytes]]:
    """Give the names and the data of server-sent events."""
    rest = b""
    for part in parts:
        *complete, rest = (rest + part).split(b"\n\n")
        for event in complete:
            fields = dict(line.split(b": ", 1) for line in event.split(b"\n") if b": " in line)
            yield fields.get(b"event", b"message").decode(), fields.get(b"data", b"")


@contextmanager
def _client(url: str, timeout: float) -> Iterator[httpx.Client]:
    """Open a client whose errors say what to do."""
    import httpx

    try:
        # A proxy from the environment has no business between us and our own machine.
        with httpx.Client(base_url=url, timeout=timeout, trust_env=not is_local(url)) as client:
            yield client
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, ValueError) as error:
        raise Failure(
            f"{url!r} is not the URL of a server (--url, HARK_URL): expected something like http://127.0.0.1:6632",
            exit_code=USAGE,
        ) from error
    except httpx.TransportError as error:
        raise Failure(_unreachable(url, error, timeout)) from error


def _params(query: Query | None) -> dict[str, str]:
    """Write a query as the API reads it; `None` means absent."""
    return {name: _text(value) for name, value in (query or {}).items() if value is not None}


def _text(value: str | int | bool) -> str:
    """Write a query value as the API reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unreachable(url: str, error: httpx.TransportError, timeout: float) -> str:
    """Say why there is no answer, and what to do about it."""
    import httpx

    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return f"no server at {url}: {error or 'no connection in time'}\nstart one with: hark serve"
    if isinstance(error, httpx.TimeoutException):
        return f"no answer from {url} within {timeout:g} seconds"
    return f"the connection to {url} broke: {error or type(error).__name__}; is it a Hark server?"
