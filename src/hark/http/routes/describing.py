"""The route of the OpenAPI document."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from hark.http.routes.table import JSON, Table, public


async def show_openapi(request: Request) -> Response:
    """Get the OpenAPI document. Returns this document, for clients and code generators."""
    return Response(request.app.openapi, media_type=JSON)


TABLE: Table = {"/openapi.json": {"GET": public(show_openapi, answer=dict[str, Any])}}
