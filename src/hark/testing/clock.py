"""The clock of a test's server: it stands still until the test moves it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from hark.clock import SECOND, FakeClock


class ServerClock:
    """The time as the server sees it.

    Delays, leases, retry schedules and times to live pass when the test says so, and only then:

        await client.queue("mails").push({"to": "ada"}, delay=3600)
        assert hark_server.drain("mails") == []
        hark_server.clock.advance(3600)
        assert [message.data for message in hark_server.drain("mails")] == [{"to": "ada"}]

    It starts at the time of day, so that `deliver_at=datetime.now(UTC) + timedelta(hours=1)` means what it says.
    """

    def __init__(self, clock: FakeClock, advance: Callable[[float], None]) -> None:
        self._clock = clock
        self._advance = advance

    def now(self) -> datetime:
        """What it shows."""
        return datetime.fromtimestamp(self._clock.now() / SECOND, UTC)

    def advance(self, seconds: float) -> datetime:
        """Move it forward, and return when everything that fell due on the way has happened, in order."""
        if not seconds >= 0:
            raise ValueError(f"advance: {seconds} seconds is not forward; expected 0 or more")
        self._advance(seconds)
        return self.now()

    def advance_to(self, moment: datetime) -> datetime:
        """Move it forward to a moment."""
        if moment.tzinfo is None:
            raise ValueError(f"advance_to: {moment} has no time zone; expected something like datetime.now(UTC)")
        return self.advance((moment - self.now()).total_seconds())
