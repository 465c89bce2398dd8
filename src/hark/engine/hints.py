"""The hints of one call, and code that all engines share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import msgspec

from hark.errors import InvalidInput
from hark.ids import IdCodec
from hark.model import Counts, GroupView, Hint, HintKind, MessageState, MessageView
from hark.model.messages import RESERVED, RESERVED_TEXT

S = TypeVar("S", bound=msgspec.Struct)

MAX_REPLY_BYTES = 16 << 20
"""Bytes of payload at which a pop ends, because one turn of the event loop encodes them."""
_READ_BYTES = 1 << 20
CALL_BYTES = 64 << 20
"""Bytes of payload of all requests of one call, which are in memory together."""


def forget_oldest(known: dict[Any, Any], most: int) -> None:
    """Remove the oldest entries beyond `most`, many at a time.

    To remove one at a time would be slow: a dict finds its first entry behind all removed ones.
    """
    if len(known) > 2 * most:
        for key in list(islice(known, len(known) - most)):
            del known[key]


def read_bound(requests: int) -> int:
    """Bytes of payload at which one of the reads of a call ends. It returns at least one message."""
    return min(_READ_BYTES, CALL_BYTES // max(1, requests))


def reply_bound(requests: int) -> int:
    """Bytes of payload at which one of the pops of a call ends. It returns at least one message."""
    return min(MAX_REPLY_BYTES, max(1, CALL_BYTES // max(1, requests)))


def check_page(number: int, size: int) -> None:
    """Reject a page before it is read, if its values are too large to be in memory together. It can have one value."""
    if number > 1 and size > CALL_BYTES:
        raise InvalidInput(
            f"the values of this page have {size} bytes, over the limit of {CALL_BYTES}; ask for fewer at once",
            code="batch_too_large",
        )


def struct_of(kind: type[S], row: Mapping[str, Any], **more: object) -> S:
    """A struct of the columns and values that it has fields for."""
    values = {**row, **more}
    return kind(**{name: values[name] for name in kind.__struct_fields__ if name in values})


def ids_of(row: Mapping[str, Any], codec: IdCodec) -> dict[str, str]:
    """The ids of a message, of its number of partition, offset and transaction id."""
    message_id = codec.encode(row["number"], row["offset"])
    partition_id = codec.encode(row["number"], 0)
    return {"id": message_id, "transaction_id": row["transaction_id"] or message_id, "partition_id": partition_id}


def counts_of(row: Mapping[str, Any]) -> Counts:
    """Messages by state, of a row that has what is stored, open, scheduled, held, failed and dead."""
    total, open_, processing, dead = row["total"], row["open"], row["processing"], row["dead_letter"]
    return Counts(
        total=total,
        pending=max(0, open_ - processing - row["scheduled"]),
        scheduled=row["scheduled"],
        processing=processing,
        completed=max(0, total - open_ - dead),
        failed=row["failed"],
        dead_letter=dead,
    )


NOT_FOUND = ("not_found", "Message not found")
EXPIRED = ("lease_expired", "Invalid or expired lease: the lease expired; renew leases in time, or lengthen them")
SUPERSEDED = ("lease_invalid", "Invalid or expired lease: the last delivery of the message was under another lease")
NOT_LEASED = ("not_leased", "Invalid or expired lease: no consumer of the group holds this message")
DEAD = ("dead_lettered", "The message is already dead-lettered; requeue it to deliver it again")


def refusal_of(code: str, queue: str) -> tuple[str, str]:
    """Why a message was not stored: the error code and a text."""
    if code == "sealing_mismatch":
        return code, f"the encryption of queue {queue!r} was changed during the push; retry"
    if code == RESERVED:
        return code, RESERVED_TEXT
    return code, f"queue {queue!r} is full: its unsettled messages reached maxSize; retry later or raise maxSize"


_BY_URGENCY: tuple[MessageState, ...] = ("dead_letter", "processing", "pending", "scheduled", "completed")


def set_state(view: MessageView, groups: Sequence[GroupView], now: int) -> None:
    """Give a message the most urgent state of its groups. Without groups it is pending or scheduled (rule 28)."""
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


_Key = tuple[str, str | None, HintKind]
MANY = 1000
"""Number of partitions above which a hint does not name them."""


class HintBook(msgspec.Struct, eq=False):
    """Collects the hints of a call.

    Every engine emits these hints:

    - A push (also inside a transaction, and a requeue): one hint "message" for the queue, with all partitions that
      received messages; and one per known group, with its ready partitions. It omits a partition that the group has
      leased, or that waits for a time: a hint follows when the lease ends, or a consumer polls at `look_again_at`.
    - A settlement, a release, an expiry, a seek, a requeue, a removed message: "free" for the group, with its ready
      partitions, which may be none. `ended` has the leases that ended.
    - A pop: "free" with the partitions that it made ready and did not take: after auto-ack, and partitions that became
      due or were discovered.
    - Changed options, a resumed queue or group, a deleted or restarted group, a lost connection or lost memory: "free"
      without partitions.
    - Renewals, reads, purges and pauses make nothing ready, so they emit no hint, except for leases that a purge ended.

    For a shared group, partitions have the approximate number of messages that became ready, so that as many consumers
    are notified. A message that becomes ready later counts as one if it is the earliest in its partition: a consumer
    must poll to learn the time. A hint for every group has the numbers of new messages, if a partition received more
    than one, because groups of other servers need them.
    """

    _partitions: dict[_Key, dict[str, int] | None] = {}
    """Counts by partition. 0 stands for one poll, as in an ordered group."""
    _excluded: dict[_Key, tuple[str, ...]] = {}
    _ended: dict[_Key, dict[str, None]] = {}

    def add(
        self,
        queue: str,
        group: str | None,
        partitions: Iterable[str] | None,
        kind: HintKind = "free",
        counts: Mapping[str, int] | None = None,
        *,
        excluded: Iterable[str] | None = None,
        ended: str | None = None,
    ) -> None:
        """Add ready partitions of a group (None: of every group); None: any partition. Counts are added up.

        `excluded`, for new messages of a queue: groups with separate hints, or that cannot receive them. `ended`: a
        lease that ended.
        """
        key = (queue, group, kind)
        if excluded is not None:
            self._excluded[key] = tuple(excluded)
        if ended is not None:
            self._ended.setdefault(key, {})[ended] = None
        if partitions is None:
            self._partitions[key] = None
            return
        known = self._partitions.setdefault(key, {})
        if known is None:
            return
        if counts is None:
            for partition in partitions:
                known.setdefault(partition, 0)
        else:
            for partition in partitions:
                known[partition] = known.get(partition, 0) + counts.get(partition, 1)

    def arrived(
        self, queue: str, partitions: Iterable[str], excluded: Iterable[str], counts: Mapping[str, int] | None = None
    ) -> None:
        """Add new messages of a queue."""
        self.add(queue, None, partitions, "message", counts, excluded=excluded)

    def ended(self, queue: str, group: str, lease: str) -> None:
        """Add a lease that ended."""
        self.add(queue, group, (), ended=lease)

    def hints(self) -> list[Hint]:
        """The collected hints."""
        found = []
        for key, noted in self._partitions.items():
            queue, group, kind = key
            named = None if noted is None or len(noted) > MANY else noted
            partitions = None if named is None else tuple(named)
            counts: tuple[int, ...] = ()
            # A hint for every group has counts only if a partition has more than one message.
            if named and max(named.values()) > (group is None):
                counts = tuple([max(1, count) for count in named.values()])
            excluded, ended = self._excluded.get(key, ()), tuple(self._ended.get(key, ()))
            found.append(Hint(queue, group, partitions, kind, excluded, ended, counts))
        return found
