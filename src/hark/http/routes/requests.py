"""Helpers of all endpoints: the broker, the checked parts of a request, and JSON responses."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TypeVar, cast

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from hark.broker import Broker
from hark.errors import BodyTooLarge, InvalidInput
from hark.http.checks import check_name, check_text, decode_json, query_params
from hark.http.routes.table import Failure
from hark.settings import Settings

T = TypeVar("T")

NO_QUEUE = Failure(404, "queue_not_found")
NO_GROUP = Failure(404, "group_not_found")
NO_MESSAGE = Failure(404, "message_not_found")
TOO_MANY = Failure(400, "batch_too_large")
NOT_SUPPORTED = Failure(501, "not_supported")
MAINTENANCE = Failure(503, "maintenance")
QUEUE_FULL = Failure(429, "queue_full")
ANOTHER_MODE = Failure(409, "group_mode_conflict")


def broker_of(request: Request) -> Broker:
    """Return the broker of this server."""
    return cast(Broker, request.app.broker)


def settings_of(request: Request) -> Settings:
    """Return the settings of this server."""
    return cast(Settings, request.app.settings)


def name_in_path(request: Request, name: str) -> str:
    """Return a checked name from the path."""
    return check_name(request.path_params[name], name)


def text_in_path(request: Request, name: str) -> str:
    """Return an id from the path. An unknown id is not an error of the request."""
    return check_text(request.path_params[name], name)


async def read_body(request: Request, most: int | None = None) -> bytes:
    """Return the whole body; raises `BodyTooLarge` if it is over the limit of the settings, or over `most`."""
    limit = settings_of(request).max_body_bytes if most is None else most
    declared = request.headers.get("content-length", "")
    body = bytearray()
    if not (declared.isdecimal() and int(declared) > limit):
        try:
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    break
            else:
                return bytes(body)
        except ClientDisconnect:
            raise InvalidInput("the client disconnected before the request body was complete") from None
    setting = " (setting max_body_bytes); send smaller batches" if most is None else ""
    raise BodyTooLarge(f"the request body is over {limit} bytes{setting}")


async def read_json(
    request: Request, type: type[T], what: str, texts: Mapping[str, str] | None = None, most: int | None = None
) -> T:
    """Return the decoded body."""
    return decode_json(await read_body(request, most), type, what, texts)


async def read_optional_json(request: Request, type: type[T], what: str) -> T:
    """Return the decoded body; an empty body means all defaults."""
    return decode_json(await read_body(request) or b"{}", type, what)


def query_of(request: Request) -> dict[str, str]:
    """Return the query parameters. (starlette would use the last of repeated parameters, and accept invalid UTF-8.)"""
    return query_params(request.scope["query_string"])


def now() -> int:
    """Return the current time for ages in responses. (Due times depend only on the clock of the engine.)"""
    return time.time_ns() // 1000


def reply(content: object, status: int = 200) -> Response:
    """Return a JSON response. `msgspec.Raw` parts are sent byte for byte."""
    return Response(msgspec.json.encode(content), status, media_type="application/json")
