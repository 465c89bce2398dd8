"""The clock of a test server: it stands still until the test moves it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from hark.clock import SECOND, FakeClock


class ServerClock:
    """The clock of a test server, `hark_server.clock`.

    Delays, leases, retries and times to live pass only when the test moves the clock:

        await client.queue("mails").push({"to": "ada"}, delay=3600)
        assert hark_server.drain("mails") == []
        hark_server.clock.advance(3600)
        assert [message.data for message in hark_server.drain("mails")] == [{"to": "ada"}]

    It starts at the current time, so that `deliver_at=datetime.now(UTC) + timedelta(hours=1)` works.
    """

    def __init__(self, clock: FakeClock, advance: Callable[[float], None]) -> None:
        self._clock = clock
        self._advance = advance

    def now(self) -> datetime:
        """The current time of the clock."""
        return datetime.fromtimestamp(self._clock.now() / SECOND, UTC)

    def advance(self, seconds: float) -> datetime:
        """Move the clock forward by this many seconds. Returns the new time.

        It returns after everything that became due on the way has happened, in order. Raises `ValueError` for a
        negative number.
        """
        if not seconds >= 0:
            raise ValueError(f"advance: expected 0 seconds or more, got {seconds}")
        self._advance(seconds)
        return self.now()

    def advance_to(self, moment: datetime) -> datetime:
        """Move the clock forward to a datetime with a time zone. Returns the new time."""
        if moment.tzinfo is None:
            raise ValueError(f"advance_to: expected a datetime with a time zone (datetime.now(UTC)), got {moment}")
        return self.advance((moment - self.now()).total_seconds())
