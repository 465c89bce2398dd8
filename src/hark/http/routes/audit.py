"""The route of the audit log."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hark.http.edge.admitting import edge_of
from hark.http.edge.audit import KEPT, AuditRecord
from hark.http.params import IntParam
from hark.http.routes.requests import query_of, reply
from hark.http.routes.table import Reach, Table, admin

_LIMIT = IntParam("limit", "Maximum number of records to return.", KEPT, 1, KEPT)


class AuditRecords(msgspec.Struct):
    """The latest audit records of this server process, the newest first."""

    records: list[AuditRecord]


async def list_audit(request: Request) -> Response:
    """List audit records. Returns the latest audit records of this server process, the newest first."""
    limit = _LIMIT.of(query_of(request))
    return reply(AuditRecords(list(edge_of(request).audit.last)[::-1][:limit]))


TABLE: Table = {"/api/v1/system/audit": {"GET": admin(list_audit, Reach.SERVER, query=(_LIMIT,), answer=AuditRecords)}}
