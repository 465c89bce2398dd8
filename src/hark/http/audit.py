"""The audit log and the access log."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic, perf_counter
from typing import Any

import msgspec

from hark.access.tokens import ANONYMOUS
from hark.api.operations import Role
from hark.api.types.server import AuditRecord
from hark.clock import Clock
from hark.errors import StoreUnusable
from hark.http.checks import short, time_of
from hark.http.exchange import Exchange, current_exchange, request_id_of
from hark.http.responses import encode

# Refused requests without a token are not recorded: they are in the metrics and in the access log.
#
# Records go to the logger `hark.audit` and, if the settings name a file, to that file. The latest records are kept in
# memory. They never contain payloads or tokens.

log = logging.getLogger("hark.audit")

KEPT = 200
"""Number of records that are kept in memory."""
AUDITED = frozenset(
    {
        "cancel_message",
        "change_settings",
        "configure",
        "delete_dead_letter",
        "delete_many",
        "delete_message",
        "delete_message_by_id",
        "delete_schedule",
        "limit_group",
        "pause_group",
        "pause_queue",
        "pause_schedule",
        "purge_group",
        "put_schedule",
        "requeue",
        "requeue_many",
        "resubscribe",
        "resume_group",
        "resume_queue",
        "resume_schedule",
        "run_schedule",
        "seek_partition",
        "seek_queue",
    }
)
"""Audited endpoints, in addition to those that change something and require the role admin."""
_REFUSALS_AT_ONCE = 20
_REFUSALS_PER_SECOND = 1.0
_LONGEST = 255
"""Maximum number of characters of a name in a record."""
_IN_QUERY = ("queue", "consumerGroup", "partition", "from", "to", "id")


class Audit:
    """Writes records and keeps the latest ones."""

    def __init__(self, clock: Clock, path: str = "", now: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._now = now
        self.last: deque[AuditRecord] = deque(maxlen=KEPT)
        """The newest record is the last."""
        self._file = _open(path) if path else None
        self._allowance = float(_REFUSALS_AT_ONCE)
        self._refilled_at = now()
        self._suppressed = 0

    def record(
        self, exchange: Exchange, action: str, status: int, result: str, target: Mapping[str, Any], suppressed: int = 0
    ) -> None:
        """Record an action of a request."""
        identity = exchange.identity
        record = AuditRecord(
            time_of(self._clock.now()),
            action,
            identity.subject,
            "" if identity is ANONYMOUS else identity.role.text,
            dict(target),
            status,
            result,
            request_id_of(exchange),
            client_of(exchange),
            suppressed,
        )
        self.last.append(record)
        log.info("audit", extra={"fields": msgspec.to_builtins(record)})
        if self._file is not None:
            try:
                os.write(self._file, encode(record) + b"\n")
            except OSError as error:
                log.error(
                    "cannot write to the audit file (setting audit.file): %s; free disk space or repair its "
                    "permissions",
                    error.strerror,
                )

    def refused(self, exchange: Exchange, status: int, code: str) -> None:
        """Record a refused request that has a token. Frequent refusals are only counted."""
        now = self._now()
        earned = (now - self._refilled_at) * _REFUSALS_PER_SECOND
        self._allowance = min(float(_REFUSALS_AT_ONCE), self._allowance + earned)
        self._refilled_at = now
        if self._allowance < 1:
            self._suppressed += 1
            return
        self._allowance -= 1
        suppressed, self._suppressed = self._suppressed, 0
        target = {"method": exchange.method, "path": short(exchange.path)}
        self.record(exchange, "refused", status, code, target, suppressed)


def is_audited(exchange: Exchange) -> bool:
    """Return whether a request is audited."""
    operation = exchange.operation
    if operation.raw or operation.hot or exchange.method in ("GET", "HEAD"):
        return False
    return operation.role is Role.ADMIN or operation.endpoint.__name__ in AUDITED


def target_of(exchange: Exchange, query: Mapping[str, str]) -> dict[str, object]:
    """Return the target of an action: names from the path, the query and the body."""
    parameters = {**{name: query[name] for name in _IN_QUERY if query.get(name)}, **exchange.params}
    named = {name: value[:_LONGEST] if isinstance(value, str) else value for name, value in parameters.items()}
    return {**named, **(exchange.audit_target or {})}


def client_of(exchange: Exchange) -> str:
    """Return the client address of a request."""
    return exchange.client[0] if exchange.client else ""


def _open(path: str) -> int:
    """Open the file with mode 0600. Each record is one append, so several processes can share the file."""
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreUnusable(
            f"audit.file: cannot write to {path!r}: {error.strerror}; choose a file in an existing, writable directory",
            code="audit_file_unusable",
        ) from error


access_log = logging.getLogger("hark.access")


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
        access_log.info("%s %s: %s", exchange.method, exchange.route, status, extra={"fields": fields})
    finally:
        current_exchange.reset(token)
