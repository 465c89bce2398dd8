"""The verbs for servers that share a store, on all engines: what they answer where nobody does."""

from __future__ import annotations

from hark.engine.s3 import S3Engine
from hark.model import Hint

from .driver import Driver


async def test_who_shares_no_store_has_nobody_to_hear(q: Driver) -> None:
    await q.push("orders", "p1", 1)
    hints = [Hint("orders", None, ("p1",), "message"), Hint("orders", "g", None)]
    # A store in a bucket has its news in the log: what others say makes it look there.
    assert bool(q.engine.hear(hints)) == (q.engine.shared and not isinstance(q.engine, S3Engine))


async def test_the_secret_of_peers_has_32_bytes_and_stays(q: Driver) -> None:
    secret = await q.engine.peer_secret()
    assert len(secret) == 32
    assert await q.engine.peer_secret() == secret
