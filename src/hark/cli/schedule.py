"""`hark schedule`."""

from __future__ import annotations

from typing import Annotated

import typer

from hark.api import operations, types
from hark.cli import params
from hark.cli.command import command, make_app
from hark.cli.output import confirm, details, say, table
from hark.cli.params import argument, flag, option
from hark.cli.remote import Server, json_or_text

app = make_app(
    "Push messages at due times: create, list, pause, run and delete schedules.",
    "hark schedule put nightly reports --cron '0 2 * * *' --timezone Europe/Berlin",
    "hark schedule list",
    "hark schedule show nightly",
)
ScheduleName = Annotated[str, argument("NAME", "Name of the schedule.", empty=False)]
_HINT = """hark schedule put nightly reports '{"kind": "daily"}' --cron '0 2 * * *'"""


@command(
    app,
    "put",
    "hark schedule put nightly reports --cron '0 2 * * *' --timezone Europe/Berlin",
    """hark schedule put poll feeds '{"feed": 7}' --every 5m --overlap skip""",
)
def put(
    server: Server,
    name: ScheduleName,
    queue: params.QueueName,
    payload: Annotated[str | None, argument("PAYLOAD", "Payload of the messages, as JSON.", default="null")] = None,
    text: Annotated[bool, flag("Send the payload as a JSON string.", "--text")] = False,
    cron: Annotated[
        str | None, option("EXPRESSION", "Minute, hour, day of month, month, day of week; or @daily.")
    ] = None,
    every: Annotated[str | None, option("TIME", "Interval: seconds, or with units such as 5m or 1h30m.")] = None,
    timezone: Annotated[str | None, option("ZONE", "Time zone of --cron.", default="UTC")] = None,
    start_at: Annotated[
        str | None, option("TIME", "No due time is before this time (ISO 8601, UTC by default).")
    ] = None,
    jitter: Annotated[str | None, option("TIME", "Delay each due time by a part of this time.")] = None,
    overlap: Annotated[
        str | None,
        option(
            "allow|skip",
            "skip: skip a due time while the message of the run before is not settled.",
            default="allow",
        ),
    ] = None,
    catch_up: Annotated[
        str | None, option("none|latest|all", "Which missed due times are pushed later.", default="latest")
    ] = None,
    partition: Annotated[str | None, option("PARTITION", "Partition.", empty=False, default="Default")] = None,
    priority: Annotated[int | None, option("N", "Priority of the messages.", least=0, most=9, default="0")] = None,
    ttl: Annotated[int | None, option("MS", "Time to live of the messages, in milliseconds.", least=1)] = None,
) -> None:
    """Create a schedule, or replace its settings.

    Give exactly one of --cron and --every. An equal schedule is not changed. The due times change only with --cron,
    --every, --timezone and --start-at.
    """
    if [cron, every].count(None) != 1:
        raise typer.BadParameter("give exactly one of --cron and --every")
    body = types.tasks.ScheduleBody(
        queue=queue,
        partition=partition,
        cron=cron,
        every=every,
        timezone=timezone,
        start_at=start_at,
        jitter=jitter,
        overlap=overlap,
        catch_up=catch_up,
        priority=priority,
        ttl=ttl,
    )
    if payload is not None:
        body.payload = json_or_text(payload.encode("utf-8", "surrogateescape"), "PAYLOAD", text=text, hint=_HINT)
    shown = server.ask(operations.PUT_SCHEDULE, name, body=body)
    say(f"schedule {shown.name}: {_next(shown)}")


