"""`hark dlq`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from hark.cli import answers
from hark.cli.command import (
    DEFAULT_URL,
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


@command(app, "list", "hark dlq list", "hark dlq list --queue orders --group billing --limit 20")
def list_dead_letters(
    *,
    queue: QueueOption = None,
    group: GroupOption = None,
    partition: PartitionOption = None,
    letter: Annotated[str | None, typer.Option("--id", help="Only this dead letter or message.")] = None,
    limit: Annotated[int, typer.Option(min=1)] = 100,
    offset: Annotated[int, typer.Option(min=0)] = 0,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """List dead letters, the newest failure first."""
    query = {"queue": queue, "consumerGroup": group, "partition": partition, "id": letter}
    answer = call(url, "GET", path("dlq"), query={**query, "limit": limit, "offset": offset})
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


@command(app, "requeue", "hark dlq requeue DEAD_LETTER_ID", "hark dlq requeue ID1 ID2 ID3")
def requeue(ids: Ids, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Put dead letters back in front of their partition, for the group they died in."""
    _each(ids, lambda letter: call(url, "POST", path("dlq", letter, "requeue")).body, "requeued", as_json)


@command(app, "delete", "hark dlq delete DEAD_LETTER_ID")
def delete(ids: Ids, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Remove dead letters for good."""
    _each(ids, lambda letter: call(url, "DELETE", path("dlq", letter)).body, "deleted", as_json)


@command(app, "purge", "hark dlq purge orders", "hark dlq purge orders --group billing --yes")
def purge(
    queue: QueueName,
    group: GroupOption = None,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Remove all dead letters of a queue, or those of one of its groups."""
    confirm(f"Remove all dead letters of {queue}{f' in the group {group}' if group else ''}?", yes)
    answer = call(url, "DELETE", path("dlq"), query={"queue": queue, "consumerGroup": group})
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
