"""`hark push`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Annotated

import msgspec
import typer
from msgspec import Raw

from hark.api import operations, types
from hark.cli import params
from hark.cli.command import command, main
from hark.cli.output import Failure, complain, raw, say, table
from hark.cli.remote import Server, json_or_text
from hark.model import DEFAULT_PARTITION
from hark.model.messages import Key

# Both well under the server's default limits (10,000 items, 10 MiB).
_BATCH_ITEMS = 1000
_BATCH_BYTES = 4 * 1024 * 1024
_HINT = """hark push orders '{"id": 17}'\nor send the payload as text: hark push orders --text hello"""


class Until(Enum):
    """How long a message holds its unique key. (Typer takes no Literal.)"""

    done = "done"
    started = "started"
    retained = "retained"


class Item(types.Body, kw_only=True):
    """A message to push; the payload is sent byte for byte."""

    queue: str
    payload: Raw
    partition: str | None = None
    transaction_id: str | None = None
    trace_id: str | None = None
    delay: int | None = None
    deliver_at: str | None = None
    ttl: int | None = None
    priority: int | None = None
    backoff_schedule: tuple[int, ...] | None = None
    keys_if_undelivered: Raw | tuple[Key, ...] | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    unique_key: str | None = None
    unique_until: str | None = None


@command(
    main,
    "push",
    """hark push orders '{"id": 17}'""",
    """hark push orders '{"id": 17}' --transaction-id order-17""",
    """hark push orders '{"id": 17}' --partition customer-4""",
    """hark push reports '{"day": "monday"}' --unique-key monday""",
    "hark push reminders --text 'call back' --delay 60000",
    """hark push orders 17 --keys-if-undelivered '[["failed", 17]]'""",
    "hark push orders --stdin < orders.jsonl",
)
def push(
    server: Server,
    queue: params.QueueName,
    payloads: Annotated[
        list[str] | None, typer.Argument(metavar="PAYLOAD", help="Payload of a message, as JSON.", show_default=False)
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            metavar="PARTITION", callback=params.not_empty, help="Partition to push to.", show_default=DEFAULT_PARTITION
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
        str | None, typer.Option(metavar="TIME", help="Earliest time of delivery (ISO 8601, UTC by default).")
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(min=0, max=9, metavar="N", help="Priority in shared groups; 9 is first.", show_default="0"),
    ] = None,
    unique_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            callback=params.not_empty,
            help="Key that one message of the queue holds: another push with it is a duplicate.",
        ),
    ] = None,
    unique_until: Annotated[
        Until | None, typer.Option(help="How long the message holds its unique key.", show_default="done")
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
) -> None:
    """Push one or more messages to a queue.

    The messages are on stable storage when the command returns. The first push to a queue creates it.
    """
    if stdin == bool(payloads):
        raise typer.BadParameter("give either one or more PAYLOADs, or --stdin")
    if transaction_id is not None and (stdin or len(payloads or ()) > 1):
        raise typer.BadParameter("--transaction-id works with one PAYLOAD only; push the messages one by one")
    if unique_until is not None and unique_key is None:
        raise typer.BadParameter("--unique-until works only with --unique-key")
    undelivered = None if keys is None else _keys(keys)

    def item(payload: bytes, what: str) -> Item:
        return Item(
            queue=queue,
            payload=json_or_text(payload, what, text=text, hint=_HINT),
            partition=partition,
            transaction_id=transaction_id,
            delay=delay,
            deliver_at=deliver_at,
            priority=priority,
            keys_if_undelivered=undelivered,
            unique_key=unique_key,
            unique_until=None if unique_until is None else unique_until.value,
        )

    if stdin:  # One per line; empty lines are skipped.
        lines = ((number, line.rstrip(b"\r\n")) for number, line in enumerate(sys.stdin.buffer, 1) if line.strip())
        pushed = _push_lines(server, (item(line, f"line {number}") for number, line in lines))
    else:
        outcomes = _push(server, [item(one.encode(errors="surrogateescape"), "the payload") for one in payloads or ()])
        if not server.as_json:
            _show(outcomes)
        _check(outcomes)
        pushed = len(outcomes)
    if not server.as_json and (hint := server.near_older_queue(queue, pushed)):  # Only people read hints.
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


def _push_lines(server: Server, items: Iterable[Item]) -> int:
    """Push a stream of any length, in batches. Returns the number of messages."""
    counts: Counter[str] = Counter()
    rejected: list[types.delivery.PushAnswer] = []
    try:
        for batch in _batches(items):
            outcomes = _push(server, batch)
            counts.update(outcome.status for outcome in outcomes)
            rejected += _rejected(outcomes)
    except Failure:
        complain(f"before this error: {_summary(counts)}")
        raise
    if not server.as_json:
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


def _push(server: Server, items: list[Item]) -> list[types.delivery.PushAnswer]:
    """Push one batch."""
    answer = server.call(operations.PUSH, body={"items": items})
    if server.as_json:
        raw(answer.body)
    return answer.read()


def _summary(counts: Counter[str]) -> str:
    """Return the number of messages by status."""
    return ", ".join(f"{count} {status}" for status, count in counts.items()) or "no messages pushed"


def _show(outcomes: list[types.delivery.PushAnswer]) -> None:
    """Print the outcome of each message."""
    table(
        outcomes,
        {
            "Status": lambda o: o.status,
            "Message ID": lambda o: o.message_id,
            "Transaction ID": lambda o: o.transaction_id,
            "Partition ID": lambda o: o.partition_id,
            "Error": lambda o: o.error,
        },
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
