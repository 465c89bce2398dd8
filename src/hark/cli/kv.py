"""`hark kv`: the key-value store."""

from __future__ import annotations

import re
import sys
from typing import Annotated

import msgspec
import typer
from msgspec import Raw

from hark.api import operations, types
from hark.cli.command import DEFAULT_URL, USAGE, Failure, Json, Url, Yes, command, confirm, make_app, not_empty
from hark.cli.output import raw, say, table
from hark.cli.remote import Query, call, decode, ended, events, stream
from hark.keys import EXACT

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
_INTEGER = re.compile(r"-?[0-9]{1,16}", re.ASCII)
KeyName = Annotated[
    str, typer.Argument(metavar="KEY", callback=not_empty, help="Key: a path or a JSON array.", show_default=False)
]
Prefix = Annotated[
    str | None, typer.Argument(metavar="PREFIX", help="Only keys below this key.", show_default="all keys")
]


@command(app, "get", "hark kv get users/ada", """hark kv get '["users", "17"]' --json""")
def get(key: KeyName, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Print the value of a key.

    --json prints the key, the value and the version.
    """
    answer = call(url, operations.KEYVAL_GET_KEY, *_segments(key))
    if as_json:
        raw(answer.body)
    else:
        say(_text(answer.read().value))


@command(
    app,
    "put",
    """hark kv put users/ada '{"name": "Ada"}'""",
    "hark kv put sessions/17 --text open --expires-in 60000",
    "hark kv put files/readme --stdin < value.json",
)
def put(
    *,
    key: KeyName,
    value: Annotated[str | None, typer.Argument(metavar="VALUE", help="Value, as JSON.", show_default=False)] = None,
    expires_in: Annotated[
        int | None, typer.Option(min=1, metavar="MS", help="Time to live, in milliseconds.", show_default="unlimited")
    ] = None,
    stdin: Annotated[bool, typer.Option("--stdin", help="Read the value from standard input.")] = False,
    text: Annotated[
        bool, typer.Option("--text", help="Treat the value as text and store it as a JSON string.")
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Set the value of a key.

    The value is on stable storage when the command returns.
    """
    if stdin == (value is not None):
        raise typer.BadParameter("give either VALUE or --stdin")
    given = sys.stdin.buffer.read() if value is None else value.encode(errors="surrogateescape")
    answer = call(
        url, operations.KEYVAL_PUT_KEY, *_segments(key), query={"expiresIn": expires_in}, body=_value(given, text)
    )
    if as_json:
        raw(answer.body)
    else:
        say(f"version {answer.read().versionstamp}")


@command(app, "delete", "hark kv delete users/ada", "hark kv delete users --tree --yes")
def delete(
    *,
    key: KeyName,
    tree: Annotated[bool, typer.Option("--tree", help="Also delete all keys below this key.")] = False,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Delete a key, or a key and all keys below it."""
    if tree:
        confirm(f"Delete key {key} and all keys below it?", yes)
    answer = call(url, operations.KEYVAL_DELETE_KEY, *_segments(key), query={"exact": not tree})
    if as_json:
        raw(answer.body)
    else:
        deleted = answer.read().deleted_count
        say(f"deleted {deleted} key{'' if deleted == 1 else 's'}")


@command(app, "list", "hark kv list", "hark kv list users --limit 10 --reverse", "hark kv list users --start users/b")
def list_keys(
    *,
    prefix: Prefix = None,
    start: Annotated[str | None, typer.Option(metavar="KEY", help="First key of the list.")] = None,
    end: Annotated[str | None, typer.Option(metavar="KEY", help="Key before which the list ends.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="Maximum number of results.")] = 100,
    reverse: Annotated[bool, typer.Option("--reverse", help="List the keys in descending order.")] = False,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """List keys and their values, in key order."""
    query: Query = {"prefix": prefix, "start": start, "end": end, "limit": limit, "reverse": reverse}
    answer = call(url, operations.KEYVAL_LIST_KEYS, query=query)
    if as_json:
        raw(answer.body)
        return
    table(
        ("Key", "Version", "Value"),
        (
            (_json_text(entry.key), (entry.versionstamp or "").lstrip("0"), bytes(entry.value))
            for entry in answer.read()
        ),
        empty="no keys match",
        long=("Value", "Key"),
        spare=("Version",),
    )


@command(app, "count", "hark kv count", "hark kv count users")
def count(prefix: Prefix = None, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Count all keys, or the keys below a prefix."""
    answer = call(url, operations.KEYVAL_COUNT_KEYS, query={"prefix": prefix})
    if as_json:
        raw(answer.body)
    else:
        say(str(answer.read().count))


@command(
    app,
    "watch",
    "hark kv watch users/ada users/bob",
    "hark kv watch --prefix failed-charges --new",
    "hark kv watch users/ada --json --limit 1",
)
def watch(
    *,
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY", help="Key to watch: a path or a JSON array.", show_default=False),
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option(callback=not_empty, metavar="KEY", help="Watch all keys below this key, instead of KEY."),
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Do not print the current values first.")] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after N changes.", show_default="no limit")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
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
    shown = 0
    try:
        for name, body in events(stream(url, operation, query={**query, "initial": not new})):
            if name == "error":
                problem = decode(body, types.ErrorAnswer)
                raise Failure(problem.error, code=problem.code)
            for change in decode(body, list[Raw]) if name == "change" else ():
                _show(change, as_json)
                shown += 1
                if shown == limit:
                    return
    except KeyboardInterrupt:
        return
    raise ended()


def _show(change: Raw, as_json: bool) -> None:
    if as_json:
        raw(bytes(change))
        return
    entry = decode(change, types.keys.WireEntry)
    say(f"{_json_text(entry.key)}  {'(deleted)' if entry.versionstamp is None else _text(entry.value)}")


def _segments(key: str) -> list[str]:
    """Return the segments of the path of a key."""
    segments = key.split("/")
    if key.startswith("["):
        return [key]
    if isinstance(_part(key), str) and (len(segments) == 1 or not _DOTS.isdisjoint(segments)):
        # A single word could name another route, and dots would be resolved as relative path segments.
        return [_json_text(_key(key))]
    return segments


def _key(text: str) -> object:
    """Parse a key as the server does."""
    if text.startswith("["):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise Failure(
                f"key {text} is not a JSON array: {error}; quote it for the shell, "
                """such as '["users", "17"]'""",
                exit_code=USAGE,
            ) from None
    return [_part(part) for part in text.split("/") if part]


def _part(text: str) -> str | int:
    """Parse a part of a key as the server does: an integer that a double cannot represent is text."""
    return int(text) if _INTEGER.fullmatch(text) and abs(int(text)) < EXACT else text


def _value(given: bytes, text: bool) -> Raw:
    """Check that a value is JSON, or make it a JSON string."""
    try:
        if text:
            return Raw(msgspec.json.encode(given.decode()))
        msgspec.json.decode(given)
    except UnicodeDecodeError as error:
        raise Failure(f"the value is not UTF-8: {error}; correct its encoding", exit_code=USAGE) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise Failure(
            f"the value is not JSON: {given[:80].decode(errors='replace')} ({error})\n"
            'quote JSON for the shell: hark kv put users/ada \'{"name": "Ada"}\'\n'
            "or store the value as text: hark kv put users/ada --text Ada",
            exit_code=USAGE,
        ) from None
    return Raw(given)


def _text(value: Raw) -> str:
    return bytes(value).decode("utf-8", "replace")


def _json_text(value: object) -> str:
    return msgspec.json.encode(value).decode()
