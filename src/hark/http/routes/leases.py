"""Renewal of several leases. (`hot.py` renews one.)"""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hark.http.answers.messages import ExtendedLeases
from hark.http.renewals import renew_all
from hark.http.routes.requests import TOO_MANY, broker_of, read_json, reply, settings_of
from hark.http.routes.table import Reach, Table, write


class ExtendManyBody(msgspec.Struct, rename="camel"):
    """The leases to renew, and the length of the renewal."""

    lease_ids: list[str]
    seconds: int | None = None


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
}
