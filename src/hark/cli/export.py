"""`hark export` and `hark import`: copy a queue from one store to another as JSON lines."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
import typer
from msgspec import Raw

from hark.api import operations, types
from hark.cli.command import command, main
from hark.cli.output import PARTIAL, Failure, Misuse, complain, counting, say
from hark.cli.params import argument, flag, option
from hark.cli.push import BATCH_BYTES, BATCH_ITEMS, Item
from hark.cli.remote import Query, Server
from hark.clock import LATEST, MILLISECOND
from hark.model import export as lines

_BOUND = "maxSize"
_PART = ".part"
_KEYS_AT_ONCE = 100
_TRIES = 5
"""Attempts to set keys: another client can create one of them between the read and the write."""
_decode: Callable[[bytes], lines.ExportLine] = msgspec.json.Decoder(lines.ExportLine).decode


_KEPT = frozenset(
    (
        *("partition", "payload", "transaction_id", "trace_id", "priority"),
        *("keys_if_undelivered", "traceparent", "tracestate"),
    )
)
"""The fields of a message or a dead letter that have the same names in lines and in bodies. Empty ones are left out."""


def _kept(line: lines.MessageLine | lines.DeadLetterLine) -> Item:
    names = zip(line.__struct_fields__, line.__struct_encode_fields__, strict=True)
    kept = {sent: value for name, sent in names if name in _KEPT and (value := getattr(line, name))}
    return kept | {"backoffSchedule": line.backoff_schedule}


def _iso(moment: int) -> str:
    """Format a time for the API, with microseconds."""
    return (datetime.fromtimestamp(0, UTC) + timedelta(microseconds=min(moment, LATEST))).isoformat()


def _left(expires_at: int | None) -> int | None:
    """Return the milliseconds until a time; None: it never comes."""
    return None if expires_at is None else (expires_at - time.time_ns() // 1000) // MILLISECOND


def _counts_text(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {status}" for status, count in counts.items() if count)


class _Start(msgspec.Struct, frozen=True):
    """The position of a group in a partition: at an imported message, or (without one) at the end."""

    first: bool = False
    """Whether it is the first message of the partition."""
    partition_id: str = ""
    message_id: str = ""


class Importer:
    """Processes the lines of one export.

    It pushes messages first and creates groups last, so that an interrupted import can be run again: messages and dead
    letters that exist are duplicates, and no group has a wrong position.
    """

    def __init__(self, server: Server, queue: str | None, *, replace: bool = False) -> None:
        self.notes: list[str] = []
        """Notes to print at the end."""
        self.expected: int | None = None
        self._server = server
        self._replace = replace
        self._wanted = queue
        self._queue = ""
        self._line: lines.QueueLine | None = None
        self._made_queue = False
        self._groups: dict[str, lines.GroupLine] = {}
        self._known: set[str] = set()
        """Groups that existed before."""
        self._partition: str | None = None
        self._is_first = True
        """Whether the next message is the first one of its partition."""
        self._positions: dict[str, int] = {}
        """By group, its next offset in the current partition, until a message at or after it is read."""
        self._starts: dict[str, dict[str, _Start]] = {}
        """By group and partition, the position to set."""
        self._batch: list[Item] = []
        self._marks: list[tuple[int, str, str, bool]] = []
        """Item of the batch at which a group starts, group, partition, and whether it is the first one there."""
        self._letters: list[Item] = []
        self._keys: list[Item] = []
        self._bytes = 0
        """Of all that waits to be sent."""
        self._counts: Counter[str] = Counter()
        self._letter_counts: Counter[str] = Counter()
        self._key_counts: Counter[str] = Counter()
        self._unreadable = 0
        self._began = self._ended = False

    @property
    def done(self) -> int:
        """The number of messages processed so far."""
        return self._counts.total()

    def take(self, line: lines.ExportLine) -> None:
        """Process the next line."""
        if self._ended:
            raise Misuse("the file has lines after the end of the export; import one export at a time")
        if not self._began and not isinstance(line, lines.QueueLine | lines.KeysLine):
            raise Misuse(
                "the file does not begin with a queue or with keys; use a complete file that `hark export` wrote"
            )
        match line:
            case lines.QueueLine() | lines.KeysLine():
                self._begin(line)
            case lines.GroupLine() if line.name in self._known:
                self.notes.append(f"the group {line.name} already exists and keeps its position")
            case lines.GroupLine():
                self._groups[line.name] = line
                self._starts[line.name] = {}
            case lines.PositionLine():
                self._enter(line.partition)
                if line.group in self._groups:
                    self._positions[line.group] = line.offset
            case lines.MessageLine():
                self._add(line)
            case lines.DeadLetterLine():
                self._add_letter(line)
            case lines.KeyLine():
                self._add_key(line)
            case lines.UnreadableLine():
                self._unreadable += 1
            case lines.EndLine():
                self._flush()
                self._ended = True
            case lines.ErrorLine():
                raise Failure(
                    f"the file has a failed export: {line.error}", code=line.code, hint="export the queue again"
                )

    def finish(self) -> None:
        """Create the groups and set their positions."""
        if not self._began:
            raise Misuse("the file is empty; use a file that `hark export` wrote")
        if not self._ended:
            self._flush()
            self._set_bound()
            raise Failure(
                f"the file is incomplete: it ends after {self.done} messages. These are imported, but no groups were "
                "created; export the queue again and import the new file"
            )
        if self._unreadable:
            self.notes.append(
                f"{self._unreadable} entries are missing: the server that wrote the file could not read them"
            )
        if self._line is None:
            return
        # No message may be delivered before the positions are set: a queue that we created is paused meanwhile.
        if self._made_queue:
            self._server.call(operations.PAUSE_QUEUE, self._queue)
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
        self._set_bound()
        if self._made_queue and not self._line.paused:
            self._server.call(operations.RESUME_QUEUE, self._queue)

    def summary(self) -> str:
        """Describe the result."""
        parts = []
        if self._line is not None:
            parts.append(f"queue {self._queue}: {_counts_text(self._counts) or 'no messages'}")
            parts.append(f"groups created: {', '.join(self._groups) or 'none'}")
        for kind, counts in (("dead letters", self._letter_counts), ("keys", self._key_counts)):
            if counts.total() or (self._line is None and kind == "keys"):
                parts.append(f"{kind}: {_counts_text(counts) or 'none'}")
        return f"imported {'; '.join(parts)}"

    # Lines -------------------------------------------------------------------------------------------------

    def _begin(self, line: lines.QueueLine | lines.KeysLine) -> None:
        if self._began:
            raise Misuse("the file has more than one queue; import one export at a time")
        if not 1 <= line.format <= lines.FORMAT:
            raise Misuse(
                f"the export has format {line.format}, and this version of Hark reads formats up to {lines.FORMAT}; "
                "use the version of Hark that wrote it, or a newer one"
            )
        self._began = True
        if isinstance(line, lines.QueueLine):
            self._begin_queue(line)
        elif self._wanted is not None:
            raise Misuse("--queue: the file has only keys; omit the option")

    def _begin_queue(self, line: lines.QueueLine) -> None:
        self._line, self._queue, self.expected = line, self._wanted or line.name, line.messages
        answer = self._server.send(operations.SHOW_QUEUE, self._queue, query={"limit": 1})
        if answer.status == 404:
            # Until the groups exist, all messages count as pending, which can be more than `maxSize` allows.
            self._configure(line, {name: value for name, value in line.options.items() if name != _BOUND})
            self._made_queue = True
            return
        self._server.call(operations.SHOW_QUEUE, self._queue, query={"limit": 1})
        self.notes.append(f"the queue {self._queue} already exists and keeps its options")
        known = self._server.call(operations.LIST_GROUPS, query={"queue": self._queue})
        self._known = {group.name for group in known.read()}

    def _configure(self, line: lines.QueueLine, options: dict[str, object]) -> None:
        body = {"queue": self._queue, "namespace": line.namespace, "task": line.task, "options": options}
        self._server.call(operations.CONFIGURE, body=body)

    def _set_bound(self) -> None:
        if self._line is not None and self._made_queue and _BOUND in self._line.options:
            self._configure(self._line, self._line.options)

    def _enter(self, partition: str) -> None:
        if partition != self._partition:
            self._partition, self._positions, self._is_first = partition, {}, True

    def _add(self, line: lines.MessageLine) -> None:
        self._enter(line.partition)
        ttl = _left(line.expires_at)
        if ttl is not None and ttl <= 0:
            self._counts["expired"] += 1
            return
        self._make_room(line.payload)
        self._position_groups(line)
        self._batch.append(
            _kept(line)
            | {
                "queue": self._queue,
                "deliverAt": None if line.deliver_at is None else _iso(line.deliver_at),
                "ttl": ttl,
            }
        )
        self._flush_if_full(len(self._batch))

    def _add_letter(self, line: lines.DeadLetterLine) -> None:
        if self._batch:
            self._flush()  # A dead letter belongs to its message, if that is stored.
        # The id is unique in a store, which can have the queue of the export and a copy of it.
        self._make_room(line.payload)
        same = self._line is not None and self._line.name == self._queue
        self._letters.append(
            _kept(line)
            | {
                "id": line.id if same else str(uuid.uuid5(uuid.UUID(line.id), self._queue)),
                "consumerGroup": line.group,
                "error": line.error,
                "attempts": line.attempts,
                "createdAt": _iso(line.created_at),
                "failedAt": _iso(line.failed_at),
            }
        )
        self._flush_if_full(len(self._letters))

    def _add_key(self, line: lines.KeyLine) -> None:
        expires_in = _left(line.expires_at)
        if expires_in is not None and expires_in <= 0:
            self._key_counts["expired"] += 1
            return
        self._make_room(line.value)
        self._keys.append({"type": "set", "key": line.key, "value": line.value, "expiresIn": expires_in})
        self._flush_if_full(len(self._keys))

    def _make_room(self, payload: Raw) -> None:
        """Send what was gathered if it would be too large with this payload. A large payload is sent alone."""
        size = len(bytes(payload))
        if self._bytes and self._bytes + size > BATCH_BYTES:
            self._flush()
        self._bytes += size

    def _flush_if_full(self, items: int) -> None:
        if items >= BATCH_ITEMS:
            self._flush()

    def _position_groups(self, line: lines.MessageLine) -> None:
        """Start groups here whose next offset is at or before this message; the others start at the end, for now."""
        for group, offset in list(self._positions.items()):
            if line.offset >= offset:
                del self._positions[group]
                self._marks.append((len(self._batch), group, line.partition, self._is_first))
            else:
                self._starts[group][line.partition] = _Start()
        self._is_first = False

    def _flush(self) -> None:
        self._push()
        if self._letters:
            query = {"queue": self._queue}
            outcome = self._server.call(
                operations.IMPORT_DEAD_LETTERS, query=query, body={"items": self._letters}
            ).read()
            self._letter_counts.update(imported=outcome.imported, duplicate=outcome.duplicates)
            self._letters = []

        self._set_keys()
        self._bytes = 0

    def _set_keys(self) -> None:
        """Set keys that do not exist, or all of them. The check of each one holds in the commit of the write."""
        if not self._keys:
            return
        for _ in range(_TRIES):
            wanted, checks = self._keys, []
            if not self._replace:
                body: Item = {"keys": [one["key"] for one in self._keys]}
                found = self._server.call(operations.KEYVAL_GET_BATCH, body=body).read()
                pairs = zip(self._keys, found, strict=True)
                wanted = [one for one, known in pairs if known.versionstamp is None]
                checks = [{"key": one["key"], "versionstamp": None} for one in wanted]
            body = {"checks": checks, "mutations": wanted}
            if not wanted or self._server.call(operations.KEYVAL_COMMIT, body=body).read().ok:
                self._key_counts.update(imported=len(wanted), kept=len(self._keys) - len(wanted))
                self._keys = []
                return
        raise Failure("other clients write the same keys; import the file again")

    def _push(self) -> None:
        if not self._batch:
            return
        outcomes = self._server.call(operations.PUSH, body={"items": self._batch}).read()
        self._counts.update(outcome.status for outcome in outcomes)
        for outcome in outcomes:
            if outcome.status == "failed":
                raise Failure(
                    f"the server rejected a message: {outcome.error}",
                    code=outcome.code,
                    hint="solve this problem, then import the file again",
                )
        for index, group, partition, is_first in self._marks:
            pushed = outcomes[index]
            start = _Start(is_first, pushed.partition_id or "", pushed.message_id or "")
            self._starts[group][partition] = start
        self._batch, self._marks = [], []

    # Groups ------------------------------------------------------------------------------------------------

    def _make_group(self, line: lines.GroupLine) -> None:
        # A first pop creates a group. It receives nothing: the queue is paused, or the group starts at new messages.
        contact = {
            "consumerGroup": line.name,
            "groupMode": line.mode,
            "subscriptionMode": "all" if self._made_queue else "new",
            "wait": False,
        }
        self._server.call(operations.POP_OF_QUEUE, self._queue, query=contact)
        for partition, start in self._starts[line.name].items():
            if not (self._made_queue and start.first):
                self._seek(line.name, partition, start)
        if line.limits is not None:
            self._server.call(operations.LIMIT_GROUP, line.name, self._queue, body=line.limits)
        if line.paused:
            self._server.call(operations.PAUSE_GROUP, self._queue, line.name)

    def _seek(self, group: str, partition: str, start: _Start) -> None:
        target = types.groups.SeekBody(to_end=True)
        if start.message_id:
            found = self._server.call(operations.SHOW_MESSAGE, start.partition_id, start.message_id)
            target = types.groups.SeekBody(offset=found.read().offset)
        self._server.call(operations.SEEK_PARTITION, group, self._queue, partition, body=target)


@command(
    main,
    "export",
    "hark export orders > orders.jsonl",
    "hark export orders --output orders.jsonl",
    "hark export --keys --output keys.jsonl",
    json=False,
)
def export(
    server: Server,
    queue: Annotated[str | None, argument("QUEUE", "Name of the queue.", empty=False)] = None,
    keys: Annotated[bool, flag("Export the keys of the key-value store, too.", "--keys")] = False,
    output: Annotated[
        Path | None, option("FILE", "File to write.", "--output", "-o", default="standard output")
    ] = None,
) -> None:
    """Export a queue as JSON lines.

    The export has the options of the queue, its consumer groups with their positions, its messages and its dead
    letters. It does not have messages pushed during the export, or messages requeued from dead letters. Keys belong to
    no queue: --keys adds all keys of the server, and without QUEUE exports only these.
    """
    if queue is None and not keys:
        raise typer.BadParameter("give QUEUE, --keys or both")
    what = "keys" if queue is None else f"queue {queue}"
    with counting(f"Exporting {what}", "messages") as reach, _written(output) as file:
        written = _Written(file)
        if queue is None:
            written.put(lines.KeysLine(format=lines.FORMAT))
        else:
            _export_queue(server, queue, written, reach)
        if keys:
            _export_keys(server, written)
        written.end()
    counts = written.counts
    missing = 0 if written.total is None else written.total - counts[lines.MessageLine] - written.unreadable["message"]
    if missing > 0:
        left = f"{missing} messages of queue {queue} are not exported"
        complain(f"warning: {left}: they were requeued from dead letters, or removed during the export")
    if output is not None:
        parts = (
            []
            if queue is None
            else [f"{counts[lines.MessageLine]} messages", f"{counts[lines.DeadLetterLine]} dead letters"]
        )
        parts += [f"{counts[lines.KeyLine]} keys"] if keys else []
        say(f"exported {', '.join(parts)}{'' if queue is None else f' of queue {queue}'} to {output}")
    if written.unreadable:
        for reason, number in written.reasons.most_common():
            complain(f"warning: {number} left out: {reason}")
        left = ", ".join(f"{number} {kind}{'' if number == 1 else 's'}" for kind, number in written.unreadable.items())
        raise Failure(f"the server cannot read {left}; the export has everything else", exit_code=PARTIAL)


class _Written:
    """The file, and what was written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.total: int | None = None
        """Messages of the queue when the export began."""
        self.counts: Counter[type[msgspec.Struct]] = Counter()
        self.unreadable: Counter[str] = Counter()
        """What is left out, by kind."""
        self.reasons: Counter[str] = Counter()

    def put(self, line: lines.ExportLine, text: bytes | None = None) -> None:
        """Write a line, which the server may have sent as this text."""
        self.counts[type(line)] += 1
        if isinstance(line, lines.UnreadableLine):
            self.unreadable[line.kind] += 1
            self.reasons[line.reason] += 1
        self._file.write(lines.encode_line(line) if text is None else text + b"\n")

    def end(self) -> None:
        """Write the last line."""
        kinds = (lines.MessageLine, lines.DeadLetterLine, lines.KeyLine, lines.UnreadableLine)
        messages, dead_letters, keys, unreadable = (self.counts[kind] for kind in kinds)
        self.put(lines.EndLine(messages=messages, dead_letters=dead_letters, keys=keys, unreadable=unreadable))


