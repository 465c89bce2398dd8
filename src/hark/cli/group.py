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
    PartitionOption,
    QueueName,
    QueueOption,
    Url,
    Yes,
    command,
    confirm,
    make_app,
)
from hark.cli.output import raw, say, table
from hark.cli.remote import call, path

app = make_app(
    "Look at consumer groups, move, pause and delete them.",
    "hark group list",
    "hark group seek billing orders --to-end",
    "hark group delete billing --queue orders",
)


@command(app, "list", "hark group list", "hark group list --queue orders")
def list_groups(queue: QueueOption = None, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """List groups, one line for each queue that they consume."""
    answer = call(url, "GET", path("consumer-groups"), query={"queue": queue})
    if as_json:
        raw(answer.body)
        return
    table(
        ("Group", "Queue", "Mode", "State", "Leases", "In flight", "Lag", "Partitions", "Seconds", "Starts at"),
        (
            (
                group.name,
                group.queue_name,
                group.group_mode,
                "paused" if group.paused else group.state,
                group.members,
                group.in_flight,
                group.total_lag,
                group.partitions_with_lag,
                group.max_time_lag,
                group.subscription_mode,
            )
            for group in answer.read(list[answers.Group])
        ),
        empty="no groups; a first pop makes one: hark pop orders --group billing",
    )


@command(app, "lagging", "hark group lagging", "hark group lagging --seconds 60 --limit 10")
def lagging(
    seconds: Annotated[int, typer.Option(min=0, help="Only where a message has waited so long.")] = 60,
    limit: Annotated[int, typer.Option(min=1)] = 100,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """List where messages have waited long: a group and a partition in each line."""
    query = {"minLagSeconds": seconds, "limit": limit}
    answer = call(url, "GET", path("consumer-groups", "lagging"), query=query)
    if as_json:
        raw(answer.body)
        return
    table(
        ("Group", "Queue", "Partition", "Lag", "Lag seconds", "Oldest waits since", "Last consumed"),
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
        empty=f"no message has waited for {seconds} seconds",
    )


@command(app, "show", "hark group show billing")
def show(group: GroupName, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Show a group's place in every partition."""
    answer = call(url, "GET", path("consumer-groups", group))
    queues_of_it = answer.read(dict[str, answers.Tracks])
    if as_json:
        raw(answer.body)
    if not queues_of_it:
        raise Failure(f"there is no group {group}", code="not_found")
    if as_json:
        return
    table(
        ("Queue", "Partition", "Lag", "Lag seconds", "Leased", "Last consumed"),
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
        empty=f"{group} has touched no partition yet",
    )


@command(
    app,
    "seek",
    "hark group seek billing orders --to-end",
    "hark group seek billing orders --timestamp 2026-01-31T12:00:00Z",
    "hark group seek billing orders --partition customer-4 --offset 1",
)
def seek(
    *,
    group: GroupName,
    queue: QueueName,
    to_end: Annotated[bool, typer.Option("--to-end", help="Skip everything that is there now.")] = False,
    timestamp: Annotated[
        str | None, typer.Option(metavar="ISO", help="Go on after this time (UTC, unless it says).")
    ] = None,
    offset: Annotated[int | None, typer.Option(min=1, help="Go on at this offset.")] = None,
    partition: PartitionOption = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Move a group in a queue, forward or back; what it has leased there comes again or not at all."""
    if [to_end, timestamp is not None, offset is not None].count(True) != 1:
        raise typer.BadParameter("give one of --to-end, --timestamp and --offset")
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
        raise Failure(done.error or "the server did not move the group")
    if not as_json:
        moved = f"{done.partitions_updated} partitions" if partition is None else f"next offset {done.next_offset}"
        say(f"moved {group} in {queue} ({moved})")


def _time(text: str) -> str:
    """Check a time, and make it say its zone."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"--timestamp {text}: expected ISO 8601, such as 2026-01-31T12:00:00Z") from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).isoformat()


@command(app, "delete", "hark group delete billing", "hark group delete billing --queue orders --yes")
def delete(
    *,
    group: GroupName,
    queue: QueueOption = None,
    keep_subscription: Annotated[
        bool, typer.Option("--keep-subscription", help="It starts again where it first started.")
    ] = False,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Delete a group's place in one queue or in all of them."""
    confirm(f"Delete the group {group} in {queue or 'all its queues'}?", yes)
    segments = [] if queue is None else ["queues", queue]
    query = {"deleteMetadata": not keep_subscription}
    answer = call(url, "DELETE", path("consumer-groups", group, *segments), query=query)
    if as_json:
        raw(answer.body)
    done = answer.read(answers.Done)
    if not done.success:
        raise Failure(done.error or "the server did not delete the group")
    if not as_json:
        say(f"deleted {group} ({done.deleted_partitions or 0} partitions)")


@command(app, "pause", "hark group pause billing orders")
def pause(group: GroupName, queue: QueueName, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Stop deliveries of a queue to one group."""
    queues.order(url, queue, group, "pause", as_json)


@command(app, "resume", "hark group resume billing orders")
def resume(group: GroupName, queue: QueueName, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Resume deliveries of a queue to one group."""
    queues.order(url, queue, group, "resume", as_json)
