"""`hark top`, `hark settings`, `hark consumers` and `hark audit`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer

from hark.api import operations, types
from hark.cli.command import DEFAULT_URL, Failure, Json, Limit, Offset, OptionalQueueName, Url, command
from hark.cli.output import group_name, raw, say, say_rest, table
from hark.cli.remote import call, decode, ended, events, stream

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
    answer = call(url, operations.LIST_CONSUMERS, query={"queue": queue, "limit": limit, "offset": offset})
    if as_json:
        raw(answer.body)
        return
    page = answer.read()
    table(
        _COLUMNS,
        (row for one in page.items for row in _rows(one)),
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
            credit = f"{one.credit}, {one.unsettled} unsettled" + _stopped(one)
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


def _stopped(stream: types.groups.WaitingStream) -> str:
    return ", draining" if stream.draining else ", paused" if stream.paused else ""


def register_audit(main: typer.Typer) -> None:
    """Add the command at the top level."""
    command(main, "audit", "hark audit", "hark audit --limit 20", "hark audit --json | jq '.records[].action'")(audit)


def audit(
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Maximum number of results.", show_default="200")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """List recent administrative actions, newest first.

    The list has the last 200 actions of this server process. The server also writes them to its log (hark.audit).
    """
    answer = call(url, operations.LIST_AUDIT, query={"limit": limit})
    if as_json:
        raw(answer.body)
        return
    table(
        ("Time", "Subject", "Role", "Action", "Target", "Result", "Client", "Request"),
        (
            (one.at, one.subject, one.role, one.action, _target(one), one.result, one.client, one.request_id)
            for one in answer.read().records
        ),
        empty="no administrative actions since this server process started",
        long=("Target",),
        spare=("Request", "Client", "Role", "Result"),
    )


def _target(record: types.server.AuditRecord) -> str:
    return " ".join(f"{name}={_audit_text(value)}" for name, value in record.target.items())


def _audit_text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


_CLEAR = "\x1b[H\x1b[J"


def register_watching(main: typer.Typer) -> None:
    """Add the commands at the top level."""
    command(main, "top", "hark top", "hark top --once", "hark top --json | jq .backlog")(top)
    command(main, "settings", "hark settings", "hark settings --json | jq '.settings[].name'")(settings)


def top(
    *,
    once: Annotated[bool, typer.Option("--once", help="Print one sample and exit.")] = False,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Show the activity of a server, until Ctrl-C.

    Every second, the command shows rates, backlog, latency and the busiest queues.
    """
    try:
        for name, body in events(stream(url, operations.WATCH, query={})):
            if name == "error":
                problem = decode(body, types.base.ErrorAnswer)
                raise Failure(problem.error, code=problem.code)
            if name != "sample":
                continue
            if as_json:
                raw(body)
            else:
                _show(decode(body, types.server.LiveSample), clear=not once and sys.stdout.isatty())
            if once:
                return
    except KeyboardInterrupt:
        return
    raise ended()


def _show(sample: types.server.LiveSample, *, clear: bool) -> None:
    if clear:
        typer.echo(_CLEAR, nl=False)
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
    for verb, stopped in (("pushes", sample.maintenance.push), ("pops", sample.maintenance.pop)):
        if stopped:
            say(f"MAINTENANCE: all {verb} are stopped; resume with: hark maintenance {verb[:-1]} off")
    for kind, what, value in rows:
        say(f"{kind:<11} {what:<18} {'-' if value is None else value:>12}")
    say("")
    table(
        ("Busiest queues", "Pushed/s", "Delivered/s", "Settled/s"),
        (
            (queue.queue, queue.pushed_per_second, queue.delivered_per_second, queue.settled_per_second)
            for queue in sample.busiest
        ),
        empty="no queue was active in the last 10 seconds",
    )


def settings(url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Show the settings of a running server, without secrets."""
    answer = call(url, operations.SHOW_SETTINGS)
    if as_json:
        raw(answer.body)
        return
    shown = answer.read()
    say(f"Hark {shown.version}, store {shown.engine}\n")
    table(("Setting", "Value"), ((one.name, _text(one.value)) for one in shown.settings), long=("Value",))


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
