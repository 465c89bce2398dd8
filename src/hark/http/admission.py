"""Admission of requests: authentication, sessions of web browsers, roles and permitted queues."""

from __future__ import annotations

import asyncio
import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from hark.access.authenticator import Authenticates, credential_of
from hark.access.jwts import MAX_LENGTH
from hark.access.tokens import ANONYMOUS, UNRESTRICTED, Identity
from hark.api.operations import Reach, Role
from hark.broker import Broker
from hark.broker.work_queues import DEFAULT_QUEUE
from hark.clock import SystemClock
from hark.errors import Forbidden, HarkError, InvalidInput, Overloaded, Unauthorized
from hark.http.audit import Audit, client_of, is_audited, target_of
from hark.http.checks import query_params
from hark.http.exchange import EXCHANGE, HEADER, NO_HEADERS, Exchange, Requests
from hark.http.responses import PARENT_HEADER, Headers, Response, Sites, dress, error_response, note_context
from hark.model import DeadLetterFilter, KeyWrite, Settlement, SettleOutcome, Transaction, TransactionOutcome
from hark.model.admin import labels_of
from hark.model.messages import NewMessage, PopRequest
from hark.settings import Settings

if TYPE_CHECKING:
    from hark.http.app import Router

COOKIE = "hark_session"
MAX_TOKEN_BYTES = 3800
"""Web browsers limit cookies to about 4 KiB."""
FAILURES = 10
"""Number of failed logins of one address within the window before further logins are rejected."""
WINDOW_SECONDS = 60.0
_ADDRESSES = 10_000
_FORBIDDEN = frozenset(' ",;\\')


def cookie_value(header: bytes | None) -> str | None:
    """Return the token in the cookies of a request."""
    if header is None:
        return None
    for part in header.decode("latin-1").split(";"):
        name, _, value = part.partition("=")
        if name.strip() == COOKIE:
            return value.strip() or None
    return None


def set_cookie(token: str, *, secure: bool) -> str:
    """Return the `Set-Cookie` header that keeps the token until the web browser is closed.

    The cookie has the token itself and not a session id. So any server on the store accepts it, a restart does not log
    users out, and a revoked or expired token no longer works.
    """
    if not token.isascii() or not token.isprintable() or _FORBIDDEN & set(token) or len(token) > MAX_TOKEN_BYTES:
        raise InvalidInput(
            f"token: cannot be stored in a cookie; expected at most {MAX_TOKEN_BYTES} printable ASCII characters "
            "without spaces, quotes, commas, semicolons or backslashes"
        )
    return _cookie(token, secure)


def clear_cookie(*, secure: bool) -> str:
    """Return the `Set-Cookie` header that removes the token."""
    return f"{_cookie('', secure)}; Max-Age=0"


def _cookie(value: str, secure: bool) -> str:
    return f"{COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}"


