"""`hark group`, and limits of queues and groups."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import typer

from hark.api import operations, types
from hark.api.options import LIMITS, limits_of
from hark.cli import queue as queues
from hark.cli.command import (
    DEFAULT_URL,
    Failure,
    GroupName,
    Json,
    Limit,
    OnlyPartition,
    OnlyQueue,
    QueueName,
    Url,
    Yes,
    command,
    confirm,
    make_app,
)
from hark.cli.output import details, raw, say, table
from hark.cli.remote import call
from hark.model import Limits

app = make_app(
    "List, move, pause, limit and delete consumer groups.",
    "hark group list",
    "hark group seek billing orders --to-end",
    "hark group delete billing --queue orders",
    "",
    "The default group of a queue has the name __QUEUE_MODE__.",
)


@command(app, "list", "hark group list", "hark group list --queue orders")
def list_groups(queue: OnlyQueue = None, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """List consumer groups, one row for each group and queue.

    Lag is the number of unsettled messages, without scheduled ones (delayed, or waiting for a retry); "Lag (s)" is the
    longest wait of one of them, in seconds.
    """
    answer = call(url, operations.LIST_GROUPS, query={"queue": queue})
    if as_json:
        raw(answer.body)
        return
    table(
        (
            "Group",
            "Queue",
            "Mode",
            "State",
            "Leases",
            "In flight",
            "Lag",
            "Lag (s)",
            "Scheduled",
            "Lagging partitions",
            "Start",
        ),
        (
            (
                group.name,
                group.queue,
                group.group_mode,
                "paused" if group.paused else group.state,
                group.members,
                group.in_flight,
                group.total_lag,
                group.max_time_lag,
                group.scheduled,
                group.partitions_with_lag,
                group.subscription_mode,
            )
            for group in answer.read()
        ),
        empty="no consumer groups; the first pop creates one: hark pop orders --group billing",
        spare=("Start", "Lagging partitions", "Leases", "Mode", "State"),
    )


@command(app, "lagging", "hark group lagging", "hark group lagging --seconds 60 --limit 10")
def lagging(
    seconds: Annotated[
        int, typer.Option(min=0, metavar="SECONDS", help="Least age of the oldest message, in seconds.")
    ] = 60,
    limit: Limit = 100,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """List consumer groups that lag behind, by partition.

    Lag is the number of unsettled messages, without scheduled ones (delayed, or waiting for a retry); "Lag (s)" is the
    longest wait of one of them, in seconds.
    """
    query = {"minLagSeconds": seconds, "limit": limit}
    answer = call(url, operations.LIST_LAGGING, query=query)
    if as_json:
        raw(answer.body)
        return
    table(
        ("Group", "Queue", "Partition", "Lag", "Lag (s)", "Oldest message", "Last consumed"),
        (
            (
                position.consumer_group,
                position.queue_name,
                position.partition_name,
                position.offset_lag,
                position.time_lag_seconds,
                position.oldest_unconsumed_at,
                position.last_consumed_at,
            )
            for position in answer.read()
        ),
        empty=f"no group lags behind by {seconds} seconds or more",
        spare=("Last consumed", "Oldest message"),
    )


@command(app, "show", "hark group show billing")
def show(group: GroupName, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Show the position of a consumer group in each partition."""
    answer = call(url, operations.SHOW_GROUP, group)
    queues_of_it = answer.read()
    if as_json:
        raw(answer.body)
    if not queues_of_it:
        raise Failure(f"group {group} not found", code="not_found", hint="list the groups with: hark group list")
    if as_json:
        return
    table(
        ("Queue", "Partition", "Lag", "Lag (s)", "Scheduled", "Leased", "Last consumed"),
        (
            (
                queue,
                t.partition,
                t.offset_lag,
                t.time_lag_seconds,
                t.scheduled,
                "yes" if t.lease_active else "",
                t.last_consumed_at,
            )
            for queue, positions in queues_of_it.items()
            for t in positions.partitions
        ),
        empty=f"group {group} has no position in any partition yet",
        spare=("Last consumed", "Leased"),
    )


@command(
    app,
    "seek",
    "hark group seek billing orders --to-end",
    "hark group seek billing orders --timestamp 2026-01-31T12:00:00Z",
    "hark group seek billing orders --offset 1 --partition customer-4",
)
def seek(
    *,
    group: GroupName,
    queue: QueueName,
    to_end: Annotated[bool, typer.Option("--to-end", help="Skip all current messages.")] = False,
    timestamp: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Continue with messages after this time (ISO 8601, UTC by default)."),
    ] = None,
    offset: Annotated[
        int | None, typer.Option(min=1, metavar="OFFSET", help="Continue with the message at this offset.")
    ] = None,
    partition: OnlyPartition = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Move a consumer group to another position in a queue.

    Give exactly one of --to-end, --timestamp and --offset. The group loses its leases there. The position alone
    decides whether their messages are delivered again.
    """
    if [to_end, timestamp is not None, offset is not None].count(True) != 1:
        raise typer.BadParameter("give exactly one of --to-end, --timestamp and --offset")
    target = types.groups.SeekBody(
        to_end=to_end or None, timestamp=None if timestamp is None else _time(timestamp), offset=offset
    )
    if partition is None:
        whole = call(url, operations.SEEK_QUEUE, group, queue, body=target)
        body, moved = whole.body, f"{whole.read().partitions_updated} partitions"
    else:
        part = call(url, operations.SEEK_PARTITION, group, queue, partition, body=target)
        body, moved = part.body, f"next offset {part.read().next_offset}"
    if as_json:
        raw(body)
    else:
        say(f"moved group {group} in queue {queue} ({moved})")


def _time(text: str) -> str:
    """Check a time, and add UTC if it has no time zone."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"--timestamp {text}: not an ISO 8601 time; use a time such as 2026-01-31T12:00:00Z"
        ) from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).isoformat()


