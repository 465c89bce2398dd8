"""`hark trace`."""

from __future__ import annotations

from typing import Annotated

import typer

from hark.cli import observed
from hark.cli.command import DEFAULT_URL, Json, Url, command, make_app
from hark.cli.output import raw, say, table
from hark.cli.remote import call, path
from hark.model import QUEUE_MODE

app = make_app(
    "Look at traces: events that consumers recorded about messages.",
    "hark trace names",
    "hark trace by-name checkout-17",
    "hark trace show PARTITION_ID order-17",
)

Limit = Annotated[int, typer.Option(min=1)]
Offset = Annotated[int, typer.Option(min=0)]


@command(app, "names", "hark trace names", "hark trace names --json | jq '.trace_names[].trace_name'")
def names(limit: Limit = 50, offset: Offset = 0, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """List the names that events were recorded under."""
    answer = call(url, "GET", path("traces", "names"), query={"limit": limit, "offset": offset})
    if as_json:
        raw(answer.body)
        return
    page = answer.read(observed.TraceNames)
    table(
        ("Name", "Events", "Messages", "Last"),
        ((one.trace_name, one.trace_count, one.message_count, one.last_seen) for one in page.trace_names),
        empty="no events with a name",
    )
    _say_rest(offset + len(page.trace_names), page.total)


@command(app, "show", "hark trace show 0199...-partition-id order-17")
def show(
    partition_id: Annotated[str, typer.Argument(show_default=False)],
    transaction_id: Annotated[str, typer.Argument(show_default=False, help="Or the message's id.")],
    limit: Limit = 1000,
    offset: Offset = 0,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Show the events of one message, oldest first."""
    query = {"limit": limit, "offset": offset}
    answer = call(url, "GET", path("traces", partition_id, transaction_id), query=query)
    if as_json:
        raw(answer.body)
        return
    table(
        ("At", "Event", "Group", "Names", "Data"),
        (
            (one.created_at, one.event_type, _group(one), ", ".join(one.trace_names), bytes(one.data))
            for one in answer.read(observed.Traces).traces
        ),
        empty="no events",
    )


@command(app, "by-name", "hark trace by-name checkout-17", "hark trace by-name checkout-17 --limit 10")
def by_name(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    limit: Limit = 100,
    offset: Offset = 0,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Show the events of one name over all messages and queues, newest first."""
    answer = call(url, "GET", path("traces", "by-name", name), query={"limit": limit, "offset": offset})
    if as_json:
        raw(answer.body)
        return
    page = answer.read(observed.Traces)
    table(
        ("At", "Event", "Queue", "Partition", "Transaction", "Group", "Data"),
        (
            (
                one.created_at,
                one.event_type,
                one.queue_name,
                one.partition_name,
                one.transaction_id,
                _group(one),
                bytes(one.data),
            )
            for one in page.traces
        ),
        empty=f"no events with the name {name}",
    )
    _say_rest(offset + len(page.traces), page.total)


def _group(trace: observed.TraceEvent) -> str:
    return "" if trace.consumer_group == QUEUE_MODE else trace.consumer_group


def _say_rest(shown: int, total: int) -> None:
    if shown < total:
        say(f"{total} in all; more with --offset {shown}")
