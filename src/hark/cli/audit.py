"""`hark audit`: what administrators did lately."""

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
    limit: Annotated[int | None, typer.Option(min=1, help="Records at most.", show_default=False)] = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """List the last records of the audit log that this server process wrote, newest first."""
    answer = call(url, "GET", path("system", "audit"), query={"limit": limit})
    if as_json:
        raw(answer.body)
        return
    table(
        ("At", "Who", "Role", "Action", "Target", "Result", "From", "Request"),
        (
            (one.at, one.subject, one.role, one.action, _target(one), one.result, one.client, one.request_id)
            for one in answer.read(observed.AuditRecords).records
        ),
        empty="nothing was done since this server process started",
    )


def _target(record: observed.AuditRecord) -> str:
    return " ".join(f"{name}={_text(value)}" for name, value in record.target.items())


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
