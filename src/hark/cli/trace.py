"""`hark trace`."""

from __future__ import annotations

from typing import Annotated

import typer

from hark.cli import observed
from hark.cli.command import DEFAULT_URL, Json, Limit, Offset, Url, command, make_app
from hark.cli.output import group_name, raw, say_rest, table
from hark.cli.remote import call, path

app = make_app(
    "Show the trace events that consumers recorded for messages.",
    "hark trace names",
    "hark trace by-name checkout-17",
    "hark trace show PARTITION_ID order-17",
)


@command(app, "names", "hark trace names", "hark trace names --json | jq '.trace_names[].trace_name'")
def names(limit: Limit = 50, offset: Offset = 0, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """List the trace names under which events were recorded."""
    answer = call(url, "GET", path("traces", "names"), query={"limit": limit, "offset": offset})
    if as_json:
        raw(answer.body)
        return
    page = answer.read(observed.TraceNames)
    table(
        ("Trace name", "Events", "Messages", "Last event"),
        ((one.trace_name, one.trace_count, one.message_count, one.last_seen) for one in page.trace_names),
        empty="no trace names",
    )
    say_rest(len(page.trace_names), offset, page.total)


@command(app, "show", "hark trace show PARTITION_ID order-17")
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
    answer = call(url, "GET", path("traces", partition_id, transaction_id), query=query)
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
                bytes(one.data),
            )
            for one in answer.read(observed.Traces).traces
        ),
        empty="no trace events for this message",
        long=("Data",),
        spare=("Trace names", "Group"),
    )


@command(app, "by-name", "hark trace by-name checkout-17", "hark trace by-name checkout-17 --limit 10")
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
    answer = call(url, "GET", path("traces", "by-name", name), query={"limit": limit, "offset": offset})
    if as_json:
        raw(answer.body)
        return
    page = answer.read(observed.Traces)
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
                bytes(one.data),
            )
            for one in page.traces
        ),
        empty=f"no events for trace name {name}",
        long=("Data",),
        spare=("Partition", "Group", "Transaction ID"),
    )
    say_rest(len(page.traces), offset, page.total)
