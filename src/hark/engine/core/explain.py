"""The verbs about leases, and the verb explain: the facts about a message in memory and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import apsw
import msgspec

from hark import model
from hark.clock import SECOND
from hark.engine.core.handout import Picker, expiry_of, window_end
from hark.engine.core.limits import reached_limit
from hark.engine.core.loader import Loader
from hark.engine.core.ordered import OrderedPosition
from hark.engine.core.position import NEVER, Lease, Position, Retry, Stored
from hark.engine.core.shared import SharedPosition
from hark.engine.core.state import Group, Partition, State
from hark.engine.core.store import NO_EXTRA, MessageRow, extra_of, rows_of
from hark.errors import HarkError, NotFound

PositionKey = tuple[int, int]
"""The numbers of a group and a partition."""


class LeaseView:
    """The leases at one time, `now`."""

    def __init__(self, state: State, now: int) -> None:
        self.now = now
        self.codec = state.codec
        self.leases: dict[PositionKey, tuple[str, int]] = {}
        """Leases of ordered groups: id and expiry."""
        self.leased: dict[PositionKey, dict[int, int]] = {}
        """Expiry of leased messages, by offset."""
        self.leases_by_group: dict[int, int] = {}
        """Number of leases of each group, counted once for each partition."""
        self.messages_by_group: dict[int, int] = {}
        """Number of leased messages of each group."""
        for lease in state.leases.values():
            for position in lease.parts:
                key = (position.group.id, position.partition.id)
                offsets = position.live_offsets(lease)
                if not offsets:
                    continue
                if position.group.mode == "ordered":
                    self.leases[key] = (lease.id, lease.expires_at)
                self.leases_by_group[key[0]] = self.leases_by_group.get(key[0], 0) + 1
                self.messages_by_group[key[0]] = self.messages_by_group.get(key[0], 0) + len(offsets)
                self.leased.setdefault(key, {}).update(dict.fromkeys(offsets, lease.expires_at))

    def leased_messages(self) -> set[PositionKey]:
        """All leased messages, as (partition, offset)."""
        return {(partition, offset) for (_, partition), leased in self.leased.items() for offset in leased}


def page(state: State, where: model.LeaseFilter) -> model.Leases:
    """A page of active leases, oldest first."""
    found = [
        (lease, position)
        for lease in state.leases.values()
        for position in lease.parts
        if where.queue in (None, position.group.queue_name)
        and where.group in (None, position.group.name)
        and where.partition in (None, position.partition.name)
        and position.is_kept_by(lease)
    ]
    found.sort(key=lambda pair: (pair[0].since, pair[0].id))
    shown = found[where.offset : where.offset + where.limit]
    return model.Leases([_lease_part(state, lease, position) for lease, position in shown], len(found))


def _lease_part(state: State, lease: Lease, position: Position) -> model.LeasePart:
    offsets, partition = position.live_offsets(lease), position.partition
    return model.LeasePart(
        lease_id=lease.id,
        queue=position.group.queue_name,
        partition=partition.name,
        partition_id=partition.uid,
        group=position.group.name,
        mode=position.group.mode,
        consumer=lease.consumer,
        since=lease.since or None,
        until=lease.expires_at,
        messages=len(offsets),
        first_message_id=state.codec.with_prefix(partition.prefix, min(offsets)),
    )


def lease_ends(state: State, now: int, lease_ids: Sequence[str]) -> list[int | None]:
    """Current expiry of leases; None for a lease that ended."""
    leases = [state.leases.get(lease_id) for lease_id in lease_ids]
    return [None if lease is None or lease.expires_at <= now else lease.expires_at for lease in leases]


def renew(state: State, now: int, requests: Sequence[model.Renewal]) -> list[model.RenewOutcome | HarkError]:
    """Renew leases, each for all its partitions."""
    answers: list[model.RenewOutcome | HarkError] = []
    for request in requests:
        lease = state.leases.get(request.lease_id)
        if lease is None:
            if request.lease_id in state.expired_leases:
                answers.append(model.RenewOutcome(False, None, "lease_expired", "Lease already expired"))
            else:
                answers.append(model.RenewOutcome(False, None, "lease_not_found", "Lease not found"))
            continue
        wanted = max(now + request.seconds * 1_000_000, lease.whole)
        lease.whole = 0
        if wanted > lease.expires_at:
            lease.expires_at = wanted
            state.schedule_expiry(lease)
        answers.append(model.RenewOutcome(True, lease.expires_at))
    return answers


def shorten(state: State, now: int, lease_ids: Sequence[str], microseconds: int) -> None:
    """Let leases expire after this time at the latest."""
    for lease_id in lease_ids:
        lease = state.leases.get(lease_id)
        if lease is not None and lease.expires_at > now + microseconds:
            lease.whole = max(lease.whole, lease.expires_at)
            lease.expires_at = now + microseconds
            state.schedule_expiry(lease)


# Positions are in memory, or loaded as by a pop, so the facts are those that a pop at this time would use. Only a few
# messages are read, whatever the size of the partition.

_LOOK_AT_MOST = 1000
"""Number of earlier messages that are checked for the one that blocks."""

_MESSAGE = """
select offset, created_at, priority, deliver_at, owner, transaction_id, extra from messages
"""
_ONE = f"{_MESSAGE} where partition = ?1 and offset = ?2"
_FIRST = (
    f"{_MESSAGE} indexed by messages_offset where partition = ?1 and offset between ?2 and ?3 order by offset limit 1"
)
# The first message of some ranges that is not due: delayed, too young (created after ?4), or waiting for a retry (?5).
# A message that has expired by now (?3; its own time to live, or ?6) does not block.
_BLOCKER = f"""
select message.offset, created_at, priority, deliver_at, owner, transaction_id, extra
from json_each(?2) as wanted
cross join messages as message indexed by messages_offset
where message.partition = ?1 and message.offset between wanted.value ->> 0 and wanted.value ->> 1
  and (deliver_at > ?3 or created_at > ?4 or message.offset in (select value from json_each(?5)))
  and coalesce(extra ->> 'x', iif(owner is null and ?6 > 0, created_at + ?6, {NEVER})) > ?3
