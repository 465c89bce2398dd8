"""What administrators did lately."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hark.http.edge.admitting import edge_of
from hark.http.edge.audit import KEPT, AuditRecord
from hark.http.params import IntParam
from hark.http.routes.requests import query_of, reply
from hark.http.routes.table import Reach, Table, admin

_LIMIT = IntParam("limit", "How many records at most.", KEPT, 1, KEPT)


class AuditRecords(msgspec.Struct):
    """The last records of this server process, newest first."""

    records: list[AuditRecord]


async def list_audit(request: Request) -> Response:
    """The last records of the audit log that this server process wrote, newest first."""
    limit = _LIMIT.of(query_of(request))
    return reply(AuditRecords(list(edge_of(request).audit.last)[::-1][:limit]))


TABLE: Table = {"/api/v1/system/audit": {"GET": admin(list_audit, Reach.SERVER, query=(_LIMIT,), answer=AuditRecords)}}
