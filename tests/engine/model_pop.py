"""The reference model, second part: who gets what, and how much the limits allow."""

from __future__ import annotations

from collections import Counter
from math import ceil, floor

from hark.clock import MILLISECOND, SECOND
from hark.model import Limits

from .model_nouns import Bucket, Lease, Message, Popped, Queue, Wish
from .model_store import StoreModel
from .model_tracks import OrderedTrack, SharedTrack, Track

Answered = dict[tuple[str, str], int]
"""How many messages came from which queue and partition."""


class PopModel(StoreModel):
    """Deliveries."""

    def __init__(self, now: int) -> None:
        super().__init__(now)
        self.order_is_known = True
        self.one_server = True
        """False after a restart, which may forget who was served when."""
        self.buckets: dict[tuple[str, str | None], Bucket] = {}

    def pop(self, wish: Wish, answered: Answered) -> Popped:
        """Lease messages.

        What the rules leave open is as `answered`: the order of partitions after a restart, and how a batch is shared
        out among its partitions.
        """
        self.meet(wish)
        lease = Lease(next(self.numbers), self.now + (1 << 60))
        popped = Popped(lease.id, [])
        for track, share in self._plan(wish, answered):
            taken = track.ready(self.now)[:share]
            popped.messages += [(one, track.attempts.get(one, 0) + 1) for one in taken]
            track.served = next(self.numbers)
            self._spend(track.partition.queue, wish.group, len(taken))
            if wish.auto_ack:
                for one in taken:
                    track.settled(one)
                    track.done.add(one)
                continue
            track.hand_out(taken, lease)
            lease.expires_at = min(lease.expires_at, self.now + _lease_time(track.partition.queue, wish))
        if not popped.messages and len(wish.queues) == 1:
            popped.reasons = self._reasons(wish)
        self.drop_settled()
        return popped

    def meet(self, wish: Wish) -> None:
        """A pop is a contact, whatever it gets."""
        for name in wish.queues:
            self.contact(name, wish.group, wish.mode, wish.group_mode)

    def would_give(self, wish: Wish, answered: Answered) -> list[Message]:
        """What a pop would get now."""
        self.meet(wish)
        plan = self._plan(wish, answered)
        return [message for track, share in plan for message in track.ready(self.now)[:share]]

    def _plan(self, wish: Wish, answered: Answered) -> list[tuple[Track, int]]:
        """Which partitions give how many: as answered if that is as much as there is to get."""
        most = self._shares(wish, answered, {})
        asked = self._shares(wish, answered, answered)
        return asked if sum(share for _, share in asked) == sum(share for _, share in most) else most

    def _shares(self, wish: Wish, answered: Answered, asked: Answered) -> list[tuple[Track, int]]:
        """One partition after the other, each as much as it can give, or as was asked."""
        used: Counter[str] = Counter()
        plan: list[tuple[Track, int]] = []
        while len(plan) < wish.partitions and used.total() < wish.batch:
            open_tracks = [
                (track, room)
                for track in self._candidates(wish)
                if all(track is not one for one, _ in plan)
                and (room := self.room(track.place[0], wish.group, wish.auto_ack)[0] - used[track.place[0]]) > 0
            ]
            if not open_tracks:
                break
            track, room = min(open_tracks, key=lambda one: self._turn(one[0], answered))
            share = int(min(len(track.ready(self.now)), room, wish.batch - used.total()))
            share = min(share, asked.get(track.place, share))
            plan.append((track, share))
            used[track.place[0]] += share
        return plan

    def _candidates(self, wish: Wish) -> list[Track]:
        return [
            track
            for name in wish.queues
            if not (self.queues[name].paused or self.groups[name, wish.group].paused)
            for track in self.tracks_of(name, wish.group)
            if wish.partition in (None, track.partition.name) and track.ready(self.now)
        ]

    def _turn(self, track: Track, answered: Answered) -> tuple[int, int, int, int, int]:
        # Each of several servers has its own order of service, so then nobody can say whose turn it is.
        served = track.served if self.one_server else 0
        known = (self.order_is_known and self.one_server) or served or track.place not in answered
        rank = len(answered) if known else list(answered).index(track.place)
        shared = isinstance(track, SharedTrack)
        highest = max(one.push.priority for one in track.ready(self.now)) if shared else 0
        return (-track.partition.queue.options.priority, -highest, served, rank, track.partition.age)

    # Limits ------------------------------------------------------------------------------------------------

    def limits(self, queue: str, group: str) -> list[tuple[tuple[str, str | None], Limits]]:
        """What bounds a group in a queue: the queue's limits and its own."""
        options = self.queues[queue].options
        of_queue = Limits(
            max_in_flight=options.max_in_flight, rate_limit=options.rate_limit, rate_burst=options.rate_burst
        )
        return [((queue, None), of_queue), ((queue, group), self.groups[queue, group].limits)]

    def room(self, queue: str, group: str, auto_ack: bool) -> tuple[float, frozenset[str]]:
        """How many messages a group may take now, and what stands in the way of any."""
        left, reasons = float("inf"), set()
        for owner, limits in self.limits(queue, group):
            if limits.max_in_flight and not auto_ack:
                free = limits.max_in_flight - len(self.in_flight(*owner))
                left = min(left, free)
                reasons |= {"max_in_flight"} if free <= 0 else set()
            if limits.rate_limit:
                tokens = floor(self._bucket(owner, limits).tokens)
                left = min(left, tokens)
                reasons |= {"rate_limited"} if tokens <= 0 else set()
        return left, frozenset(reasons)

    def in_flight(self, queue: str, group: str | None = None) -> list[Message]:
        """What is on leases of one group, or of all."""
        tracks = [one for key, one in self.tracks.items() if key[0] == queue and group in (None, key[2])]
        return [message for track in tracks for message in track.in_flight()]

    def _bucket(self, owner: tuple[str, str | None], limits: Limits) -> Bucket:
        capacity = limits.rate_burst or max(1, ceil(limits.rate_limit))
        bucket = self.buckets.setdefault(owner, Bucket(capacity, self.now))
        gained = limits.rate_limit * (self.now - bucket.at) / SECOND
        bucket.tokens, bucket.at = min(capacity, bucket.tokens + gained), self.now
        return bucket

    def _spend(self, queue: Queue, group: str, number: int) -> None:
        for owner, limits in self.limits(queue.name, group):
            if limits.rate_limit:
                self._bucket(owner, limits).tokens -= number

    # Reasons -----------------------------------------------------------------------------------------------

    def _reasons(self, wish: Wish) -> frozenset[str]:
        """Why a pop of one queue is empty; empty itself where the rules do not say."""
        [queue], name, group = wish.queues, wish.partition, wish.group
        paused = self.queues[queue].paused or self.groups[queue, group].paused
        limited = self.room(queue, group, wish.auto_ack)[1]
        if name is None:
            return limited if self._candidates(wish) else frozenset()
        if name not in self.queues[queue].partitions:
            return limited | ({"partition_not_found", "paused"} if paused else {"partition_not_found"})
        if paused:
            return limited | {"paused"}
        track = self.tracks[queue, name, group]
        return limited if track.ready(self.now) else limited | _waits_for(track)


def _waits_for(track: Track) -> set[str]:
    """Why nothing of a partition is ready."""
    if isinstance(track, OrderedTrack) and track.lease is not None:
        return {"lease_held"}
    free = [one for one in track.todo if not (isinstance(track, SharedTrack) and one in track.holder)]
    if len(free) < len(track.todo):
        return {"lease_held", "waiting"} if free else {"lease_held"}
    return {"waiting"} if free else {"nothing_ready"}


def _lease_time(queue: Queue, wish: Wish) -> int:
    """How long a pop holds what it gets of a queue."""
    if wish.lease_ms is None:
        return queue.options.lease_time * SECOND
    return (queue.options.lock_duration or wish.lease_ms) * MILLISECOND
