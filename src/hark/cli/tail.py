"""`hark tail`: prints messages as they arrive, without receiving them."""

from __future__ import annotations

from typing import Annotated

import typer

from hark.cli import answers
from hark.cli.command import DEFAULT_URL, Failure, Json, OnlyPartition, QueueName, Url, command
from hark.cli.output import raw, say
from hark.cli.remote import Problem, Query, decode, ended, events, path, stream


def register_tail(main: typer.Typer) -> None:
    """Add the command at the top level."""
    command(
        main,
        "tail",
        "hark tail orders",
        "hark tail orders --from head --limit 10",
        "hark tail orders --from 2026-01-02T03:04:05Z --json | jq .data",
    )(tail)


def tail(
    *,
    queue: QueueName,
    partition: OnlyPartition = None,
    start: Annotated[
        str,
        typer.Option(
            "--from", metavar="START", help="Start: head (oldest message), tail (new messages) or an ISO 8601 time."
        ),
    ] = "tail",
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after N messages.", show_default="no limit")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Print messages of a queue as they arrive, until Ctrl-C.

    The command reads messages without receiving them: consumers still get all of them.
    """
    query: Query = {"browse": True, "from": start, "partition": partition}
    shown = 0
    try:
        for name, body in events(stream(url, path("listen", "queue", queue), query=query)):
            if name == "error":
                problem = decode(body, Problem)
                raise Failure(problem.error, code=problem.code)
            if name == "message":
                if as_json:
                    raw(body)
                else:
                    _show(decode(body, answers.Message))
                shown += 1
                if shown == limit:
                    return
    except KeyboardInterrupt:
        return
    raise ended()


def _show(message: answers.Message) -> None:
    text = bytes(message.data).decode("utf-8", "replace")
    say(f"{message.created_at}  {message.partition}  {message.offset}  {message.transaction_id}  {text}")
