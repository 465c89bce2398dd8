"""`hark dlq`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated

import typer

from hark.cli import answers
from hark.cli.command import (
    DEFAULT_URL,
    USAGE,
    Failure,
    GroupOption,
    Json,
    PartitionOption,
    QueueName,
    QueueOption,
    Url,
    Yes,
    command,
    complain,
    confirm,
    make_app,
    not_empty,
)
from hark.cli.output import raw, say, table
from hark.cli.remote import call, path

app = make_app(
    "Look at dead letters, put them back or remove them.",
    "hark dlq list --queue orders",
    "hark dlq requeue DEAD_LETTER_ID",
    "hark dlq purge orders",
)

Ids = Annotated[list[str], typer.Argument(metavar="ID...", show_default=False)]
SomeIds = Annotated[list[str] | None, typer.Argument(metavar="[ID...]", show_default=False)]
Since = Annotated[
    str | None,
    typer.Option("--from", callback=not_empty, metavar="TIME", help="Only what failed from this ISO 8601 time on."),
]
Until = Annotated[
    str | None, typer.Option("--to", callback=not_empty, metavar="TIME", help="Only what failed up to this time.")
]
Search = Annotated[str | None, typer.Option("--search", callback=not_empty, help="Only where the error contains this.")]


@command(app, "list", "hark dlq list", "hark dlq list --queue orders --group billing --limit 20")
def list_dead_letters(
    *,
    queue: QueueOption = None,
    group: GroupOption = None,
    partition: PartitionOption = None,
    letter: Annotated[str | None, typer.Option("--id", help="Only this dead letter or message.")] = None,
    search: Search = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(min=1)] = 100,
    offset: Annotated[int, typer.Option(min=0)] = 0,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """List dead letters, the newest failure first."""
    query = {"queue": queue, "consumerGroup": group, "partition": partition, "id": letter, "search": search}
    times = {"from": since, "to": until}
    answer = call(url, "GET", path("dlq"), query={**query, **times, "limit": limit, "offset": offset})
    if as_json:
        raw(answer.body)
        return
    page = answer.read(answers.DeadLetters)
    table(
        ("ID", "Queue", "Partition", "Group", "Attempts", "Error", "Failed", "Data"),
        (
            (
                dead.dead_letter_id or dead.id,
                dead.queue,
                dead.partition,
                dead.consumer_group,
                dead.attempts,
                dead.error_message,
                dead.failed_at,
                bytes(dead.data),
            )
            for dead in page.messages
        ),
        empty="no dead letters",
    )
    if page.total is not None and page.total > offset + len(page.messages):
        say(f"{len(page.messages)} of {page.total}; the next page: --offset {offset + len(page.messages)}")


@command(
    app,
    "requeue",
    "hark dlq requeue DEAD_LETTER_ID",
    "hark dlq requeue ID1 ID2 ID3",
    "hark dlq requeue --all --queue orders --search timeout",
)
def requeue(
    *,
    ids: SomeIds = None,
    everything: Annotated[bool, typer.Option("--all", help="All that match, instead of ids.")] = False,
    queue: QueueOption = None,
    group: GroupOption = None,
    partition: PartitionOption = None,
    search: Search = None,
    since: Since = None,
    until: Until = None,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Put dead letters back in front of their partition, for the group they died in."""
    where = {"queue": queue, "consumerGroup": group, "partition": partition, "search": search}
    where |= {"from": since, "to": until}
    chosen = {name: value for name, value in where.items() if value is not None}
    if bool(ids) == everything or (chosen and not everything):
        raise Failure("name dead letters, or say --all and maybe which ones", exit_code=USAGE)
    if ids:
        _each(ids, lambda letter: call(url, "POST", path("dlq", letter, "requeue")).body, "requeued", as_json)
        return
    if not chosen:
        confirm("Requeue the dead letters of all queues?", yes)
    _requeue_matching(chosen, url, as_json)


def _requeue_matching(where: dict[str, str], url: str, as_json: bool) -> None:
    """As many requests as it takes; what fails from now on is newer, and stays."""
    where = {"to": datetime.now(UTC).isoformat(), **where}
    requeued = 0
    while True:
        answer = call(url, "POST", path("dlq", "requeue"), body={"filter": where})
        done = answer.read(answers.Requeued)
        requeued += done.requeued
        if as_json:
            raw(answer.body)
        if not done.remaining or not done.requeued:
            break
    if not as_json:
        say(f"requeued {requeued} dead letters")


@command(app, "delete", "hark dlq delete DEAD_LETTER_ID")
def delete(ids: Ids, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Remove dead letters for good."""
    _each(ids, lambda letter: call(url, "DELETE", path("dlq", letter)).body, "deleted", as_json)


@command(app, "purge", "hark dlq purge orders", "hark dlq purge orders --group billing --yes")
def purge(
    *,
    queue: QueueName,
    group: GroupOption = None,
    partition: PartitionOption = None,
    search: Search = None,
    since: Since = None,
    until: Until = None,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Remove all dead letters of a queue, or those of it that match."""
    words = (
        ("in the group", group),
        ("in the partition", partition),
        ("with an error that contains", search),
        ("that failed from", since),
        ("up to", until),
    )
    which = "".join(f" {word} {value}" for word, value in words if value is not None)
    confirm(f"Remove all dead letters of {queue}{which}?", yes)
    query = {"queue": queue, "consumerGroup": group, "partition": partition, "search": search}
    query |= {"from": since, "to": until}
    answer = call(url, "DELETE", path("dlq"), query=query)
    if as_json:
        raw(answer.body)
    else:
        say(f"purged {answer.read(answers.Deleted).deleted} dead letters of {queue}")


def _each(ids: list[str], act: Callable[[str], bytes], done: str, as_json: bool) -> None:
    """Do something to each; one that fails does not keep the others from it."""
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
        raise Failure(f"{failed} of {len(ids)} failed")
