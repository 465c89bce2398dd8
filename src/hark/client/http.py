"""HTTP with aiohttp, and failover between servers on the same store."""

from __future__ import annotations

import io
import ssl
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

import aiohttp
import msgspec
from yarl import URL

from hark.api.types import ErrorAnswer
from hark.client.arguments import refused_by_tls
from hark.client.calling import Answer, ConnectionFailed, Home, Request, Transport, client_closed, retry_after_seconds
from hark.errors import InvalidInput

_JSON = {"Content-Type": "application/json"}
_CONNECT_SECONDS = 10.0
_AT_ONCE = 2**20
"""Bytes that aiohttp sends in one piece. It reads larger bodies in parts."""


def connector(tls: ssl.SSLContext | None) -> aiohttp.TCPConnector:
    """The connections of a session. Closing the session also ends connections that a cancelled request left behind."""
    # Such a connection waits for the server to end TLS. Before Python 3.12.8, aiohttp forgets it unless asked not to.
    return aiohttp.TCPConnector(
        limit=0, keepalive_timeout=60, ssl=tls or True, enable_cleanup_closed=sys.version_info < (3, 12, 8)
    )


class HttpTransport:
    """One server, with as many connections as there are concurrent requests."""

    def __init__(self, url: str, headers: dict[str, str] | None = None, tls: ssl.SSLContext | None = None) -> None:
        try:
            base = URL(url)
        except (ValueError, TypeError):
            base = URL()
        if base.scheme not in ("http", "https") or not base.host or base.query_string or base.fragment:
            raise InvalidInput(f"{url!r} is not the URL of a server; expected for example http://127.0.0.1:6632")
        self.url = str(base).rstrip("/")
        """The address of the server."""
        self.headers = headers or {}
        """Headers of every request."""
        self.tls = tls
        """The TLS context. None: trust what the system trusts."""
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._home = Home()

    async def send(self, request: Request) -> Answer:
        self._home.check()
        session = self._session or self._open()
        url = self.url + request.path
        if request.query:
            url = f"{url}?{request.query_string}"
        body: bytes | io.BytesIO | None = request.body
        if request.body is not None and len(request.body) > _AT_ONCE:
            body = io.BytesIO(request.body)
        headers = _JSON if body is not None else None
        if request.headers:
            headers = {**(headers or {}), **request.headers}
        try:
            async with session.request(
                request.method,
                URL(url, encoded=True),
                data=body,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=request.timeout, sock_connect=_CONNECT_SECONDS),
                allow_redirects=False,
            ) as response:
                first = b""
                if request.first_line is not None and response.status == 200:
                    first = await response.content.readline()
                    request.first_line(first)
                content = first + await response.read()
                return Answer(response.status, content, retry_after_seconds(response.headers.get("Retry-After")))
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise unreachable(self.url, error) from error
        except TimeoutError as error:
            raise ConnectionFailed(f"no response from {self.url} within {request.timeout:g} s", sent=True) from error
        except (aiohttp.ClientError, OSError) as error:
            text = f"the connection to {self.url} broke: {str(error) or type(error).__name__}"
            raise ConnectionFailed(text, sent=True) from error

    def fork(self) -> HttpTransport:
        return HttpTransport(self.url, self.headers, self.tls)

    async def close(self) -> None:
        self._closed = True
        session, self._session = self._session, None  # Before it is closed, so that nothing is sent with it meanwhile.
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._closed:
            # A retry or a watch would open connections that nothing closes.
            raise client_closed()
        # Created at the first request, because a session belongs to the running event loop.
        self._session = aiohttp.ClientSession(
            connector=connector(self.tls),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self.headers,
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        # Otherwise aiohttp repeats a GET automatically after a lost reply. A pop with automatic acks would pop twice.
        self._session._retry_connection = False
        return self._session


def unreachable(url: str, error: Exception) -> ConnectionFailed:
    """The error for a failed connection. An untrusted certificate is not retried."""
    cause: BaseException = error
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        cause = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
    if isinstance(cause, ssl.SSLError):
        failure = ConnectionFailed(refused_by_tls(url, cause), sent=False)
        failure.retryable = False
        return failure
    reason = str(cause) or type(cause).__name__
    return ConnectionFailed(
        f"cannot connect to {url}: {reason}; check the URL, and that the server is running (hark serve)", sent=False
    )


_ELSEWHERE = frozenset({"stopping", "engine_failure", "store_unavailable"})
"""Errors after which nothing was done, and that another server may not have."""
_IN_TROUBLE = frozenset({502, 503, 504})


_decode_problem = msgspec.json.Decoder(ErrorAnswer).decode


class FailoverTransport:
    """Sends requests to one of several servers on the same store, and to another if it is unreachable or shutting down.

    A request whose reply was lost is not repeated here, because it may have been applied. The caller decides, and its
    next request goes to another server. A server that failed is the last choice for `pause` seconds.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        pause: float = 5.0,
        monotonic: Callable[[], float] = time.monotonic,
        make: Callable[[str], Transport] = HttpTransport,
    ) -> None:
        if not urls:
            raise InvalidInput("urls: expected at least one server")
        self.urls = tuple(dict.fromkeys(urls))
        """All servers, in order of preference."""
        self._pause = pause
        self._monotonic = monotonic
        self._make = make
        self.servers = [make(url) for url in self.urls]
        self._failed_at: dict[int, float] = {}
        self._current = 0

    @property
    def url(self) -> str:
        """The server in use."""
        return self.servers[self._current].url

    async def send(self, request: Request) -> Answer:
        """Send one request to an available server. Raises `ConnectionFailed` if there is no response."""
        refused: Answer | None = None
        unreachable: list[ConnectionFailed] = []
        for index in self._order():
            try:
                answer = await self.servers[index].send(request)
            except ConnectionFailed as error:
                self._leave(index)
                if error.sent:
                    raise
                unreachable.append(error)
                continue
            if answer.status in _IN_TROUBLE:
                try:
                    code = _decode_problem(answer.body).code
                except (msgspec.DecodeError, UnicodeDecodeError):
                    code = None  # The response comes from a proxy.
                if code in _ELSEWHERE or code is None:
                    self._leave(index)
                if code in _ELSEWHERE:
                    refused = answer
                    continue
            else:
                self._stay(index)
            return answer
        if refused is not None:
            return refused
        if len(unreachable) == 1:
            raise unreachable[0]
        texts = "; ".join(failure.text for failure in unreachable)
        raise ConnectionFailed(f"none of {len(unreachable)} servers can be reached: {texts}", sent=False)

    def fork(self) -> FailoverTransport:
        return FailoverTransport(self.urls, pause=self._pause, monotonic=self._monotonic, make=self._make)

    async def close(self) -> None:
        async with AsyncExitStack() as servers:  # All of them, even if one fails or this is cancelled.
            for server in self.servers:
                servers.push_async_callback(server.close)

    def _order(self) -> list[int]:
        """The server in use and the following ones. Servers that failed recently are last, the latest at the end."""
        ring = [(self._current + step) % len(self.servers) for step in range(len(self.servers))]
        if not self._failed_at:
            return ring
        recent = self._monotonic() - self._pause
        return sorted(ring, key=lambda index: max(recent, self._failed_at.get(index, recent)))

    def _leave(self, index: int) -> None:
        """A server failed: the next request goes to another one."""
        self._failed_at[index] = self._monotonic()
        self._current = self._order()[0]

    def _stay(self, index: int) -> None:
        """A server works: use it until it fails, unless the current one works as well."""
        if self._current in self._failed_at:
            self._current = index
        self._failed_at.pop(index, None)
