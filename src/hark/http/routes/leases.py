"""Leases: hold one longer."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hark.http.checks import check_int, format_time_ms
from hark.http.routes.requests import broker_of, read_optional_json, reply, text_in_path
from hark.http.routes.table import Table
from hark.model import Renewal

DEFAULT_SECONDS = 60
MAX_SECONDS = 10 * 365 * 86_400


class ExtendBody(msgspec.Struct):
    """How much longer; the body may be empty."""

    seconds: int | None = None


async def extend(request: Request) -> Response:
    """Hold a lease until now + seconds, in all partitions that share it; one that is gone is an answer."""
    lease_id = text_in_path(request, "lease_id")
    body = await read_optional_json(request, ExtendBody, "extend")
    seconds = DEFAULT_SECONDS if body.seconds is None else check_int(body.seconds, "seconds", 1, MAX_SECONDS)
    outcome = await broker_of(request).renew(Renewal(lease_id, seconds))
    expires = None if outcome.expires_at is None else format_time_ms(outcome.expires_at)
    # Three names for one time: each official client reads another one.
    answer: dict[str, object] = {
        "index": 0,
        "leaseId": lease_id,
        "success": outcome.success,
        "renewed": int(outcome.success),
        "error": outcome.error,
        "expiresAt": expires,
        "newExpiresAt": expires,
        "lease_expires_at": expires,
    }
    if not outcome.success:
        answer["code"] = outcome.code
    return reply(answer)


TABLE: Table = {"/api/v1/lease/{lease_id}/extend": {"POST": extend}}
