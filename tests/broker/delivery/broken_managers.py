"""Managers broken on purpose: each breaks one promise. A checker that passes one of them is broken itself."""

from __future__ import annotations

from hark.broker.delivery.consumers import ConsumerManager, State, Work, _Member, _Ring


class UntoldLosesItsTurn(ConsumerManager[int]):
    """Whoever is told in vain goes to the end."""

    def _move(self, member: _Member[int], target: State, *, to_head: bool = False) -> None:  # noqa: ARG002
        super()._move(member, target)


class ServedKeepsItsTurn(ConsumerManager[int]):
    """Whoever got something is the next to get something."""

    def served(self, consumer: int) -> None:
        """Put it at the head."""
        if self.state_of(consumer) in {State.INTERESTED, State.NOTIFIED}:
            self._move(self._members[consumer], State.INTERESTED, to_head=True)


class LowestFirst(ConsumerManager[int]):
    """Tells those of low priority although higher ones want the work."""

    def rebalance(self, work: Work) -> list[int]:
        """Go from the lowest to the highest."""
        self._levels.reverse()
        told = super().rebalance(work)
        self._levels.reverse()
        return told


class ClaimsOnlyWhatItTells(ConsumerManager[int]):
    """Leaves to lower priorities what the cap keeps the higher ones from being told of."""

    def rebalance(self, work: Work) -> list[int]:
        """Forget those beyond the cap while the others are looked at."""
        beyond = [(ring, one) for ring in self._rings() for one in [*ring.notified, *ring.interested][self._cap :]]
        for ring, one in beyond:
            ring.interested.pop(one, None)
        told = super().rebalance(work)
        for ring, one in beyond:
            ring.interested[one] = None
        return told


class NeverTakesBack(ConsumerManager[int]):
    """Leaves told whoever was told, when the work is gone or a higher one wants it."""

    def _reserve(self, ring: _Ring[int], claim: int) -> list[int]:
        return super()._reserve(ring, max(claim, len(ring.notified)))


class LooksOnlyAtWork(ConsumerManager[int]):
    """Loses a wake-up: with the same work as before it sees no reason to tell anybody."""

    last: Work | None = None

    def rebalance(self, work: Work) -> list[int]:
        """Skip what seems to be no news."""
        if work == self.last:
            return []
        self.last = work
        return super().rebalance(work)


class TellsBrowsers(ConsumerManager[int]):
    """Counts a browser among those who take."""

    def add(self, consumer: int, *, priority: int = 0, partition: str | None = None, browser: bool = False) -> None:  # noqa: ARG002
        """Forget that it only looks."""
        super().add(consumer, priority=priority, partition=partition, browser=False)


class AnybodyBeforeTheNamed(ConsumerManager[int]):
    """Tells consumers without a filter first, who take what another can take alone."""

    def rebalance(self, work: Work) -> list[int]:
        """See first without the partitions, then with them."""
        without = sum(len(level.rings[None]) for level in self._levels if None in level.rings)
        elsewhere = max(0, work.total - without)
        return super().rebalance(Work(work.total, {name: min(n, elsewhere) for name, n in work.at.items()}))


BROKEN: list[type[ConsumerManager[int]]] = [
    UntoldLosesItsTurn,
    ServedKeepsItsTurn,
    LowestFirst,
    ClaimsOnlyWhatItTells,
    NeverTakesBack,
    LooksOnlyAtWork,
    TellsBrowsers,
    AnybodyBeforeTheNamed,
]
