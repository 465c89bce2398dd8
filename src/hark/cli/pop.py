"""`hark pop`, `hark ack`, `hark cancel` and `hark tail`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Annotated, Literal

import typer

from hark.api import operations, types
from hark.cli import params
from hark.cli.command import command, main
from hark.cli.output import NOTHING, Failure, complain, raw, say, table
from hark.cli.params import argument, flag, option
from hark.cli.remote import Query, Server, decode

# The server's longest wait of a pop by default, and how much longer this command waits for the response.
_LONGEST_WAIT_MS = 600_000
_GRACE_SECONDS = 30.0
_HINTS = 5


@command(
    main,
    "pop",
    "hark pop orders",
    "hark pop orders --group billing --batch 10 --wait --timeout 60000",
    "hark pop emails --group senders --group-mode shared",
    "hark pop orders --auto-ack --json | jq '.messages[].data'",
    "hark pop --namespace shop --task invoices",
)
def pop(
    server: Server,
    queue: Annotated[str | None, argument("QUEUE", "Name of the queue.")] = None,
    partition: params.OnlyPartition = None,
    group: params.GroupOption = None,
    group_mode: Annotated[
        Literal["ordered", "shared"] | None, typer.Option(help="Delivery mode of a new group.", show_default="ordered")
    ] = None,
    batch: Annotated[int | None, option("N", "Maximum number of messages.", least=1, default="1")] = None,
    partitions: Annotated[int | None, option("N", "Maximum number of partitions.", least=1, default="1")] = None,
    wait: Annotated[bool, flag("Wait for a message if there is none.", "--wait")] = False,
    timeout: Annotated[
        int | None, option("MS", "Longest wait with --wait, in milliseconds.", least=0, default="30000")
    ] = None,
    auto_ack: Annotated[bool, flag("Acknowledge at delivery (at most once).", "--auto-ack")] = False,
    consumer: Annotated[
        str | None, option("NAME", "Consumer name for `hark leases`.", default="the client's address")
    ] = None,
    namespace: Annotated[str | None, option("NAME", "Pop from all queues of this namespace, instead of QUEUE.")] = None,
    task: Annotated[str | None, option("NAME", "Pop from all queues of this task, instead of QUEUE.")] = None,
    subscription_mode: Annotated[
        Literal["all", "new"] | None,
        typer.Option(help="Start of a new group: all messages, or only new ones.", show_default="all"),
    ] = None,
    subscription_from: Annotated[str | None, option("TIME", "Start of a new group: now, or an ISO 8601 time.")] = None,
) -> None:
    """Receive messages from one queue or from several.

    You hold a lease on the messages. Settle them with `hark ack` before the lease expires; otherwise they are delivered
    again. In an ordered group, one consumer at a time receives from a partition. In a shared group, any number of
    consumers do. The exit code is 3 if there is no message.
    """
    if (queue is None) == (namespace is None and task is None):
        raise typer.BadParameter("give either QUEUE, or --namespace, --task or both")
    if partition is not None and queue is None:
        raise typer.BadParameter("--partition needs a QUEUE")
    if timeout is not None and not wait:
        raise typer.BadParameter("--timeout needs --wait")
    operation, names = operations.POP, [name for name in (queue, partition) if name is not None]
    if names:
        operation = operations.POP_OF_QUEUE if partition is None else operations.POP_OF_QUEUE_PARTITION
    longest_wait = (_LONGEST_WAIT_MS if timeout is None else timeout) / 1000 if wait else 0
    answer = server.call(
        operation,
        *names,
        query={
            "namespace": namespace,
            "task": task,
            "consumerGroup": group,
            "groupMode": group_mode,
            "batch": batch,
            "partitions": partitions,
            "wait": wait or None,
            "timeout": timeout,
            "autoAck": auto_ack or None,
            "subscriptionMode": subscription_mode,
            "subscriptionFrom": subscription_from,
            "consumer": consumer,
        },
        timeout=longest_wait + _GRACE_SECONDS,
    )
    messages = answer.read().messages if answer.body else ()
    if not messages:
        where = f"queue {queue}" if queue is not None else "these queues"
        missing = None if queue is None else server.missing_queue(queue)
        hint = "; add --wait to wait for one" if missing is None else f"; the queue does not exist{missing}"
        raise Failure(f"no message to pop from {where}{hint}", exit_code=NOTHING)
    if server.as_json:
        raw(answer.body)
    else:
        _show_popped(messages, group, auto_ack)


def _show_popped(messages: Sequence[types.delivery.Delivered], group: str | None, auto_ack: bool) -> None:
    """Print messages, and the commands that settle them, ready to paste."""
    table(
        messages,
        {
            "Queue": lambda m: m.queue,
            "Partition": lambda m: m.partition,
            "Offset": lambda m: m.offset,
            "Attempt": lambda m: m.delivery_attempt,
            "Transaction ID": lambda m: m.transaction_id,
            "Created": lambda m: m.created_at,
            "Data": lambda m: bytes(m.data),
        },
        long=("Data",),
        spare=("Created", "Offset", "Queue", "Attempt"),
    )
    if auto_ack:
        return
    say("\nAcknowledge with:")
    for message in messages[:_HINTS]:
        options = [*(("--lease", message.lease_id) if message.lease_id else ()), *(("--group", group) if group else ())]
        end = ["--"] if message.transaction_id.startswith("-") else []
        say("  " + shlex.join(["hark", "ack", *options, *end, message.partition_id, message.transaction_id]))
    if len(messages) > _HINTS:
        say(f"  ... and {len(messages) - _HINTS} more; use --json for the IDs of all messages")


@command(
    main,
    "ack",
    "hark ack PARTITION_ID TRANSACTION_ID --lease LEASE_ID",
    "hark ack MESSAGE_ID --status failed --error 'no such customer'",
    "hark ack MESSAGE_ID --status retry --delay 60000",
    "hark ack MESSAGE_ID --group billing --status dlq",
)
def ack(
    server: Server,
    first: params.MessageOrPartitionId,
    transaction_id: params.TransactionId = None,
    lease: Annotated[str | None, option("LEASE_ID", "Lease that the message was delivered under.")] = None,
    group: params.GroupOption = None,
    status: Annotated[
        Literal["completed", "failed", "retry", "dlq"], typer.Option(help="Outcome of the message.")
    ] = "completed",
    error: Annotated[str | None, option("TEXT", "Reason of the failure.")] = None,
    delay: Annotated[
        int | None, option("MS", "Delay before redelivery, in milliseconds (failed or retry).", least=0)
    ] = None,
) -> None:
    """Settle a message that you received with `hark pop`.

    completed acknowledges the message. failed rejects it: it is delivered again, or dead-lettered after its last
    attempt. retry delivers it again without counting an attempt. dlq dead-letters it immediately.
    """
    if delay is not None and status not in ("failed", "retry"):
        raise typer.BadParameter("--delay needs --status failed or --status retry")
    body = types.delivery.AckBody(
        first if transaction_id is None else transaction_id,
        None if transaction_id is None else first,
        status=status,
        consumer_group=group,
        lease_id=lease,
        error=error,
        delay=delay,
    )
    settled = server.ask(operations.ACK, body=body, failure=_refused)
    say("dead-lettered" if settled[0].dlq else f"settled as {status}")


def _refused(answers: Sequence[types.delivery.AckAnswer]) -> Failure | None:
    refused = answers[0]
    if refused.success:
        return None
    hint = "give the IDs that `hark pop` printed: MESSAGE_ID, or PARTITION_ID and TRANSACTION_ID"
    text = refused.error or "the server did not settle the message"
    return Failure(text, code=refused.code, hint=hint if refused.code == "not_found" else "")


@command(main, "cancel", "hark cancel MESSAGE_ID")
def cancel(server: Server, message_id: params.MessageId) -> None:
    """Cancel a message that waits, or a task that runs.

    A waiting message is removed. The worker of a running task is notified when it renews its lease, and stops the task;
    other consumers ignore that. The command fails if a consumer has settled the message.
    """
    answer = server.ask(operations.CANCEL_MESSAGE, message_id, query={"running": True})
    if answer.cancelling:
        say(f"cancelling message {message_id}; its worker is notified when it renews its lease")
    else:
        say(f"cancelled message {message_id}")


@command(
    main,
    "tail",
    "hark tail orders",
    "hark tail orders --from head --limit 10",
    "hark tail orders --from 2026-01-02T03:04:05Z --json | jq .data",
)
def tail(
    server: Server,
    queue: params.QueueName,
    partition: params.OnlyPartition = None,
    start: Annotated[
        str, option("START", "Start: head (oldest message), tail (new messages) or an ISO 8601 time.", "--from")
    ] = "tail",
    limit: Annotated[int | None, option("N", "Stop after N messages.", least=1, default="no limit")] = None,
) -> None:
    """Print messages of a queue as they arrive, until Ctrl-C.

    The command reads messages without receiving them: consumers still get all of them.
    """
    missing = server.missing_queue(queue)
    if missing is not None:
        complain(f"waiting for queue {queue}, which does not exist{missing}")
    query: Query = {"browse": True, "from": start, "partition": partition}
    server.follow(operations.LISTEN_OF_QUEUE, queue, query=query, event="message", show=_show, limit=limit)


def _show(body: bytes) -> None:
    message = decode(body, types.delivery.Delivered)
    text = message.payload_error or bytes(message.data).decode("utf-8", "replace")
    say(f"{message.created_at}  {message.partition}  {message.offset}  {message.transaction_id}  {text}")
