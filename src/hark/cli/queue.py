"""`hark queue`."""

from __future__ import annotations

import difflib
from typing import Annotated, Any

import msgspec
import typer

from hark.cli import answers
from hark.cli.command import (
    DEFAULT_URL,
    Failure,
    GroupOption,
    Json,
    QueueName,
    Url,
    Yes,
    command,
    complain,
    confirm,
    make_app,
)
from hark.cli.output import details, raw, say, table
from hark.cli.remote import call, path
from hark.model import QueueOptions

app = make_app(
    "List, make, change and delete queues.",
    "hark queue list",
    "hark queue create orders --set leaseTime=60 --set retryLimit=5",
    "hark queue delete orders",
)

_OPTIONS = {field.encode_name: field for field in msgspec.structs.fields(QueueOptions)}


@command(
    app,
    "list",
    "hark queue list",
    "hark queue list --search order --sort backlog --limit 20",
    "hark queue list --json | jq '.queues[].name'",
)
def list_queues(
    search: Annotated[str | None, typer.Option(help="Only queues with this in their name.")] = None,
    namespace: Annotated[str | None, typer.Option(help="Only queues of this namespace.")] = None,
    task: Annotated[str | None, typer.Option(help="Only queues of this task.")] = None,
    paused: Annotated[bool, typer.Option("--paused", help="Only queues whose deliveries are stopped.")] = False,
    sort: Annotated[str | None, typer.Option(help="newest, name, or backlog: most waiting messages first.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Queues at most.", show_default=False)] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="Leave out so many before.", show_default=False)] = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """List queues, newest first."""
    query = {
        "search": search,
        "namespace": namespace,
        "task": task,
        "paused": paused or None,
        "sort": sort,
        "limit": limit,
        "offset": offset,
    }
    answer = call(url, "GET", path("resources", "queues"), query=query)
    if as_json:
        raw(answer.body)
        return
    table(
        ("Queue", "Namespace", "Task", "Partitions", "Pending", "Processing", "Total", "Paused", "Created"),
        (
            (
                queue.name,
                queue.namespace,
                queue.task,
                queue.partitions,
                queue.messages.pending,
                queue.messages.processing,
                queue.messages.total,
                "yes" if queue.paused else "",
                queue.created_at,
            )
            for queue in answer.read(answers.Queues).queues
        ),
        empty="no queues; a first push makes one: hark push orders '{\"id\": 1}'",
    )


@command(app, "show", "hark queue show orders", "hark queue show orders --search customer-4 --limit 10")
def show(
    queue: QueueName,
    search: Annotated[str | None, typer.Option(help="Only partitions with this in their name.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Partitions at most.")] = 100,
    offset: Annotated[int | None, typer.Option(min=0, help="Leave out so many before.", show_default=False)] = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Show one queue, its options and its partitions."""
    answer = call(
        url, "GET", path("resources", "queues", queue), query={"search": search, "limit": limit, "offset": offset}
    )
    if as_json:
        raw(answer.body)
        return
    shown = answer.read(answers.QueueDetails)
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
            *shown.options.items(),
        )
    )
    table(
        ("Partition", "Pending", "Processing", "Completed", "Dead", "Total", "Oldest", "Newest", "ID"),
        (
            (
                partition.name,
                partition.stats.pending,
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
    )


@command(
    app,
    "create",
    "hark queue create orders",
    "hark queue create orders --namespace shop --set leaseTime=60 --set deadLetterQueue=false",
    "",
    "Options for --set:",
    *(f"  {name} (default {msgspec.json.encode(field.default).decode()})" for name, field in _OPTIONS.items()),
)
def create(
    *,
    queue: QueueName,
    namespace: Annotated[str | None, typer.Option(help="A label to pop by.")] = None,
    task: Annotated[str | None, typer.Option(help="A label to pop by.")] = None,
    options: Annotated[
        list[str] | None, typer.Option("--set", metavar="OPTION=VALUE", help="May be given many times.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Make a queue, or replace all options of one that exists (those not given get their defaults)."""
    body: dict[str, Any] = {"queue": queue, "options": dict(_option(text) for text in options or ())}
    body |= {name: value for name, value in (("namespace", namespace), ("task", task)) if value is not None}
    answer = call(url, "POST", path("configure"), body=body)
    if as_json:
        raw(answer.body)
        return
    configured = answer.read(answers.Configured)
    for name in configured.ignored_options:
        complain(f"warning: the server does not know the option {name}")
    say(f"configured {configured.queue}")


def _option(text: str) -> tuple[str, object]:
    """Read OPTION=VALUE; the name may be written leaseTime, lease_time or lease-time."""
    given, equals, value = text.partition("=")
    key = given.replace("-", "").replace("_", "").lower()
    names = {name.lower(): name for name in _OPTIONS}
    if not equals or key not in names:
        near = difflib.get_close_matches(key, names, n=1)
        hint = f"; did you mean {names[near[0]]}?" if near else "; hark queue create --help lists them"
        raise typer.BadParameter(f"--set {text}: expected OPTION=VALUE with a known option{hint}")
    field = _OPTIONS[names[key]]
    try:
        return names[key], msgspec.convert(value, field.type, strict=False)
    except msgspec.ValidationError as error:
        raise typer.BadParameter(f"--set {text}: {error}") from None


@command(app, "delete", "hark queue delete orders", "hark queue delete orders --yes")
def delete(queue: QueueName, yes: Yes = False, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Delete a queue with its messages, groups and dead letters."""
    confirm(f"Delete the queue {queue} with everything in it?", yes)
    answer = call(url, "DELETE", path("resources", "queues", queue))
    if as_json:
        raw(answer.body)
    if not answer.read(answers.Done).existed:
        raise Failure(f"there is no queue {queue}", code="not_found")
    if not as_json:
        say(f"deleted {queue}")


@command(app, "purge", "hark queue purge orders", "hark queue purge orders --group billing --yes")
def purge(
    queue: QueueName,
    group: GroupOption = None,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Remove all messages of a queue, or settle all that one group of it has open."""
    confirm(
        f"Remove all messages of {queue}?" if group is None else f"Settle all that {group} has open in {queue}?",
        yes,
    )
    order(url, queue, group, "purge", as_json)


@command(app, "pause", "hark queue pause orders")
def pause(queue: QueueName, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Stop deliveries of a queue; pushes go on."""
    order(url, queue, None, "pause", as_json)


@command(app, "resume", "hark queue resume orders")
def resume(queue: QueueName, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Resume deliveries of a queue."""
    order(url, queue, None, "resume", as_json)


def order(url: str, queue: str, group: str | None, verb: str, as_json: bool) -> None:
    """Pause, resume or purge a queue, or one group of it."""
    segments = [queue] if group is None else [queue, "groups", group]
    answer = call(url, "POST", path("resources", "queues", *segments, verb))
    if as_json:
        raw(answer.body)
    else:
        done = {"pause": "paused", "resume": "resumed", "purge": "purged"}[verb]
        purged = answer.read(answers.Done).purged
        count = "" if purged is None else f" ({purged} messages)"
        say(f"{done} {queue if group is None else f'{group} in {queue}'}{count}")