order by wanted.key, message.offset limit 1
"""
_DEAD = """
select grp, uid, attempts, error, failed_at, transaction_id, created_at, priority from dead_letters
where partition = ?1 and offset = ?2
"""
_encode = msgspec.json.Encoder().encode


_NO_PAYLOAD = msgspec.Raw(b"null")


def _row(values: tuple[Any, ...]) -> MessageRow:
    offset, created_at, priority, deliver_at, owner, transaction_id, extra = values
    columns = (offset, created_at, priority, deliver_at, owner, transaction_id)
    return MessageRow(0, *columns, extra_of(extra), _NO_PAYLOAD)


class Explainer:
    """Collects facts at one time, with the connection that claims read with."""

    def __init__(self, connection: apsw.Connection, state: State, now: int) -> None:
        self._connection = connection
        self._state = state
        self._now = now
        self._loader = Loader(connection, state)

    def explain(self, requests: Sequence[model.Explain]) -> list[model.Facts | HarkError]:
        """The facts for each request."""
        return [self._facts(request) or _unknown() for request in requests]

    def _facts(self, request: model.Explain) -> model.Facts | None:
        address = self._state.codec.decode(request.message_id)
        partition = None if address is None else self._loader.partition(address.partition)
        if address is None or partition is None or not 0 < address.offset <= partition.tail:
            return None
        queue = partition.queue
        if queue.name in self._state.deleting:
            return None
        found = rows_of(self._connection, _ONE, *address) if address.offset > partition.floor else []
        row = _row(found[0]) if found else None
        dead = {one[0]: one[1:] for one in rows_of(self._connection, _DEAD, *address)}
        self._loader.groups(queue.name)
        names = sorted(queue.groups) if request.group is None else [request.group]
        groups = [self._group(partition, address.offset, row, name, dead.get(name)) for name in names]
        return model.Facts(
            at=self._now,
            message=self._message(partition, address.offset, row, next(iter(dead.values()), None)),
            options=queue.info.options,
            queue_paused=queue.info.paused,
            groups=groups,
        )

    def _message(
        self, partition: Partition, offset: int, row: MessageRow | None, dead: Sequence[Any] | None
    ) -> model.MessageFacts:
        message_id = self._state.codec.with_prefix(partition.prefix, offset)
        facts = model.MessageFacts(
            id=message_id,
            queue=partition.queue.name,
            partition=partition.name,
            partition_id=partition.uid,
            offset=offset,
            namespace=partition.queue.info.namespace,
            task=partition.queue.info.task,
            stored=row is not None,
            retries_allowed=len(partition.queue.schedule),
        )
        if row is None:
            if dead is None:
                return facts
            *_, transaction_id, created_at, priority = dead
            return msgspec.structs.replace(
                facts, transaction_id=transaction_id or message_id, created_at=created_at, priority=priority
            )
        schedule = (row.extra or NO_EXTRA).b
        owners = {group.id: group.name for group in partition.queue.groups.values()}
        return msgspec.structs.replace(
            facts,
            transaction_id=row.transaction_id or message_id,
            created_at=row.created_at,
            priority=row.priority,
            deliver_at=row.deliver_at,
            expires_at=expiry_of(partition.queue, row),
            owner=None if row.owner is None else owners.get(row.owner, ""),
            retries_allowed=len(partition.queue.schedule if schedule is None else schedule),
        )

    # Groups ------------------------------------------------------------------------------------------------

    def _group(
        self, partition: Partition, offset: int, row: MessageRow | None, name: str, dead: Sequence[Any] | None
    ) -> model.GroupFacts:
        group = partition.queue.groups.get(name)
        letter = None if dead is None else model.DeadFacts(*dead[:4])
        position = None if group is None else self._loader.position(group, partition.id)
        if group is None or position is None:
            return model.GroupFacts(group=name, dead=letter)
        stored = None if row is None else Stored(partition.id, offset, row.priority, row.deliver_at, row.owner)
        facts = model.GroupFacts(
            group=name,
            mode=group.mode,
            paused=group.paused,
            last_seen=group.last_seen,
            begins_after=_begins_after(group, partition, row),
            settled=stored is None or position.is_settled(stored),
            settled_at=position.settled_at,
            dead=letter,
            ending=self._state.endings.get((group.id, partition.id, offset)),
        )
        if facts.settled or row is None or row.owner not in (None, group.id):
            return facts
        waiting = self._ordered(position, row) if isinstance(position, OrderedPosition) else self._shared(position, row)
        limited = reached_limit(position, self._now)
        return msgspec.structs.replace(facts, limited=limited, **waiting)

    def _shared(self, position: Position, row: MessageRow) -> dict[str, object]:
        assert isinstance(position, SharedPosition)
        leased = position.leased_at(row.offset)
        retry = position.retry_of(row.offset)
        delay = position.partition.queue.info.options.delayed_processing * SECOND
        # Without a released lease, a message is outstanding because it is leased, or became due while it was too young.
        came = max(row.deliver_at or 0, row.created_at + delay)
        is_retry = retry is not None and (retry.attempts > 0 or retry.due > came)
        return {
            "lease": None if leased is None else _current_lease(leased[1]),
            "retry": _retrying(retry) if is_retry else None,
            "window_until": Picker(self._connection, self._now).window_until(position),
        }

    def _ordered(self, position: OrderedPosition, row: MessageRow) -> dict[str, object]:
        draft = position.draft
        lease = None if draft is not None and (draft.released or draft.voided) else position.lease
        own = position.leased_at(row.offset)
        retry = position.retry_of(row.offset)
        facts: dict[str, object] = {"retry": _retrying(retry)}
        if own is not None and own[1] is lease:
            return facts | {"lease": _current_lease(lease)}
        before, number = _before(position, row.offset)
        facts["ahead_messages"] = number
        if lease is not None:
            return facts | {"ahead": self._leased(position, lease)}
        head = self._first(position, [*before, (row.offset, row.offset)])
        facts["window_until"] = self._window(position, head)
        blocker = self._blocker(position, before)
        if blocker is not None:
            facts["ahead"] = self._waiting(position, blocker)
        elif head is not None and head.offset != row.offset:
            facts["ahead"] = model.Ahead(message_id=self._id(position, head.offset), offset=head.offset)
        return facts

    def _id(self, position: OrderedPosition, offset: int) -> str:
        return self._state.codec.with_prefix(position.partition.prefix, offset)

    def _leased(self, position: OrderedPosition, lease: Lease) -> model.Ahead | None:
        """The first message of a lease. Between two commits it may have none."""
        first = min(position.live_offsets(lease), default=None)
        return (
            None
            if first is None
            else model.Ahead(message_id=self._id(position, first), offset=first, lease=_current_lease(lease))
        )

    def _first(self, position: OrderedPosition, ranges: Sequence[tuple[int, int]]) -> MessageRow | None:
        for first, last in ranges:
            for found in rows_of(self._connection, _FIRST, position.partition.id, first, last):
                return _row(found)
        return None

    def _window(self, position: OrderedPosition, head: MessageRow | None) -> int | None:
        window = position.partition.queue.info.options.window_buffer * SECOND
        if not window or head is None:
            return None
        due = window_end(position, head, window)
        return due if due > self._now else None

    def _blocker(self, position: OrderedPosition, before: Sequence[tuple[int, int]]) -> MessageRow | None:
        """The first message of these ranges that is not due."""
        options = position.partition.queue.info.options
        retries = (position.draft or position).retries
        waiting = [offset for offset, retry in retries.items() if retry.due > self._now]
        found = rows_of(
            self._connection,
            _BLOCKER,
            position.partition.id,
            _encode(before).decode(),
            self._now,
            self._now - options.delayed_processing * SECOND if options.delayed_processing else NEVER,
            _encode(waiting).decode(),
            options.ttl * SECOND,
        )
        return _row(found[0]) if found else None

    def _waiting(self, position: OrderedPosition, row: MessageRow) -> model.Ahead:
        delay = position.partition.queue.info.options.delayed_processing * SECOND
        old_enough = row.created_at + delay if delay else 0
        return model.Ahead(
            message_id=self._id(position, row.offset),
            offset=row.offset,
            retry=_retrying(position.retry_of(row.offset)),
            deliver_at=max(row.deliver_at or 0, old_enough) or None,
        )


def _unknown() -> HarkError:
    # The text does not name the id, so that a caller without access gets the same answer as for an unknown id.
    return NotFound(
        "no message with this id has ever existed; check that it is the message id, not the transaction id",
        code="message_not_found",
    )


def _current_lease(lease: Lease) -> model.CurrentLease:
    return model.CurrentLease(lease.id, lease.consumer, lease.since or None, lease.expires_at)


def _retrying(retry: Retry | None) -> model.Retrying | None:
    return None if retry is None else model.Retrying(retry.attempts, retry.due, retry.error)


def _begins_after(group: Group, partition: Partition, row: MessageRow | None) -> int | None:
    since = group.subscription.since
    if row is None or group.subscription.mode == "all" or since is None or partition.id > group.highest_partition:
        return None
    return since if row.created_at <= since else None


def _before(position: OrderedPosition, offset: int) -> tuple[list[tuple[int, int]], int]:
    """The first unsettled offsets before a message in the order of delivery, as ranges; and their total number."""
    ranges: list[tuple[int, int]] = []
    number = 0
    for first, last in _until(position, offset):
        if number < _LOOK_AT_MOST:
            ranges.append((first, min(last, first + _LOOK_AT_MOST - number - 1)))
        number += last - first + 1
    return ranges, number


def _until(position: OrderedPosition, offset: int) -> Iterator[tuple[int, int]]:
    is_requeued = offset in (position.draft or position).requeued
    for first, last in position.open_intervals():
        if first <= offset <= last:
            if first < offset:
                yield first, offset - 1
            return
        if not is_requeued and first > offset and first not in (position.draft or position).requeued:
            return
        yield first, last
