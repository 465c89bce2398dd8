"""`hark push`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec
import typer
from msgspec import UNSET, Raw, UnsetType

from hark.api import operations, types
from hark.cli.command import (
    DEFAULT_URL,
    USAGE,
    Failure,
    Json,
    QueueName,
    Url,
    command,
    complain,
    not_empty,
)
from hark.cli.output import raw, say, table
from hark.cli.remote import call, near_older_queue
from hark.model import DEFAULT_PARTITION

# Both well under the server's default limits (10,000 items, 10 MiB).
_BATCH_ITEMS = 1000
_BATCH_BYTES = 4 * 1024 * 1024


class Item(msgspec.Struct, rename="camel", kw_only=True):
    """A message to push; the payload is sent byte for byte."""

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
        """hark push orders '{"id": 17}' --transaction-id order-17""",
        """hark push orders '{"id": 17}' --partition customer-4""",
        "hark push reminders --text 'call back' --delay 60000",
        """hark push orders 17 --keys-if-undelivered '[["failed", 17]]'""",
        "hark push orders --stdin < orders.jsonl",
    )(push)


def push(
    *,
    queue: QueueName,
    payloads: Annotated[
        list[str] | None,
        typer.Argument(metavar="PAYLOAD", help="Payload of a message, as JSON.", show_default=False),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            metavar="PARTITION", callback=not_empty, help="Partition to push to.", show_default=DEFAULT_PARTITION
        ),
    ] = None,
    transaction_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Idempotency key: a second push with it is a duplicate.", show_default="random"
        ),
    ] = None,
    delay: Annotated[
        int | None, typer.Option(min=0, metavar="MS", help="Delay before delivery, in milliseconds.", show_default="0")
    ] = None,
    deliver_at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Earliest time of delivery (ISO 8601, UTC by default)."),
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(min=0, max=9, metavar="N", help="Priority in shared groups; 9 is first.", show_default="0"),
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option(
            "--keys-if-undelivered",
            metavar="JSON",
            help="JSON array of keys that get the payload if the message becomes a dead letter.",
        ),
    ] = None,
    stdin: Annotated[bool, typer.Option("--stdin", help="Read payloads from standard input, one per line.")] = False,
    text: Annotated[bool, typer.Option("--text", help="Treat payloads as text and send them as JSON strings.")] = False,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Push one or more messages to a queue.

    The messages are on stable storage when the command returns. The first push to a queue creates it.
    """
    if stdin == bool(payloads):
        raise typer.BadParameter("give either one or more PAYLOADs, or --stdin")
    if transaction_id is not None and (stdin or len(payloads or ()) > 1):
        raise typer.BadParameter("--transaction-id works with one PAYLOAD only; push the messages one by one")
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
        pushed = _push_lines(url, (item(payload) for payload in _lines(text)), as_json)
    else:
        items = [
            item(_payload(payload.encode(errors="surrogateescape"), "the payload", text)) for payload in payloads or ()
        ]
        outcomes = _push(url, items, as_json)
        if not as_json:
            _show(outcomes)
        _check(outcomes)
        pushed = len(outcomes)
    if not as_json and (hint := near_older_queue(url, queue, pushed)):  # Only people read hints.
        complain(f"created queue {queue}{hint}")


def _keys(text: str) -> Raw:
    """Check the syntax of keys; the server checks their content."""
    given = text.encode(errors="surrogateescape")
    try:
        msgspec.json.decode(given, type=list[list[str | float | bool]])
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise typer.BadParameter(
            f'--keys-if-undelivered {text}: not a JSON array of keys; use, for example, \'[["failed", "orders", 17]]\''
        ) from None
    return Raw(given)


def _payload(given: bytes, what: str, text: bool) -> Raw:
    """Check that a payload is JSON, or make it a JSON string."""
    try:
        if text:
            return Raw(msgspec.json.encode(given.decode()))
        msgspec.json.decode(given)
    except UnicodeDecodeError as error:
        raise Failure(f"{what} is not UTF-8: {error}; correct its encoding", exit_code=USAGE) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise Failure(
            f"{what} is not JSON: {given[:80].decode(errors='replace')} ({error})\n"
            "quote JSON for the shell: hark push orders '{\"id\": 17}'\n"
            "or send the payload as text: hark push orders --text hello",
            exit_code=USAGE,
        ) from None
    return Raw(given)


def _lines(text: bool) -> Iterator[Raw]:
    """Read payloads from stdin, one per line; empty lines are skipped."""
    for number, line in enumerate(sys.stdin.buffer, 1):
        if line.strip():
            yield _payload(line.rstrip(b"\r\n"), f"line {number}", text)


def _push_lines(url: str, items: Iterable[Item], as_json: bool) -> int:
    """Push a stream of any length, in batches. Returns the number of messages."""
    counts: Counter[str] = Counter()
    rejected: list[types.delivery.PushAnswer] = []
    try:
        for batch in _batches(items):
            outcomes = _push(url, batch, as_json)
            counts.update(outcome.status for outcome in outcomes)
            rejected += _rejected(outcomes)
    except Failure:
        complain(f"before this error: {_summary(counts)}")
        raise
    if not as_json:
        say(_summary(counts))
    _check(rejected, counts.total())
    return counts.total()


def _batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Split a stream into requests of a limited number of items and bytes."""
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


def _push(url: str, items: list[Item], as_json: bool) -> list[types.delivery.PushAnswer]:
    """Push one batch."""
    answer = call(url, operations.PUSH, body={"items": items})
    if as_json:
        raw(answer.body)
    return answer.read()


def _summary(counts: Counter[str]) -> str:
    """Return the number of messages by status."""
    return ", ".join(f"{count} {status}" for status, count in counts.items()) or "no messages pushed"


def _show(outcomes: list[types.delivery.PushAnswer]) -> None:
    """Print the outcome of each message."""
    table(
        ("Status", "Message ID", "Transaction ID", "Partition ID", "Error"),
        ((o.status, o.message_id, o.transaction_id, o.partition_id, o.error) for o in outcomes),
        long=("Error",),
        spare=("Transaction ID", "Partition ID"),
    )


def _rejected(outcomes: list[types.delivery.PushAnswer]) -> list[types.delivery.PushAnswer]:
    return [outcome for outcome in outcomes if outcome.status not in ("queued", "duplicate")]


def _check(outcomes: list[types.delivery.PushAnswer], total: int | None = None) -> None:
    """Fail if the server rejected a message."""
    if rejected := _rejected(outcomes):
        count = f"{len(rejected)} of {len(outcomes) if total is None else total} messages"
        raise Failure(f"the server rejected {count}; the first error is: {rejected[0].error}", code=rejected[0].code)
