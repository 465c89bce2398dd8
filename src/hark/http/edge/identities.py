"""The identity of a request, for endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hark.access.identity import ANYBODY, Identity, Role
from hark.errors import Forbidden
from hark.http.exchange import EXCHANGE


def identity_of(asked: Mapping[str, Any]) -> Identity:
    """Return the identity of an ASGI scope or a starlette request; unrestricted if no `Edge` runs before the routes."""
    exchange = asked.get(EXCHANGE)
    return ANYBODY if exchange is None else exchange.identity


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
        raise Forbidden(
            f"{what} not available to tokens that are restricted to some queues; use a token for all queues",
            code="queue_not_allowed",
        )


def check_filter(identity: Identity, queue: str | None) -> None:
    """Raise `Forbidden` if the identity may not search in this queue, or in all queues (None)."""
    if queue is not None:
        identity.check_queue(queue)
    elif identity.restricted:
        raise Forbidden(
            "this token is restricted to some queues; name one of them in the filter", code="queue_not_allowed"
        )


def shown_lease(identity: Identity, lease_id: str | None) -> str | None:
    """Return a lease id only for identities that may settle messages, because the id is enough to settle them."""
    return lease_id if identity.role >= Role.READ_WRITE else None