def _export_queue(server: Server, queue: str, written: _Written, reach: Callable[[int, int | None], None]) -> None:
    for text in _split(server.stream(operations.EXPORT_QUEUE, queue, query={})):
        match line := parse(text, "a line from the server"):
            case lines.QueueLine():
                written.total = line.messages
            case lines.ErrorLine(error=error, code=code):
                raise Failure(error, code=code)
            case lines.EndLine():
                return
        written.put(line, text)
        reach(written.counts[lines.MessageLine], written.total)
    done = written.counts[lines.MessageLine]
    raise Failure(f"the export of queue {queue} ended early, after {done} messages; run the command again")


def _export_keys(server: Server, written: _Written) -> None:
    cursor: str | None = None
    while True:
        query: Query = {"limit": _KEYS_AT_ONCE, "cursor": cursor}
        page = server.call(operations.KEYVAL_PAGINATE_KEYS, query=query).read()
        for entry in page.entries:
            if isinstance(entry.payload_error, str):
                written.put(lines.UnreadableLine(kind="key", reason=entry.payload_error, key=entry.key))
                continue
            expires_at = entry.expires_at * MILLISECOND if isinstance(entry.expires_at, int) else None
            written.put(lines.KeyLine(key=entry.key, value=entry.value, expires_at=expires_at))
        cursor = page.cursor
        if cursor is None:
            return


