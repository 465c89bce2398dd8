"""Counts and times calls of endpoints for the metrics of the key-value API."""

from __future__ import annotations

from functools import wraps

from starlette.requests import Request
from starlette.responses import Response

from hark.broker.operations import Operation
from hark.http.routes.requests import broker_of
from hark.http.routes.table import Endpoint


def measured(operation: Operation, endpoint: Endpoint) -> Endpoint:
    """Return an endpoint whose calls count as an operation."""

    @wraps(endpoint)
    async def measuring(request: Request) -> Response:
        with broker_of(request).operations.measure(operation):
            return await endpoint(request)

    return measuring