@command(app, "delete", "hark group delete billing", "hark group delete billing --queue orders --yes")
def delete(
    *,
    group: GroupName,
    queue: OnlyQueue = None,
    keep_subscription: Annotated[
        bool, typer.Option("--keep-subscription", help="Keep the start of the group for a later group of this name.")
    ] = False,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Delete a consumer group, in one queue or in all.

    The group loses its positions and leases. Messages stay in the queue.
    """
    confirm(f"Delete group {group} in {f'queue {queue}' if queue else 'all its queues'}?", yes)
    query = {"deleteMetadata": not keep_subscription}
    if queue is None:
        answer = call(url, operations.DELETE_GROUP, group, query=query)
    else:
        answer = call(url, operations.DELETE_GROUP_OF_QUEUE, group, queue, query=query)
    if as_json:
        raw(answer.body)
    else:
        say(f"deleted group {group} ({answer.read().deleted_partitions} partitions)")


@command(app, "pause", "hark group pause billing orders")
def pause(group: GroupName, queue: QueueName, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Pause deliveries of a queue to one consumer group."""
    queues.order(url, queue, group, "pause", as_json)


@command(app, "resume", "hark group resume billing orders")
def resume(group: GroupName, queue: QueueName, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Resume deliveries of a queue to one consumer group."""
    queues.order(url, queue, group, "resume", as_json)


MaxInFlight = Annotated[
    int | None, typer.Option(min=0, metavar="N", help=LIMITS["maxInFlight"].text, show_default="unchanged")
]
RateLimit = Annotated[
    float | None, typer.Option(min=0, metavar="N", help=LIMITS["rateLimit"].text, show_default="unchanged")
]
RateBurst = Annotated[
    int | None, typer.Option(min=0, metavar="N", help=LIMITS["rateBurst"].text, show_default="unchanged")
]


def register_limits(queues: typer.Typer, groups: typer.Typer) -> None:
    """Add the commands to `hark queue` and `hark group`."""
    command(
        queues,
        "limits",
        "hark queue limits orders",
        "hark queue limits orders --max-in-flight 100 --rate-limit 20",
        "hark queue limits orders --rate-limit 0",
    )(limit_queue)
    command(
        groups,
        "limits",
        "hark group limits billing orders",
        "hark group limits billing orders --rate-limit 0.5 --rate-burst 10",
    )(limit_group)


def limit_queue(
    *,
    queue: QueueName,
    max_in_flight: MaxInFlight = None,
    rate_limit: RateLimit = None,
    rate_burst: RateBurst = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Show or change the delivery limits of a queue.

    The limits apply to all consumer groups of the queue together.
    """
    answer = call(url, operations.SHOW_QUEUE, queue, query={"limit": 1})
    shown = answer.read()
    options, shown_body = shown.options, answer.body
    if given := _given(max_in_flight, rate_limit, rate_burst):
        # As the server sent them: a server that is newer than this command keeps its other options.
        kept = msgspec.json.decode(answer.body)["options"]
        body = {"queue": queue, "namespace": shown.namespace, "task": shown.task, "options": kept | given}
        configured = call(url, operations.CONFIGURE, body=body)
        options, shown_body = configured.read().options, configured.body
    if as_json:
        raw(shown_body)
    else:
        _show(limits_of(options))


def limit_group(
    *,
    group: GroupName,
    queue: QueueName,
    max_in_flight: MaxInFlight = None,
    rate_limit: RateLimit = None,
    rate_burst: RateBurst = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Show or change the delivery limits of a consumer group."""
    answer = call(url, operations.SHOW_LIMITS, group, queue)
    limits = answer.read().limits
    if given := _given(max_in_flight, rate_limit, rate_burst):
        answer = call(url, operations.LIMIT_GROUP, group, queue, body=msgspec.to_builtins(limits) | given)
        limits = answer.read().limits
    if as_json:
        raw(answer.body)
    else:
        _show(limits)


def _given(max_in_flight: int | None, rate_limit: float | None, rate_burst: int | None) -> dict[str, Any]:
    """Return the limits to change, by their names in the API."""
    if rate_limit == 0 and rate_burst is None:
        rate_burst = 0  # The server rejects a burst without a rate.
    named = {"maxInFlight": max_in_flight, "rateLimit": rate_limit, "rateBurst": rate_burst}
    return {name: value for name, value in named.items() if value is not None}


def _show(limits: Limits) -> None:
    """Print limits for people."""
    burst = f"{limits.rate_burst} messages" if limits.rate_burst else "one second's worth"
    details(
        (
            ("maxInFlight", f"{limits.max_in_flight} messages" if limits.max_in_flight else "no limit"),
            ("rateLimit", f"{limits.rate_limit:g} messages per second" if limits.rate_limit else "no limit"),
            ("rateBurst", burst if limits.rate_limit or limits.rate_burst else None),
        )
    )
