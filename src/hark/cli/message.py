"""`hark message`, `hark explain`, `hark leases`, `hark trace` and `hark flow`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec

from hark.api import operations
from hark.cli import params
from hark.cli.command import command, main, make_app
from hark.cli.output import Failure, details, group_name, raw, say, say_folded, say_rest, table
from hark.cli.params import argument, option
from hark.cli.remote import Server, decode
from hark.model import QUEUE_MODE


@command(main, "explain", "hark explain MESSAGE_ID", "hark explain MESSAGE_ID --group billing --json")
def explain(
    server: Server,
    message_id: Annotated[str, argument("MESSAGE_ID", "ID of the message.", empty=False)],
    group: params.OnlyGroup = None,
) -> None:
    """Explain why a message is not delivered or settled yet.

    The answer has one explanation for each consumer group of the queue, or for the group in --group.
    """
    found = server.ask(operations.EXPLAIN_MESSAGE, message_id, query={"consumerGroup": group})
    names = ("message_id", "queue", "partition", "offset", "transaction_id", "created_at")
    details((name.partition("_")[0].capitalize(), getattr(found, name)) for name in names)
    for reason in found.reasons:
        group = reason.consumer_group
        named = "No group" if group is None else "Default group" if group == QUEUE_MODE else f"Group {group}"
        say(f"\n{named}: {reason.reason}")
        say_folded(reason.text, indent="  ")


@command(main, "leases", "hark leases", "hark leases orders --group billing")
def leases(
    server: Server,
    queue: params.OptionalQueueName = None,
    partition: params.OnlyPartition = None,
    group: params.OnlyGroup = None,
    limit: params.Limit = 100,
    offset: params.Offset = 0,
) -> None:
    """List the leases of consumers, oldest first.

    The list has one row for each lease and partition.
    """
    query = {"queue": queue, "partition": partition, "consumerGroup": group, "limit": limit, "offset": offset}
    page = server.ask(operations.LIST_LEASES, query=query)
    table(
        page.items,
        {
            "Queue": lambda lease: lease.queue,
            "Partition": lambda lease: lease.partition,
            "Group": lambda lease: group_name(lease.consumer_group),
            "Consumer": lambda lease: lease.consumer,
            "Since": lambda lease: lease.since,
            "Until": lambda lease: lease.until,
            "Messages": lambda lease: lease.messages,
            "First message ID": lambda lease: lease.first_message_id,
        },
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
    server: Server,
    queue: params.OptionalQueueName = None,
    partition: params.OnlyPartition = None,
    status: Annotated[
        str | None,
        option("STATUS", "Only this status: pending, scheduled, processing, completed or dead_letter.", default="all"),
    ] = None,
    since: Annotated[
        str | None, option("TIME", "Start of the time range (ISO 8601).", "--from", default="one hour ago")
    ] = None,
    until: params.Until = None,
    limit: params.Limit = 100,
    offset: params.Offset = 0,
) -> None:
    """List messages, newest first, without payloads.

    --from and --to select messages by the time of their push.
    """
    query = {"queue": queue, "partition": partition, "status": status, "from": since, "to": until}
    messages = server.ask(operations.LIST_MESSAGES, query={**query, "limit": limit, "offset": offset}).messages
    missing = None if queue is None or messages else server.missing_queue(queue)
    empty = "no messages match" if since else "no messages from the last hour match; use --from for older messages"
    table(
        messages,
        {
            "Queue": lambda m: m.queue,
            "Partition": lambda m: m.partition,
            "Transaction ID": lambda m: m.transaction_id,
            "Status": lambda m: m.status,
            "Created": lambda m: m.created_at,
            "Partition ID": lambda m: m.partition_id,
            "Message ID": lambda m: m.id,
        },
        empty=empty if missing is None else f"no messages; queue {queue} does not exist{missing}",
        spare=("Partition ID", "Transaction ID", "Partition", "Created"),
    )


@command(app, "show", "hark message show MESSAGE_ID", "hark message show PARTITION_ID order-17")
def show_message(
    server: Server, first: params.MessageOrPartitionId, transaction_id: params.TransactionId = None
) -> None:
    """Show one message with its payload and its state by group.

    For a task this includes its state, its progress and its result.
    """
    if transaction_id is None:
        # Messages are stored by partition; only the route `explain` finds the partition from the message ID.
        found = server.call(operations.EXPLAIN_MESSAGE, first).read()
        first, transaction_id = found.partition_id, found.message_id
    answer = server.call(operations.SHOW_MESSAGE, first, transaction_id)
    shown = decode(answer.body, dict[str, msgspec.Raw])
    task = server.call(operations.SHOW_TASK, first, transaction_id).body if _is_task(shown["payload"]) else None
    if not server.as_json:
        if task is not None:
            shown |= {f"task {name}": value for name, value in decode(task, dict[str, msgspec.Raw]).items()}
        details((name, _plain(value)) for name, value in shown.items())
    elif task is None:
        raw(answer.body)
    else:
        raw(msgspec.json.encode({**shown, "taskStatus": msgspec.Raw(task)}))


class _TaskPayload(msgspec.Struct):
    task: str


def _is_task(payload: msgspec.Raw) -> bool:
    """Return whether the message was pushed as a task of a worker."""
    try:
        msgspec.json.decode(payload, type=_TaskPayload)
    except msgspec.DecodeError:
        return False
    return True


def _plain(value: msgspec.Raw) -> Any:
    """Return strings without quotes, None for null, and everything else as JSON."""
    body = bytes(value)
    if body == b"null":
        return None
    return msgspec.json.decode(body) if body.startswith(b'"') else body


@command(app, "delete", "hark message delete MESSAGE_ID", "hark message delete PARTITION_ID order-17")
def delete_message(
    server: Server, first: params.MessageOrPartitionId, transaction_id: params.TransactionId = None
) -> None:
    """Delete one message, even if a consumer holds a lease on it."""
    if transaction_id is None:
        server.ask(operations.DELETE_MESSAGE_BY_ID, first)
    else:
        server.ask(
            operations.DELETE_MESSAGE,
            first,
            transaction_id,
            failure=lambda answer: None if answer.success else Failure(answer.message, code="not_found"),
        )
    say(f"deleted message {first if transaction_id is None else f'{first} {transaction_id}'}")


trace_app = make_app(
    "Show the trace events that consumers recorded for messages.",
    "hark trace names",
    "hark trace by-name checkout-17",
    "hark trace show PARTITION_ID order-17",
)


@command(trace_app, "names", "hark trace names", "hark trace names --json | jq '.trace_names[].trace_name'")
def names(server: Server, limit: params.Limit = 50, offset: params.Offset = 0) -> None:
    """List the trace names under which events were recorded."""
    page = server.ask(operations.LIST_NAMES, query={"limit": limit, "offset": offset})
    table(
        page.items,
        {
            "Trace name": lambda one: one.trace_name,
            "Events": lambda one: one.trace_count,
            "Messages": lambda one: one.message_count,
            "Last event": lambda one: one.last_seen,
        },
        empty="no trace names",
    )
    say_rest(len(page.items), offset, page.total)


@command(trace_app, "show", "hark trace show PARTITION_ID order-17")
def show(
    server: Server,
    partition_id: Annotated[str, argument("PARTITION_ID", "ID of the partition.")],
    transaction_id: Annotated[str, argument("TRANSACTION_ID", "Transaction ID or message ID of the message.")],
    limit: params.Limit = 1000,
    offset: params.Offset = 0,
) -> None:
    """Show the trace events of one message, oldest first."""
    query = {"limit": limit, "offset": offset}
    table(
        server.ask(operations.LIST_OF_MESSAGE, partition_id, transaction_id, query=query).value,
        {
            "Time": lambda one: one.created_at,
            "Event": lambda one: one.event_type,
            "Group": lambda one: group_name(one.consumer_group),
            "Trace names": lambda one: ", ".join(one.trace_names),
            "Data": lambda one: bytes(one.payload),
        },
        empty="no trace events for this message",
        long=("Data",),
        spare=("Trace names", "Group"),
    )


@command(trace_app, "by-name", "hark trace by-name checkout-17", "hark trace by-name checkout-17 --limit 10")
def by_name(
    server: Server,
    name: Annotated[str, argument("NAME", "Trace name.")],
    limit: params.Limit = 100,
    offset: params.Offset = 0,
) -> None:
    """Show the events of one trace name, newest first.

    The list has the events of all messages and queues.
    """
    page = server.ask(operations.LIST_BY_NAME, name, query={"limit": limit, "offset": offset})
    table(
        page.items,
        {
            "Time": lambda one: one.created_at,
            "Event": lambda one: one.event_type,
            "Queue": lambda one: one.queue_name,
            "Partition": lambda one: one.partition_name,
            "Transaction ID": lambda one: one.transaction_id,
            "Group": lambda one: group_name(one.consumer_group),
            "Data": lambda one: bytes(one.payload),
        },
        empty=f"no events for trace name {name}",
        long=("Data",),
        spare=("Partition", "Group", "Transaction ID"),
    )
    say_rest(len(page.items), offset, page.total)


# Flows -----------------------------------------------------------------------------------------------------

flows = make_app(
    "Show and cancel flows: chains and groups of tasks.",
    "hark flow show images FLOW_ID",
    "hark flow cancel images FLOW_ID",
)
FlowId = Annotated[str, argument("FLOW_ID", "ID of the flow.", empty=False)]


@command(flows, "show", "hark flow show images FLOW_ID", "hark flow show images FLOW_ID --json | jq '.steps[].state'")
def show_flow(server: Server, queue: params.QueueName, flow_id: FlowId) -> None:
    """Show the state of a flow and of each of its steps.

    QUEUE is the queue of the first step.
    """
    with _of_queue(server, queue):
        flow = server.ask(operations.SHOW_FLOW, queue, flow_id)
    result = None if flow.result is msgspec.UNSET else bytes(flow.result)
    error = None if flow.error is None else flow.error.partition("\n")[0]
    details([("State", flow.state), ("Error", error), ("Result", result)])
    table(
        flow.steps,
        {
            "Step": lambda step: step.path,
            "Task": lambda step: step.task,
            "Queue": lambda step: step.queue,
            "State": lambda step: step.state,
            "Attempts": lambda step: step.attempts or None,
            "Progress": lambda step: None if step.progress is None else f"{step.progress:.0%}",
            "Note": lambda step: step.note,
            "Message ID": lambda step: step.message_id,
        },
        empty="no steps are known any more",
        spare=("Note", "Progress", "Attempts", "Queue"),
    )


@command(flows, "cancel", "hark flow cancel images FLOW_ID")
def cancel_flow(server: Server, queue: params.QueueName, flow_id: FlowId) -> None:
    """Cancel a flow: no further step runs.

    Steps that no worker has received are removed, and running ones are cancelled.
    """
    with _of_queue(server, queue):
        server.ask(
            operations.CANCEL_FLOW,
            queue,
            flow_id,
            failure=lambda answer: None if answer.success else Failure("the flow has ended before", code="flow_ended"),
        )
    say(f"cancelled flow {flow_id}")


@contextmanager
def _of_queue(server: Server, queue: str) -> Iterator[None]:
    """If the queue of a flow does not exist, the error says so and names a similar queue."""
    try:
        yield
    except Failure:
        missing = server.missing_queue(queue)
        if missing is None:
            raise
        raise Failure(f"no such flow; queue {queue} does not exist{missing}", code="flow_not_found") from None
