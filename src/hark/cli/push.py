"""`hark push`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Annotated, Any

import msgspec
import typer
from msgspec import Raw

from hark.api import operations, types
from hark.cli import params
from hark.cli.command import command, main
from hark.cli.output import Failure, complain, raw, say, table
from hark.cli.params import argument, flag, option
from hark.cli.remote import Server, json_or_text
from hark.model import DEFAULT_PARTITION

# Both well under the server's default limits (10,000 items, 10 MiB).
BATCH_ITEMS = 1000
BATCH_BYTES = 4 * 1024 * 1024
_HINT = """hark push orders '{"id": 17}'\nor send the payload as text: hark push orders --text hello"""

Item = dict[str, Any]
"""A message to push, by the names of the API; the payload is sent byte for byte."""


class Until(Enum):
    """How long a message holds its unique key. (Typer takes no Literal.)"""

    done = "done"
    started = "started"
    retained = "retained"


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
    payloads: Annotated[list[str] | None, argument("PAYLOAD", "Payload of a message, as JSON.")] = None,
    partition: Annotated[
        str | None, option("PARTITION", "Partition to push to.", empty=False, default=DEFAULT_PARTITION)
    ] = None,
    transaction_id: Annotated[
        str | None, option("ID", "Idempotency key: a second push with it is a duplicate.", default="random")
    ] = None,
    delay: Annotated[int | None, option("MS", "Delay before delivery, in milliseconds.", least=0, default="0")] = None,
    deliver_at: Annotated[str | None, option("TIME", "Earliest time of delivery (ISO 8601, UTC by default).")] = None,
    priority: Annotated[
        int | None, option("N", "Priority in shared groups; 9 is first.", least=0, most=9, default="0")
    ] = None,
    unique_key: Annotated[
        str | None,
        option("KEY", "Key that one message of the queue holds: another push with it is a duplicate.", empty=False),
    ] = None,
    unique_until: Annotated[
        Until | None, typer.Option(help="How long the message holds its unique key.", show_default="done")
    ] = None,
    keys: Annotated[
        str | None,
        option(
            "JSON",
            "JSON array of keys that get the payload if the message becomes a dead letter.",
            "--keys-if-undelivered",
        ),
    ] = None,
    stdin: Annotated[bool, flag("Read payloads from standard input, one per line.", "--stdin")] = False,
    text: Annotated[bool, flag("Treat payloads as text and send them as JSON strings.", "--text")] = False,
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
    options = {
        "partition": partition,
        "transactionId": transaction_id,
        "delay": delay,
        "deliverAt": deliver_at,
        "priority": priority,
        "keysIfUndelivered": None if keys is None else _keys(keys),
        "uniqueKey": unique_key,
        "uniqueUntil": None if unique_until is None else unique_until.value,
    }
    given = {name: value for name, value in options.items() if value is not None}

    def item(payload: bytes, what: str) -> Item:
        return {"queue": queue, "payload": json_or_text(payload, what, text=text, hint=_HINT), **given}

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
        added = len(bytes(item["payload"]))
        if batch and (len(batch) == BATCH_ITEMS or size + added > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += added
    if batch:
        yield batch


def _push(server: Server, items: list[Item]) -> list[types.delivery.PushAnswer]:
    answer = server.call(operations.PUSH, body={"items": items})
    if server.as_json:
        raw(answer.body)
    return answer.read()


def _summary(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {status}" for status, count in counts.items()) or "no messages pushed"


def _show(outcomes: list[types.delivery.PushAnswer]) -> None:
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
