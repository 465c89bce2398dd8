"""`hark token`: the API tokens in the token file of a server; works without a running server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from hark.cli import params
from hark.cli.command import command, make_app
from hark.cli.output import complain, confirm, raw, table
from hark.cli.params import argument, flag, option
from hark.clock import SECOND, Clock, SystemClock
from hark.settings import Loaded

if TYPE_CHECKING:
    from hark.access.tokens import Token, TokenFile

app = make_app(
    "Create, list and revoke the API tokens of a server.",
    "hark token create billing --queues 'orders.*' --expires 90d",
    "hark token list",
    "hark token revoke k7m2qx4d",
    "",
    "Tokens are stored in tokens.json in the data directory (auth.tokens_file).",
    "A running server notices changes within a second.",
    "Once the file has a token, the server requires a token from every client.",
)

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LASTING = re.compile(r"([1-9][0-9]{0,8})([smhdw])", re.ASCII)
_MOST_SECONDS = 3_153_600_000
"""A hundred years."""

RoleName = Literal["read-only", "read-write", "admin"]


@command(
    app,
    "create",
    "hark token create billing",
    "hark token create billing --queues 'orders.*' --queues mail --expires 90d",
    "hark token create ci --role read-only --quiet > token.txt",
    "hark token create ops --role admin --data /var/lib/hark",
    settings=("data",),
)
def create(
    loaded: Loaded,
    name: Annotated[str, argument("NAME", "Name of the client; the server records it with pushed messages.")],
    role: Annotated[RoleName, typer.Option(help="Role of the token.")] = "read-write",
    queues: Annotated[
        list[str] | None,
        option(
            "PATTERN",
            "Queues that the token can use; * and ? are wildcards. Repeat for more patterns.",
            default="all queues",
        ),
    ] = None,
    expires: Annotated[
        str | None, option("DURATION", "Lifetime in s, m, h, d or w, such as 12h, 90d or 2w.", default="unlimited")
    ] = None,
    quiet: Annotated[bool, flag("Print only the token.", "--quiet", "-q")] = False,
    as_json: params.Json = False,
) -> None:
    """Create an API token and print it.

    Copy the token now: the server stores only its hash, so it cannot be shown again.
    """
    from hark.access.tokens import ALL_QUEUES, make_token
    from hark.api.operations import Role

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

    file = _file(loaded)
    token = file.add(make)
    if as_json:
        raw(msgspec.json.encode({**_shown(token, clock), "token": texts[0]}))
        return
    if not quiet:
        allowed = f"queues {', '.join(token.queues) or 'none'}" if token.identity.restricted else "all queues"
        what = f"{token.role}, {allowed}, {_end(token)}"
        complain(f"created token {token.id} for {token.name} ({what}) in {file.path}")
        complain("copy the token now, it cannot be shown again:")
    typer.echo(texts[0])


@command(app, "list", "hark token list", "hark token list --data /var/lib/hark --json", settings=("data",))
def list_tokens(loaded: Loaded, as_json: params.Json = False) -> None:
    """List the API tokens with their roles, queues and expiry."""
    clock = SystemClock()
    file = _file(loaded)
    tokens = list(file.read().values())
    if as_json:
        raw(msgspec.json.encode({"tokens": [_shown(token, clock) for token in tokens]}))
        return
    table(
        tokens,
        {
            "ID": lambda token: token.id,
            "Name": lambda token: token.name,
            "Role": lambda token: token.role,
            "Queues": lambda token: ", ".join(token.queues) or "none",
            "Created": lambda token: _day(token.created_at),
            "Expires": lambda token: _end(token, clock),
        },
        empty=f"no tokens in {file.path}; create one with: hark token create NAME",
        long=("Queues",),
        spare=("Created",),
    )


@command(app, "revoke", "hark token revoke k7m2qx4d", "hark token revoke k7m2qx4d --yes", settings=("data",))
def revoke(
    loaded: Loaded,
    identifier: Annotated[str, argument("ID", "ID of the token: the 8 characters after hark_ in the token.")],
    yes: params.Yes = False,
) -> None:
    """Revoke an API token; servers reject it within a second."""
    file = _file(loaded)
    token = file.read().get(identifier)
    if token is not None:
        confirm(f"Revoke token {token.id} of {token.name}?", yes)
    token = file.remove(identifier)
    complain(f"revoked token {token.id} of {token.name}")


def _file(loaded: Loaded) -> TokenFile:
    from hark.access.tokens import TokenFile, tokens_path

    return TokenFile(tokens_path(loaded.settings))


def _seconds(text: str) -> int:
    """Parse a duration such as 90d."""
    match = _LASTING.fullmatch(text)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < seconds <= _MOST_SECONDS:
        raise typer.BadParameter(
            f"--expires {text}: not a duration of at most 100 years; use a duration such as 12h, 90d or 2w"
        )
    return seconds


def _shown(token: Token, clock: Clock) -> dict[str, object]:
    """Return the parts of a token that can be shown."""
    return {
        "id": token.id,
        "name": token.name,
        "role": token.role,
        "queues": token.queues,
        "createdAt": token.created_at,
        "expiresAt": token.expires_at,
        "expired": token.has_expired(clock.now()),
    }


def _end(token: Token, clock: Clock | None = None) -> str:
    if token.expires_at is None:
        return "never" if clock else "never expires"
    day = _day(token.expires_at)
    if clock is None:
        return f"expires {day}"
    return f"{day} (expired)" if token.has_expired(clock.now()) else day


def _day(moment: object) -> str:
    return str(moment)[:16] + "Z"