@command(
    main,
    "import",
    "hark import orders.jsonl",
    "hark import orders.jsonl --queue orders-copy",
    "hark export orders | hark import - --url http://other:6632",
    json=False,
)
def import_(
    server: Server,
    file: Annotated[Path, argument("FILE", "Export to read; - reads standard input.")],
    queue: Annotated[
        str | None, option("QUEUE", "Queue to import into.", empty=False, default="the queue in FILE")
    ] = None,
    replace: Annotated[bool, flag("Replace the values of keys that exist.", "--replace")] = False,
) -> None:
    """Import an export.

    The command creates the queue and its consumer groups. A queue or group that already exists keeps its options and
    positions, and a key its value. If the import is interrupted, run it again: messages and dead letters keep their
    IDs, so there are no duplicates.
    """
    with _opened(file) as source, counting(f"Importing {file}", "messages") as reach:
        importer = Importer(server, queue, replace=replace)
        for number, line in enumerate(source, 1):
            if line.strip():
                importer.take(parse(line, f"{file}, line {number}"))
                reach(importer.done, importer.expected)
        importer.finish()
    for note in importer.notes:
        complain(note)
    say(importer.summary())


def _split(parts: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for part in parts:
        *complete, rest = (rest + part).split(b"\n")
        yield from complete
    if rest:
        yield rest


def parse(line: bytes, where: str) -> lines.ExportLine:
    """Parse a line; `where` is for the error message."""
    try:
        return _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Misuse(f"{where} is not a line of an export: {error}; use a file that `hark export` wrote") from None


@contextmanager
def _written(output: Path | None) -> Iterator[BinaryIO]:
    """Open the output; a file gets its name when it is complete."""
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    part = output.with_name(output.name + _PART)
    try:
        with open(part, "wb", opener=partial(os.open, mode=0o600)) as file:
            yield file
        part.replace(output)
    except OSError as error:
        raise Failure(f"cannot write {output}: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    try:
        with nullcontext(sys.stdin.buffer) if str(file) == "-" else file.open("rb") as source:
            yield source
    except OSError as error:
        raise Misuse(f"cannot read {file}: {error.strerror}") from error
