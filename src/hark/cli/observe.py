"""`hark top`, `hark settings`, `hark consumers` and `hark audit`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from operator import itemgetter
from typing import Annotated

import msgspec
import typer

from hark.api import operations, types
from hark.cli import params
from hark.cli.command import command, main
from hark.cli.output import group_name, say, say_rest, table
from hark.cli.params import flag, option
from hark.cli.remote import Server, decode

_COLUMNS = ("Kind", "ID", "Queue", "Partition", "Group", "Consumer", "Batch", "State", "Since", "Until", "Credit")
_CLEAR = "\x1b[H\x1b[J"
Row = tuple[object, ...]


@command(main, "consumers", "hark consumers", "hark consumers orders", "hark consumers --json | jq .total")
def consumers(
    server: Server, queue: params.OptionalQueueName = None, limit: params.Limit = 100, offset: params.Offset = 0
) -> None:
    """List the waiting consumers of a server.

    The list has waiting pops first, then streams with their credit, then queue browsers, which read without receiving.
    """
    page = server.ask(operations.LIST_CONSUMERS, query={"queue": queue, "limit": limit, "offset": offset})
    table(
        (row for one in page.items for row in _rows(one)),
        {name: itemgetter(index) for index, name in enumerate(_COLUMNS)},
        empty="no consumers are waiting on this server",
        spare=("ID", "Since", "Batch", "Until", "Partition", "State", "Consumer"),
    )
    say_rest(len(page.items), offset, page.total)


def _rows(one: types.groups.WaitingPop | types.groups.WaitingStream | types.groups.WaitingBrowser) -> Iterator[Row]:
    """Make one row, or one for each subscription of a stream."""
    match one:
        case types.groups.WaitingPop():
            yield ("pop", one.id, *_source_of(one), one.state, one.waiting_since, one.deadline, None)
        case types.groups.WaitingStream():
            stopped = ", draining" if one.draining else ", paused" if one.paused else ""
            credit = f"{one.credit}, {one.unsettled} unsettled{stopped}"
            for subscription in one.subscriptions:
                yield ("stream", one.id, *_source_of(subscription), subscription.state, one.waiting_since, None, credit)
            if not one.subscriptions:
                yield ("stream", one.id, *([None] * 6), one.waiting_since, None, credit)
        case types.groups.WaitingBrowser():
            yield ("browser", None, one.queue, one.partition, *([None] * 7))


def _source_of(subscription: types.groups.StreamSubscription) -> Row:
    """Make the cells for the queue or the labels that a consumer waits for."""
    labels = (("namespace", subscription.namespace), ("task", subscription.task))
    named = ", ".join(f"{name} {value}" for name, value in labels if value)
    return (
        subscription.queue or named,
        subscription.partition,
        group_name(subscription.consumer_group),
        subscription.consumer,
        subscription.batch,
    )


@command(main, "audit", "hark audit", "hark audit --limit 20", "hark audit --json | jq '.records[].action'")
def audit(
    server: Server,
    limit: Annotated[int | None, option("N", "Maximum number of results.", least=1, default="200")] = None,
) -> None:
    """List recent administrative actions, newest first.

    The list has the last 200 actions of this server process. The server also writes them to its log (hark.audit).
    """
    table(
        server.ask(operations.LIST_AUDIT, query={"limit": limit}).value,
        {
            "Time": lambda one: one.at,
            "Subject": lambda one: one.subject,
            "Role": lambda one: one.role,
            "Action": lambda one: one.action,
            "Target": _target,
            "Result": lambda one: one.result,
            "Client": lambda one: one.client,
            "Request": lambda one: one.request_id,
        },
        empty="no administrative actions since this server process started",
        long=("Target",),
        spare=("Request", "Client", "Role", "Result"),
    )


def _target(record: types.server.AuditRecord) -> str:
    return " ".join(
        f"{name}={value if isinstance(value, str) else msgspec.json.encode(value).decode()}"
        for name, value in record.target.items()
    )


@command(main, "top", "hark top", "hark top --once", "hark top --json | jq .backlog")
def top(server: Server, once: Annotated[bool, flag("Print one sample and exit.", "--once")] = False) -> None:
    """Show the activity of a server, until Ctrl-C.

    Every second, the command shows rates, backlog, latency and the busiest queues.
    """
    clear = not once and sys.stdout.isatty()
    server.follow(
        operations.WATCH, query={}, event="sample", show=lambda body: _show(body, clear), limit=1 if once else None
    )


def _show(body: bytes, clear: bool) -> None:
    if clear:
        typer.echo(_CLEAR, nl=False)
    sample = decode(body, types.server.LiveSample)
    waiting = sample.waiting
    rows = (
        ("Messages/s", "pushed", sample.pushed_per_second),
        ("", "delivered", sample.delivered_per_second),
        ("", "settled", sample.settled_per_second),
        ("", "failed", sample.failed_per_second),
        ("Messages", "backlog", sample.backlog),
        ("", "scheduled", sample.scheduled),
        ("", "in flight", sample.in_flight),
        ("", "dead letters", sample.dead_letters),
        ("", "oldest waiting (s)", sample.oldest_waiting_seconds),
        ("Latency", "p50 (ms)", sample.latency_ms.p50),
        ("", "p99 (ms)", sample.latency_ms.p99),
        ("Store", "queues", sample.queues),
        ("", "partitions", sample.partitions),
        ("Waiting", "pops", None if waiting is None else waiting.pops),
        ("", "streams", None if waiting is None else waiting.streams),
        ("", "queue browsers", None if waiting is None else waiting.browsers),
    )
    for verb, plural, stopped in (("push", "pushes", sample.maintenance.push), ("pop", "pops", sample.maintenance.pop)):
        if stopped:
            say(f"MAINTENANCE: all {plural} are stopped; resume with: hark maintenance {verb} off")
    for kind, what, value in rows:
        say(f"{kind:<11} {what:<18} {'-' if value is None else value:>12}")
    say("")
    table(
        sample.busiest,
        {
            "Busiest queues": lambda queue: queue.queue,
            "Pushed/s": lambda queue: queue.pushed_per_second,
            "Delivered/s": lambda queue: queue.delivered_per_second,
            "Settled/s": lambda queue: queue.settled_per_second,
        },
        empty="no queue was active in the last 10 seconds",
    )


@command(main, "settings", "hark settings", "hark settings --json | jq '.settings[].name'")
def settings(server: Server) -> None:
    """Show the settings of a running server, without secrets."""
    shown = server.ask(operations.SHOW_SETTINGS)
    say(f"Hark {shown.version}, store {shown.engine}\n")
    rows = {
        one.name: ", ".join(map(str, one.value)) if isinstance(one.value, list) else one.value for one in shown.settings
    }
    table(rows.items(), {"Setting": itemgetter(0), "Value": lambda row: str(row[1])}, long=("Value",))
