"""Admission of requests: authentication, roles and permitted queues."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import cast

from starlette.requests import Request

from hark.access.authenticator import Authenticates, credential_of
from hark.access.identity import ANYBODY, Identity, Role
from hark.access.jwts import MAX_LENGTH
from hark.broker.work_queues import DEFAULT_QUEUE
from hark.clock import Clock, SystemClock
from hark.errors import Forbidden, HarkError, Overloaded, Unauthorized
from hark.http.checks import query_params
from hark.http.edge.answers import dressed
from hark.http.edge.audit import Audit, client_of, is_audited, target_of
from hark.http.edge.identities import IDENTITY, NOBODY, check_role, check_unrestricted
from hark.http.edge.request_ids import HEADER
from hark.http.edge.sessions import Guesses, cookie_value
from hark.http.edge.sites import Headers, Sites
from hark.http.edge.trace_contexts import PARENT_HEADER, note_context
from hark.http.responses import Receive, Scope, Send, refuse
from hark.http.routes.table import Operation, Reach
from hark.settings import Settings

METRICS_PATHS = frozenset({"/metrics", "/metrics/prometheus"})
_SCRAPER = Identity("", Role.READ_ONLY)
"""The identity of requests for public metrics."""
_KEYVAL = "/keyval/"
_KEPT_CREDENTIALS = 1024
_MAX_CREDENTIAL_BYTES = MAX_LENGTH + 64
"""Size limit of the header with its scheme, so that clients without a token cannot fill memory."""


class Edge:
    """Admits requests to the routes of one server."""

    def __init__(self, settings: Settings, authenticator: Authenticates, clock: Clock | None = None) -> None:
        self.authenticator = authenticator
        self.audit = Audit(clock or SystemClock(), settings.audit.file)
        self.guesses = Guesses()
        self._sites = Sites(
            settings.cors.origins, (*settings.allowed_hosts, settings.host), check_hosts=is_loopback(settings.host)
        )
        self._good_hosts = self._sites.good_hosts
        self._identify = authenticator.identify
        self._public_metrics = settings.auth.public_metrics
        self._credential_of = lru_cache(_KEPT_CREDENTIALS)(_credential_in)

    def admit(self, scope: Scope, operation: Operation, params: Mapping[str, object], send: Send) -> Send:
        """Admit a request and put its identity into its scope, or raise the reason for the refusal.

        Returns the `send` to use for the response. This runs for every request.
        """
        headers = dict(scope["headers"])
        if PARENT_HEADER in headers:
            note_context(scope, headers)
        if b"origin" in headers or b"sec-fetch-site" in headers:
            self._sites.check(headers, page=operation.role is None)
        if operation.role is None:
            scope[IDENTITY] = NOBODY
            return self._dressed(scope, operation, params, send, headers)
        if self._public_metrics and scope["path"] in METRICS_PATHS:
            scope[IDENTITY] = _SCRAPER
            return self._dressed(scope, operation, params, send, headers)
        given = headers.get(b"authorization")
        if given is not None:
            identity = self._identify(self._credential_of(given))
        else:
            identity = self._identify(self.credential(headers) if b"cookie" in headers else None)
        scope[IDENTITY] = identity
        if identity is ANYBODY:
            if headers.get(b"host") not in self._good_hosts:
                self._sites.check_host(headers.get(b"host"))
        elif identity.role < operation.role:
            check_role(identity, operation.role)
        elif identity.restricted:
            _check_reach(identity, scope, operation, params)
            return self._dressed(scope, operation, params, send, headers)
        # Successful responses of raw operations need no further headers.
        if operation.raw and b"origin" not in headers and HEADER not in headers:
            return send
        return self._dressed(scope, operation, params, send, headers)

    def credential(self, headers: Headers) -> str | None:
        """Return the token of a request, from its header or from the cookie of the dashboard."""
        given = headers.get(b"authorization")
        if given is not None:
            return self._credential_of(given)
        cookie = headers.get(b"cookie")
        return None if cookie is None or self._sites.is_foreign(headers) else cookie_value(cookie)

    def _dressed(
        self, scope: Scope, operation: Operation, params: Mapping[str, object], send: Send, headers: Headers
    ) -> Send:
        note = None
        if is_audited(scope, operation):
            note = partial(self._note_action, scope, operation, params)
        elif operation.reach is Reach.ITEMS:
            note = partial(self._note_forbidden, scope)
        return dressed(scope, send, self._sites.cors_headers(headers), note)

    # Audit log ---------------------------------------------------------------------------------------------

    def _note_action(self, scope: Scope, operation: Operation, params: Mapping[str, object], status: int) -> None:
        try:
            query = query_params(scope["query_string"])
        except HarkError:
            query = {}
        result = "done" if status < 400 else "failed"
        self.audit.record(scope, operation.endpoint.__name__, status, result, target_of(scope, params, query))

    def _note_forbidden(self, scope: Scope, status: int) -> None:
        if status == Forbidden.status:
            self.audit.refused(scope, status, "queue_not_allowed")

    # Refusing ----------------------------------------------------------------------------------------------

    async def refuse(self, scope: Scope, receive: Receive, send: Send, error: HarkError) -> None:
        """Respond to a request that is not admitted: a CORS preflight, or an error."""
        headers = dict(scope["headers"])
        scope.setdefault(IDENTITY, NOBODY)
        if isinstance(error, (Unauthorized, Forbidden)):
            self.audit.refused(scope, error.status, error.code)
        elif scope["type"] == "http" and scope["method"] == "OPTIONS":
            try:
                allowed = self._sites.preflight(headers)
            except Forbidden as forbidden:
                error = forbidden
            else:
                if allowed is not None:
                    answer = dressed(scope, send, allowed)
                    await answer({"type": "http.response.start", "status": 204, "headers": []})
                    await answer({"type": "http.response.body", "body": b""})
                    return
        await refuse(scope, receive, dressed(scope, send, self._sites.cors_headers(headers)), error)

    # Logins ------------------------------------------------------------------------------------------------

    def log_in(self, scope: Scope, token: str) -> Identity:
        """Return the identity of a token from the login page. Failed logins are limited by client address."""
        address = client_of(scope)
        try:
            self.guesses.check(address)
            identity = self.authenticator.identify(token)
        except Overloaded as error:
            self.audit.refused(scope, error.status, error.code)
            raise
        except (Unauthorized, Forbidden) as error:
            self.guesses.failed(address)
            self.audit.refused(scope, error.status, error.code)
            raise
        scope[IDENTITY] = identity
        return identity


def edge_of(request: Request) -> Edge:
    """Return the `Edge` of this server."""
    return cast(Edge, request.app.edge)


def _check_reach(identity: Identity, scope: Scope, operation: Operation, params: Mapping[str, object]) -> None:
    """Check a restricted token against the queue in the path or the query."""
    match operation.reach:
        case Reach.PATH:
            identity.check_queue(str(params["queue"]))
        case Reach.QUERY:
            queue = query_params(scope["query_string"]).get("queue")
            if not queue:
                if not scope["path"].startswith(_KEYVAL):
                    raise Forbidden(
                        "this token is restricted to some queues; name one of them with the parameter queue",
                        code="queue_not_allowed",
                    )
                queue = DEFAULT_QUEUE
            identity.check_queue(queue)
        case Reach.SERVER:
            check_unrestricted(identity, "this operation is")
        case Reach.NOTHING | Reach.ITEMS | Reach.LISTED:
            pass


def _credential_in(header: bytes) -> str | None:
    if len(header) > _MAX_CREDENTIAL_BYTES:
        raise Unauthorized("the token is too long; check that the Authorization header has a token of this server")
    return credential_of(header.decode("latin-1"))


def is_loopback(host: str) -> bool:
    """Return whether an address to listen on is reachable only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
