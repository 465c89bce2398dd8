"""`hark group`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from hark.cli import answers, observed
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
from hark.cli.output import raw, say, table
from hark.cli.remote import call, path

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

    Lag is the number of messages that the group has not settled; "Lag (s)" is the age of the oldest one, in seconds.
    """
    answer = call(url, "GET", path("consumer-groups"), query={"queue": queue})
    if as_json:
        raw(answer.body)
        return
    table(
        ("Group", "Queue", "Mode", "State", "Leases", "In flight", "Lag", "Lag (s)", "Lagging partitions", "Start"),
        (
            (
                group.name,
                group.queue_name,
                group.group_mode,
                "paused" if group.paused else group.state,
                group.members,
                group.in_flight,
                group.total_lag,
                group.max_time_lag,
                group.partitions_with_lag,
                group.subscription_mode,
            )
            for group in answer.read(list[answers.Group])
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

    Lag is the number of messages that the group has not settled; "Lag (s)" is the age of the oldest one, in seconds.
    """
    query = {"minLagSeconds": seconds, "limit": limit}
    answer = call(url, "GET", path("consumer-groups", "lagging"), query=query)
    if as_json:
        raw(answer.body)
        return
    table(
        ("Group", "Queue", "Partition", "Lag", "Lag (s)", "Oldest message", "Last consumed"),
        (
            (
                track.consumer_group,
                track.queue_name,
                track.partition_name,
                track.offset_lag,
                track.time_lag_seconds,
                track.oldest_unconsumed_at,
                track.last_consumed_at,
            )
            for track in answer.read(list[observed.LaggingTrack])
        ),
        empty=f"no group lags behind by {seconds} seconds or more",
        spare=("Last consumed", "Oldest message"),
    )


@command(app, "show", "hark group show billing")
def show(group: GroupName, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Show the position of a consumer group in each partition."""
    answer = call(url, "GET", path("consumer-groups", group))
    queues_of_it = answer.read(dict[str, answers.Tracks])
    if as_json:
        raw(answer.body)
    if not queues_of_it:
        raise Failure(f"group {group} not found", code="not_found", hint="list the groups with: hark group list")
    if as_json:
        return
    table(
        ("Queue", "Partition", "Lag", "Lag (s)", "Leased", "Last consumed"),
        (
            (
                queue,
                t.partition,
                t.offset_lag,
                t.time_lag_seconds,
                "yes" if t.lease_active else "",
                t.last_consumed_at,
            )
            for queue, tracks in queues_of_it.items()
            for t in tracks.partitions
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
    target: dict[str, Any] = {"toEnd": True}
    if timestamp is not None:
        target = {"timestamp": _time(timestamp)}
    elif offset is not None:
        target = {"offset": offset}
    segments = [] if partition is None else ["partitions", partition]
    answer = call(url, "POST", path("consumer-groups", group, "queues", queue, *segments, "seek"), body=target)
    if as_json:
        raw(answer.body)
    done = answer.read(answers.Done)
    if not done.success:
        raise Failure(done.error or f"the server did not move group {group} in queue {queue}")
    if not as_json:
        moved = f"{done.partitions_updated} partitions" if partition is None else f"next offset {done.next_offset}"
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
    segments = [] if queue is None else ["queues", queue]
    query = {"deleteMetadata": not keep_subscription}
    answer = call(url, "DELETE", path("consumer-groups", group, *segments), query=query)
    if as_json:
        raw(answer.body)
    done = answer.read(answers.Done)
    if not done.success:
        raise Failure(done.error or f"the server did not delete group {group}")
    if not as_json:
        say(f"deleted group {group} ({done.deleted_partitions or 0} partitions)")


@command(app, "pause", "hark group pause billing orders")
def pause(group: GroupName, queue: QueueName, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Pause deliveries of a queue to one consumer group."""
    queues.order(url, queue, group, "pause", as_json)


@command(app, "resume", "hark group resume billing orders")
def resume(group: GroupName, queue: QueueName, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Resume deliveries of a queue to one consumer group."""
    queues.order(url, queue, group, "resume", as_json)
