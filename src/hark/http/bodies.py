"""Bodies of requests on the raw ASGI routes."""

from __future__ import annotations

from hark.errors import BodyTooLarge, InvalidInput
from hark.http.responses import Receive


async def read_whole(receive: Receive, most: int) -> bytes:
    """Return the whole body; raises `BodyTooLarge` if it has more than `most` bytes."""
    event = await receive()
    body: bytes = event.get("body", b"")
    if not event.get("more_body"):
        if len(body) > most:
            raise _too_large(most)
        return body
    parts = [body]
    size = len(body)
    while event.get("more_body"):
        if size > most:
            raise _too_large(most)
        event = await receive()
        if event["type"] == "http.disconnect":
            raise InvalidInput("the client disconnected before the request body was complete")
        parts.append(event.get("body", b""))
        size += len(parts[-1])
    if size > most:
        raise _too_large(most)
    return b"".join(parts)


def _too_large(most: int) -> BodyTooLarge:
    return BodyTooLarge(f"the request body is over {most} bytes (setting max_body_bytes); send smaller batches")
