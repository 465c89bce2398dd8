"""The lines of an export, put into a server one after the other."""

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
    """A time as the API reads it, with its microseconds."""
    return (datetime.fromtimestamp(0, UTC) + timedelta(microseconds=moment)).isoformat()


class _Start(msgspec.Struct, frozen=True):
    """Where a group has to go on in a partition: at a message that was imported, or (without one) at the end."""

    first: bool = False
    """It is the first message of the partition."""
    partition_id: str = ""
    message_id: str = ""


class Importer:
    """Takes the lines of one export.

    Messages come first and groups last, so that an import that was cut short can be run again: messages that are there
    are duplicates, and no group stands where it does not belong.
    """

    def __init__(self, url: str, queue: str | None) -> None:
        self.notes: list[str] = []
        """What somebody should know who reads no documents."""
        self.expected: int | None = None
        self._url = url
        self._wanted = queue
        self._queue = ""
        self._line: QueueLine | None = None
        self._made_queue = False
        self._groups: dict[str, GroupLine] = {}
        self._known: set[str] = set()
        """Groups that were there before."""
        self._partition: str | None = None
        self._is_first = True
        """Whether the next message is the first one of its partition."""
        self._positions: dict[str, int] = {}
        """By group, the offset from which on it has work in the partition that is being read, until that came."""
        self._starts: dict[str, dict[str, _Start]] = {}
        """By group and partition, where to put it."""
        self._batch: list[_Item] = []
        self._marks: list[tuple[int, str, bool]] = []
        """Which item of the batch is where a group starts, and whether it is the first of its partition."""
        self._bytes = 0
        self._counts: Counter[str] = Counter()
        self._ended = False

    @property
    def done(self) -> int:
        """How many messages were dealt with."""
        return self._counts.total()

    def take(self, line: ExportLine) -> None:
        """The next line."""
        if self._ended:
            raise Failure("the file goes on after its end; import one export at a time", exit_code=USAGE)
        if self._line is None and not isinstance(line, QueueLine):
            raise Failure("the file does not begin with a queue: is it an export?", exit_code=USAGE)
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
                raise Failure(f"the export failed: {line.error}; export again", code=line.code)

    def finish(self) -> None:
        """Make the groups and put them in their places."""
        if self._line is None:
            raise Failure("the file is empty", exit_code=USAGE)
        if not self._ended:
            self._flush()
            self._set_bound(self._line)
            raise Failure(
                f"the file is not whole: it stops after {self.done} messages, which are imported. No group was made; "
                "export again, and import that"
            )
        # Nothing may be delivered before the groups stand where they did: a queue of ours can stop for so long.
        if self._made_queue:
            self._order("pause")
        try:
            for group in self._groups.values():
                self._make_group(group)
        except Failure as failure:
            if not self._made_queue:
                raise
            again = f"{self._queue} is paused, and not all its groups are in their places: delete it and import again"
            raise Failure(f"{failure}; {again}", exit_code=failure.exit_code) from failure
        self._set_bound(self._line)
        if self._made_queue and not self._line.paused:
            self._order("resume")

    def summary(self) -> str:
        """What became of it."""
        counts = ", ".join(f"{count} {status}" for status, count in self._counts.items()) or "no messages"
        return f"imported {self._queue}: {counts}; groups made: {', '.join(self._groups) or 'none'}"

    # Lines -------------------------------------------------------------------------------------------------

    def _begin(self, line: QueueLine) -> None:
        if self._line is not None:
            raise Failure("the file has two queues; import one export at a time", exit_code=USAGE)
        if line.format != FORMAT:
            raise Failure(f"the export has format {line.format}, this hark reads {FORMAT}", exit_code=USAGE)
        self._line, self._queue, self.expected = line, self._wanted or line.name, line.messages
        answer = send(self._url, "GET", path("resources", "queues", self._queue), query={"limit": 1})
        if answer.status == 404:
            # Until the groups are there all messages count as waiting: the bound may be less than what is kept.
            self._configure(line, {name: value for name, value in line.options.items() if name != _BOUND})
            self._made_queue = True
            return
        call(self._url, "GET", path("resources", "queues", self._queue), query={"limit": 1})
        self.notes.append(f"{self._queue} was there already and keeps its options")
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
            self.notes.append(f"the group {line.name} was there already and keeps its place")
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
        """Groups that have work from this message on start here; the others at the end, for now."""
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
                raise Failure(f"a message was refused: {outcome.error}; when that is mended, import again")
        for index, group, is_first in self._marks:
            pushed = outcomes[index]
            start = _Start(is_first, pushed.partition_id or "", pushed.message_id or "")
            self._starts[group][self._batch[index].partition] = start
        self._batch, self._marks, self._bytes = [], [], 0

    # Groups ------------------------------------------------------------------------------------------------

    def _make_group(self, line: GroupLine) -> None:
        # A group is made by its first pop. That gets nothing: the queue is paused, or the group wants only what is new.
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
