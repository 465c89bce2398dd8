"""`hark pop`, `hark ack` and `hark cancel`."""

from __future__ import annotations

import shlex
from enum import StrEnum
from typing import Annotated

import typer

from hark.cli import answers
from hark.cli.command import (
    DEFAULT_URL,
    NOTHING,
    Failure,
    GroupOption,
    Json,
    PartitionOption,
    Url,
    command,
)
from hark.cli.output import raw, say, table
from hark.cli.remote import call, path

# What a server may let a pop wait at most by default, and how much later we give up on its answer.
_LONGEST_WAIT_MS = 600_000
_GRACE_SECONDS = 30.0
_HINTS = 5


class Status(StrEnum):
    """What a consumer says of a message."""

    completed = "completed"
    failed = "failed"
    retry = "retry"
    dlq = "dlq"


class Mode(StrEnum):
    """Where a new group starts."""

    all = "all"
    new = "new"


class GroupMode(StrEnum):
    """How a new group shares a queue among its consumers."""

    ordered = "ordered"
    shared = "shared"


def register_pop_ack_and_cancel(main: typer.Typer) -> None:
    """Add the commands at the top level."""
    command(
        main,
        "pop",
        "hark pop orders",
        "hark pop orders --group billing --batch 10 --wait --timeout 60000",
        "hark pop mails --group senders --group-mode shared",
        "hark pop orders --auto-ack --json | jq '.messages[].data'",
        "hark pop --namespace shop --task invoices",
    )(pop)
    command(
        main,
        "ack",
        "hark ack PARTITION_ID TRANSACTION_ID --lease LEASE_ID",
        "hark ack PARTITION_ID TRANSACTION_ID --lease LEASE_ID --status failed --error 'no such customer'",
        "hark ack PARTITION_ID TRANSACTION_ID --group billing --status dlq",
        "hark ack MESSAGE_ID --status retry --delay 60000",
    )(ack)
    command(main, "cancel", "hark cancel MESSAGE_ID")(cancel)


def pop(
    *,
    queue: Annotated[str | None, typer.Argument(metavar="QUEUE", show_default=False)] = None,
    partition: PartitionOption = None,
    group: GroupOption = None,
    group_mode: Annotated[
        GroupMode | None,
        typer.Option(help="For a new group: one consumer per partition, in order; or any number, message by message."),
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Messages at most.")] = None,
    partitions: Annotated[int | None, typer.Option(min=1, help="Partitions to take from, at most.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for a message if there is none.")] = False,
    timeout: Annotated[int | None, typer.Option(min=0, metavar="MS", help="How long --wait waits.")] = None,
    auto_ack: Annotated[bool, typer.Option("--auto-ack", help="Settle at delivery: at most once.")] = False,
    consumer: Annotated[str | None, typer.Option(metavar="WHO", help="Who takes them, for `hark leases`.")] = None,
    namespace: Annotated[str | None, typer.Option(help="Instead of QUEUE: all queues of a namespace.")] = None,
    task: Annotated[str | None, typer.Option(help="Instead of QUEUE: all queues of a task.")] = None,
    subscription_mode: Annotated[Mode | None, typer.Option(help="Where a new group starts.")] = None,
    subscription_from: Annotated[
        str | None, typer.Option(metavar="TIME", help="Where a new group starts: now, or an ISO 8601 time.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Take messages from a queue, or from all queues of a namespace or task.

    They are yours until you settle them with `hark ack` or their lease ends. Exits with 3 if there is none.
    """
    if (queue is None) == (namespace is None and task is None):
        raise typer.BadParameter("give either a QUEUE, or --namespace and/or --task")
    if partition is not None and queue is None:
        raise typer.BadParameter("--partition needs a QUEUE")
    if timeout is not None and not wait:
        raise typer.BadParameter("--timeout needs --wait")
    segments = ["pop"]
    if queue is not None:
        segments += ["queue", queue]
    if partition is not None:
        segments += ["partition", partition]
    patience = (_LONGEST_WAIT_MS if timeout is None else timeout) / 1000 if wait else 0
    answer = call(
        url,
        "GET",
        path(*segments),
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
        timeout=patience + _GRACE_SECONDS,
    )
    messages = answer.read(answers.Popped).messages if answer.body else []
    if not messages:
        raise Failure("there is nothing to pop now", exit_code=NOTHING)
    if as_json:
        raw(answer.body)
    else:
        _show_popped(messages, group, auto_ack)


def _show_popped(messages: list[answers.Message], group: str | None, auto_ack: bool) -> None:
    """Show what was popped, and how to settle it."""
    table(
        ("Queue", "Partition", "Offset", "Attempt", "Transaction", "Created", "Data"),
        (
            (
                m.queue,
                m.partition,
                m.offset,
                m.delivery_attempt,
                m.transaction_id,
                m.created_at,
                bytes(m.data),
            )
            for m in messages
        ),
    )
    if auto_ack:
        return
    say("settle with:")
    for message in messages[:_HINTS]:
        say(f"  {_ack_line(message, group)}")
    if len(messages) > _HINTS:
        say(f"  ... and {len(messages) - _HINTS} more (--json shows all ids)")


def _ack_line(message: answers.Message, group: str | None) -> str:
    """Write the command that settles a message, ready to paste."""
    words = ["hark", "ack"]
    if message.lease_id:
        words += ["--lease", message.lease_id]
    if group:
        words += ["--group", group]
    if message.transaction_id.startswith("-"):
        words.append("--")
    return shlex.join([*words, message.partition_id, message.transaction_id])


def ack(
    *,
    first: Annotated[str, typer.Argument(metavar="MESSAGE_ID | PARTITION_ID", show_default=False)],
    transaction_id: Annotated[str | None, typer.Argument(show_default=False)] = None,
    lease: Annotated[str | None, typer.Option(metavar="ID", help="The lease it was delivered under.")] = None,
    group: GroupOption = None,
    status: Annotated[Status, typer.Option(help="What became of the message.")] = Status.completed,
    error: Annotated[str | None, typer.Option(metavar="TEXT", help="Why it failed.")] = None,
    delay: Annotated[
        int | None, typer.Option(min=0, metavar="MS", help="With failed or retry: when it comes again.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Settle a message that was popped: completed, failed, retry or dlq."""
    if delay is not None and status not in (Status.failed, Status.retry):
        raise typer.BadParameter("--delay needs --status failed or --status retry")
    body = {
        "partitionId": None if transaction_id is None else first,
        "transactionId": first if transaction_id is None else transaction_id,
        "status": status.value,
        "leaseId": lease,
        "consumerGroup": group,
        "error": error,
        "delay": delay,
    }
    answer = call(url, "POST", path("ack"), body={k: v for k, v in body.items() if v is not None})
    settled = answer.read(list[answers.Settled])
    if as_json:
        raw(answer.body)
    if not settled or not settled[0].success:
        refused = settled[0] if settled else answers.Settled(success=False)
        raise Failure(refused.error or "the server did not settle it", code=refused.code)
    if not as_json:
        say("dead letter" if settled[0].dlq else f"settled as {status.value}")


def cancel(
    message_id: Annotated[str, typer.Argument(metavar="MESSAGE_ID", show_default=False)],
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Take back a message that nobody has got yet, such as a delayed one; what somebody has is left alone."""
    answer = call(url, "POST", path("messages", message_id, "cancel"))
    if as_json:
        raw(answer.body)
    else:
        say("cancelled")
