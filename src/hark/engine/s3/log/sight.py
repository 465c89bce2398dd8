"""When this process last knew where the end of the log was: the guard against winning a removed number.

Records that a snapshot covers are removed one `grace` after that snapshot became the newest. A process that slept
through it (SIGSTOP, a suspended machine) knows the log up to n and finds no n + 1, because it was removed: it would
create n + 1 anew, believe that it has committed, and nobody would ever read it.

A *sight* is a moment at which no snapshot beyond what this process has applied was the newest one. Whatever lies
beyond is then not removed before that moment plus grace, so until then

- n + 1 that is not there has never been there: a create that succeeds is a commit, and
- n + 1 that is there is the true one, not what another sleeper has put in the place of a removed record.

What is a sight, at the moment at which the request was *sent* (an answer may be late, its contents are not older):

- the pointer was read, and its newest snapshot is not beyond what is applied (after a start from that snapshot it is
  not); if it is beyond, start again from the snapshot;
- under a sight that is not void: n + 1 was not there, or was created by us. Then n + 1 has not been in any snapshot.

That n + 1 was there is none: n + 2 may be in a snapshot that has been the newest for long.

The clock must count the time that the machine was suspended. It is another clock than that of the process that
removes, which goes by the dates of the object store; a tenth of the grace is kept for what they may differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_STALE_AFTER = 0.5
_VOID_AFTER = 0.9


def boot_seconds() -> float:
    """Seconds since the machine started, those asleep included."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Sight:
    """The last sight of one process. Before the first there is none, and everything is stale and void."""

    def __init__(self, grace_seconds: float, boot_clock: Callable[[], float] = boot_seconds) -> None:
        self._grace = grace_seconds
        self._clock = boot_clock
        self._at = float("-inf")

    @property
    def at(self) -> float:
        """The moment of the last sight; keep it before a request, for `is_void` after it."""
        return self._at

    def now(self) -> float:
        """The moment, by the boot clock; ask before a request is sent, for `seen` when it was answered."""
        return self._clock()

    def seen(self, sent: float) -> None:
        """Note a sight, at the moment at which its request was sent. An older one than the last changes nothing."""
        self._at = max(self._at, sent)

    @property
    def is_stale(self) -> bool:
        """Older than half the grace: read the pointer before you append or trust a record."""
        return self._clock() - self._at > self._grace * _STALE_AFTER

    def is_void(self, since: float) -> bool:
        """Whether an answer that came just now is worth nothing, because the sight at `since` is too old for it.

        A create that was answered so late may have won a removed number: do not acknowledge it, read the pointer and
        the log again. A record that was read, or found missing, so late proves nothing either.
        """
        return self._clock() - since > self._grace * _VOID_AFTER

    def lose(self) -> None:
        """Forget the sight: the state begins anew."""
        self._at = float("-inf")