class Guesses:
    """Failed logins of the last minute, by client address."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._failures: OrderedDict[str, list[float]] = OrderedDict()
        """The oldest addresses come first; they are removed when there are too many."""

    def check(self, address: str) -> None:
        """Raise `Overloaded` if an address has too many failed logins."""
        failures = self._recent(address)
        if len(failures) >= FAILURES:
            wait = failures[0] + WINDOW_SECONDS - self._now()
            raise Overloaded(
                "too many failed logins from this address; wait one minute and try again",
                code="too_many_logins",
                retry_after=wait,
            )

    def failed(self, address: str) -> None:
        """Count a failed login of an address."""
        self._failures[address] = [*self._recent(address), self._now()]
        self._failures.move_to_end(address)
        if len(self._failures) > _ADDRESSES:
            self._failures.popitem(last=False)

    def _recent(self, address: str) -> list[float]:
        since = self._now() - WINDOW_SECONDS
        return [at for at in self._failures.get(address, ()) if at > since]


def identity_of(scope: Mapping[str, Any]) -> Identity:
    """Return the identity of an ASGI scope; unrestricted if no `Edge` runs before the routes."""
    exchange = scope.get(EXCHANGE)
    return UNRESTRICTED if exchange is None else exchange.identity


def check_role(identity: Identity, role: Role) -> None:
    """Raise `Forbidden` if the identity has a lower role."""
    if identity.role < role:
        raise Forbidden(
            f"this operation requires the role {role.text}, and this token has the role {identity.role.text}; "
            "use a token with that role"
        )


def check_unrestricted(identity: Identity, what: str) -> None:
    """Raise `Forbidden` if the identity is restricted to some queues. `what` begins the sentence of the text."""
    if identity.restricted:
        raise _not_allowed(
            f"{what} not available to tokens that are restricted to some queues; use a token for all queues"
        )


def _not_allowed(text: str) -> Forbidden:
    return Forbidden(text, code="queue_not_allowed")


def check_filter(identity: Identity, queue: str | None) -> None:
    """Raise `Forbidden` if the identity may not search in this queue, or in all queues (None)."""
    if queue is not None:
        identity.check_queue(queue)
    elif identity.restricted:
        raise _not_allowed("this token is restricted to some queues; name one of them in the filter")


def shown_lease(identity: Identity, lease_id: str | None) -> str | None:
    """Return a lease id only for identities that may settle messages, because the id is enough to settle them."""
    return lease_id if identity.role >= Role.READ_WRITE else None


# An id of a queue that the token may not use is treated like an unknown id, so that its existence is not revealed.


_KEYS = "the key-value store is"
NO_LABELS = ("", "")
NOWHERE = "-"
"""An id that does not exist."""


def permitted_labels(identity: Identity, queue: str, labels: tuple[str, str] | None = None) -> tuple[str, str] | None:
    """Return the labels that a token may give to a queue, which are those given or none; None: as its name says."""
    namespace = (labels or labels_of(queue))[0]
    return labels if identity.may_label(namespace) else NO_LABELS


def stamp(identity: Identity, messages: Sequence[NewMessage]) -> None:
    """Check the queues and labels of messages, and set their producer to the subject of the token."""
    if identity.restricted:
        for message in messages:
            identity.check_queue(message.queue)
            message.labels = permitted_labels(identity, message.queue, message.labels)
            if message.undelivered_keys:
                check_unrestricted(identity, f"keysIfUndelivered: {_KEYS}")
    if subject := identity.subject:
        for message in messages:
            message.producer = subject


def check_pop(identity: Identity, request: PopRequest) -> None:
    """Raise `Forbidden` for a pop of a queue that the token may not use, or by namespace or task."""
    if not identity.restricted:
        return
    if request.queue is None:
        raise _not_allowed("this token is restricted to some queues; name a queue instead of a namespace or a task")
    identity.check_queue(request.queue)


async def reached(identity: Identity, broker: Broker, id: str) -> str:
    """Return the id of a message or partition, or an unknown id if the token may not use its queue."""
    return NOWHERE if identity.restricted and (await _forbidden(identity, broker, [id]))[0] else id


async def _forbidden(identity: Identity, broker: Broker, ids: Sequence[str]) -> list[bool]:
    queues = await broker.queue_lookup.queues_of(ids)
    return [queue is not None and not identity.may_use(queue) for queue in queues]


async def reached_letter(identity: Identity, broker: Broker, where: DeadLetterFilter) -> DeadLetterFilter:
    """Return the filter, or one that matches nothing if the token may not use the queue of the dead letter."""
    if identity.restricted:
        page = await broker.engine.dead_letters(msgspec.structs.replace(where, payloads=False))
        if any(not identity.may_use(letter.queue) for letter in page.items):
            return msgspec.structs.replace(where, ids=(NOWHERE,))
    return where


def settle(identity: Identity, broker: Broker, items: Sequence[Settlement]) -> asyncio.Future[list[SettleOutcome]]:
    """Settle messages of permitted queues."""
    if identity.restricted:

        async def settle_own() -> list[SettleOutcome]:
            return await broker.settle(await _without_forbidden(identity, broker, items))

        return asyncio.ensure_future(settle_own())
    return broker.settle(items)


async def _without_forbidden(identity: Identity, broker: Broker, items: Sequence[Settlement]) -> list[Settlement]:
    """Return the settlements, with an unknown id in those of queues that the token may not use."""
    forbidden = await _forbidden(identity, broker, [item.partition_id or item.transaction_id for item in items])
    return [
        msgspec.structs.replace(item, partition_id=NOWHERE) if is_forbidden else item
        for item, is_forbidden in zip(items, forbidden, strict=True)
    ]


async def transact(identity: Identity, broker: Broker, transaction: Transaction) -> TransactionOutcome:
    """Apply a transaction to permitted queues, with the producer set in its messages."""
    operations = transaction.operations
    keys = transaction.keys or KeyWrite()
    stamp(identity, [operation for operation in operations if isinstance(operation, NewMessage)])
    stamp(identity, keys.messages)
    if identity.restricted:
        if keys.checks or keys.mutations:
            check_unrestricted(identity, f"kv: {_KEYS}")
        settled = [operation for operation in operations if isinstance(operation, Settlement)]
        own = iter(await _without_forbidden(identity, broker, settled))
        operations = [next(own) if isinstance(operation, Settlement) else operation for operation in operations]
        transaction = msgspec.structs.replace(transaction, operations=operations)
    return await broker.transact(transaction)


METRICS_PATHS = frozenset({"/metrics", "/metrics/prometheus"})
_SCRAPER = Identity("", Role.READ_ONLY)
"""The identity of requests for public metrics."""
_KEYVAL = b"/keyval/"
_KEPT_CREDENTIALS = 1024
_MAX_CREDENTIAL_BYTES = MAX_LENGTH + 64
"""Size limit of the header with its scheme, so that clients without a token cannot fill memory."""


class Edge:
    """Admits requests to the routes of one server."""

    def __init__(self, settings: Settings, authenticator: Authenticates, router: Router, requests: Requests) -> None:
        self._router = router
        self._requests = requests
        self.authenticator = authenticator
        self.audit = Audit(SystemClock(), settings.audit.file)
        self.guesses = Guesses()
        self._sites = Sites(
            settings.cors.origins, (*settings.allowed_hosts, settings.host), loopback=is_loopback(settings.host)
        )
        self._good_hosts = self._sites.good_hosts
        self._identify = authenticator.identify
        self._public_metrics = settings.auth.public_metrics
        self._credential_of = lru_cache(_KEPT_CREDENTIALS)(_credential_in)

    def admit(self, exchange: Exchange) -> None:
        """Find the operation of a request and check that the caller may use it. Otherwise note the refusal."""
        router, requests, headers = self._router, self._requests, exchange.headers
        try:
            found = router.exact.get((exchange.method, exchange.raw_path)) or router.find(exchange)
            exchange.operation, exchange.params, exchange.route = found
            operation = found.operation
            if PARENT_HEADER in headers:
                note_context(exchange)
            if b"origin" in headers or b"sec-fetch-site" in headers:
                self._sites.check(headers, page=operation.role is None)
            if operation.role is None or (self._public_metrics and exchange.path in METRICS_PATHS):
                if not self.authenticator.enabled:
                    self._sites.check_host(headers, public=True)
                exchange.identity = ANONYMOUS if operation.role is None else _SCRAPER
                self._dress(exchange)
                return
            given = headers.get(b"authorization")
            if given is not None:
                identity = self._identify(self._credential_of(given))
            else:
                identity = self._identify(self.credential(headers) if b"cookie" in headers else None)
            exchange.identity = identity
            if identity is UNRESTRICTED:
                if headers.get(b"host") not in self._good_hosts:
                    self._sites.check_host(headers)
            elif identity.role < operation.role:
                check_role(identity, operation.role)
            elif identity.restricted:
                _check_reach(exchange)
                self._dress(exchange)
                return
            # Successful responses of raw and hot operations need no further headers.
            if not (operation.raw or operation.hot) or b"origin" in headers or HEADER in headers:
                self._dress(exchange)
        except HarkError as error:
            exchange.refusal = error
        finally:
            route, method = exchange.route, exchange.method
            exchange.answers = requests.routes.get((route, method)) or requests.admit(route, method)

    def is_revoked(self, exchange: Exchange) -> bool:
        """Return whether the token of a stream or a waiting pop is not valid any more, or has other permissions now."""
        operation = exchange.operation
        if exchange.refusal is not None or operation.role is None or not (operation.raw or exchange.waits):
            return False
        try:
            return self._identify(self.credential(exchange.headers)) != exchange.identity
        except HarkError:
            return True

    def kept_headers(self, headers: Headers) -> Headers:
        """Return the headers that `is_revoked` needs while a request waits."""
        if not self.authenticator.enabled:
            return NO_HEADERS
        given = headers.get(b"authorization")
        return headers if given is None else {b"authorization": given}

    def credential(self, headers: Headers) -> str | None:
        """Return the token of a request, from its header or from the cookie of the dashboard."""
        given = headers.get(b"authorization")
        if given is not None:
            return self._credential_of(given)
        cookie = headers.get(b"cookie")
        return None if cookie is None or self._sites.is_cross_site(headers) else cookie_value(cookie)

    def _dress(self, exchange: Exchange) -> None:
        if is_audited(exchange):
            exchange.note = partial(self._note_action, exchange)
        elif exchange.operation.reach is Reach.ITEMS:
            exchange.note = partial(self._note_forbidden, exchange)
        dress(exchange, self._sites.cors_headers(exchange.headers))

    # Audit log ---------------------------------------------------------------------------------------------

    def _note_action(self, exchange: Exchange, status: int) -> None:
        try:
            query = query_params(exchange.query)
        except HarkError:
            query = {}
        result = "done" if status < 400 else "failed"
        self.audit.record(exchange, exchange.operation.endpoint.__name__, status, result, target_of(exchange, query))

    def _note_forbidden(self, exchange: Exchange, status: int) -> None:
        if status == Forbidden.status:
            self.audit.refused(exchange, status, "queue_not_allowed")

    # Refusing ----------------------------------------------------------------------------------------------

    def refuse(self, exchange: Exchange, error: HarkError) -> Response:
        """Return the response to a request that is not admitted: to a CORS preflight, or an error."""
        headers = exchange.headers
        if isinstance(error, (Unauthorized, Forbidden)):
            if _has_credential(headers):
                self.audit.refused(exchange, error.status, error.code)
        elif exchange.method == "OPTIONS":
            try:
                allowed = self._sites.preflight(headers)
            except Forbidden as forbidden:
                error = forbidden
            else:
                if allowed is not None:
                    dress(exchange, allowed)
                    return 204, (), b""
        dress(exchange, self._sites.cors_headers(headers))
        return error_response(error)

    # Logins ------------------------------------------------------------------------------------------------

    def log_in(self, exchange: Exchange, token: str) -> Identity:
        """Return the identity of a token from the login page. Failed logins are limited by client address."""
        address = client_of(exchange)
        try:
            self.guesses.check(address)
            identity = self.authenticator.identify(token)
        except Overloaded as error:
            self.audit.refused(exchange, error.status, error.code)
            raise
        except (Unauthorized, Forbidden) as error:
            self.guesses.failed(address)
            self.audit.refused(exchange, error.status, error.code)
            raise
        exchange.identity = identity
        return identity


def _check_reach(exchange: Exchange) -> None:
    """Check a restricted token against the queue in the path or the query."""
    identity = exchange.identity
    match exchange.operation.reach:
        case Reach.PATH:
            identity.check_queue(str(exchange.params["queue"]))
        case Reach.QUERY:
            queue = query_params(exchange.query).get("queue")
            if not queue:
                if not exchange.raw_path.startswith(_KEYVAL):
                    raise _not_allowed(
                        "this token is restricted to some queues; name one of them with the parameter queue"
                    )
                queue = DEFAULT_QUEUE
            identity.check_queue(queue)
        case Reach.SERVER:
            check_unrestricted(identity, "this operation is")
        case Reach.NOTHING | Reach.ITEMS | Reach.LISTED:
            pass


def _has_credential(headers: Headers) -> bool:
    """Return whether a request has a token, valid or not. Clients without one cannot fill the audit log."""
    return bool(headers.get(b"authorization")) or cookie_value(headers.get(b"cookie")) is not None


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
