"""Metrics for Prometheus."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from hark.http.routes.table import Reach, Table, read
from hark.prometheus import CONTENT_TYPE


async def scrape(request: Request) -> Response:
    """Get metrics for Prometheus. Returns all metrics of the server in the Prometheus text format."""
    body = await request.app.metrics.scrape()
    return Response(body, headers={"content-type": CONTENT_TYPE})


_SCRAPE = read(scrape, Reach.SERVER, answer=str, media="text/plain")

TABLE: Table = {
    "/metrics": {"GET": _SCRAPE},
    "/metrics/prometheus": {"GET": _SCRAPE},
}
