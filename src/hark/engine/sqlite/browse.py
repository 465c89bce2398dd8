"""What administrators see: single messages, dead letters, traces."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import apsw
import msgspec

from hark.engine.sqlite.deadletters import conditions
from hark.engine.sqlite.leases import LeaseView
from hark.engine.sqlite.message_pages import MESSAGE, page_of
from hark.engine.sqlite.rows import extra_of, payload_of
from hark.engine.sqlite.store import rows_of, scalar
from hark.engine.sqlite.track import Stored
from hark.ids import IdCodec
from hark.model import (
    DeadLetter,
    DeadLetterFilter,
    DeadLetters,
    GroupView,
    MessageFilter,
    MessageState,
    MessageView,
    Trace,
    TraceName,
)

_FROM = """
from messages as message
join partitions as place on place.id = message.partition
join queues on queues.id = place.queue
where message.offset > place.floor
"""
_GROUPS = """
select groups.id, groups.name, groups.since, groups.highest_partition, track.cursor,
    exists (select 1 from ranges where grp = groups.id and ranges.partition = ?2 and ?3 between first and last),
    exists (select 1 from fronts where grp = groups.id and fronts.partition = ?2 and fronts.offset = ?3),
    (select json_array(attempts, error) from retries
        where grp = groups.id and retries.partition = ?2 and retries.offset = ?3),
    (select json_array(attempts, error) from dead_letters
        where dead_letters.grp = groups.name and dead_letters.partition = ?2 and dead_letters.offset = ?3),
    groups.mode = 'shared' and (?6 is not null or exists (select 1 from lanes
        where lanes.grp = groups.id and lanes.partition = ?2 and lanes.priority = ?4
          and iif(?5 is null, lanes.cursor >= ?3, (lanes.due, lanes.due_offset) >= (?5, ?3)))),
    (select json_array(attempts, error) from exceptions
        where grp = groups.id and exceptions.partition = ?2 and exceptions.offset = ?3)
