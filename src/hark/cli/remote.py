"""Requests to the server: one request, one response, and errors that say what to do next."""

from __future__ import annotations

import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypedDict, TypeVar, Unpack
from urllib.parse import urlencode, urlsplit

import msgspec
import typer

from hark.api import operations, types
from hark.api.operations import Operation
from hark.cli.output import Failure, Misuse, raw
from hark.client.arguments import AUTHORIZATION, bearer, checked_token, refused_by_tls, trusting
from hark.errors import InvalidInput, did_you_mean
from hark.settings.tree import S3_SCHEME

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Query = Mapping[str, str | int | bool | None]

TIMEOUT_SECONDS = 30.0
SILENCE_SECONDS = 60.0
"""Longest silence on a stream: servers send at least a ping every 15 seconds."""
_PART_BYTES = 64 * 1024
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class Request(TypedDict, total=False):
    """The parts of a request besides its path; `None` in a query means absent."""

    query: Query
    body: object
    timeout: float


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


class Server(msgspec.Struct, frozen=True):
    """The server that a command uses, and whether the command prints JSON."""

    url: str
    token: str | None = None
    ca_file: str | None = None
    as_json: bool = False

    @property
    def is_local(self) -> bool:
        """Whether the URL means this machine."""
        try:
            return urlsplit(self.url).hostname in LOOPBACK
        except ValueError:
            return False

    def ask(
        self,
        operation: Operation[T],
        *names: str,
        failure: Callable[[T], Failure | None] | None = None,
        **request: Unpack[Request],
    ) -> T:
        """Call an operation and return its answer; with --json, print the response and end the command instead.

        `failure` finds out whether the command failed although the server did not refuse it.
        """
        answer = self.call(operation, *names, **request)
        if self.as_json:
            raw(answer.body)
        if failure is not None and (problem := failure(answer.read())):
            raise problem
        if self.as_json:
            raise typer.Exit
        return answer.read()

    def call(self, operation: Operation[T], *names: str, **request: Unpack[Request]) -> Answer[T]:
        """Call an operation with the names in its path; raise `Failure` with the server's text if it rejects it."""
        answer = self.send(operation, *names, **request)
        if answer.status >= 400:
            raise self._refusal(operation.method, _path(operation, names), answer.status, answer.body)
        return answer

    def send(self, operation: Operation[T], *names: str, **request: Unpack[Request]) -> Answer[T]:
        """Call an operation and return the response, whatever its status."""
        with self._opened(operation.method, _path(operation, names), **request) as response:
            headers = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status, response.read(), headers, operation.answer)

    def stream(self, operation: Operation[str], *names: str, **request: Unpack[Request]) -> Iterator[bytes]:
        """Yield the parts of a response as they arrive; fail after a long silence."""
        route = _path(operation, names)
        with self._opened(operation.method, route, **({"timeout": SILENCE_SECONDS} | request)) as response:
            if response.status >= 400:
                raise self._refusal(operation.method, route, response.status, response.read())
            while part := response.read1(_PART_BYTES):
                yield part

    def follow(
        self,
        operation: Operation[str],
        *names: str,
        query: Query,
        event: str,
        show: Callable[[bytes], None],
        limit: int | None = None,
        split: Callable[[bytes], Iterable[bytes]] = lambda body: (body,),
    ) -> None:
        """Show the data of server-sent events with this name, up to a number of them, until Ctrl-C."""
        shown, rest = 0, b""
        try:
            for part in self.stream(operation, *names, query=query):
                *complete, rest = (rest + part).split(b"\n\n")
                for text in complete:
                    fields = dict(line.split(b": ", 1) for line in text.split(b"\n") if b": " in line)
                    name, body = fields.get(b"event", b"message").decode(), fields.get(b"data", b"")
                    if name == "error":
                        problem = decode(body, types.ErrorAnswer)
                        raise Failure(problem.error, code=problem.code)
                    for one in split(body) if name == event else ():
                        (raw if self.as_json else show)(one)
                        shown += 1
                        if shown == limit:
                            return
        except KeyboardInterrupt:
            return
        raise Failure("the server closed the stream, for example because it shuts down; run the command again")

    def missing_queue(self, queue: str) -> str | None:
        """Return None if a queue exists, or else a hint for the end of a text: a visible queue with a similar name."""
        return self._nearest(queue) if self._messages_of(queue) is None else None

    def near_older_queue(self, queue: str, pushed: int) -> str:
        """Return the same hint if a queue has only the messages that were just pushed: the push created it."""
        return self._nearest(queue) if self._messages_of(queue) == pushed else ""

    def _messages_of(self, queue: str) -> int | None:
        """Return how many messages a queue has. None: it does not exist. In doubt -1: a hint is not worth an error."""
        try:
            answer = self.send(operations.SHOW_QUEUE, queue, query={"limit": 1, "offset": 0})
            return None if answer.status == 404 else answer.read().totals.total
        except Failure:
            return -1

    def _nearest(self, queue: str) -> str:
        try:
            queues = self.send(operations.LIST_QUEUES).read().items
        except Failure:
            return ""
        return did_you_mean(queue, [one.name for one in queues if one.name != queue])

    def _refusal(self, method: str, route: str, status: int, body: bytes) -> Failure:
        """Make a failure from an error response, with the server's text if it is a Hark server."""
        try:
            problem = msgspec.json.decode(body, type=types.ErrorAnswer)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return Failure(
                f"{self.url} returned status {status} for {method} {route}, without an error text of Hark",
                hint="check --url and HARK_URL, and any proxy in between",
            )
        hint = "pass an API token with --token or HARK_TOKEN" if status == 401 else ""
        return Failure(problem.error, code=problem.code, hint=hint)

    @contextmanager
    def _opened(
        self, method: str, route: str, query: Query | None = None, body: object = None, timeout: float = TIMEOUT_SECONDS
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request and give the response to read; connection errors say what to do."""
        # The standard library, because it loads fast: a command is one request and must start quickly.
        opener = urllib.request.OpenerDirector()
        # Without further handlers it returns every status as a response: no exceptions, no redirects.
        trusted = None if self.ca_file is None else _usable(trusting, self.ca_file, "--ca-file, HARK_CA_FILE")
        # Requests to this machine do not go through a proxy from the environment.
        opener.add_handler(urllib.request.ProxyHandler({} if self.is_local else None))
        opener.add_handler(urllib.request.HTTPHandler())
        opener.add_handler(urllib.request.HTTPSHandler(context=trusted))
        request = self._request(method, route, query, body)
        try:
            with opener.open(request, timeout=timeout) as response:
                yield response
        except urllib.error.URLError as error:
            raise Failure(self._unreachable(error.reason, timeout, connecting=True)) from error
        except (http.client.HTTPException, OSError) as error:
            raise Failure(self._unreachable(error, timeout, connecting=False)) from error

    def _request(self, method: str, route: str, query: Query | None, body: object) -> urllib.request.Request:
        parts = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in (query or {}).items()
            if value is not None
        }
        content = None if body is None else types.encode(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        if self.token is not None:
            headers[AUTHORIZATION] = bearer(_usable(checked_token, self.token, "--token, HARK_TOKEN"))
        try:
            base = urlsplit(self.url)
            if base.scheme not in ("http", "https") or not base.hostname or base.port == 0:
                raise ValueError(self.url)
            whole = self.url.rstrip("/") + route + (f"?{urlencode(parts)}" if parts else "")
            return urllib.request.Request(whole, data=content, headers=headers, method=method)
        except (ValueError, http.client.InvalidURL) as error:
            expected = "use a URL such as http://127.0.0.1:6632"
            if self.url.startswith(S3_SCHEME):
                expected = "this command needs a server; start one on the bucket with: hark serve --engine s3://..."
            text = f"{self.url!r} is not the URL of a server (--url, HARK_URL); {expected}"
            raise Misuse(text) from error

    def _unreachable(self, error: str | BaseException, timeout: float, *, connecting: bool) -> str:
        """Describe why there is no response, and what to do next."""
        check = f"check the server with: hark doctor --url {self.url}"
        if isinstance(error, TimeoutError):
            return f"no response from {self.url} within {timeout:g} seconds\n{check}"
        if isinstance(error, ssl.SSLError):
            return refused_by_tls(self.url, error)
        if connecting:
            return (
                f"cannot connect to {self.url}: {error}\nstart a server with `hark serve`, or check --url and HARK_URL"
            )
        return f"the connection to {self.url} was lost: {error or type(error).__name__}\n{check}"


def _path(operation: Operation[Any], names: Sequence[str]) -> str:
    """Return the path of an operation; an empty name would make it that of another one."""
    if not all(names) and not operation.path.endswith(":path}"):
        raise Misuse("a name or an ID is empty; names and IDs must not be empty")
    return operation.at(*names)


def _usable(check: Callable[[str, str], T], value: str, name: str) -> T:
    try:
        return check(value, name)
    except InvalidInput as error:
        raise Misuse(error.text) from error


def json_or_text(given: bytes, what: str, *, text: bool, hint: str) -> msgspec.Raw:
    """Check that an argument is JSON, or make it a JSON string; the hint shows how to quote it."""
    try:
        if text:
            return msgspec.Raw(msgspec.json.encode(given.decode()))
        msgspec.json.decode(given)
    except UnicodeDecodeError as error:
        raise Misuse(f"{what} is not UTF-8: {error}; correct its encoding") from None
    except (msgspec.DecodeError, RecursionError) as error:
        problem = f"{what} is not JSON: {given[:80].decode(errors='replace')} ({error})"
        raise Misuse(problem, hint=f"quote JSON for the shell: {hint}") from None
    return msgspec.Raw(given)
