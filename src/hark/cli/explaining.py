"""`hark explain` and `hark leases`: why a message is where it is, and who holds what."""

from __future__ import annotations

from typing import Annotated

import typer

from hark.cli import observed
from hark.cli.command import DEFAULT_URL, Json, PartitionOption, Url, command, not_empty
from hark.cli.output import details, raw, say, table
from hark.cli.remote import call, path
from hark.model import QUEUE_MODE

OnlyGroup = Annotated[
    str | None, typer.Option("--group", callback=not_empty, help="Only this consumer group.", show_default=False)
]


def register_explain(main: typer.Typer) -> None:
    """Add the commands at the top level."""
    command(main, "explain", "hark explain MESSAGE_ID", "hark explain MESSAGE_ID --group billing --json")(explain)
    command(main, "leases", "hark leases", "hark leases orders --group billing")(leases)


def explain(
    message_id: Annotated[str, typer.Argument(metavar="ID", callback=not_empty, show_default=False)],
    group: OnlyGroup = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Say why a message has not been delivered or settled, for one group or for each."""
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
        say(f"\n{_group(told.consumer_group)} {told.reason}\n  {told.text}")


def _group(name: str | None) -> str:
    if name is None:
        return "No group:"
    return "The default group:" if name == QUEUE_MODE else f"Group {name}:"


def leases(
    *,
    queue: Annotated[
        str | None,
        typer.Argument(metavar="[QUEUE]", callback=not_empty, help="Only in this queue.", show_default=False),
    ] = None,
    partition: PartitionOption = None,
    group: OnlyGroup = None,
    limit: Annotated[int, typer.Option(min=1)] = 100,
    offset: Annotated[int, typer.Option(min=0)] = 0,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """List who holds what: one line for each partition that a lease holds messages of, oldest first."""
    query = {"queue": queue, "partition": partition, "consumerGroup": group, "limit": limit, "offset": offset}
    answer = call(url, "GET", path("leases"), query=query)
    if as_json:
        raw(answer.body)
        return
    page = answer.read(observed.Leases)
    table(
        ("Queue", "Partition", "Group", "Consumer", "Since", "Until", "Messages", "First message"),
        (
            (
                lease.queue,
                lease.partition,
                "" if lease.consumer_group == QUEUE_MODE else lease.consumer_group,
                lease.consumer,
                lease.since,
                lease.until,
                lease.messages,
                lease.first_message_id,
            )
            for lease in page.leases
        ),
        empty="nobody holds anything",
    )
    if offset + len(page.leases) < page.total:
        say(f"{len(page.leases)} of {page.total}; more with --offset {offset + len(page.leases)}")
