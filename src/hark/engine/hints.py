"""The hints of one call on their way to the listener, and what reads have in common on all engines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from hark.model import GroupView, Hint, HintKind, MessageState, MessageView

MAX_REPLY_BYTES = 16 << 20
"""The bytes of payload at which a pop ends: they are encoded in one turn of the event loop."""
_READ_BYTES = 1 << 20
CALL_BYTES = 64 << 20
"""The bytes of payload of all requests of one call, which are in memory together."""


def read_bound(requests: int) -> int:
    """The bytes of payload at which a read ends that is one of so many in a call; it has one message at least."""
    return min(_READ_BYTES, CALL_BYTES // max(1, requests))


def reply_bound(requests: int) -> int:
    """The bytes of payload at which a pop ends that is one of several in a call; it has one message at least."""
    return min(MAX_REPLY_BYTES, max(1, CALL_BYTES // max(1, requests)))


_BY_URGENCY: tuple[MessageState, ...] = ("dead_letter", "processing", "pending", "scheduled", "completed")


def set_state(view: MessageView, groups: Sequence[GroupView], now: int) -> None:
    """Give a message the most urgent state of its groups; without groups it waits, or is delayed (rule 28)."""
    for group in groups:
        if group.state != "scheduled":
            group.reason = group.due_at = None
    if not groups:
        if view.deliver_at is not None and view.deliver_at > now:
            view.state, view.reason, view.due_at = "scheduled", "delayed", view.deliver_at
        return
    view.state = min((group.state for group in groups), key=_BY_URGENCY.index)
    if view.state == "scheduled":
        first = min((group for group in groups if group.due_at is not None), key=lambda group: group.due_at or 0)
        view.reason, view.due_at = first.reason, first.due_at


MANY = 1000
"""HintKind about more partitions than this does not name them."""


class HintBook(msgspec.Struct, eq=False):
    """Collects what a call has to tell.

    What emits what, on every engine:

    - a push (also one inside a transaction, and a requeue): one hint "message" for the queue, with all partitions that
      got something; and one per known group, with those that it may take now. A partition that the group has leased,
      or that waits for a time, is not among them: it is told when the lease ends, or found when somebody looks at the
      time that `look_again_at` named.
    - a settlement, a release, an expiry, a seek, a requeue, a removed message: "free" for the group, with the
      partitions that it may take now; `ended` has leases that are over with it, also where nothing more can be taken.
    - a pop: "free" with what it made ready and left to others: after auto-ack, and what fell due or was discovered.
    - options, a resumed queue or group, a group deleted or restarted, memory or a connection lost: "free", anywhere.
    - renewals, looks, purges and pauses make nothing ready: no hint, but for leases that a purge ended.

    For a shared group partitions have counts: how many messages became ready there, about, so that as many consumers
    are told. One that becomes ready only later counts as one, if it is the earliest that the group waits for there:
    then somebody has to look and learn the time. An arrival for every group has the counts of what came, if it is more
    than one message in a partition, where other servers have to tell groups of theirs.
    """

    _places: dict[tuple[str, str | None, HintKind], dict[str, int] | None] = {}
    """Counts by partition. 0 stands for one poll, as in an ordered group."""
    _told: dict[str, tuple[str, ...]] = {}
    _ended: dict[tuple[str, str], dict[str, None]] = {}

    def add(
        self,
        queue: str,
        group: str | None,
        partitions: Iterable[str] | None,
        news: HintKind = "free",
        counts: Mapping[str, int] | None = None,
    ) -> None:
        """There may be work for a group in these partitions; None: for any group, anywhere. Counts are summed up."""
        key = (queue, group, news)
        if partitions is None:
            self._places[key] = None
            return
        known = self._places.setdefault(key, {})
        if known is None:
            return
        if counts is None:
            for partition in partitions:
                known.setdefault(partition, 0)
        else:
            for partition in partitions:
                known[partition] = known.get(partition, 0) + counts.get(partition, 1)

    def arrived(
        self, queue: str, partitions: Iterable[str], told: Iterable[str], counts: Mapping[str, int] | None = None
    ) -> None:
        """Messages came to a queue; groups that have hints of their own, or can't take them, are told."""
        self.add(queue, None, partitions, "message", counts)
        self._told[queue] = tuple(told)

    def ended(self, queue: str, group: str, lease: str) -> None:
        """A lease is over."""
        self._ended.setdefault((queue, group), {})[lease] = None

    def hints(self) -> list[Hint]:
        """What was collected."""
        found = []
        for (queue, group, news), places in self._places.items():
            named = None if places is None or len(places) > MANY else places
            partitions = None if named is None else tuple(named)
            told = self._told.get(queue, ()) if group is None and news == "message" else ()
            ended = () if group is None or news != "free" else tuple(self._ended.pop((queue, group), ()))
            counts: tuple[int, ...] = ()
            # For every group only if that says more than that there are some.
            if named and max(named.values()) > (group is None):
                counts = tuple([max(1, count) for count in named.values()])
            found.append(Hint(queue, group, partitions, news, told, ended, counts))
        for (queue, group), leases in self._ended.items():
            found.append(Hint(queue, group, (), "free", (), tuple(leases)))
        return found
