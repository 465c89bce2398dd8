"""HTTP with aiohttp: the fastest of the maintained client libraries that we measured (bench/client/libraries.py)."""

from __future__ import annotations

import io
import ssl
import sys
from urllib.parse import urlencode

import aiohttp
from yarl import URL

from hark.client.transport.api import Answer, ConnectionFailed, Home, Request, query_text, retry_after_seconds
from hark.client.transport.credentials import refused_by_tls
from hark.errors import HarkError, InvalidInput

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
        self._base = str(base).rstrip("/")
        self._headers = headers or {}
        self.tls = tls
        """The TLS context. None: trust what the system trusts."""
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._home = Home()

    @property
    def url(self) -> str:
        """The address of the server."""
        return self._base

    async def send(self, request: Request) -> Answer:
        """Send one request. Raises `ConnectionFailed` if there is no response."""
        self._home.check()
        session = self._session or self._open()
        url = self._base + request.path
        if request.query:
            query = {name: query_text(value) for name, value in request.query.items() if value is not None}
            url = f"{url}?{urlencode(query)}"
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
            raise unreachable(self._base, error) from error
        except TimeoutError as error:
            raise ConnectionFailed(f"no response from {self._base} within {request.timeout:g} s", sent=True) from error
        except (aiohttp.ClientError, OSError) as error:
            text = f"the connection to {self._base} broke: {str(error) or type(error).__name__}"
            raise ConnectionFailed(text, sent=True) from error

    def fork(self) -> HttpTransport:
        """The same transport for another event loop."""
        return HttpTransport(self._base, self._headers, self.tls)

    async def close(self) -> None:
        """Close all connections. Nothing more can be sent."""
        self._closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        if self._closed:
            # A retry or a watch would open connections that nothing closes.
            raise HarkError("the client is closed; create a new one with connect()", code="client_closed")
        # Created at the first request, because a session belongs to the running event loop.
        self._session = aiohttp.ClientSession(
            connector=connector(self.tls),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers,
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
