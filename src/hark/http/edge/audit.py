"""The audit log: one record for each action of an administrator, each destructive one, and each refusal of a token.

Records go to the logger `hark.audit`, to a file if the settings name one, and the last of them are kept in memory. They
say who did what to what and how it ended; they never have payloads or tokens.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

import msgspec

from hark.access.identity import Role
from hark.clock import Clock
from hark.errors import StoreUnusable
from hark.http.checks import format_time_ms, short
from hark.http.edge.identities import NOBODY, identity_of
from hark.http.edge.request_ids import request_id_of
from hark.http.responses import Scope, encode
from hark.http.routes.table import Operation

log = logging.getLogger("hark.audit")

KEPT = 200
"""Records that are kept in memory."""
TARGET = "hark.audit_target"
"""Under this name the scope of a request has what its body says about the target, if an endpoint noted that."""
AUDITED = frozenset(
    {
        "cancel_message",
        "change_settings",
        "configure",
        "delete_dead_letter",
        "delete_many",
        "delete_message",
        "delete_message_by_id",
        "limit_group",
        "pause_group",
        "pause_queue",
        "purge_group",
        "requeue",
        "requeue_many",
        "resubscribe",
        "resume_group",
        "resume_queue",
        "seek_partition",
        "seek_queue",
    }
)
"""Endpoints that are written down beside those that need the role admin and change something."""
_REFUSALS_AT_ONCE = 20
_REFUSALS_PER_SECOND = 1.0
_LONGEST = 255
"""Characters of a name in a record: longer ones are refused, but written down before."""
_IN_QUERY = ("queue", "consumerGroup", "partition", "from", "to", "id")


class AuditRecord(msgspec.Struct, frozen=True, rename="camel"):
    """Who did what to what, when, from where, and how it ended."""

    at: str
    action: str
    """Such as `delete_queue`, `login` or `refused`."""
    subject: str
    """Who; empty when authentication is off, or nobody was recognised."""
    role: str
    """Empty when nobody was recognised."""
    target: dict[str, Any]
    status: int
    """The HTTP status of the answer."""
    result: str
    """`done`, or the code of the error."""
    request_id: str
    client: str
    """The address that the request came from."""
    suppressed: int = 0
    """Refusals that were not written down before this one, because there were too many."""


class Audit:
    """Writes records, and keeps the last ones."""

    def __init__(self, clock: Clock, path: str = "", now: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._now = now
        self.last: deque[AuditRecord] = deque(maxlen=KEPT)
        """The newest at the end."""
        self._file = _open(path) if path else None
        self._allowance = float(_REFUSALS_AT_ONCE)
        self._refilled_at = now()
        self._suppressed = 0

    def record(
        self, scope: Scope, action: str, status: int, result: str, target: Mapping[str, Any], suppressed: int = 0
    ) -> None:
        """Write down what was done by a request."""
        identity = identity_of(scope)
        self._write(
            AuditRecord(
                format_time_ms(self._clock.now()),
                action,
                identity.subject,
                "" if identity is NOBODY else identity.role.text,
                dict(target),
                status,
                result,
                request_id_of(scope),
                client_of(scope),
                suppressed,
            )
        )

    def refused(self, scope: Scope, status: int, code: str) -> None:
        """Write down that somebody was not let in; not every time when it happens all the time."""
        now = self._now()
        earned = (now - self._refilled_at) * _REFUSALS_PER_SECOND
        self._allowance = min(float(_REFUSALS_AT_ONCE), self._allowance + earned)
        self._refilled_at = now
        if self._allowance < 1:
            self._suppressed += 1
            return
        self._allowance -= 1
        suppressed, self._suppressed = self._suppressed, 0
        target = {"method": scope.get("method", "WEBSOCKET"), "path": short(scope["path"])}
        self.record(scope, "refused", status, code, target, suppressed)

    def _write(self, record: AuditRecord) -> None:
        self.last.append(record)
        log.info("audit", extra={"fields": msgspec.to_builtins(record)})
        if self._file is not None:
            try:
                os.write(self._file, encode(record) + b"\n")
            except OSError as error:
                log.error("the audit file can't be written: %s", error.strerror)


def is_audited(scope: Scope, operation: Operation) -> bool:
    """Whether what a request does is written down."""
    if operation.raw or scope["method"] in ("GET", "HEAD"):
        return False
    return operation.role is Role.ADMIN or operation.endpoint.__name__ in AUDITED


def target_of(scope: Scope, params: Mapping[str, object], query: Mapping[str, str]) -> dict[str, object]:
    """What an action was about: names from the path, the query, and what its endpoint noted of the body."""
    asked = {name: query[name] for name in _IN_QUERY if query.get(name)}
    noted: Mapping[str, object] = scope.get(TARGET, {})
    named = {name: value[:_LONGEST] if isinstance(value, str) else value for name, value in {**asked, **params}.items()}
    return {**named, **noted}


def note_target(scope: Scope, **said: object) -> None:
    """Say what an action is about, where only its body tells."""
    scope[TARGET] = scope.get(TARGET, {}) | said


def client_of(scope: Scope) -> str:
    """The address that a request came from."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def _open(path: str) -> int:
    """The file, made for its owner alone; each record is one write at its end, so that several processes share it."""
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreUnusable(
            f"audit.file: can't write {path!r}: {error.strerror}; choose a file in a directory that exists",
            code="audit_file_unusable",
        ) from error
