"""The testing kit: a real server for each test, a clock that the test moves, and assertions about what was pushed.

With pytest there is nothing to import. Installing Hark brings the fixtures `hark_server`, `hark_client` and
`hark_sync`:

    async def test_an_order_is_billed_once(hark_server, hark_client):
        await place_order(hark_client, customer=7)
        hark_server.assert_pushed("bills", {"customer": 7}, partition="customer-7")

    async def test_a_reminder_waits_for_a_day(hark_server):
        await remind(hark_server.url, "ada")
        assert hark_server.drain("reminders") == []
        hark_server.clock.advance(86400)
        assert [message.data for message in hark_server.drain("reminders")] == [{"to": "ada"}]

    async def test_the_task_sends_a_mail(hark_server, outbox):
        async with hark_server.serving(worker):      # the worker of the application, for once with this server
            await send_email.push(to="a@b.c", subject="hi")
            await hark_server.run_worker(worker)     # until nothing is left to do now
        assert outbox == ["a@b.c"]

Time stands still until `clock.advance`: nothing is due, expires or is tried again before. A pop that waits for a
message waits for the push, or for the clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hark.testing.clock import ServerClock
    from hark.testing.messages import DeadMessage, ReceivedMessage, StoredMessage
    from hark.testing.server import HarkServer

__all__ = ["DeadMessage", "HarkServer", "ReceivedMessage", "ServerClock", "StoredMessage"]

_PLACES = {
    "DeadMessage": "messages",
    "HarkServer": "server",
    "ReceivedMessage": "messages",
    "ServerClock": "clock",
    "StoredMessage": "messages",
}


def __getattr__(name: str) -> object:
    """Import when it is used: pytest loads this package in every run of everybody who has Hark installed."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    return found
