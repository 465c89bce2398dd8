"""`hark explain` and `hark leases`: the state of one message, and the leases of consumers."""

from __future__ import annotations

from typing import Annotated

import typer

from hark.cli import observed
from hark.cli.command import (
    DEFAULT_URL,
    Json,
    Limit,
    Offset,
    OnlyGroup,
    OnlyPartition,
    OptionalQueueName,
    Url,
    command,
    not_empty,
)
from hark.cli.output import details, group_name, raw, say, say_folded, say_rest, table
from hark.cli.remote import call, path
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
    answer = call(url, "GET", path("explain", message_id), query={"consumerGroup": group})
    if as_json:
        raw(answer.body)
        return
    found = answer.read(observed.Explained)
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
    for told in found.explanations:
        say(f"\n{_group(told.consumer_group)} {told.reason}")
        say_folded(told.text, indent="  ")


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
    answer = call(url, "GET", path("leases"), query=query)
    if as_json:
        raw(answer.body)
        return
    page = answer.read(observed.Leases)
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
            for lease in page.leases
        ),
        empty="no leases",
        spare=("First message ID", "Since", "Messages"),
    )
    say_rest(len(page.leases), offset, page.total)
