"""`hark message`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from hark.cli import answers, observed
from hark.cli.command import (
    DEFAULT_URL,
    Failure,
    Json,
    Limit,
    MessageOrPartitionId,
    Offset,
    OnlyPartition,
    OptionalQueueName,
    TransactionId,
    Until,
    Url,
    command,
    make_app,
)
from hark.cli.output import details, raw, say, table
from hark.cli.remote import call, path

app = make_app(
    "List, show and delete messages.",
    "hark message list orders --status pending",
    "hark message show MESSAGE_ID",
    "hark message delete MESSAGE_ID",
)


@command(
    app,
    "list",
    "hark message list",
    "hark message list orders --status dead_letter --limit 20",
    "hark message list --from 2026-01-31T12:00:00Z --to 2026-01-31T13:00:00Z",
)
def list_messages(
    *,
    queue: OptionalQueueName = None,
    partition: OnlyPartition = None,
    status: Annotated[
        str | None,
        typer.Option(
            metavar="STATUS",
            help="Only this status: pending, processing, completed or dead_letter.",
            show_default="all",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="Start of the time range (ISO 8601).", show_default="one hour ago"),
    ] = None,
    until: Until = None,
    limit: Limit = 100,
    offset: Offset = 0,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """List messages, newest first, without payloads.

    --from and --to select messages by the time of their push.
    """
    query = {"queue": queue, "partition": partition, "status": status, "from": since, "to": until}
    answer = call(url, "GET", path("messages"), query={**query, "limit": limit, "offset": offset})
    if as_json:
        raw(answer.body)
        return
    table(
        ("Queue", "Partition", "Transaction ID", "Status", "Created", "Partition ID", "Message ID"),
        (
            (m.queue, m.partition, m.transaction_id, m.status, m.created_at, m.partition_id, m.id)
            for m in answer.read(answers.Popped).messages
        ),
        empty="no messages match" if since else "no messages from the last hour match; use --from for older messages",
        spare=("Partition ID", "Transaction ID", "Partition", "Created"),
    )


@command(
    app,
    "show",
    "hark message show MESSAGE_ID",
    "hark message show PARTITION_ID order-17",
)
def show_message(
    first: MessageOrPartitionId,
    transaction_id: TransactionId = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Show one message with its payload and its state by group."""
    if transaction_id is None:
        # Messages are stored by partition; only the route `explain` finds the partition from the message ID.
        found = call(url, "GET", path("explain", first)).read(observed.Placed)
        first, transaction_id = found.partition_id, found.message_id
    answer = call(url, "GET", path("messages", first, transaction_id))
    if as_json:
        raw(answer.body)
        return
    fields = answer.read(dict[str, msgspec.Raw])
    details((name, _plain(value)) for name, value in fields.items())


def _plain(value: msgspec.Raw) -> Any:
    """Return strings without quotes, None for null, and everything else as JSON."""
    body = bytes(value)
    if body == b"null":
        return None
    return msgspec.json.decode(body) if body.startswith(b'"') else body


@command(
    app,
    "delete",
    "hark message delete MESSAGE_ID",
    "hark message delete PARTITION_ID order-17",
)
def delete_message(
    first: MessageOrPartitionId,
    transaction_id: TransactionId = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Delete one message, even if a consumer holds a lease on it."""
    ids = [first] if transaction_id is None else [first, transaction_id]
    answer = call(url, "DELETE", path("messages", *ids))
    if as_json:
        raw(answer.body)
    done = answer.read(answers.Done)
    if not done.success:
        raise Failure(done.error or done.message or f"message {' '.join(ids)} not found", code="not_found")
    if not as_json:
        say(f"deleted message {' '.join(ids)}")
