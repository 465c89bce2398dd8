"""`hark message`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from hark.cli import answers, observed
from hark.cli.command import DEFAULT_URL, Failure, Json, PartitionOption, Url, command, make_app, not_empty
from hark.cli.output import details, raw, say, table
from hark.cli.remote import call, path

app = make_app(
    "Look at messages.",
    "hark message list orders --status pending",
    "hark message show 0199...-message-id",
    "hark message delete 0199...-message-id",
)


@command(
    app,
    "list",
    "hark message list",
    "hark message list orders --status dead_letter --limit 20",
    "hark message list orders --from 2026-01-31T12:00:00Z --to 2026-01-31T13:00:00Z",
)
def list_messages(
    *,
    queue: Annotated[
        str | None,
        typer.Argument(metavar="[QUEUE]", callback=not_empty, help="Only of this queue.", show_default=False),
    ] = None,
    partition: PartitionOption = None,
    status: Annotated[
        str | None, typer.Option(help="pending, processing, completed or dead_letter.", show_default=False)
    ] = None,
    since: Annotated[str | None, typer.Option("--from", metavar="TIME", help="ISO 8601; else the last hour.")] = None,
    until: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Pushed up to this time.")] = None,
    limit: Annotated[int, typer.Option(min=1)] = 100,
    offset: Annotated[int, typer.Option(min=0)] = 0,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """List messages, newest first, without payloads; those of the last hour, or of the time that is given."""
    query = {"queue": queue, "partition": partition, "status": status, "from": since, "to": until}
    answer = call(url, "GET", path("messages"), query={**query, "limit": limit, "offset": offset})
    if as_json:
        raw(answer.body)
        return
    table(
        ("Queue", "Partition", "Transaction", "Status", "Created", "Partition ID", "Message ID"),
        (
            (m.queue, m.partition, m.transaction_id, m.status, m.created_at, m.partition_id, m.id)
            for m in answer.read(answers.Popped).messages
        ),
        empty="no messages (of the last hour, unless --from says otherwise)",
    )


@command(
    app,
    "show",
    "hark message show 0199...-message-id",
    "hark message show 0199...-partition-id order-17",
)
def show_message(
    first: Annotated[str, typer.Argument(metavar="MESSAGE_ID | PARTITION_ID", show_default=False)],
    transaction_id: Annotated[str | None, typer.Argument(show_default=False)] = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Show one message with its payload and what each group did with it."""
    if transaction_id is None:
        # Messages are kept by partition; where one is, only the route that explains it tells by its id alone.
        found = call(url, "GET", path("explain", first)).read(observed.Placed)
        first, transaction_id = found.partition_id, found.message_id
    answer = call(url, "GET", path("messages", first, transaction_id))
    if as_json:
        raw(answer.body)
        return
    fields = answer.read(dict[str, msgspec.Raw])
    details((name, _plain(value)) for name, value in fields.items())


def _plain(value: msgspec.Raw) -> Any:
    """Show texts without quotes, nothing for null, and all else as the JSON it is."""
    body = bytes(value)
    if body == b"null":
        return None
    return msgspec.json.decode(body) if body.startswith(b'"') else body


@command(
    app,
    "delete",
    "hark message delete 0199...-message-id",
    "hark message delete 0199...-partition-id order-17",
)
def delete_message(
    first: Annotated[str, typer.Argument(metavar="MESSAGE_ID | PARTITION_ID", show_default=False)],
    transaction_id: Annotated[str | None, typer.Argument(show_default=False)] = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Delete one message, leased or not; consumers step over it."""
    ids = [first] if transaction_id is None else [first, transaction_id]
    answer = call(url, "DELETE", path("messages", *ids))
    if as_json:
        raw(answer.body)
    done = answer.read(answers.Done)
    if not done.success:
        raise Failure(done.error or done.message or "there is no such message", code="not_found")
    if not as_json:
        say("deleted")
