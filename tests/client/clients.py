"""A client for tests, and what they look at beside it."""

from __future__ import annotations

from collections.abc import Sequence

from hark.client.client import Client
from hark.client.delivery.message import Message


async def taken(client: Client, queue: str, group: str = "probe", batch: int = 100) -> list[object]:
    """What another consumer of the group gets now."""
    messages = await client.queue(queue).group(group).batch(batch).partitions(100).pop()
    return [message.data for message in messages]


def attempts(messages: Sequence[Message]) -> list[tuple[object, int]]:
    """Payloads and how often they were tried."""
    return [(message.data, message.attempt) for message in messages]
