"""Limits of HTTP on a connection, and the errors of requests that are rejected before they are read completely."""

from __future__ import annotations

from typing import NamedTuple

MAX_HEADERS = 100
MAX_HEADER_BYTES = 64 * 1024
"""Size limit of all headers of a request together."""
MAX_TARGET_BYTES = 256 * 1024
"""Size limit of path and query: a prefix poll sends the versions of up to a thousand keys."""
MAX_FRAMING_BYTES = 64 * 1024
"""Size limit of chunk sizes, chunk extensions and trailers beyond the size of the body itself."""
MIN_BODY_BYTES_PER_SECOND = 1024
"""The server rejects a body that arrives more slowly than this, averaged over `limits.body_timeout_seconds`."""
MAX_PIPELINED = 16
"""Number of complete requests that wait on a connection before the server stops reading from it."""
IDLE_SECONDS = 75.0
"""A connection without a request is closed after this time."""
MAX_LENGTH_DIGITS = 20
"""More digits than this in a Content-Length are leading zeros."""
LINGER_SECONDS = 5.0
"""After an early error response, the server reads and drops what the client still sends for this time."""
LINGER_BODIES = 4
"""It drops at most this many bodies of the largest size."""


class Problem(NamedTuple):
    """The reason to reject a request before it is read completely."""

    status: int
    code: str
    text: str
    retry_after: int | None = None


MALFORMED = Problem(400, "invalid_http", "the request is not valid HTTP/1.1")
HEAD_TOO_LARGE = Problem(
    431,
    "headers_too_large",
    f"the headers or the URL are too large: at most {MAX_HEADERS} headers with {MAX_HEADER_BYTES} bytes in total, and "
    f"{MAX_TARGET_BYTES} bytes of path and query",
)
FRAMING_TOO_LARGE = Problem(
    400, "invalid_http", "the chunk extensions and trailers of the request are too large; send larger chunks"
)
UNKNOWN_CODING = Problem(501, "not_supported", "the only supported transfer encoding is chunked")
SLOW = Problem(
    408,
    "request_timeout",
    "the request did not arrive in time (settings limits.header_timeout_seconds and limits.body_timeout_seconds); "
    "send it again",
)
TOO_MANY = Problem(
    503,
    "too_many_connections",
    "the server has too many connections (setting limits.max_connections); retry later, or reuse connections",
    1,
)
