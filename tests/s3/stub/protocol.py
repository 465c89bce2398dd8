"""From HTTP to requests of the store: the part of the protocol of S3 that Hark's client speaks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import msgspec
from aiohttp import web

from tests.s3.stub.store import Request

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_MESSAGES = {
    "ConditionalRequestConflict": "A conflicting conditional operation is currently in progress against this resource.",
    "InternalError": "We encountered an internal error. Please try again.",
    "InvalidRange": "The requested range is not satisfiable.",
    "NoSuchBucket": "The specified bucket does not exist.",
    "NoSuchKey": "The specified key does not exist.",
    "PreconditionFailed": "At least one of the pre-conditions you specified did not hold.",
    "SlowDown": "Please reduce your request rate.",
}


class BadRequest(Exception):
    """A request that the stub does not understand."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


class Target(msgspec.Struct, frozen=True):
    """What a request line and the range name."""

    method: str
    bucket: str
    key: str
    deletes_many: bool
    first: int | None
    last: int | None


def target_of(request: web.BaseRequest) -> Target:
    """Read the path (`/bucket/key`), the query and the range."""
    _, bucket, *rest = request.path.split("/", 2)
    found = _RANGE.fullmatch(request.headers.get("Range", ""))
    first = int(found[1]) if found else None
    last = int(found[2]) if found and found[2] else None
    deletes_many = request.method == "POST" and "delete" in request.query
    return Target(request.method, bucket, rest[0] if rest else "", deletes_many, first, last)


def request_of(target: Target, headers: Mapping[str, str], body: bytes) -> Request:
    """What the store is asked. Raises `BadRequest`."""
    if target.deletes_many:
        keys = tuple(element.text or "" for element in ElementTree.fromstring(body).iter() if _is_key(element))
        return Request(kind="delete", key=keys[0] if keys else "", keys=keys)
    if target.method == "GET" and not target.key:
        return Request(kind="list", key="")
    if target.method in {"GET", "HEAD"}:
        # HEAD costs what GET costs.
        return Request(kind="get", key=target.key, first=target.first, last=target.last)
    if target.method == "DELETE" and target.key:
        return Request(kind="delete", key=target.key)
    if target.method == "PUT":
        absent = headers.get("If-None-Match")
        if absent not in {None, "*"}:
            raise BadRequest(501, "NotImplemented")
        return Request(
            kind="put",
            key=target.key,
            body=body,
            if_absent=absent is not None,
            if_match=_quoted(headers.get("If-Match")),
        )
    raise BadRequest(405, "MethodNotAllowed")


def error_body(code: str, key: str) -> bytes:
    """An error as S3 writes it."""
    message = _MESSAGES.get(code, code)
    text = f"<Code>{code}</Code><Message>{message}</Message><Key>{escape(key)}</Key><RequestId>stub</RequestId>"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{text}</Error>'.encode()


async def read_body(request: web.BaseRequest) -> bytes:
    """The body, without the chunks in which some clients wrap it. Of any size: `request.read` stops at 1 MB."""
    body = await request.content.read()
    if "aws-chunked" in request.headers.get("Content-Encoding", ""):
        return _without_chunks(body)
    return body


def _without_chunks(body: bytes) -> bytes:
    """Chunks are `size in hex[;signature]`, a line end, the bytes, a line end; the last is empty."""
    parts: list[bytes] = []
    place = 0
    while True:
        end = body.index(b"\r\n", place)
        size = int(body[place:end].split(b";")[0], 16)
        if size == 0:
            return b"".join(parts)
        parts.append(body[end + 2 : end + 2 + size])
        place = end + 2 + size + 2


def _is_key(element: ElementTree.Element) -> bool:
    return element.tag.rpartition("}")[2] == "Key"


def _quoted(etag: str | None) -> str | None:
    """S3 takes an ETag with quotes and without."""
    return etag if etag is None or etag.startswith('"') else f'"{etag}"'
