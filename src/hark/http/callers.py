"""The name of a consumer for people: the name it gives itself, else its token and address."""

from __future__ import annotations

from msgspec.structs import replace

from hark.http.checks import MAX_NAME_BYTES
from hark.http.exchange import Exchange
from hark.http.params import NameParam
from hark.model import PopRequest

CONSUMER = NameParam(
    "consumer",
    "Name of the consumer, shown with its leases. The default is the name of its token and its address.",
)


def named(request: PopRequest, exchange: Exchange) -> PopRequest:
    """Return the request with a consumer name: its own, or that of the caller."""
    return request if request.consumer else replace(request, consumer=caller(exchange))


def caller(exchange: Exchange) -> str:
    """Return the subject of the token and the client address, as far as they are known."""
    subject, client = exchange.identity.subject, exchange.client
    if client is None or not client[0]:
        return subject[:MAX_NAME_BYTES]
    host, port = client
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"{subject[: MAX_NAME_BYTES - len(address) - 1]}@{address}" if subject else address
