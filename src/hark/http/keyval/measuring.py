"""Endpoints whose calls are counted and timed, for the key-value API's metrics."""

from __future__ import annotations

from functools import wraps

from starlette.requests import Request
from starlette.responses import Response

from hark.broker.operations import Operation
from hark.http.routes.requests import broker_of
from hark.http.routes.table import Endpoint


def measured(operation: Operation, endpoint: Endpoint) -> Endpoint:
    """An endpoint that counts as an operation."""

    @wraps(endpoint)
    async def measuring(request: Request) -> Response:
        with broker_of(request).operations.measure(operation):
            return await endpoint(request)

    return measuring
