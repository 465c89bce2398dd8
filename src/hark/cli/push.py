"""`hark push`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec
import typer
from msgspec import UNSET, Raw, UnsetType

from hark.cli import answers
from hark.cli.command import (
    DEFAULT_URL,
    USAGE,
    Failure,
    Json,
    PartitionOption,
    QueueName,
    Url,
    command,
    complain,
)
from hark.cli.output import raw, say, table
from hark.cli.remote import call, path

# Both well under the server's default limits (10,000 items, 10 MiB).
_BATCH_ITEMS = 1000
_BATCH_BYTES = 4 * 1024 * 1024


class Item(msgspec.Struct, rename="camel", kw_only=True):
    """A message to push; the payload goes out as the bytes it came in."""

    queue: str
    payload: Raw
    partition: str | UnsetType = UNSET
    transaction_id: str | UnsetType = UNSET
    delay: int | UnsetType = UNSET
    deliver_at: str | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    keys_if_undelivered: Raw | UnsetType = UNSET


def register_push(main: typer.Typer) -> None:
    """Add the command at the top level."""
    command(
        main,
        "push",
        """hark push orders '{"id": 17}'""",
        """hark push orders '{"id": 17}' --partition customer-4 --transaction-id order-17""",
        "hark push reminders --text 'call back' --delay 60000",
        """hark push orders '{"id": 17}' --keys-if-undelivered '[["failed", "orders", 17]]'""",
        "hark push orders --stdin < orders.jsonl",
    )(push)


def push(
    *,
    queue: QueueName,
    payloads: Annotated[
        list[str] | None,
        typer.Argument(metavar="PAYLOAD", help="JSON, one message each.", show_default=False),
    ] = None,
    partition: PartitionOption = None,
    transaction_id: Annotated[
        str | None, typer.Option(metavar="ID", help="A second push with the same one is a duplicate.")
    ] = None,
    delay: Annotated[int | None, typer.Option(min=0, metavar="MS", help="Deliver it that much later.")] = None,
    deliver_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Deliver it then: ISO 8601, UTC unless it says.")
    ] = None,
    priority: Annotated[int | None, typer.Option(min=0, max=9, help="For shared groups; higher first.")] = None,
    keys: Annotated[
        str | None,
        typer.Option(
            "--keys-if-undelivered",
            metavar="JSON",
            help="Keys of the key-value store that get the payload if it becomes a dead letter: an array of arrays.",
        ),
    ] = None,
    stdin: Annotated[bool, typer.Option("--stdin", help="Read payloads from stdin, one per line.")] = False,
    text: Annotated[bool, typer.Option("--text", help="Payloads are text; send them as JSON strings.")] = False,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Push messages; when it returns they are on stable storage."""
    if stdin == bool(payloads):
        raise typer.BadParameter("give either PAYLOADs or --stdin")
    if transaction_id is not None and (stdin or len(payloads or ()) > 1):
        raise typer.BadParameter("--transaction-id is for one message: a second one would be its duplicate")
    undelivered = UNSET if keys is None else _keys(keys)

    def item(payload: Raw) -> Item:
        return Item(
            queue=queue,
            payload=payload,
            partition=UNSET if partition is None else partition,
            transaction_id=UNSET if transaction_id is None else transaction_id,
            delay=UNSET if delay is None else delay,
            deliver_at=UNSET if deliver_at is None else deliver_at,
            priority=UNSET if priority is None else priority,
            keys_if_undelivered=undelivered,
        )

    if stdin:
        _push_lines(url, (item(payload) for payload in _lines(text)), as_json)
    else:
        items = [
            item(_payload(payload.encode(errors="surrogateescape"), "the payload", text)) for payload in payloads or ()
        ]
        outcomes = _push(url, items, as_json)
        if not as_json:
            _show(outcomes)
        _check(Counter(outcome.status for outcome in outcomes))


def _keys(text: str) -> Raw:
    """Check that keys are written as they have to be; what may be in them is for the server to say."""
    given = text.encode(errors="surrogateescape")
    try:
        msgspec.json.decode(given, type=list[list[str | float | bool]])
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise typer.BadParameter(
            f'--keys-if-undelivered {text}: expected a JSON array of keys, such as \'[["failed", "orders", 17]]\''
        ) from None
    return Raw(given)


def _payload(given: bytes, what: str, text: bool) -> Raw:
    """Check that a payload is JSON, or make it a JSON string."""
    try:
        if text:
            return Raw(msgspec.json.encode(given.decode()))
        msgspec.json.decode(given)
    except UnicodeDecodeError as error:
        raise Failure(f"{what} is not UTF-8: {error}", exit_code=USAGE) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise Failure(
            f"{what} is not JSON: {given[:80].decode(errors='replace')} ({error})\n"
            "quote it for the shell, as in: hark push orders '{\"id\": 17}'\n"
            "or send it as text: hark push orders --text hello",
            exit_code=USAGE,
        ) from None
    return Raw(given)


def _lines(text: bool) -> Iterator[Raw]:
    """Read payloads from stdin, one per line; empty lines are skipped."""
    for number, line in enumerate(sys.stdin.buffer, 1):
        if line.strip():
            yield _payload(line.rstrip(b"\r\n"), f"line {number}", text)


def _push_lines(url: str, items: Iterable[Item], as_json: bool) -> None:
    """Push a stream in batches, so that its length does not matter."""
    counts: Counter[str] = Counter()
    try:
        for batch in _batches(items):
            counts.update(outcome.status for outcome in _push(url, batch, as_json))
    except Failure:
        complain(f"so far: {_summary(counts)}")
        raise
    if not as_json:
        say(_summary(counts))
    _check(counts)


def _batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Cut a stream into requests of a bounded number of items and bytes."""
    batch: list[Item] = []
    size = 0
    for item in items:
        if batch and (len(batch) == _BATCH_ITEMS or size + len(bytes(item.payload)) > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += len(bytes(item.payload))
    if batch:
        yield batch


def _push(url: str, items: list[Item], as_json: bool) -> list[answers.Pushed]:
    """Push one batch."""
    answer = call(url, "POST", path("push"), body={"items": items})
    if as_json:
        raw(answer.body)
    return answer.read(list[answers.Pushed])


def _summary(counts: Counter[str]) -> str:
    """Say how many messages came to what."""
    return ", ".join(f"{count} {status}" for status, count in counts.items()) or "nothing pushed"


def _show(outcomes: list[answers.Pushed]) -> None:
    """Show what became of each message."""
    table(
        ("Status", "Message ID", "Transaction", "Partition ID", "Error"),
        ((o.status, o.message_id, o.transaction_id, o.partition_id, o.error) for o in outcomes),
    )


def _check(counts: Counter[str]) -> None:
    """Fail if anything was not kept."""
    if failed := sum(count for status, count in counts.items() if status not in ("queued", "duplicate")):
        raise Failure(f"{failed} of {counts.total()} messages were refused")
