"""`hark audit`: the latest administrative actions."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from hark.cli import observed
from hark.cli.command import DEFAULT_URL, Json, Url, command
from hark.cli.output import raw, table
from hark.cli.remote import call, path


def register_audit(main: typer.Typer) -> None:
    """Add the command at the top level."""
    command(main, "audit", "hark audit", "hark audit --limit 20", "hark audit --json | jq '.records[].action'")(audit)


def audit(
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Maximum number of results.", show_default="200")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """List recent administrative actions, newest first.

    The list has the last 200 actions of this server process. The server also writes them to its log (hark.audit).
    """
    answer = call(url, "GET", path("system", "audit"), query={"limit": limit})
    if as_json:
        raw(answer.body)
        return
    table(
        ("Time", "Subject", "Role", "Action", "Target", "Result", "Client", "Request"),
        (
            (one.at, one.subject, one.role, one.action, _target(one), one.result, one.client, one.request_id)
            for one in answer.read(observed.AuditRecords).records
        ),
        empty="no administrative actions since this server process started",
        long=("Target",),
        spare=("Request", "Client", "Role", "Result"),
    )


def _target(record: observed.AuditRecord) -> str:
    return " ".join(f"{name}={_text(value)}" for name, value in record.target.items())


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
