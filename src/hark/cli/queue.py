"""`hark queue` and `hark group`."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import typer

from hark.api import operations, types
from hark.api.options import LIMITS, OPTIONS, given_limits, limits_of, with_backoff
from hark.cli import params
from hark.cli.command import command, make_app
from hark.cli.output import Failure, confirm, details, raw, say, table
from hark.cli.params import flag, option
from hark.cli.remote import Server
from hark.model import Limits

app = make_app(
    "List, create, change and delete queues.",
    "hark queue list",
    "hark queue create orders --set leaseTime=60 --set retryLimit=5",
    "hark queue delete orders",
)

_KINDS: dict[str, type] = {"integer": int, "number": float, "boolean": bool}
SomeOffset = Annotated[int | None, option("N", "Number of results to skip.", least=0, default="0")]


@command(
    app,
    "list",
    "hark queue list",
    "hark queue list --search order --sort backlog --limit 20",
    "hark queue list --json | jq '.queues[].name'",
)
def list_queues(
    server: Server,
    search: Annotated[str | None, option("TEXT", "Only queues whose name contains this text.")] = None,
    namespace: Annotated[str | None, option("NAME", "Only queues of this namespace.")] = None,
    task: Annotated[str | None, option("NAME", "Only queues of this task.")] = None,
    paused: Annotated[bool, flag("Only paused queues.", "--paused")] = False,
    sort: Annotated[
        str | None, option("ORDER", "Order: newest, name, or backlog (largest first).", default="newest")
    ] = None,
    limit: Annotated[int | None, option("N", "Maximum number of results.", least=1, default="10000")] = None,
    offset: SomeOffset = None,
) -> None:
    """List queues with their message counts."""
    query = {"search": search, "namespace": namespace, "task": task, "paused": paused or None}
    table(
        server.ask(operations.LIST_QUEUES, query={**query, "sort": sort, "limit": limit, "offset": offset}).items,
        {
            "Queue": lambda q: q.name,
            "Namespace": lambda q: q.namespace,
            "Task": lambda q: q.task,
            "Partitions": lambda q: q.partitions,
            "Pending": lambda q: q.messages.pending,
            "Scheduled": lambda q: q.messages.scheduled,
            "Processing": lambda q: q.messages.processing,
            "Total": lambda q: q.messages.total,
            "Paused": lambda q: "yes" if q.paused else "",
            "Created": lambda q: q.created_at,
        },
        empty="no queues; the first push creates one: hark push orders '{\"id\": 1}'",
        spare=("Created", "Task", "Total", "Namespace"),
    )


@command(app, "show", "hark queue show orders", "hark queue show orders --search customer-4 --limit 10")
def show(
    server: Server,
    queue: params.QueueName,
    search: Annotated[str | None, option("TEXT", "Only partitions whose name contains this text.")] = None,
    limit: params.Limit = 100,
    offset: SomeOffset = None,
) -> None:
    """Show the counts, options and partitions of a queue."""
    shown = server.ask(operations.SHOW_QUEUE, queue, query={"search": search, "limit": limit, "offset": offset})
    details(
        (
            ("queue", shown.name),
            ("id", shown.id),
            ("namespace", shown.namespace),
            ("task", shown.task),
            ("created", shown.created_at),
            ("paused", shown.paused or None),
            *((name, getattr(shown.totals, name)) for name in shown.totals.__struct_fields__),
            ("expired", shown.expired),
            ("discarded", shown.discarded),
            ("partitions", shown.partition_count),
            *msgspec.to_builtins(shown.options).items(),
        )
    )
    say("")
    table(
        shown.partitions,
        {
            "Partition": lambda p: p.name,
            "Pending": lambda p: p.stats.pending,
            "Scheduled": lambda p: p.stats.scheduled,
            "Processing": lambda p: p.stats.processing,
            "Completed": lambda p: p.stats.completed,
            "Dead letters": lambda p: p.stats.dead_letter,
            "Total": lambda p: p.stats.total,
            "Oldest": lambda p: p.oldest_message,
            "Newest": lambda p: p.newest_message,
            "ID": lambda p: p.id,
        },
        empty="no partitions",
        spare=("ID", "Newest", "Oldest", "Completed"),
    )


@command(
    app,
    "create",
    "hark queue create orders",
    "hark queue create orders --namespace shop",
    "hark queue create orders --set leaseTime=60 --set deadLetterQueue=false",
    "",
    "Options for --set (docs/http.md describes them):",
    *(f"  {name} (default {msgspec.json.encode(option.default).decode()})" for name, option in OPTIONS.items()),
)
def create(
    server: Server,
    queue: params.QueueName,
    namespace: Annotated[str | None, option("NAME", "Namespace of the queue.")] = None,
    task: Annotated[str | None, option("NAME", "Task of the queue.")] = None,
    options: Annotated[
        list[str] | None, option("OPTION=VALUE", "Queue option; repeat for more options.", "--set")
    ] = None,
) -> None:
    """Create a queue, or replace the options of an existing one.

    Options that you do not set get their defaults, in an existing queue, too. If you do not set retryDelay, retries
    wait 1, 2, 4 seconds and so on (retryDelay=1000, retryMultiplier=2). With `hark pop`, consumers can receive from
    all queues of a namespace or task.
    """
    body: dict[str, Any] = {"queue": queue, "options": with_backoff(dict(_option(text) for text in options or ()))}
    body |= {name: value for name, value in (("namespace", namespace), ("task", task)) if value is not None}
    answer = server.call(operations.CONFIGURE, body=body)
    configured = answer.read()
    if server.as_json:
        raw(answer.body)
    else:
        say(f"configured queue {configured.queue}")
    if configured.ignored_options:
        names = ", ".join(configured.ignored_options)
        text = f"the server does not know these options and configured the queue without them: {names}"
        raise Failure(text, hint="leave them out or update the server")


def _option(text: str) -> tuple[str, object]:
    """Parse OPTION=VALUE; the name can be written leaseTime, lease_time or lease-time."""
    given, equals, value = text.partition("=")
    key = given.replace("-", "").replace("_", "").lower()
    names = {name.lower(): name for name in OPTIONS}
    if not equals or key not in names:
        near = difflib.get_close_matches(key, names, n=1)
        hint = f"did you mean {names[near[0]]}?" if near else "hark queue create --help lists the options"
        problem = "unknown option" if equals else "not OPTION=VALUE"
        raise typer.BadParameter(f"--set {text}: {problem}; {hint}")
    try:
        return names[key], msgspec.convert(value, _KINDS[OPTIONS[names[key]].type], strict=False)
    except msgspec.ValidationError as error:
        raise typer.BadParameter(f"--set {text}: invalid value: {error}") from None


@command(app, "delete", "hark queue delete orders", "hark queue delete orders --yes")
def delete(server: Server, queue: params.QueueName, yes: params.Yes = False) -> None:
    """Delete a queue with its messages, groups and dead letters."""
    confirm(f"Delete queue {queue} with its messages, groups and dead letters?", yes)
    missing = Failure(f"queue {queue} not found", code="not_found", hint="list the queues with: hark queue list")
    server.ask(operations.DELETE_QUEUE, queue, failure=lambda answer: None if answer.existed else missing)
    say(f"deleted queue {queue}")


@command(app, "purge", "hark queue purge orders", "hark queue purge orders --group billing --yes")
def purge(
    server: Server,
    queue: params.QueueName,
    group: Annotated[
        str | None, option("GROUP", "Acknowledge the messages for this consumer group only.", empty=False)
    ] = None,
    yes: params.Yes = False,
) -> None:
    """Delete all messages of a queue; dead letters stay.

    With --group, the messages stay in the queue, and only this consumer group does not receive them any more.
    """
    if group is None:
        confirm(f"Delete all messages of queue {queue}?", yes)
        _order(server, "purged", operations.PURGE_QUEUE, queue)
    else:
        confirm(f"Acknowledge all messages of queue {queue} for group {group}?", yes)
        _order(server, "purged", operations.PURGE_GROUP, queue, group)


@command(app, "pause", "hark queue pause orders")
def pause(server: Server, queue: params.QueueName) -> None:
    """Pause deliveries of a queue; pushes are still accepted."""
    _order(server, "paused", operations.PAUSE_QUEUE, queue)


@command(app, "resume", "hark queue resume orders")
def resume(server: Server, queue: params.QueueName) -> None:
    """Resume deliveries of a queue."""
    _order(server, "resumed", operations.RESUME_QUEUE, queue)


def _order(
    server: Server,
    done: str,
    operation: operations.Operation[types.queues.OfQueue[Any]],
    queue: str,
    group: str | None = None,
) -> None:
    outcome = server.ask(operation, queue) if group is None else server.ask(operation, queue, group)
    count = f" ({outcome.value} messages)" if done == "purged" else ""
    say(f"{done} {f'queue {queue}' if group is None else f'group {group} in queue {queue}'}{count}")


# Groups ----------------------------------------------------------------------------------------------------

groups = make_app(
    "List, move, pause, limit and delete consumer groups.",
    "hark group list",
    "hark group seek billing orders --to-end",
    "hark group delete billing --queue orders",
    "",
    "The default group of a queue has the name __QUEUE_MODE__.",
)


@command(groups, "list", "hark group list", "hark group list --queue orders")
def list_groups(server: Server, queue: params.OnlyQueue = None) -> None:
    """List consumer groups, one row for each group and queue.

    Lag is the number of messages that wait: unsettled ones that are neither in flight nor scheduled (delayed, or
    waiting for a retry). "Lag (s)" is the longest wait of one of them, in seconds.
    """
    table(
        server.ask(operations.LIST_GROUPS, query={"queue": queue}),
        {
            "Group": lambda g: g.name,
            "Queue": lambda g: g.queue,
            "Mode": lambda g: g.group_mode,
            "State": lambda g: "paused" if g.paused else g.state,
            "Leases": lambda g: g.members,
            "In flight": lambda g: g.in_flight,
            "Lag": lambda g: g.total_lag,
            "Lag (s)": lambda g: g.max_time_lag,
            "Scheduled": lambda g: g.scheduled,
            "Lagging partitions": lambda g: g.partitions_with_lag,
            "Start": lambda g: g.subscription_mode,
        },
        empty="no consumer groups; the first pop creates one: hark pop orders --group billing",
        spare=("Start", "Lagging partitions", "Leases", "Mode", "State"),
    )


@command(groups, "lagging", "hark group lagging", "hark group lagging --seconds 60 --limit 10")
def lagging(
    server: Server,
    seconds: Annotated[int, option("SECONDS", "Least age of the oldest message, in seconds.", least=0)] = 60,
    limit: params.Limit = 100,
) -> None:
    """List consumer groups that lag behind, by partition.

    Lag is the number of messages that wait: unsettled ones that are neither in flight nor scheduled (delayed, or
    waiting for a retry). "Lag (s)" is the longest wait of one of them, in seconds.
    """
    table(
        server.ask(operations.LIST_LAGGING, query={"minLagSeconds": seconds, "limit": limit}),
        {
            "Group": lambda p: p.consumer_group,
            "Queue": lambda p: p.queue_name,
            "Partition": lambda p: p.partition_name,
            "Lag": lambda p: p.offset_lag,
            "Lag (s)": lambda p: p.time_lag_seconds,
            "Oldest message": lambda p: p.oldest_unconsumed_at,
            "Last consumed": lambda p: p.last_consumed_at,
        },
        empty=f"no group lags behind by {seconds} seconds or more",
        spare=("Last consumed", "Oldest message"),
    )


@command(groups, "show", "hark group show billing")
def show_group(server: Server, group: params.GroupName) -> None:
    """Show the position of a consumer group in each partition."""
    missing = Failure(f"group {group} not found", code="not_found", hint="list the groups with: hark group list")
    found = server.ask(operations.SHOW_GROUP, group, failure=lambda queues: None if queues else missing)
    table(
        [(queue, position) for queue, positions in found.items() for position in positions.partitions],
        {
            "Queue": lambda row: row[0],
            "Partition": lambda row: row[1].partition,
            "Lag": lambda row: row[1].offset_lag,
            "Lag (s)": lambda row: row[1].time_lag_seconds,
            "Scheduled": lambda row: row[1].scheduled,
            "Leased": lambda row: "yes" if row[1].lease_active else "",
            "Last consumed": lambda row: row[1].last_consumed_at,
        },
        empty=f"group {group} has no position in any partition yet",
        spare=("Last consumed", "Leased"),
    )


@command(
    groups,
    "seek",
    "hark group seek billing orders --to-end",
    "hark group seek billing orders --timestamp 2026-01-31T12:00:00Z",
    "hark group seek billing orders --offset 1 --partition customer-4",
)
def seek(
    server: Server,
    group: params.GroupName,
    queue: params.QueueName,
    to_end: Annotated[bool, flag("Skip all current messages.", "--to-end")] = False,
    timestamp: Annotated[
        str | None, option("TIME", "Continue with messages after this time (ISO 8601, UTC by default).")
    ] = None,
    offset: Annotated[int | None, option("OFFSET", "Continue with the message at this offset.", least=1)] = None,
    partition: params.OnlyPartition = None,
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
        moved = f"{server.ask(operations.SEEK_QUEUE, group, queue, body=target).partitions_updated} partitions"
    else:
        part = server.ask(operations.SEEK_PARTITION, group, queue, partition, body=target)
        moved = f"next offset {part.next_offset}"
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


@command(groups, "delete", "hark group delete billing", "hark group delete billing --queue orders --yes")
def delete_group(
    server: Server,
    group: params.GroupName,
    queue: params.OnlyQueue = None,
    keep_subscription: Annotated[
        bool, flag("Keep the start of the group for a later group of this name.", "--keep-subscription")
    ] = False,
    yes: params.Yes = False,
) -> None:
    """Delete a consumer group, in one queue or in all.

    The group loses its positions and leases. Messages stay in the queue.
    """
    confirm(f"Delete group {group} in {f'queue {queue}' if queue else 'all its queues'}?", yes)
    query = {"deleteMetadata": not keep_subscription}
    if queue is None:
        answer = server.ask(operations.DELETE_GROUP, group, query=query)
    else:
        answer = server.ask(operations.DELETE_GROUP_OF_QUEUE, group, queue, query=query)
    say(f"deleted group {group} ({answer.deleted_partitions} partitions)")


@command(groups, "pause", "hark group pause billing orders")
def pause_group(server: Server, group: params.GroupName, queue: params.QueueName) -> None:
    """Pause deliveries of a queue to one consumer group."""
    _order(server, "paused", operations.PAUSE_GROUP, queue, group)


@command(groups, "resume", "hark group resume billing orders")
def resume_group(server: Server, group: params.GroupName, queue: params.QueueName) -> None:
    """Resume deliveries of a queue to one consumer group."""
    _order(server, "resumed", operations.RESUME_GROUP, queue, group)


MaxInFlight, RateLimit, RateBurst, MaxInFlightEach, RateLimitEach, RateBurstEach = (
    option("N", one.text, least=0, default="unchanged") for one in LIMITS.values()
)


@command(
    app,
    "limits",
    "hark queue limits orders",
    "hark queue limits orders --max-in-flight 100 --rate-limit 20",
    "hark queue limits orders --rate-limit 0",
    "hark queue limits orders --rate-limit-per-partition 10",
)
def limit_queue(
    server: Server,
    queue: params.QueueName,
    max_in_flight: Annotated[int | None, MaxInFlight] = None,
    rate_limit: Annotated[float | None, RateLimit] = None,
    rate_burst: Annotated[int | None, RateBurst] = None,
    max_in_flight_per_partition: Annotated[int | None, MaxInFlightEach] = None,
    rate_limit_per_partition: Annotated[float | None, RateLimitEach] = None,
    rate_burst_per_partition: Annotated[int | None, RateBurstEach] = None,
) -> None:
    """Show or change the delivery limits of a queue.

    The limits apply to all consumer groups of the queue together, those per partition to each group by itself.
    """
    given = _given(
        max_in_flight,
        rate_limit,
        rate_burst,
        max_in_flight_per_partition,
        rate_limit_per_partition,
        rate_burst_per_partition,
    )
    if not given:
        _show(limits_of(server.ask(operations.SHOW_QUEUE, queue, query={"limit": 1}).options))
        return
    answer = server.call(operations.SHOW_QUEUE, queue, query={"limit": 1})
    shown = answer.read()
    # As the server sent them: a server that is newer than this command keeps its other options.
    kept = msgspec.json.decode(answer.body)["options"]
    body = {"queue": queue, "namespace": shown.namespace, "task": shown.task, "options": kept | given}
    _show(limits_of(server.ask(operations.CONFIGURE, body=body).options))


@command(
    groups,
    "limits",
    "hark group limits billing orders",
    "hark group limits billing orders --rate-limit 0.5 --rate-burst 10",
)
def limit_group(
    server: Server,
    group: params.GroupName,
    queue: params.QueueName,
    max_in_flight: Annotated[int | None, MaxInFlight] = None,
    rate_limit: Annotated[float | None, RateLimit] = None,
    rate_burst: Annotated[int | None, RateBurst] = None,
    max_in_flight_per_partition: Annotated[int | None, MaxInFlightEach] = None,
    rate_limit_per_partition: Annotated[float | None, RateLimitEach] = None,
    rate_burst_per_partition: Annotated[int | None, RateBurstEach] = None,
) -> None:
    """Show or change the delivery limits of a consumer group."""
    given = _given(
        max_in_flight,
        rate_limit,
        rate_burst,
        max_in_flight_per_partition,
        rate_limit_per_partition,
        rate_burst_per_partition,
    )
    if not given:
        _show(server.ask(operations.SHOW_LIMITS, group, queue).limits)
        return
    kept = msgspec.to_builtins(server.call(operations.SHOW_LIMITS, group, queue).read().limits)
    _show(server.ask(operations.LIMIT_GROUP, group, queue, body=kept | given).limits)


def _given(*values: float | None) -> dict[str, Any]:
    """Return the limits to change, by their names in the API. The values are in the order of the fields."""
    given = given_limits(dict(zip(Limits.__struct_fields__, values, strict=True)))
    return {field.encode_name: given[field.name] for field in msgspec.structs.fields(Limits) if field.name in given}


def _show(limits: Limits) -> None:
    """Print limits for people."""
    own = (limits.max_in_flight, limits.rate_limit, limits.rate_burst)
    each = (limits.max_in_flight_per_partition, limits.rate_limit_per_partition, limits.rate_burst_per_partition)
    details((*_rows("", *own), *(_rows("PerPartition", *each) if any(each) else ())))


def _rows(suffix: str, in_flight: int, rate: float, burst: int) -> Iterator[tuple[str, str | None]]:
    yield f"maxInFlight{suffix}", f"{in_flight} messages" if in_flight else "no limit"
    yield f"rateLimit{suffix}", f"{rate:g} messages per second" if rate else "no limit"
    yield f"rateBurst{suffix}", (f"{burst} messages" if burst else "one second's worth") if rate or burst else None
