"""The window of a stream: what it got and has not settled."""

from __future__ import annotations

from collections.abc import Sequence

from hark.model import PopResult, Settlement, SettleOutcome


class _Held:
    """What is left of the messages of one lease, by partition."""

    __slots__ = ("expires_at", "parts")

    def __init__(self, expires_at: int | None) -> None:
        self.expires_at = expires_at
        self.parts: dict[str, set[str]] = {}


class Window:
    """Unsettled messages by lease."""

    def __init__(self) -> None:
        self._leases: dict[str, _Held] = {}
        self._messages = 0

    def __len__(self) -> int:
        return self._messages

    def leases(self) -> Sequence[str]:
        """The leases of what is held."""
        return list(self._leases)

    def first_end(self) -> int | None:
        """When the first of them is over."""
        return min((held.expires_at for held in self._leases.values() if held.expires_at is not None), default=None)

    def add(self, result: PopResult) -> None:
        """Messages came under a lease."""
        held = self._leases[result.lease_id] = _Held(result.expires_at)
        for message in result.messages:
            held.parts.setdefault(message.partition_id, set()).add(message.transaction_id)
        self._messages += len(result.messages)

    def settled(self, item: Settlement, outcome: SettleOutcome) -> bool:
        """A message was settled; whether its lease is over with that.

        One that fails takes along what was behind it in its partition: that comes again, in order, after it.
        """
        assert item.lease_id is not None
        held = self._leases.get(item.lease_id)
        part = None if held is None else held.parts.get(item.partition_id)
        if held is None or part is None:
            return False
        if outcome.lease_released:
            self._drop(held, item.partition_id)
        elif item.transaction_id in part:
            part.remove(item.transaction_id)
            self._messages -= 1
            if not part:
                del held.parts[item.partition_id]
        if held.parts:
            return False
        del self._leases[item.lease_id]
        return True

    def end(self, lease_id: str) -> None:
        """A lease is over, with all that is left of it."""
        held = self._leases.pop(lease_id, None)
        if held is not None:
            for partition in list(held.parts):
                self._drop(held, partition)

    def renewed(self, lease_id: str, expires_at: int) -> None:
        """A lease ends later."""
        held = self._leases.get(lease_id)
        if held is not None:
            held.expires_at = expires_at

    def _drop(self, held: _Held, partition: str) -> None:
        self._messages -= len(held.parts.pop(partition))
