"""`hark message`, `hark explain`, `hark leases` and `hark trace`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from hark.api import operations
from hark.cli.command import (
    DEFAULT_URL,
    Failure,
    Json,
    Limit,
    MessageOrPartitionId,
    Offset,
    OnlyGroup,
    OnlyPartition,
    OptionalQueueName,
    TransactionId,
    Until,
    Url,
    command,
    make_app,
    not_empty,
)
from hark.cli.output import details, group_name, raw, say, say_folded, say_rest, table
from hark.cli.remote import call, decode, missing_queue
from hark.model import QUEUE_MODE


def register_explain(main: typer.Typer) -> None:
    """Add the commands at the top level."""
    command(main, "explain", "hark explain MESSAGE_ID", "hark explain MESSAGE_ID --group billing --json")(explain)
    command(main, "leases", "hark leases", "hark leases orders --group billing")(leases)


def explain(
    message_id: Annotated[
        str,
        typer.Argument(metavar="MESSAGE_ID", callback=not_empty, help="ID of the message.", show_default=False),
    ],
    group: OnlyGroup = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Explain why a message is not delivered or settled yet.

    The answer has one explanation for each consumer group of the queue, or for the group in --group.
    """
    answer = call(url, operations.EXPLAIN_MESSAGE, message_id, query={"consumerGroup": group})
    if as_json:
        raw(answer.body)
        return
    found = answer.read()
    details(
        [
            ("Message", found.message_id),
            ("Queue", found.queue),
            ("Partition", found.partition),
            ("Offset", found.offset),
            ("Transaction", found.transaction_id),
            ("Created", found.created_at),
        ]
    )
    for reason in found.reasons:
        say(f"\n{_group(reason.consumer_group)} {reason.reason}")
        say_folded(reason.text, indent="  ")


def _group(name: str | None) -> str:
    if name is None:
        return "No group:"
    return "Default group:" if name == QUEUE_MODE else f"Group {name}:"


def leases(
    *,
    queue: OptionalQueueName = None,
    partition: OnlyPartition = None,
    group: OnlyGroup = None,
    limit: Limit = 100,
    offset: Offset = 0,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """List the leases of consumers, oldest first.

    The list has one row for each lease and partition.
    """
    query = {"queue": queue, "partition": partition, "consumerGroup": group, "limit": limit, "offset": offset}
    answer = call(url, operations.LIST_LEASES, query=query)
    if as_json:
        raw(answer.body)
        return
    page = answer.read()
    table(
        ("Queue", "Partition", "Group", "Consumer", "Since", "Until", "Messages", "First message ID"),
        (
            (
                lease.queue,
                lease.partition,
                group_name(lease.consumer_group),
                lease.consumer,
                lease.since,
                lease.until,
                lease.messages,
                lease.first_message_id,
            )
            for lease in page.items
        ),
        empty="no leases",
        spare=("First message ID", "Since", "Messages"),
    )
    say_rest(len(page.items), offset, page.total)


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
            help="Only this status: pending, scheduled, processing, completed or dead_letter.",
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
    answer = call(url, operations.LIST_MESSAGES, query={**query, "limit": limit, "offset": offset})
    if as_json:
        raw(answer.body)
        return
    messages = answer.read().messages
    missing = None if queue is None or messages else missing_queue(url, queue)
    empty = "no messages match" if since else "no messages from the last hour match; use --from for older messages"
    table(
        ("Queue", "Partition", "Transaction ID", "Status", "Created", "Partition ID", "Message ID"),
        ((m.queue, m.partition, m.transaction_id, m.status, m.created_at, m.partition_id, m.id) for m in messages),
        empty=empty if missing is None else f"no messages; queue {queue} does not exist{missing}",
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
        found = call(url, operations.EXPLAIN_MESSAGE, first).read()
        first, transaction_id = found.partition_id, found.message_id
    answer = call(url, operations.SHOW_MESSAGE, first, transaction_id)
    if as_json:
        raw(answer.body)
        return
    fields = decode(answer.body, dict[str, msgspec.Raw])
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
    if transaction_id is None:
        by_id = call(url, operations.DELETE_MESSAGE_BY_ID, first)
        done, text, body = by_id.read().success, "", by_id.body
    else:
        answer = call(url, operations.DELETE_MESSAGE, first, transaction_id)
        done, text, body = answer.read().success, answer.read().message, answer.body
    if as_json:
        raw(body)
    if not done:
        raise Failure(text, code="not_found")
    if not as_json:
        say(f"deleted message {' '.join(ids)}")


trace_app = make_app(
    "Show the trace events that consumers recorded for messages.",
    "hark trace names",
    "hark trace by-name checkout-17",
    "hark trace show PARTITION_ID order-17",
)


@command(trace_app, "names", "hark trace names", "hark trace names --json | jq '.trace_names[].trace_name'")
def names(limit: Limit = 50, offset: Offset = 0, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """List the trace names under which events were recorded."""
    answer = call(url, operations.LIST_NAMES, query={"limit": limit, "offset": offset})
    if as_json:
        raw(answer.body)
        return
    page = answer.read()
    table(
        ("Trace name", "Events", "Messages", "Last event"),
        ((one.trace_name, one.trace_count, one.message_count, one.last_seen) for one in page.items),
        empty="no trace names",
    )
    say_rest(len(page.items), offset, page.total)


@command(trace_app, "show", "hark trace show PARTITION_ID order-17")
def show(
    partition_id: Annotated[
        str, typer.Argument(metavar="PARTITION_ID", help="ID of the partition.", show_default=False)
    ],
    transaction_id: Annotated[
        str,
        typer.Argument(
            metavar="TRANSACTION_ID", help="Transaction ID or message ID of the message.", show_default=False
        ),
    ],
    limit: Limit = 1000,
    offset: Offset = 0,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Show the trace events of one message, oldest first."""
    query = {"limit": limit, "offset": offset}
    answer = call(url, operations.LIST_OF_MESSAGE, partition_id, transaction_id, query=query)
    if as_json:
        raw(answer.body)
        return
    table(
        ("Time", "Event", "Group", "Trace names", "Data"),
        (
            (
                one.created_at,
                one.event_type,
                group_name(one.consumer_group),
                ", ".join(one.trace_names),
                bytes(one.payload),
            )
            for one in answer.read().traces
        ),
        empty="no trace events for this message",
        long=("Data",),
        spare=("Trace names", "Group"),
    )


@command(trace_app, "by-name", "hark trace by-name checkout-17", "hark trace by-name checkout-17 --limit 10")
def by_name(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Trace name.", show_default=False)],
    limit: Limit = 100,
    offset: Offset = 0,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Show the events of one trace name, newest first.

    The list has the events of all messages and queues.
    """
    answer = call(url, operations.LIST_BY_NAME, name, query={"limit": limit, "offset": offset})
    if as_json:
        raw(answer.body)
        return
    page = answer.read()
    table(
        ("Time", "Event", "Queue", "Partition", "Transaction ID", "Group", "Data"),
        (
            (
                one.created_at,
                one.event_type,
                one.queue_name,
                one.partition_name,
                one.transaction_id,
                group_name(one.consumer_group),
                bytes(one.payload),
            )
            for one in page.items
        ),
        empty=f"no events for trace name {name}",
        long=("Data",),
        spare=("Partition", "Group", "Transaction ID"),
    )
    say_rest(len(page.items), offset, page.total)