@command(app, "list", "hark schedule list", "hark schedule list --queue reports", "hark schedule list --json")
def list_schedules(
    server: Server,
    queue: params.OnlyQueue = None,
    search: Annotated[str | None, option("TEXT", "Only schedules whose name contains this text.")] = None,
    limit: params.Limit = 1000,
    offset: params.Offset = 0,
) -> None:
    """List schedules with their next and last runs."""
    query = {"queue": queue, "search": search, "limit": limit, "offset": offset}
    schedules = server.ask(operations.LIST_SCHEDULES, query=query).items
    missing = None if queue is None or schedules else server.missing_queue(queue)
    table(
        schedules,
        {
            "Name": lambda s: s.name,
            "Queue": lambda s: s.queue,
            "When": _when,
            "State": lambda s: s.state,
            "Next run": lambda s: s.next_run_at,
            "Last run": lambda s: s.last_run_at,
            "Runs": lambda s: s.runs,
            "Skipped": lambda s: s.skipped,
            "Last error": lambda s: s.last_error.code if s.last_error and s.state == "failing" else "",
        },
        empty=f"no schedules; create one: {_HINT}"
        if missing is None
        else f"no schedules; queue {queue} does not exist{missing}",
        spare=("Last error", "Skipped", "Runs", "Last run"),
    )


@command(app, "show", "hark schedule show nightly")
def show(server: Server, name: ScheduleName) -> None:
    """Show a schedule: its settings, its runs, and why it skipped or failed."""
    shown = server.ask(operations.SHOW_SCHEDULE, name)
    skip, error = shown.last_skip, shown.last_error
    details(
        (
            ("schedule", shown.name),
            ("queue", shown.queue),
            ("partition", shown.partition),
            ("when", _when(shown)),
            ("start at", shown.start_at),
            ("jitter", f"{shown.jitter:g} s" if shown.jitter else None),
            ("overlap", shown.overlap),
            ("catch up", shown.catch_up),
            ("priority", shown.priority or None),
            ("ttl", shown.ttl),
            ("backoff schedule", None if shown.backoff_schedule is None else list(shown.backoff_schedule)),
            ("payload", shown.unreadable or bytes(shown.payload).decode()),
            ("state", shown.state),
            ("next run", shown.next_run_at),
            ("last run", shown.last_run_at),
            ("runs", shown.runs),
            ("skipped", shown.skipped),
            ("last skip", None if skip is None else f"{skip.due_at:%Y-%m-%dT%H:%M:%SZ}: {skip.text}"),
            ("last error", None if error is None else f"{error.at:%Y-%m-%dT%H:%M:%SZ}: {error.error} ({error.code})"),
        )
    )
    say("")
    table(
        shown.last_runs,
        {
            "Run": lambda r: r.at,
            "Due": lambda r: r.due_at or "requested",
            "Message": lambda r: r.message_id or "no longer stored",
            "Transaction ID": lambda r: r.transaction_id,
        },
        empty="no runs yet",
        spare=("Transaction ID",),
    )


@command(app, "pause", "hark schedule pause nightly")
def pause(server: Server, name: ScheduleName) -> None:
    """Pause a schedule; due times until it is resumed are not caught up."""
    say(f"paused schedule {server.ask(operations.PAUSE_SCHEDULE, name).name}")


@command(app, "resume", "hark schedule resume nightly")
def resume(server: Server, name: ScheduleName) -> None:
    """Resume a schedule; its next due time is the first one after now."""
    shown = server.ask(operations.RESUME_SCHEDULE, name)
    say(f"resumed schedule {shown.name}: {_next(shown)}")


@command(app, "run", "hark schedule run nightly")
def run(server: Server, name: ScheduleName) -> None:
    """Push one message of a schedule now; its due times do not change."""
    say(f"pushed message {server.ask(operations.RUN_SCHEDULE, name).message_id}")


@command(app, "delete", "hark schedule delete nightly", "hark schedule delete nightly --yes")
def delete(server: Server, name: ScheduleName, yes: params.Yes = False) -> None:
    """Delete a schedule; messages that it pushed stay."""
    confirm(f"Delete schedule {name}?", yes)
    server.ask(operations.DELETE_SCHEDULE, name)
    say(f"deleted schedule {name}")


def _when(schedule: types.tasks.ListedSchedule) -> str:
    if schedule.cron is None:
        return f"every {schedule.every:g} s"
    return schedule.cron if schedule.timezone == "UTC" else f"{schedule.cron} ({schedule.timezone})"


def _next(schedule: types.tasks.ListedSchedule) -> str:
    if schedule.next_run_at is None:
        return f"{schedule.state}, no next run"
    return f"next run {schedule.next_run_at:%Y-%m-%dT%H:%M:%SZ}"
