"""Imports the lines of an export into a server."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec import UNSET, Raw, UnsetType

from hark.cli import answers
from hark.cli.command import USAGE, Failure
from hark.cli.remote import call, path, send
from hark.clock import MILLISECOND
from hark.model.export import (
    FORMAT,
    EndLine,
    ErrorLine,
    ExportLine,
    GroupLine,
    MessageLine,
    PositionLine,
    QueueLine,
)
from hark.model.words import Key

# Well under the server's default limits (10,000 items, 10 MiB).
_BATCH_ITEMS = 1000
_BATCH_BYTES = 4 * 1024 * 1024
_BOUND = "maxSize"


class _Item(msgspec.Struct, rename="camel", kw_only=True):
    """A message to push."""

    queue: str
    partition: str
    payload: Raw
    transaction_id: str
    trace_id: str | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    deliver_at: str | UnsetType = UNSET
    ttl: int | UnsetType = UNSET
    backoff_schedule: tuple[int, ...] | UnsetType = UNSET
    keys_if_undelivered: tuple[Key, ...] | UnsetType = UNSET
    traceparent: str | UnsetType = UNSET
    tracestate: str | UnsetType = UNSET


def _iso(moment: int) -> str:
    """Format a time for the API, with microseconds."""
    return (datetime.fromtimestamp(0, UTC) + timedelta(microseconds=moment)).isoformat()


class _Start(msgspec.Struct, frozen=True):
    """The position of a group in a partition: at an imported message, or (without one) at the end."""

    first: bool = False
    """Whether it is the first message of the partition."""
    partition_id: str = ""
    message_id: str = ""


class Importer:
    """Processes the lines of one export.

    It pushes messages first and creates groups last, so that an interrupted import can be run again: messages that
    exist are duplicates, and no group has a wrong position.
    """

    def __init__(self, url: str, queue: str | None) -> None:
        self.notes: list[str] = []
        """Notes to print at the end."""
        self.expected: int | None = None
        self._url = url
        self._wanted = queue
        self._queue = ""
        self._line: QueueLine | None = None
        self._made_queue = False
        self._groups: dict[str, GroupLine] = {}
        self._known: set[str] = set()
        """Groups that existed before."""
        self._partition: str | None = None
        self._is_first = True
        """Whether the next message is the first one of its partition."""
        self._positions: dict[str, int] = {}
        """By group, its next offset in the current partition, until a message at or after it is read."""
        self._starts: dict[str, dict[str, _Start]] = {}
        """By group and partition, the position to set."""
        self._batch: list[_Item] = []
        self._marks: list[tuple[int, str, bool]] = []
        """The item of the batch at which a group starts, and whether it is the first of its partition."""
        self._bytes = 0
        self._counts: Counter[str] = Counter()
        self._ended = False

    @property
    def done(self) -> int:
        """The number of messages processed so far."""
        return self._counts.total()

    def take(self, line: ExportLine) -> None:
        """Process the next line."""
        if self._ended:
            raise Failure(
                "the file has lines after the end of the export; import one export at a time", exit_code=USAGE
            )
        if self._line is None and not isinstance(line, QueueLine):
            raise Failure(
                "the file does not begin with a queue; use a complete file that `hark export` wrote", exit_code=USAGE
            )
        match line:
            case QueueLine():
                self._begin(line)
            case GroupLine():
                self._note_group(line)
            case PositionLine():
                self._note_position(line)
            case MessageLine():
                self._add(line)
            case EndLine():
                self._flush()
                self._ended = True
            case ErrorLine():
                raise Failure(
                    f"the file has a failed export: {line.error}", code=line.code, hint="export the queue again"
                )

    def finish(self) -> None:
        """Create the groups and set their positions."""
        if self._line is None:
            raise Failure("the file is empty; use a file that `hark export` wrote", exit_code=USAGE)
        if not self._ended:
            self._flush()
            self._set_bound(self._line)
            raise Failure(
                f"the file is incomplete: it ends after {self.done} messages. These are imported, but no groups were "
                "created; export the queue again and import the new file"
            )
        # No message may be delivered before the positions are set: a queue that we created is paused meanwhile.
        if self._made_queue:
            self._order("pause")
        try:
            for group in self._groups.values():
                self._make_group(group)
        except Failure as failure:
            if not self._made_queue:
                raise
            again = (
                f"the queue {self._queue} is paused and some group positions are not set: "
                "delete the queue and import again"
            )
            raise Failure(str(failure), hint=again, exit_code=failure.exit_code) from failure
        self._set_bound(self._line)
        if self._made_queue and not self._line.paused:
            self._order("resume")

    def summary(self) -> str:
        """Describe the result."""
        counts = ", ".join(f"{count} {status}" for status, count in self._counts.items()) or "no messages"
        return f"imported queue {self._queue}: {counts}; groups created: {', '.join(self._groups) or 'none'}"

    # Lines -------------------------------------------------------------------------------------------------

    def _begin(self, line: QueueLine) -> None:
        if self._line is not None:
            raise Failure("the file has more than one queue; import one export at a time", exit_code=USAGE)
        if line.format != FORMAT:
            raise Failure(
                f"the export has format {line.format}, and this version of Hark reads format {FORMAT}; "
                "use the version of Hark that wrote it, or a newer one",
                exit_code=USAGE,
            )
        self._line, self._queue, self.expected = line, self._wanted or line.name, line.messages
        answer = send(self._url, "GET", path("resources", "queues", self._queue), query={"limit": 1})
        if answer.status == 404:
            # Until the groups exist, all messages count as pending, which can be more than `maxSize` allows.
            self._configure(line, {name: value for name, value in line.options.items() if name != _BOUND})
            self._made_queue = True
            return
        call(self._url, "GET", path("resources", "queues", self._queue), query={"limit": 1})
        self.notes.append(f"the queue {self._queue} already exists and keeps its options")
        known = call(self._url, "GET", path("consumer-groups"), query={"queue": self._queue})
        self._known = {group.name for group in known.read(list[answers.Group])}

    def _configure(self, line: QueueLine, options: dict[str, object]) -> None:
        body = {"queue": self._queue, "namespace": line.namespace, "task": line.task, "options": options}
        call(self._url, "POST", path("configure"), body=body)

    def _set_bound(self, line: QueueLine) -> None:
        if self._made_queue and _BOUND in line.options:
            self._configure(line, line.options)

    def _note_group(self, line: GroupLine) -> None:
        if line.name in self._known:
            self.notes.append(f"the group {line.name} already exists and keeps its position")
        else:
            self._groups[line.name] = line
            self._starts[line.name] = {}

    def _note_position(self, line: PositionLine) -> None:
        self._enter(line.partition)
        if line.group in self._groups:
            self._positions[line.group] = line.offset

    def _enter(self, partition: str) -> None:
        if partition != self._partition:
            self._partition, self._positions, self._is_first = partition, {}, True

    def _add(self, line: MessageLine) -> None:
        self._enter(line.partition)
        ttl: int | UnsetType = UNSET
        if line.expires_at is not None:
            ttl = (line.expires_at - time.time_ns() // 1000) // MILLISECOND
            if ttl <= 0:
                self._counts["expired"] += 1
                return
        self._place_groups(line)
        self._batch.append(
            _Item(
                queue=self._queue,
                partition=line.partition,
                payload=line.payload,
                transaction_id=line.transaction_id,
                trace_id=line.trace_id or UNSET,
                priority=line.priority or UNSET,
                deliver_at=UNSET if line.deliver_at is None else _iso(line.deliver_at),
                ttl=ttl,
                backoff_schedule=UNSET if line.backoff_schedule is None else line.backoff_schedule,
                keys_if_undelivered=line.keys_if_undelivered or UNSET,
                traceparent=line.traceparent or UNSET,
                tracestate=line.tracestate or UNSET,
            )
        )
        self._bytes += len(bytes(line.payload))
        if len(self._batch) >= _BATCH_ITEMS or self._bytes >= _BATCH_BYTES:
            self._flush()

    def _place_groups(self, line: MessageLine) -> None:
        """Start groups here whose next offset is at or before this message; the others start at the end, for now."""
        for group, offset in list(self._positions.items()):
            if line.offset >= offset:
                del self._positions[group]
                self._marks.append((len(self._batch), group, self._is_first))
            else:
                self._starts[group][line.partition] = _Start()
        self._is_first = False

    def _flush(self) -> None:
        if not self._batch:
            return
        answer = call(self._url, "POST", path("push"), body={"items": self._batch})
        outcomes = answer.read(list[answers.Pushed])
        self._counts.update(outcome.status for outcome in outcomes)
        for outcome in outcomes:
            if outcome.status == "failed":
                raise Failure(
                    f"the server rejected a message: {outcome.error}",
                    code=outcome.code,
                    hint="solve this problem, then import the file again",
                )
        for index, group, is_first in self._marks:
            pushed = outcomes[index]
            start = _Start(is_first, pushed.partition_id or "", pushed.message_id or "")
            self._starts[group][self._batch[index].partition] = start
        self._batch, self._marks, self._bytes = [], [], 0

    # Groups ------------------------------------------------------------------------------------------------

    def _make_group(self, line: GroupLine) -> None:
        # A first pop creates a group. It receives nothing: the queue is paused, or the group starts at new messages.
        contact = {
            "consumerGroup": line.name,
            "groupMode": line.mode,
            "subscriptionMode": "all" if self._made_queue else "new",
            "wait": False,
        }
        call(self._url, "GET", path("pop", "queue", self._queue), query=contact)
        for partition, start in self._starts[line.name].items():
            if not (self._made_queue and start.first):
                self._seek(line.name, partition, start)
        if line.limits is not None:
            route = path("consumer-groups", line.name, "queues", self._queue, "limits")
            call(self._url, "PUT", route, body=line.limits)
        if line.paused:
            self._order("groups", line.name, "pause")

    def _seek(self, group: str, partition: str, start: _Start) -> None:
        target: dict[str, object] = {"toEnd": True}
        if start.message_id:
            found = call(self._url, "GET", path("messages", start.partition_id, start.message_id))
            target = {"offset": found.read(answers.Message).offset}
        route = path("consumer-groups", group, "queues", self._queue, "partitions", partition, "seek")
        call(self._url, "POST", route, body=target)

    def _order(self, *what: str) -> None:
        call(self._url, "POST", path("resources", "queues", self._queue, *what))
