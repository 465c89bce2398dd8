"""Who asks, as endpoints see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from hark.access.identity import ANYBODY, Identity, Role
from hark.errors import Forbidden

IDENTITY = "hark.identity"
"""Under this name the scope of a request has who asks."""

NOBODY = Identity("", Role.READ_ONLY, ())
"""Who asks for something public while authentication is on: no endpoint may take them for more."""


def identity_of(asked: Mapping[str, Any]) -> Identity:
    """Who asks, by a request or its scope; anybody where nothing stands in front of the routes."""
    return cast(Identity, asked.get(IDENTITY, ANYBODY))


def check_role(identity: Identity, role: Role) -> None:
    """Refuse those with less than this role."""
    if identity.role < role:
        raise Forbidden(f"this needs the role {role.text}; this token has the role {identity.role.text}")


def check_unrestricted(identity: Identity, what: str) -> None:
    """Refuse those who may use only some queues something that belongs to none, or to all."""
    if identity.restricted:
        raise Forbidden(
            f"{what} not for tokens that may use only some queues; use one for all queues", code="queue_not_allowed"
        )


def check_filter(identity: Identity, queue: str | None) -> None:
    """Refuse a search in a queue that may not be used, and one in all queues to those who may not use all."""
    if queue is not None:
        identity.check_queue(queue)
    elif identity.restricted:
        raise Forbidden("this token may use only some queues; name one", code="queue_not_allowed")


def shown_lease(identity: Identity, lease_id: str | None) -> str | None:
    """A lease id for those who may settle: whoever knows it can, so that it is no business of those who only read."""
    return lease_id if identity.role >= Role.READ_WRITE else None
