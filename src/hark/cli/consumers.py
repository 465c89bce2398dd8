"""`hark consumers`: the waiting consumers of a server."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from hark.cli import observed
from hark.cli.command import DEFAULT_URL, Json, Limit, Offset, OptionalQueueName, Url, command
from hark.cli.output import group_name, raw, say_rest, table
from hark.cli.remote import call, path

_COLUMNS = ("Kind", "ID", "Queue", "Partition", "Group", "Consumer", "Batch", "State", "Since", "Until", "Credit")
Row = tuple[object, ...]


def register_consumers(main: typer.Typer) -> None:
    """Add the command at the top level."""
    command(main, "consumers", "hark consumers", "hark consumers orders", "hark consumers --json | jq .total")(
        consumers
    )


def consumers(
    queue: OptionalQueueName = None,
    limit: Limit = 100,
    offset: Offset = 0,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """List the waiting consumers of a server.

    The list has waiting pops first, then streams with their credit, then queue browsers, which read without receiving.
    """
    answer = call(url, "GET", path("consumers"), query={"queue": queue, "limit": limit, "offset": offset})
    if as_json:
        raw(answer.body)
        return
    page = answer.read(observed.Consumers)
    table(
        _COLUMNS,
        (row for one in page.consumers for row in _rows(one)),
        empty="no consumers are waiting on this server",
        spare=("ID", "Since", "Batch", "Until", "Partition", "State", "Consumer"),
    )
    say_rest(len(page.consumers), offset, page.total)


def _rows(one: observed.WaitingPop | observed.WaitingStream | observed.WaitingBrowser) -> Iterator[Row]:
    """Make one row, or one for each subscription of a stream."""
    match one:
        case observed.WaitingPop():
            yield ("pop", one.id, *_wish(one), one.state, one.waiting_since, one.deadline, None)
        case observed.WaitingStream():
            credit = f"{one.credit}, {one.unsettled} unsettled" + _stopped(one)
            for wish in one.subscriptions:
                yield ("stream", one.id, *_wish(wish), wish.state, one.waiting_since, None, credit)
            if not one.subscriptions:
                yield ("stream", one.id, *([None] * 6), one.waiting_since, None, credit)
        case observed.WaitingBrowser():
            yield ("browser", None, one.queue, one.partition, *([None] * 7))


def _wish(wish: observed.Subscription) -> Row:
    """Make the cells for the queue or the labels that a consumer waits for."""
    labels = (("namespace", wish.namespace), ("task", wish.task))
    named = ", ".join(f"{name} {value}" for name, value in labels if value)
    return wish.queue or named, wish.partition, group_name(wish.consumer_group), wish.consumer, wish.batch


def _stopped(stream: observed.WaitingStream) -> str:
    return ", draining" if stream.draining else ", paused" if stream.paused else ""
