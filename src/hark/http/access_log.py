"""The access log: one line for each request, written when the request ends. It is off by default."""

from __future__ import annotations

import logging
from time import perf_counter

from hark.http.edge.audit import client_of
from hark.http.edge.request_ids import current_exchange
from hark.http.exchange import Exchange

log = logging.getLogger("hark.access")


def log_access(exchange: Exchange) -> None:
    """Log a request: method, route, status, duration, size, subject and client address."""
    fields = {
        "method": exchange.method,
        "route": exchange.route,
        "status": exchange.status or None,
        "ms": round((perf_counter() - exchange.started) * 1000, 3),
        "bytes": exchange.size,
        "subject": exchange.identity.subject,
        "client": client_of(exchange),
    }
    token = current_exchange.set(exchange)
    try:
        status = exchange.status or "no answer"
        log.info("%s %s: %s", exchange.method, exchange.route, status, extra={"fields": fields})
    finally:
        current_exchange.reset(token)
