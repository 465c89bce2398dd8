"""`hark token`: the API tokens of a server, in a file that it looks at; no server is needed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from hark.cli.command import Yes, command, complain, confirm, make_app
from hark.cli.output import raw, table
from hark.clock import SECOND, Clock, SystemClock
from hark.settings import load

if TYPE_CHECKING:
    from hark.access.token_file import TokenFile
    from hark.access.tokens import Token

app = make_app(
    "Make, list and revoke the API tokens of a server.",
    "hark token create billing --role read-write --queues 'orders.*' --queues mail --expires 90d",
    "hark token list",
    "hark token revoke k7m2qx4d",
    "",
    "They are in tokens.json under --data (setting auth.tokens_file), where the server notices changes",
    "within a second. From the first one on, it lets nobody in without a token.",
)

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LASTING = re.compile(r"([1-9][0-9]{0,8})([smhdw])", re.ASCII)
_MOST_SECONDS = 3_153_600_000
"""A hundred years."""

RoleName = Literal["read-only", "read-write", "admin"]
Data = Annotated[str | None, typer.Option("--data", metavar="DIR", help="The directory of the server's data.")]
Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings; else HARK_CONFIG, else ./hark.toml.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


class _Shown(msgspec.Struct, rename="camel", omit_defaults=True):
    """A token as it may be shown."""

    id: str
    name: str
    role: str
    queues: tuple[str, ...]
    created_at: object
    expires_at: object
    expired: bool
    token: str = ""
    """Its text, right after it was made."""


@command(
    app,
    "create",
    "hark token create billing",
    "hark token create billing --role read-write --queues 'orders.*' --queues mail --expires 90d",
    "hark token create ci --role read-only --quiet > token.txt",
    "hark token create ops --role admin --data /var/lib/hark",
)
def create(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Whose it is; stamped on what it pushes.", show_default=False)
    ],
    role: Annotated[RoleName, typer.Option(help="What it may do.")] = "read-write",
    queues: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN", help="Only queues like this, with * and ?; may be repeated.", show_default="all"
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="When it ends: 90d, 12h, 30m, 2w.", show_default="never")
    ] = None,
    data: Data = None,
    config: Config = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the token and nothing else.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it, this one time: only a hash of it is kept."""
    from hark.access.identity import ALL_QUEUES, Role
    from hark.access.tokens import make_token

    clock = SystemClock()
    now = clock.now()
    ends = None if expires is None else now + _seconds(expires) * SECOND
    texts: list[str] = []

    def make(tokens: Mapping[str, Token]) -> Token:
        token, text = make_token(
            name,
            Role.of(role) or Role.READ_ONLY,
            queues or ALL_QUEUES,
            now=now,
            expires_at=ends,
            taken=tokens.__contains__,
        )
        texts.append(text)
        return token

    file = _file(data, config)
    token = file.add(make)
    if as_json:
        raw(msgspec.json.encode(_shown(token, clock, texts[0])))
        return
    if not quiet:
        what = f"{token.role}, {_queues(token)}, {_end(token)}"
        complain(f"made the token {token.id} for {token.name} ({what}) in {file.path}; keep it, it is not shown again:")
    typer.echo(texts[0])


@command(app, "list", "hark token list", "hark token list --data /var/lib/hark --json")
def list_tokens(data: Data = None, config: Config = None, as_json: AsJson = False) -> None:
    """List the tokens: whose they are, what they may do, and when they end."""
    clock = SystemClock()
    file = _file(data, config)
    tokens = list(file.read().values())
    if as_json:
        raw(msgspec.json.encode({"tokens": [_shown(token, clock) for token in tokens]}))
        return
    rows = [
        (
            token.id,
            token.name,
            token.role,
            ", ".join(token.queues) or "none",
            _day(token.created_at),
            _end(token, clock),
        )
        for token in tokens
    ]
    table(("Id", "Name", "Role", "Queues", "Created", "Expires"), rows, empty=f"there are no tokens in {file.path}")


@command(app, "revoke", "hark token revoke k7m2qx4d", "hark token revoke k7m2qx4d --yes")
def revoke(
    identifier: Annotated[
        str, typer.Argument(metavar="ID", help="The 8 characters after hark_ in the token.", show_default=False)
    ],
    data: Data = None,
    config: Config = None,
    yes: Yes = False,
) -> None:
    """Take a token back: servers refuse it within a second."""
    file = _file(data, config)
    token = file.read().get(identifier)
    if token is not None:
        confirm(f"Revoke the token {token.id} of {token.name}?", yes)
    token = file.remove(identifier)
    complain(f"revoked the token {token.id} of {token.name}")


def _file(data: str | None, config: Path | None) -> TokenFile:
    from hark.access.token_file import TokenFile, tokens_path

    return TokenFile(tokens_path(load({"data": data}, os.environ, config).settings))


def _seconds(text: str) -> int:
    """How long a text such as 90d says."""
    match = _LASTING.fullmatch(text)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < seconds <= _MOST_SECONDS:
        raise typer.BadParameter(f"--expires: expected a time such as 90d, 12h, 30m or 2w, got {text!r}")
    return seconds


def _shown(token: Token, clock: Clock, text: str = "") -> _Shown:
    return _Shown(
        id=token.id,
        name=token.name,
        role=token.role,
        queues=token.queues,
        created_at=token.created_at,
        expires_at=token.expires_at,
        expired=token.has_expired(clock.now()),
        token=text,
    )


def _queues(token: Token) -> str:
    return "all queues" if not token.identity.restricted else f"queues {', '.join(token.queues) or 'none'}"


def _end(token: Token, clock: Clock | None = None) -> str:
    if token.expires_at is None:
        return "never" if clock else "never expires"
    day = _day(token.expires_at)
    if clock is None:
        return f"expires {day}"
    return f"{day} (expired)" if token.has_expired(clock.now()) else day


def _day(moment: object) -> str:
    return str(moment)[:16] + "Z"
