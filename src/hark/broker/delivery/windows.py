"""The window of a stream: what it got and has not settled."""

from __future__ import annotations

from collections.abc import Sequence

from hark.model import PopResult, Settlement, SettleOutcome


class _Held:
    """What is left of the messages of one lease, by partition."""

    __slots__ = ("expires_at", "parts", "places")

    def __init__(self, result: PopResult) -> None:
        self.expires_at = result.expires_at
        self.parts: dict[str, dict[str, str]] = {}
        """The ids of messages by their transaction ids, which are unique in a partition only."""
        self.places: dict[str, tuple[str, str]] = {}
        """The partition and the transaction id of a message, by its id."""
        for message in result.messages:
            self.parts.setdefault(message.partition_id, {})[message.transaction_id] = message.id
            self.places[message.id] = message.partition_id, message.transaction_id

    def find(self, item: Settlement) -> tuple[str, str] | None:
        """Which message a settlement is about, whatever it names it by: partition and transaction id."""
        if item.transaction_id in self.parts.get(item.partition_id, ()):
            return item.partition_id, item.transaction_id
        return self.places.get(item.transaction_id)

    def remove(self, place: tuple[str, str]) -> None:
        """Forget a message."""
        partition, transaction_id = place
        part = self.parts[partition]
        del self.places[part.pop(transaction_id)]
        if not part:
            del self.parts[partition]

    def remove_part(self, partition: str) -> None:
        """Forget all messages of a partition, if there are any."""
        for message_id in self.parts.pop(partition, {}).values():
            del self.places[message_id]


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
        held = self._leases[result.lease_id] = _Held(result)
        self._messages += len(held.places)

    def settled(self, lease_id: str, item: Settlement, outcome: SettleOutcome) -> bool:
        """A message of a lease was settled; whether the lease is over with that.

        In an ordered group one that fails takes along what was behind it in its partition: that comes again, in order,
        after it. In a shared group each goes by itself.
        """
        held = self._leases.get(lease_id)
        if held is None:
            return False
        before = len(held.places)
        place = held.find(item)
        if outcome.lease_released:
            held.remove_part(item.partition_id if place is None else place[0])
        elif place is not None:
            held.remove(place)
        self._messages -= before - len(held.places)
        if held.places:
            return False
        del self._leases[lease_id]
        return True

    def end(self, lease_id: str) -> None:
        """A lease is over, with all that is left of it."""
        held = self._leases.pop(lease_id, None)
        if held is not None:
            self._messages -= len(held.places)

    def renewed(self, lease_id: str, expires_at: int) -> None:
        """A lease ends later."""
        held = self._leases.get(lease_id)
        if held is not None:
            held.expires_at = expires_at
