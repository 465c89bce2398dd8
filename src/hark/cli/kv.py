"""`hark kv`: the key-value store."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import typer
from msgspec import Raw

from hark.api import operations, types
from hark.cli import params
from hark.cli.command import command, make_app
from hark.cli.output import Misuse, confirm, say, table
from hark.cli.params import argument, flag, option
from hark.cli.remote import Query, Server, decode, json_or_text
from hark.keys import part_of_text

app = make_app(
    "Read, write and watch keys in the key-value store.",
    """hark kv put users/ada '{"name": "Ada"}'""",
    "hark kv get users/ada",
    "hark kv list failed-charges",
    "hark kv watch --prefix failed-charges",
    "",
    "Write a key as a path, such as users/ada/17: digits become numbers.",
    """Or write it as a JSON array, such as '["users", "17"]', with exact types.""",
)

_DOTS = frozenset({".", ".."})
_HINT = """hark kv put users/ada '{"name": "Ada"}'\nor store the value as text: hark kv put users/ada --text Ada"""
KeyName = Annotated[str, argument("KEY", "Key: a path or a JSON array.", empty=False)]
Prefix = Annotated[str | None, argument("PREFIX", "Only keys below this key.", default="all keys")]


@command(app, "get", "hark kv get users/ada", """hark kv get '["users", "17"]' --json""")
def get(server: Server, key: KeyName) -> None:
    """Print the value of a key.

    --json prints the key, the value and the version.
    """
    say(_text(server.ask(operations.KEYVAL_GET_KEY, *_segments(key)).value))


@command(
    app,
    "put",
    """hark kv put users/ada '{"name": "Ada"}'""",
    "hark kv put sessions/17 --text open --expires-in 60000",
    "hark kv put files/readme --stdin < value.json",
)
def put(
    server: Server,
    key: KeyName,
    value: Annotated[str | None, argument("VALUE", "Value, as JSON.")] = None,
    expires_in: Annotated[
        int | None, option("MS", "Time to live, in milliseconds.", least=1, default="unlimited")
    ] = None,
    stdin: Annotated[bool, flag("Read the value from standard input.", "--stdin")] = False,
    text: Annotated[bool, flag("Treat the value as text and store it as a JSON string.", "--text")] = False,
) -> None:
    """Set the value of a key.

    The value is on stable storage when the command returns.
    """
    if stdin == (value is not None):
        raise typer.BadParameter("give either VALUE or --stdin")
    given = sys.stdin.buffer.read() if value is None else value.encode(errors="surrogateescape")
    body = json_or_text(given, "the value", text=text, hint=_HINT)
    answer = server.ask(operations.KEYVAL_PUT_KEY, *_segments(key), query={"expiresIn": expires_in}, body=body)
    say(f"version {answer.value}")


@command(app, "delete", "hark kv delete users/ada", "hark kv delete users --tree --yes")
def delete(
    server: Server,
    key: KeyName,
    tree: Annotated[bool, flag("Also delete all keys below this key.", "--tree")] = False,
    yes: params.Yes = False,
) -> None:
    """Delete a key, or a key and all keys below it."""
    if tree:
        confirm(f"Delete key {key} and all keys below it?", yes)
    answer = server.ask(operations.KEYVAL_DELETE_KEY, *_segments(key), query={"exact": not tree})
    say(f"deleted {answer.value} key{'' if answer.value == 1 else 's'}")


@command(app, "list", "hark kv list", "hark kv list users --limit 10 --reverse", "hark kv list users --start users/b")
def list_keys(
    server: Server,
    prefix: Prefix = None,
    start: Annotated[str | None, option("KEY", "First key of the list.")] = None,
    end: Annotated[str | None, option("KEY", "Key before which the list ends.")] = None,
    limit: Annotated[int, option("N", "Maximum number of results.", least=1, most=1000)] = 100,
    reverse: Annotated[bool, flag("List the keys in descending order.", "--reverse")] = False,
) -> None:
    """List keys and their values, in key order."""
    query: Query = {"prefix": prefix, "start": start, "end": end, "limit": limit, "reverse": reverse}
    table(
        server.ask(operations.KEYVAL_LIST_KEYS, query=query),
        {
            "Key": lambda entry: _json_text(entry.key),
            "Version": lambda entry: (entry.versionstamp or "").lstrip("0"),
            "Value": lambda entry: bytes(entry.value),
        },
        empty="no keys match",
        long=("Value", "Key"),
        spare=("Version",),
    )


@command(app, "count", "hark kv count", "hark kv count users")
def count(server: Server, prefix: Prefix = None) -> None:
    """Count all keys, or the keys below a prefix."""
    say(str(server.ask(operations.KEYVAL_COUNT_KEYS, query={"prefix": prefix}).value))


@command(
    app,
    "watch",
    "hark kv watch users/ada users/bob",
    "hark kv watch --prefix failed-charges --new",
    "hark kv watch users/ada --json --limit 1",
)
def watch(
    server: Server,
    keys: Annotated[list[str] | None, argument("KEY", "Key to watch: a path or a JSON array.")] = None,
    prefix: Annotated[str | None, option("KEY", "Watch all keys below this key, instead of KEY.", empty=False)] = None,
    new: Annotated[bool, flag("Do not print the current values first.", "--new")] = False,
    limit: Annotated[int | None, option("N", "Stop after N changes.", least=1, default="no limit")] = None,
) -> None:
    """Print keys as they change, until you press Ctrl-C.

    The command prints the current values first, unless --new is given.
    """
    if bool(keys) == (prefix is not None):
        raise typer.BadParameter("give either one or more KEYs, or --prefix")
    if prefix is None:
        operation, query = operations.KEYVAL_WATCH_KEYS, {"keys": _json_text([_key(key) for key in keys or ()])}
    else:
        operation, query = operations.KEYVAL_WATCH_PREFIX, {"prefix": prefix}
    server.follow(
        operation,
        query={**query, "initial": not new},
        event="change",
        show=_show,
        limit=limit,
        split=lambda body: map(bytes, decode(body, list[Raw])),
    )


def _show(change: bytes) -> None:
    entry = decode(change, types.keys.WireEntry)
    say(f"{_json_text(entry.key)}  {'(deleted)' if entry.versionstamp is None else _text(entry.value)}")


def _segments(key: str) -> list[str]:
    """Return the segments of the path of a key."""
    segments = key.split("/")
    if key.startswith("["):
        return [key]
    if isinstance(part_of_text(key), str) and (len(segments) == 1 or not _DOTS.isdisjoint(segments)):
        # A single word could name another route, and dots would be resolved as relative path segments.
        return [_json_text(_key(key))]
    return segments


def _key(text: str) -> object:
    """Parse a key as the server does."""
    if text.startswith("["):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise Misuse(
                f"key {text} is not a JSON array: {error}; quote it for the shell, "
                """such as '["users", "17"]'"""
            ) from None
    return [part_of_text(part) for part in text.split("/") if part]


def _text(value: Raw) -> str:
    return bytes(value).decode("utf-8", "replace")


def _json_text(value: object) -> str:
    return msgspec.json.encode(value).decode()
