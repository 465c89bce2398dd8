"""`hark dlq`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated

import typer

from hark.api import operations, types
from hark.cli.command import (
    DEFAULT_URL,
    USAGE,
    Failure,
    Json,
    Limit,
    Offset,
    OnlyGroup,
    OnlyPartition,
    OnlyQueue,
    QueueName,
    Since,
    Until,
    Url,
    Yes,
    command,
    complain,
    confirm,
    make_app,
    not_empty,
)
from hark.cli.output import group_name, raw, say, say_rest, table
from hark.cli.remote import call

app = make_app(
    "List, requeue and delete dead letters.",
    "hark dlq list --queue orders",
    "hark dlq requeue DEAD_LETTER_ID",
    "hark dlq purge orders",
)

Ids = Annotated[
    list[str],
    typer.Argument(metavar="ID", help="ID of a dead letter, as `hark dlq list` shows it.", show_default=False),
]
SomeIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="ID of a dead letter, as `hark dlq list` shows it.", show_default=False),
]
Search = Annotated[
    str | None,
    typer.Option(
        "--search", callback=not_empty, metavar="TEXT", help="Only dead letters whose error contains this text."
    ),
]


@command(app, "list", "hark dlq list", "hark dlq list --queue orders --group billing --limit 20")
def list_dead_letters(
    *,
    queue: OnlyQueue = None,
    group: OnlyGroup = None,
    partition: OnlyPartition = None,
    letter: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Only the dead letter with this ID or message ID.")
    ] = None,
    search: Search = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 100,
    offset: Offset = 0,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """List dead letters, newest failure first.

    --from and --to select dead letters by the time of their failure.
    """
    query = {"queue": queue, "consumerGroup": group, "partition": partition, "id": letter, "search": search}
    times = {"from": since, "to": until}
    answer = call(url, operations.LIST_DEAD_LETTERS, query={**query, **times, "limit": limit, "offset": offset})
    if as_json:
        raw(answer.body)
        return
    page = answer.read()
    table(
        ("ID", "Queue", "Partition", "Group", "Attempts", "Error", "Failed", "Data"),
        (
            (
                dead.dead_letter_id,
                dead.queue,
                dead.partition,
                group_name(dead.consumer_group),
                dead.attempts,
                dead.error,
                dead.failed_at,
                bytes(dead.payload),
            )
            for dead in page.items
        ),
        empty="no dead letters match",
        long=("Error", "Data"),
        spare=("Data", "Partition", "Attempts", "Failed"),
    )
    say_rest(len(page.items), offset, page.total)


@command(
    app,
    "requeue",
    "hark dlq requeue DEAD_LETTER_ID",
    "hark dlq requeue FIRST_ID SECOND_ID THIRD_ID",
    "hark dlq requeue --all --queue orders --search timeout",
)
def requeue(
    *,
    ids: SomeIds = None,
    everything: Annotated[bool, typer.Option("--all", help="Requeue all dead letters that match the options.")] = False,
    queue: OnlyQueue = None,
    group: OnlyGroup = None,
    partition: OnlyPartition = None,
    search: Search = None,
    since: Since = None,
    until: Until = None,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Deliver dead letters again, before other messages.

    Each dead letter goes back to the front of its partition, only for the consumer group that it was dead-lettered in.
    Name dead letters by ID, or use --all with or without filters. --from and --to filter by the time of the failure.
    """
    where = types.dead_letters.FilterBody(queue, group, partition, since, until, search)
    chosen = where != types.dead_letters.FilterBody()
    if bool(ids) == everything or (chosen and not everything):
        raise Failure("give either the IDs of dead letters, or --all with optional filters", exit_code=USAGE)
    if ids:
        _each(ids, lambda letter: call(url, operations.REQUEUE, letter).body, "requeued", as_json)
        return
    if not chosen:
        confirm("Requeue all dead letters of all queues?", yes)
    where.until = until or datetime.now(UTC).isoformat()
    _requeue_matching(where, url, as_json)


def _requeue_matching(where: types.dead_letters.FilterBody, url: str, as_json: bool) -> None:
    """Send requests until no match remains; dead letters that fail from now on are newer and stay."""
    requeued = 0
    while True:
        answer = call(url, operations.REQUEUE_MANY, body=types.dead_letters.RequeueBody(filter=where))
        done = answer.read()
        requeued += done.requeued
        if as_json:
            raw(answer.body)
        if not done.remaining or not done.requeued:
            break
    if not as_json:
        say(f"requeued {_count(requeued)}")


@command(app, "delete", "hark dlq delete DEAD_LETTER_ID")
def delete(ids: Ids, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Delete dead letters permanently."""
    _each(ids, lambda letter: call(url, operations.DELETE_DEAD_LETTER, letter).body, "deleted", as_json)


@command(app, "purge", "hark dlq purge orders", "hark dlq purge orders --group billing --yes")
def purge(
    *,
    queue: QueueName,
    group: OnlyGroup = None,
    partition: OnlyPartition = None,
    search: Search = None,
    since: Since = None,
    until: Until = None,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Delete all dead letters of a queue, or those that match.

    --from and --to select dead letters by the time of their failure.
    """
    words = (
        ("group", group),
        ("partition", partition),
        ("error containing", search),
        ("failed from", since),
        ("failed until", until),
    )
    which = ", ".join(f"{word} {value}" for word, value in words if value is not None)
    confirm(f"Delete all dead letters of queue {queue}{f' ({which})' if which else ''}?", yes)
    query = {"queue": queue, "consumerGroup": group, "partition": partition, "search": search}
    query |= {"from": since, "to": until}
    answer = call(url, operations.PURGE_DEAD_LETTERS, query=query)
    if as_json:
        raw(answer.body)
    else:
        say(f"deleted {_count(answer.read().deleted)} of queue {queue}")


def _count(letters: int) -> str:
    return f"{letters} dead letter{'' if letters == 1 else 's'}"


def _each(ids: list[str], act: Callable[[str], bytes], done: str, as_json: bool) -> None:
    """Act on each dead letter; a failure does not stop the others."""
    failed = 0
    for letter in ids:
        try:
            body = act(letter)
        except Failure as failure:
            if len(ids) == 1:
                raise
            failed += 1
            complain(f"{letter}: {failure}")
            continue
        if as_json:
            raw(body)
        else:
            say(f"{done} {letter}")
    if failed:
        raise Failure(f"{failed} of {_count(len(ids))} failed; the errors are above")
