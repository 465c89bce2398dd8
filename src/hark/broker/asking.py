"""When consumers last asked this server for messages: stores note it only about once an hour."""

from __future__ import annotations

from hark.clock import Clock
from hark.model import MessageFacts, PopRequest

_MOST = 100_000

_Wish = tuple[str | None, str | None, str | None, str]


class Asking:
    """The last time that each group asked, by what it asked for; the oldest are forgotten when there are too many."""

    def __init__(self, clock: Clock, most: int = _MOST) -> None:
        self._clock = clock
        self._most = most
        self._last: dict[_Wish, int] = {}
        self.since = clock.now()
        """Who is not known has not asked since then."""

    def note(self, request: PopRequest) -> None:
        """A consumer asks."""
        wish = (request.queue, request.namespace, request.task, request.group)
        if wish not in self._last and len(self._last) >= self._most:
            self.since = max(self.since, self._last.pop(next(iter(self._last))))
        self._last[wish] = self._clock.now()

    def last(self, message: MessageFacts, group: str) -> int | None:
        """Time of the group's last pop that could have received a message; None: no pop since `since`."""
        wishes: list[_Wish] = [(message.queue, None, None, group)]
        for namespace in (None, message.namespace):
            wishes += [(None, namespace, task, group) for task in (None, message.task)]
        found = [self._last[wish] for wish in wishes if wish in self._last]
        return max(found, default=None)
