"""`hark dlq`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from hark.api import operations, types
from hark.cli import params
from hark.cli.command import command, make_app
from hark.cli.output import Failure, Misuse, complain, confirm, group_name, raw, say, say_rest, table
from hark.cli.params import argument, flag, option
from hark.cli.remote import Server

app = make_app(
    "List, requeue and delete dead letters.",
    "hark dlq list --queue orders",
    "hark dlq requeue DEAD_LETTER_ID",
    "hark dlq purge orders",
)

_ID = argument("ID", "ID of a dead letter, as `hark dlq list` shows it.")
Search = Annotated[str | None, option("TEXT", "Only dead letters whose error contains this text.", empty=False)]


@command(app, "list", "hark dlq list", "hark dlq list --queue orders --group billing --limit 20")
def list_dead_letters(
    server: Server,
    queue: params.OnlyQueue = None,
    group: params.OnlyGroup = None,
    partition: params.OnlyPartition = None,
    letter: Annotated[str | None, option("ID", "Only the dead letter with this ID or message ID.", "--id")] = None,
    search: Search = None,
    since: params.Since = None,
    until: params.Until = None,
    limit: params.Limit = 100,
    offset: params.Offset = 0,
) -> None:
    """List dead letters, newest failure first.

    --from and --to select dead letters by the time of their failure.
    """
    query = {"queue": queue, "consumerGroup": group, "partition": partition, "id": letter, "search": search}
    query |= {"from": since, "to": until}
    page = server.ask(operations.LIST_DEAD_LETTERS, query={**query, "limit": limit, "offset": offset})
    table(
        page.items,
        {
            "ID": lambda dead: dead.dead_letter_id,
            "Queue": lambda dead: dead.queue,
            "Partition": lambda dead: dead.partition,
            "Group": lambda dead: group_name(dead.consumer_group),
            "Attempts": lambda dead: dead.attempts,
            "Error": lambda dead: dead.error,
            "Failed": lambda dead: dead.failed_at,
            "Data": lambda dead: bytes(dead.payload),
        },
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
    server: Server,
    ids: Annotated[list[str] | None, _ID] = None,
    everything: Annotated[bool, flag("Requeue all dead letters that match the options.", "--all")] = False,
    queue: params.OnlyQueue = None,
    group: params.OnlyGroup = None,
    partition: params.OnlyPartition = None,
    search: Search = None,
    since: params.Since = None,
    until: params.Until = None,
    yes: params.Yes = False,
) -> None:
    """Deliver dead letters again, before other messages.

    Each dead letter goes back to the front of its partition, only for the consumer group that it was dead-lettered in.
    Name dead letters by ID, or use --all with or without filters. --from and --to filter by the time of the failure.
    """
    where = types.dead_letters.FilterBody(queue, group, partition, since, until, search)
    chosen = where != types.dead_letters.FilterBody()
    if bool(ids) == everything or (chosen and not everything):
        raise Misuse("give either the IDs of dead letters, or --all with optional filters")
    if ids:
        _each(server, operations.REQUEUE, ids, "requeued")
        return
    if not chosen:
        confirm("Requeue all dead letters of all queues?", yes)
    where.until = until or datetime.now(UTC).isoformat()
    # Requests until no match remains; dead letters that fail from now on are newer and stay.
    requeued, more = 0, True
    while more:
        answer = server.call(operations.REQUEUE_MANY, body=types.dead_letters.RequeueBody(filter=where))
        done = answer.read()
        requeued += done.requeued
        more = bool(done.remaining and done.requeued)
        if server.as_json:
            raw(answer.body)
    if not server.as_json:
        say(f"requeued {_count(requeued)}")


@command(app, "delete", "hark dlq delete DEAD_LETTER_ID")
def delete(server: Server, ids: Annotated[list[str], _ID]) -> None:
    """Delete dead letters permanently."""
    _each(server, operations.DELETE_DEAD_LETTER, ids, "deleted")


@command(app, "purge", "hark dlq purge orders", "hark dlq purge orders --group billing --yes")
def purge(
    server: Server,
    queue: params.QueueName,
    group: params.OnlyGroup = None,
    partition: params.OnlyPartition = None,
    search: Search = None,
    since: params.Since = None,
    until: params.Until = None,
    yes: params.Yes = False,
) -> None:
    """Delete all dead letters of a queue, or those that match.

    --from and --to select dead letters by the time of their failure.
    """
    words = {"group": group, "partition": partition, "error containing": search}
    words |= {"failed from": since, "failed until": until}
    which = ", ".join(f"{word} {value}" for word, value in words.items() if value is not None)
    confirm(f"Delete all dead letters of queue {queue}{f' ({which})' if which else ''}?", yes)
    query = {"queue": queue, "consumerGroup": group, "partition": partition, "search": search}
    query |= {"from": since, "to": until}
    say(f"deleted {_count(server.ask(operations.PURGE_DEAD_LETTERS, query=query).deleted)} of queue {queue}")


def _count(letters: int) -> str:
    return f"{letters} dead letter{'' if letters == 1 else 's'}"


def _each(server: Server, operation: operations.Operation[Any], ids: list[str], done: str) -> None:
    """Call an operation for each dead letter; a failure does not stop the others."""
    failed = 0
    for letter in ids:
        try:
            body = server.call(operation, letter).body
        except Failure as failure:
            if len(ids) == 1:
                raise
            failed += 1
            complain(f"{letter}: {failure}")
            continue
        if server.as_json:
            raw(body)
        else:
            say(f"{done} {letter}")
    if failed:
        raise Failure(f"{failed} of {_count(len(ids))} failed; the errors are above")
