"""Renewal of one lease or several leases."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hark.http.answers.messages import ExtendedLease, ExtendedLeases
from hark.http.checks import format_time_ms
from hark.http.renewals import renew_all, renewal_seconds
from hark.http.routes.requests import (
    TOO_MANY,
    broker_of,
    read_json,
    read_optional_json,
    reply,
    settings_of,
    text_in_path,
)
from hark.http.routes.table import Reach, Table, write
from hark.model import Renewal


class ExtendBody(msgspec.Struct):
    """The length of the renewal. The body can be empty."""

    seconds: int | None = None


class ExtendManyBody(msgspec.Struct, rename="camel"):
    """The leases to renew, and the length of the renewal."""

    lease_ids: list[str]
    seconds: int | None = None


async def extend(request: Request) -> Response:
    """Renew a lease.

    Extends the lease until `seconds` from now, unless it already lasts longer. An expired or unknown lease returns 200
    with `success` false.
    """
    lease_id = text_in_path(request, "lease_id")
    body = await read_optional_json(request, ExtendBody, "extend")
    outcome = await broker_of(request).renew(Renewal(lease_id, renewal_seconds(body.seconds)))
    expires = None if outcome.expires_at is None else format_time_ms(outcome.expires_at)
    # The official clients read the time under different names.
    answer: ExtendedLease = {
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


async def extend_many(request: Request) -> Response:
    """Renew several leases.

    Extends each lease until `seconds` from now, unless it already lasts longer. The results have the order of the
    leases.
    """
    body = await read_json(request, ExtendManyBody, "extend")
    most = settings_of(request).limits.max_batch
    answer: ExtendedLeases = {"results": await renew_all(broker_of(request), body.lease_ids, body.seconds, most)}
    return reply(answer)


TABLE: Table = {
    "/api/v1/lease/extend": {
        "POST": write(extend_many, Reach.ITEMS, body=ExtendManyBody, answer=ExtendedLeases, errors=(TOO_MANY,))
    },
    "/api/v1/lease/{lease_id}/extend": {
        "POST": write(extend, Reach.ITEMS, body=ExtendBody, body_optional=True, answer=ExtendedLease)
    },
}
