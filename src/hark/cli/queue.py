"""`hark queue`."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from hark.api import operations, types
from hark.api.options import OPTIONS
from hark.cli.command import (
    DEFAULT_URL,
    Failure,
    Json,
    Limit,
    QueueName,
    Url,
    Yes,
    command,
    confirm,
    make_app,
    not_empty,
)
from hark.cli.output import details, raw, say, table
from hark.cli.remote import call

app = make_app(
    "List, create, change and delete queues.",
    "hark queue list",
    "hark queue create orders --set leaseTime=60 --set retryLimit=5",
    "hark queue delete orders",
)

if TYPE_CHECKING:
    _Order = operations.Operation[types.queues.Paused | types.queues.Purged]

_ORDERS: dict[str, tuple[_Order, _Order, str]] = {
    "pause": (operations.PAUSE_QUEUE, operations.PAUSE_GROUP, "paused"),
    "resume": (operations.RESUME_QUEUE, operations.RESUME_GROUP, "resumed"),
    "purge": (operations.PURGE_QUEUE, operations.PURGE_GROUP, "purged"),
}
_KINDS: dict[str, type] = {"integer": int, "number": float, "boolean": bool}
SomeOffset = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="Number of results to skip.", show_default="0")
]


@command(
    app,
    "list",
    "hark queue list",
    "hark queue list --search order --sort backlog --limit 20",
    "hark queue list --json | jq '.queues[].name'",
)
def list_queues(
    search: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only queues whose name contains this text.")
    ] = None,
    namespace: Annotated[str | None, typer.Option(metavar="NAME", help="Only queues of this namespace.")] = None,
    task: Annotated[str | None, typer.Option(metavar="NAME", help="Only queues of this task.")] = None,
    paused: Annotated[bool, typer.Option("--paused", help="Only paused queues.")] = False,
    sort: Annotated[
        str | None,
        typer.Option(metavar="ORDER", help="Order: newest, name, or backlog (largest first).", show_default="newest"),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Maximum number of results.", show_default="10000")
    ] = None,
    offset: SomeOffset = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """List queues with their message counts."""
    query = {
        "search": search,
        "namespace": namespace,
        "task": task,
        "paused": paused or None,
        "sort": sort,
        "limit": limit,
        "offset": offset,
    }
    answer = call(url, operations.LIST_QUEUES, query=query)
    if as_json:
        raw(answer.body)
        return
    table(
        (
            "Queue",
            "Namespace",
            "Task",
            "Partitions",
            "Pending",
            "Scheduled",
            "Processing",
            "Total",
            "Paused",
            "Created",
        ),
        (
            (
                queue.name,
                queue.namespace,
                queue.task,
                queue.partitions,
                queue.messages.pending,
                queue.messages.scheduled,
                queue.messages.processing,
                queue.messages.total,
                "yes" if queue.paused else "",
                queue.created_at,
            )
            for queue in answer.read().queues
        ),
        empty="no queues; the first push creates one: hark push orders '{\"id\": 1}'",
        spare=("Created", "Task", "Total", "Namespace"),
    )


@command(app, "show", "hark queue show orders", "hark queue show orders --search customer-4 --limit 10")
def show(
    queue: QueueName,
    search: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only partitions whose name contains this text.")
    ] = None,
    limit: Limit = 100,
    offset: SomeOffset = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Show the counts, options and partitions of a queue."""
    answer = call(url, operations.SHOW_QUEUE, queue, query={"search": search, "limit": limit, "offset": offset})
    if as_json:
        raw(answer.body)
        return
    shown = answer.read()
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
        (
            "Partition",
            "Pending",
            "Scheduled",
            "Processing",
            "Completed",
            "Dead letters",
            "Total",
            "Oldest",
            "Newest",
            "ID",
        ),
        (
            (
                partition.name,
                partition.stats.pending,
                partition.stats.scheduled,
                partition.stats.processing,
                partition.stats.completed,
                partition.stats.dead_letter,
                partition.stats.total,
                partition.oldest_message,
                partition.newest_message,
                partition.id,
            )
            for partition in shown.partitions
        ),
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
    *,
    queue: QueueName,
    namespace: Annotated[str | None, typer.Option(metavar="NAME", help="Namespace of the queue.")] = None,
    task: Annotated[str | None, typer.Option(metavar="NAME", help="Task of the queue.")] = None,
    options: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="OPTION=VALUE", help="Queue option; repeat for more options."),
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Create a queue, or replace the options of an existing one.

    Options that you do not set get their defaults, in an existing queue, too. With `hark pop`, consumers can receive
    from all queues of a namespace or task.
    """
    body: dict[str, Any] = {"queue": queue, "options": dict(_option(text) for text in options or ())}
    body |= {name: value for name, value in (("namespace", namespace), ("task", task)) if value is not None}
    answer = call(url, operations.CONFIGURE, body=body)
    configured = answer.read()
    if as_json:
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
def delete(queue: QueueName, yes: Yes = False, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Delete a queue with its messages, groups and dead letters."""
    confirm(f"Delete queue {queue} with its messages, groups and dead letters?", yes)
    answer = call(url, operations.DELETE_QUEUE, queue)
    if as_json:
        raw(answer.body)
    if not answer.read().existed:
        raise Failure(f"queue {queue} not found", code="not_found", hint="list the queues with: hark queue list")
    if not as_json:
        say(f"deleted queue {queue}")


@command(app, "purge", "hark queue purge orders", "hark queue purge orders --group billing --yes")
def purge(
    queue: QueueName,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP",
            callback=not_empty,
            help="Acknowledge the messages for this consumer group only.",
            show_default=False,
        ),
    ] = None,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Delete all messages of a queue; dead letters stay.

    With --group, the messages stay in the queue, and only this consumer group does not receive them any more.
    """
    confirm(
        f"Delete all messages of queue {queue}?"
        if group is None
        else f"Acknowledge all messages of queue {queue} for group {group}?",
        yes,
    )
    order(url, queue, group, "purge", as_json)


@command(app, "pause", "hark queue pause orders")
def pause(queue: QueueName, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Pause deliveries of a queue; pushes are still accepted."""
    order(url, queue, None, "pause", as_json)


@command(app, "resume", "hark queue resume orders")
def resume(queue: QueueName, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Resume deliveries of a queue."""
    order(url, queue, None, "resume", as_json)


def order(url: str, queue: str, group: str | None, verb: str, as_json: bool) -> None:
    """Pause, resume or purge a queue, or one group of it."""
    whole, part, done = _ORDERS[verb]
    answer = call(url, whole, queue) if group is None else call(url, part, queue, group)
    if as_json:
        raw(answer.body)
        return
    outcome = answer.read()
    count = f" ({outcome.purged} messages)" if isinstance(outcome, types.queues.Purged) else ""
    say(f"{done} {f'queue {queue}' if group is None else f'group {group} in queue {queue}'}{count}")
