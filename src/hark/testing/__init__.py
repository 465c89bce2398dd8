"""The testing kit: a real server for each test, a clock that the test moves, and assertions about pushed messages.

With pytest there is nothing to import. Installing Hark adds the fixtures `hark_server`, `hark_client` and `hark_sync`:

    async def test_an_order_is_billed_once(hark_server, hark_client):
        await place_order(hark_client, customer=7)
        hark_server.assert_pushed("bills", {"customer": 7}, partition="customer-7")

    async def test_a_reminder_waits_for_a_day(hark_server):
        await remind(hark_server.url, "ada")
        assert hark_server.drain("reminders") == []
        hark_server.clock.advance(86400)
        assert [message.data for message in hark_server.drain("reminders")] == [{"to": "ada"}]

    async def test_the_task_sends_a_mail(hark_server, outbox):
        async with hark_server.serving(worker):      # the application's worker, with this server
            await send_email.push(to="a@b.c", subject="hi")
            await hark_server.run_worker(worker)     # until there is nothing to do
        assert outbox == ["a@b.c"]

The server's time stands still until `clock.advance`: before that no message becomes due, expires or is retried. A
waiting pop waits for a push, or for the clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hark.testing.messages import DeadMessage, ReceivedMessage, StoredMessage
    from hark.testing.server import HarkServer, ServerClock

__all__ = ["DeadMessage", "HarkServer", "ReceivedMessage", "ServerClock", "StoredMessage"]

_MODULES = {
    "DeadMessage": "messages",
    "HarkServer": "server",
    "ReceivedMessage": "messages",
    "ServerClock": "server",
    "StoredMessage": "messages",
}


def __getattr__(name: str) -> object:
    """Import on first use: pytest loads this package in every run, wherever Hark is installed."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return found
