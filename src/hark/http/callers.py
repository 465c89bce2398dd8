"""Who takes messages, in words for people: what a consumer calls itself, or else who it is known to be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from hark.http.checks import MAX_NAME_BYTES
from hark.http.edge.identities import identity_of
from hark.http.params import NameParam
from hark.model import PopRequest

CONSUMER = NameParam(
    "consumer", "What the consumer is called where leases are shown; if it is not given, its token and its address."
)


def named(request: PopRequest, scope: Mapping[str, Any]) -> PopRequest:
    """The same wish with a name: its own, or that of who asks."""
    return request if request.consumer else replace(request, consumer=caller(scope))


def caller(scope: Mapping[str, Any]) -> str:
    """The subject of the token, if there is one, and the address that the request comes from, if it has one."""
    subject, client = identity_of(scope).subject, scope.get("client")
    if client is None or not client[0]:
        return subject[:MAX_NAME_BYTES]
    host, port = client
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"{subject[: MAX_NAME_BYTES - len(address) - 1]}@{address}" if subject else address
