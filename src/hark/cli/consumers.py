"""`hark consumers`: who waits for messages on a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from hark.cli import observed
from hark.cli.command import DEFAULT_URL, Json, Url, command, not_empty
from hark.cli.output import raw, say, table
from hark.cli.remote import call, path
from hark.model import QUEUE_MODE

_COLUMNS = ("Kind", "ID", "Queue", "Partition", "Group", "Consumer", "Batch", "State", "Since", "Until", "Credit")
Row = tuple[object, ...]


def register_consumers(main: typer.Typer) -> None:
    """Add the command at the top level."""
    command(main, "consumers", "hark consumers", "hark consumers orders", "hark consumers --json | jq .total")(
        consumers
    )


def consumers(
    queue: Annotated[
        str | None,
        typer.Argument(metavar="[QUEUE]", callback=not_empty, help="Only for this queue.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option(min=1)] = 100,
    offset: Annotated[int, typer.Option(min=0)] = 0,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """List who waits on this server: pops, then streams with their credit, then browsers, which take nothing."""
    answer = call(url, "GET", path("consumers"), query={"queue": queue, "limit": limit, "offset": offset})
    if as_json:
        raw(answer.body)
        return
    page = answer.read(observed.Consumers)
    table(_COLUMNS, (row for one in page.consumers for row in _rows(one)), empty="nobody waits on this server")
    if offset + len(page.consumers) < page.total:
        say(f"{len(page.consumers)} of {page.total}; more with --offset {offset + len(page.consumers)}")


def _rows(one: observed.WaitingPop | observed.WaitingStream | observed.WaitingBrowser) -> Iterator[Row]:
    """One line; for a stream one for each of its subscriptions."""
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
    """What is asked for: a queue, or whatever has a label."""
    labels = ", ".join(f"{name} {value}" for name, value in (("ns", wish.namespace), ("task", wish.task)) if value)
    group = None if wish.consumer_group == QUEUE_MODE else wish.consumer_group
    return wish.queue or labels, wish.partition, group, wish.consumer, wish.batch


def _stopped(stream: observed.WaitingStream) -> str:
    return ", draining" if stream.draining else ", paused" if stream.paused else ""