from groups
left join tracks as track on track.grp = groups.id and track.partition = ?2
where groups.queue = ?1
order by groups.name
"""


class Browser:
    """Reads messages for those who look, with one connection and one copy of the leases."""

    def __init__(self, connection: apsw.Connection, leases: LeaseView, codec: IdCodec) -> None:
        self._connection = connection
        self._leases = leases
        self._codec = codec

    def messages(self, where: MessageFilter) -> list[MessageView]:
        """A page of messages, newest first."""
        sql, parameters = page_of(self._connection, where, self._leases)
        views = (self._view(row) for row in self._connection.execute(sql, parameters))
        if where.state is None:
            return list(views)
        matching = (view for view in views if view.state == where.state)
        return list(islice(matching, where.offset, where.offset + where.limit))

    def message(self, partition_id: str, transaction_id: str) -> MessageView | None:
        """One message with its payload."""
        place = self._codec.decode(partition_id)
        if place is None:
            return None
        own = self._codec.decode(transaction_id)
        offset = own.offset if own is not None and own.partition == place.partition else None
        row = next(
            iter(
                rows_of(
                    self._connection,
                    f"{MESSAGE}, message.extra, message.payload {_FROM} and message.partition = ?1"
                    " and (message.transaction_id = ?2 or message.offset = ?3) order by message.transaction_id is null",
                    place.partition,
                    transaction_id,
                    offset,
                )
            ),
            None,
        )
        if row is None:
            return None
        *columns, extra, payload = row
        view = self._view(tuple(columns))
        view.payload = payload_of(msgspec.Raw(payload), extra_of(extra))
        return view

    def _view(self, row: apsw.SQLiteValues) -> MessageView:
        partition, offset, created_at, transaction_id, text, queue, name, namespace, task, *rest = row
        queue_priority, priority, deliver_at, owner = (None if one is None else int(str(one)) for one in rest)
        assert isinstance(partition, int)
        assert isinstance(offset, int)
        extra = extra_of(None if text is None else str(text))
        message_id = self._codec.encode(partition, offset)
        message = Stored(partition, offset, priority or 0, deliver_at, owner)
        groups = list(self._groups(str(queue), message, int(str(created_at))))
        return MessageView(
            id=message_id,
            transaction_id=message_id if transaction_id is None else str(transaction_id),
            partition_id=self._codec.encode(partition, 0),
            queue=str(queue),
            partition=str(name),
            namespace=str(namespace),
            task=str(task),
            offset=offset,
            state=_overall(groups),
            trace_id=extra.t,
            producer=extra.u,
            priority=message.priority,
            queue_priority=queue_priority or 0,
            created_at=int(str(created_at)),
            deliver_at=deliver_at,
            groups=groups,
            sealed=extra.s,
        )

    def _groups(self, queue: str, message: Stored, created_at: int) -> Iterator[GroupView]:
        partition, offset, _, _, owner = message
        for group_id, name, since, highest, cursor, in_range, in_front, retry, dead, passed, exception in rows_of(
            self._connection, _GROUPS, queue, *message
        ):
            if owner not in (None, group_id):
                continue
            expires_at = self._leases.expiry_of(group_id, partition, offset)
            before_start = cursor is None and since is not None and partition <= highest and created_at <= since
            done = before_start or in_range or passed or (cursor is not None and offset <= cursor)
            settled = done and not in_front and exception is None
            attempts, error = msgspec.json.decode(dead or retry or exception or b"[0,null]")
            state: MessageState = "pending"
            if dead:
                state = "dead_letter"
            elif settled:
                state = "completed"
            elif expires_at is not None:
                state = "processing"
            yield GroupView(group=name, state=state, attempts=attempts, error=error, lease_expires_at=expires_at)

    # Dead letters ------------------------------------------------------------------------------------------

    def dead_letters(self, where: DeadLetterFilter) -> DeadLetters:
        """A page of dead letters, newest failure first."""
        matching, values = conditions(where, self._codec)
        total = scalar(self._connection, f"select count(*) from dead_letters where {matching}", *values)
        payload = "payload" if where.payloads else "cast('null' as blob)"
        rows = rows_of(
            self._connection,
            f"select uid, partition, offset, transaction_id, queue, partition_name, grp, {payload}, extra, attempts,"
            f" error, created_at, failed_at from dead_letters where {matching}"
            " order by failed_at desc, id desc limit ? offset ?",
            *values,
            where.limit,
            where.offset,
        )
        return DeadLetters([self._dead_letter(row, where.payloads) for row in rows], int(total))

    def _dead_letter(
        self, row: tuple[str, int, int, str, str, str, str, bytes, str, int, str, int, int], with_payload: bool
    ) -> DeadLetter:
        (
            uid,
            partition,
            offset,
            transaction_id,
            queue,
            name,
            group,
            payload,
            text,
            attempts,
            error,
            created,
            failed,
        ) = row
        extra = extra_of(text)
        message_id = self._codec.encode(partition, offset)
        return DeadLetter(
            id=uid,
            message_id=message_id,
            transaction_id=transaction_id or message_id,
            partition_id=self._codec.encode(partition, 0),
            queue=queue,
            partition=name,
            group=group,
            payload=payload_of(msgspec.Raw(payload), extra if with_payload else None),
            sealed=extra.s,
            producer=extra.u,
            trace_id=extra.t,
            attempts=attempts,
            error=error,
            created_at=created,
            failed_at=failed,
        )

    # Traces ------------------------------------------------------------------------------------------------

    def traces(
        self, partition_id: str | None, transaction_id: str | None, name: str | None, limit: int, offset: int
    ) -> tuple[list[Trace], int]:
        """Events of one message, oldest first, or of one name, newest first."""
        if name is not None:
            condition = "traces.id in (select trace from trace_names where name = ?1)"
            order = "desc"
            values: list[str | int | None] = [name, None]
        else:
            view = self.message(partition_id or "", transaction_id or "")
            place = None if view is None else self._codec.decode(view.id)
            if place is None:
                return [], 0
            condition = "traces.partition = ?1 and traces.offset = ?2"
            order, values = "asc", [*place]
        total = scalar(self._connection, f"select count(*) from traces where {condition} and ?2 is ?2", *values)
        rows = rows_of(
            self._connection,
            f"""
            select traces.uid, traces.event, traces.data, traces.grp, traces.created_at,
                (select json_group_array(name) from trace_names where trace = traces.id),
                message.transaction_id, traces.partition, traces.offset, queues.name, place.name,
                message.payload, message.extra
            from traces
            join messages as message on message.partition = traces.partition and message.offset = traces.offset
            join partitions as place on place.id = traces.partition
            join queues on queues.id = place.queue
            where {condition} and ?2 is ?2
            order by traces.id {order} limit ?3 offset ?4
            """,
            *values,
            limit,
            offset,
        )
        return [self._trace(row) for row in rows], int(total)

    def _trace(self, row: tuple[str, str, bytes, str, int, str, str, int, int, str, str, bytes, str]) -> Trace:
        (
            uid,
            event,
            data,
            group,
            created,
            names,
            transaction_id,
            partition,
            offset,
            queue,
            name,
            payload,
            text,
        ) = row
        extra = extra_of(text)
        return Trace(
            id=uid,
            event=event,
            data=msgspec.Raw(data),
            group=group,
            created_at=created,
            names=msgspec.json.decode(names, type=list[str]),
            transaction_id=transaction_id or self._codec.encode(partition, offset),
            partition_id=self._codec.encode(partition, 0),
            queue=queue,
            partition=name,
            payload=payload_of(msgspec.Raw(payload), extra),
            sealed=extra.s,
        )

    def trace_names(self, limit: int, offset: int) -> tuple[list[TraceName], int]:
        """Names of events, the last used first."""
        total = scalar(self._connection, "select count(distinct name) from trace_names")
        rows = rows_of(
            self._connection,
            """
            select trace_names.name, count(*), count(distinct traces.partition || ':' || traces.offset),
                max(traces.created_at)
            from trace_names join traces on traces.id = trace_names.trace
            group by trace_names.name order by max(traces.id) desc limit ?1 offset ?2
            """,
            limit,
            offset,
        )
        return [TraceName(*row) for row in rows], int(total)


def _overall(groups: list[GroupView]) -> MessageState:
    """One word for a message: the most urgent of what its groups say."""
    states = {group.state for group in groups}
    for state in ("dead_letter", "processing", "pending"):
        if state in states:
            return state
    return "completed" if states else "pending"
