"""HTTP by aiohttp: of the clients with years of upkeep the fastest that we measured (bench/client/libraries.py)."""

from __future__ import annotations

import io
import ssl
from urllib.parse import urlencode

import aiohttp
from yarl import URL

from hark.client.transport.api import Answer, ConnectionFailed, Home, Request, query_text, retry_after_seconds
from hark.client.transport.credentials import refused_by_tls
from hark.errors import HarkError, InvalidInput

_JSON = {"Content-Type": "application/json"}
_CONNECT_SECONDS = 10.0
_AT_ONCE = 2**20
"""Bytes that aiohttp takes in one piece; it reads larger bodies in parts."""


class HttpTransport:
    """One server, over as many connections as there are requests at a time."""

    def __init__(self, url: str, headers: dict[str, str] | None = None, tls: ssl.SSLContext | None = None) -> None:
        try:
            base = URL(url)
        except (ValueError, TypeError):
            base = URL()
        if base.scheme not in ("http", "https") or not base.host or base.query_string or base.fragment:
            raise InvalidInput(f"{url!r} is not the URL of a server: expected something like http://127.0.0.1:6632")
        self._base = str(base).rstrip("/")
        self._headers = headers or {}
        self.tls = tls
        """Whom to trust; None: whom the system trusts."""
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._home = Home()

    @property
    def url(self) -> str:
        """Where to."""
        return self._base

    async def send(self, request: Request) -> Answer:
        """Ask once; raises `ConnectionFailed` when there is no answer."""
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
                content = await response.read()
                return Answer(response.status, content, retry_after_seconds(response.headers.get("Retry-After")))
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise unreachable(self._base, error) from error
        except TimeoutError as error:
            raise ConnectionFailed(f"no answer from {self._base} within {request.timeout:g} s", sent=True) from error
        except (aiohttp.ClientError, OSError) as error:
            text = f"the connection to {self._base} broke: {str(error) or type(error).__name__}"
            raise ConnectionFailed(text, sent=True) from error

    def fork(self) -> HttpTransport:
        """The same way for another event loop."""
        return HttpTransport(self._base, self._headers, self.tls)

    async def close(self) -> None:
        """Close all connections; nothing more is sent."""
        self._closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        if self._closed:
            # A call that is tried again, or a watch, would open connections that nobody closes.
            raise HarkError("the client is closed; connect again", code="client_closed")
        # Made at the first request: a session belongs to the loop that runs then.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60, ssl=self.tls or True),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers,
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        # Else aiohttp asks again by itself when the reply to a GET is lost. A pop that settles would take twice.
        self._session._retry_connection = False
        return self._session


def unreachable(url: str, error: Exception) -> ConnectionFailed:
    """What it means that there is no connection. A certificate that is not trusted today is not trusted in a second."""
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
    return ConnectionFailed(f"no server at {url}: {reason}; is it running? (hark serve)", sent=False)
