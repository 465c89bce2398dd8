"""Routes for keys and their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hark.errors import InvalidInput, NotFound, Refused
from hark.http.answers import keyval as answers
from hark.http.checks import check_int, decode_json, raw_default, short
from hark.http.keyval.entries import WireEntry, cursor_of, key_at, versionstamp, wire_entry, wire_missing
from hark.http.keyval.measuring import measured
from hark.http.keyval.params import BASE, DEFAULT_LIMIT, LIMIT, MAX_LIMIT
from hark.http.keyval.paths import PREFIX, STRINGS, KeyParam, key_of, keys_in_path, keys_of
from hark.http.params import BoolParam, IntParam, Param, Query
from hark.http.push_items import MAX_DEPTH, MAX_TTL_MS, payload_too_deep
from hark.http.routes.requests import NOT_SUPPORTED, broker_of, query_of, read_body, read_json, reply
from hark.http.routes.table import Failure, Reach, Table, read, write
from hark.model import Key, KeyEntry, KeyMutation, KeyRange, KeyWrite

_KEYS = f"{BASE}/keys"
_NO_FILTER = msgspec.Raw(b"null")
_START = KeyParam("start", "Return only this key and the keys after it.")
_END = KeyParam("end", "Return only keys before this key.")
_REVERSE = BoolParam("reverse", "Return the keys in descending order.")
_CURSOR = Param("cursor", "Cursor of the previous page. The default is the first page.")
_EXPIRES_IN = IntParam(
    "expiresIn", "Time to live of the key, in milliseconds. By default the key does not expire.", 0, 1, MAX_TTL_MS
)
_EXACT = BoolParam("exact", "Delete only the key itself and not the keys below it.")
_RANGE = (PREFIX, _START, _END, LIMIT, _REVERSE)


# One key ---------------------------------------------------------------------------------------------------


async def get_key(request: Request) -> Response:
    """Get the entry of a key.

    A path part that looks like a number can be a number or text. The server tries the number first.
    """
    for entry in await broker_of(request).keyvalue.read_keys(_keys_in_path(request)):
        if entry is not None:
            return reply(wire_entry(entry))
    raise NotFound("Key not found", code="key_not_found")


async def put_key(request: Request) -> Response:
    """Set the value of a key. The value is the JSON body, which is stored byte for byte."""
    query = query_of(request)
    key = _keys_in_path(request)[0]
    ttl_ms = _EXPIRES_IN.of(query) or None
    value = check_value(await read_body(request), "value")
    mutation = KeyMutation(kind="set", key=key, value=value, ttl_ms=ttl_ms)
    written = await broker_of(request).keyvalue.write_keys(KeyWrite(mutations=[mutation]))
    answer: answers.Written = {"ok": True, "versionstamp": versionstamp(written.version or 0)}
    return reply(answer)


class DeleteBody(msgspec.Struct):
    """Options of a deletion."""

    exact: bool | None = None
    where: msgspec.Raw = raw_default(_NO_FILTER)


async def delete_key(request: Request) -> Response:
    """Delete a key.

    Deletes the key and all keys below it, or with `exact` only the key itself. Returns the number of deleted entries.
    """
    keys = _keys_in_path(request)
    # The body counts whatever its content type: to ignore `exact` or `where` would delete too much.
    body = decode_json(await read_body(request) or b"{}", DeleteBody, "body")
    _refuse_filter(body.where)
    exact = _EXACT.of(query_of(request)) if body.exact is None else body.exact
    deleted = 0
    for key in keys:
        deleted = await _delete(request, [key], exact)
        if deleted:
            break
    answer: answers.Deleted = {"deletedCount": deleted}
    return reply(answer)


async def _delete(request: Request, keys: Sequence[Key], exact: bool) -> int:
    mutations = [KeyMutation(kind="delete" if exact else "delete_tree", key=key) for key in keys]
    return (await broker_of(request).keyvalue.write_keys(KeyWrite(mutations=mutations))).deleted


def _keys_in_path(request: Request) -> list[Key]:
    return keys_in_path(cast(list[str], request.path_params["key"]), query_of(request))


# Ranges ----------------------------------------------------------------------------------------------------


async def list_keys(request: Request) -> Response:
    """List entries. Returns the entries below a prefix, or all entries, in the order of their keys."""
    entries = await broker_of(request).keyvalue.list_keys(_range(query_of(request)))
    return _entries(entries)


async def paginate_keys(request: Request) -> Response:
    """List entries in pages. Returns a page of entries and the cursor of the next page."""
    query = query_of(request)
    wanted = _range(query)
    if cursor := _CURSOR.text(query):
        wanted = msgspec.structs.replace(wanted, after=key_at(cursor, _CURSOR.name))
    # One more entry than wanted shows whether there is another page.
    more = msgspec.structs.replace(wanted, limit=wanted.limit + 1)
    entries = await broker_of(request).keyvalue.list_keys(more)
    page, has_more = entries[: wanted.limit], len(entries) > wanted.limit
    answer: answers.EntryPage = {
        "entries": [wire_entry(entry) for entry in page],
        "cursor": cursor_of(page[-1].key) if has_more else None,
        "hasMore": has_more,
    }
    return reply(answer)


async def count_keys(request: Request) -> Response:
    """Count entries. Returns the number of entries below a prefix, or of all entries."""
    prefix = PREFIX.of(query_of(request)) or ()
    answer: answers.Counted = {"count": await broker_of(request).keyvalue.count_keys(prefix)}
    return reply(answer)


def _range(query: Query) -> KeyRange:
    return KeyRange(
        prefix=PREFIX.of(query) or (),
        start=_START.of(query),
        end=_END.of(query),
        limit=LIMIT.of(query),
        reverse=_REVERSE.of(query),
    )


class ListBody(msgspec.Struct):
    """A range of keys. Keys are arrays, so that the types of their parts are exact."""

    prefix: list[object] | None = None
    start: list[object] | None = None
    end: list[object] | None = None
    limit: int | None = None
    reverse: bool | None = None
    where: msgspec.Raw = raw_default(_NO_FILTER)


async def list_exactly(request: Request) -> Response:
    """List entries of a range. Like GET /keyval/api/keys, with keys as JSON arrays of exact types."""
    body = await read_json(request, ListBody, "body")
    _refuse_filter(body.where)
    limit = DEFAULT_LIMIT if body.limit is None else check_int(min(body.limit, MAX_LIMIT), "limit", 1, MAX_LIMIT)
    wanted = KeyRange(
        prefix=() if body.prefix is None else key_of(body.prefix, "prefix"),
        start=None if body.start is None else key_of(body.start, "start"),
        end=None if body.end is None else key_of(body.end, "end"),
        limit=limit,
        reverse=bool(body.reverse),
    )
    return _entries(await broker_of(request).keyvalue.list_keys(wanted))


def _entries(entries: Sequence[KeyEntry]) -> Response:
    return reply([wire_entry(entry) for entry in entries])


# Several keys ----------------------------------------------------------------------------------------------


class KeysBody(msgspec.Struct):
    """Several keys."""

    keys: object = None
    exact: bool | None = None
    where: msgspec.Raw = raw_default(_NO_FILTER)


async def get_batch(request: Request) -> Response:
    """Get the entries of several keys.

    Returns one entry for each key, in the order of the request. A missing key has null as its value and versionstamp.
    """
    keys = keys_of((await read_json(request, KeysBody, "body")).keys)
    entries = await broker_of(request).keyvalue.read_keys(keys)
    return reply(
        [wire_missing(key) if entry is None else wire_entry(entry) for key, entry in zip(keys, entries, strict=True)]
    )


async def delete_batch(request: Request) -> Response:
    """Delete several keys.

    Deletes the keys and all keys below them, or with `exact` only the keys themselves, in one commit.
    """
    body = await read_json(request, KeysBody, "body")
    _refuse_filter(body.where)
    answer: answers.Deleted = {"deletedCount": await _delete(request, keys_of(body.keys), bool(body.exact))}
    return reply(answer)


# Checks ----------------------------------------------------------------------------------------------------


def check_value(given: bytes, field: str) -> bytes:
    """Return a checked value: valid JSON that is not nested too deeply, stored byte for byte."""
    value = given.strip(b" \t\r\n")
    if not value:
        raise InvalidInput(f"{field}: is required; send a JSON value, for example null")
    decode_json(value, msgspec.Raw, field)
    if payload_too_deep(value):
        raise InvalidInput(f"{field}: must be nested at most {MAX_DEPTH} levels deep")
    return value


def _refuse_filter(where: msgspec.Raw) -> None:
    if bytes(where) != b"null":
        raise Refused(
            f"where: this server does not support filters, and nothing was changed: {short(bytes(where).decode())}"
        )


_NO_KEY = Failure(404, "key_not_found")

TABLE: Table = {
    _KEYS: {"GET": read(measured("list", list_keys), Reach.SERVER, query=_RANGE, answer=list[WireEntry])},
    f"{_KEYS}/count": {
        "GET": read(measured("count", count_keys), Reach.SERVER, query=(PREFIX,), answer=answers.Counted)
    },
    f"{_KEYS}/paginate": {
        "GET": read(
            measured("paginate", paginate_keys), Reach.SERVER, query=(*_RANGE, _CURSOR), answer=answers.EntryPage
        )
    },
    f"{_KEYS}/batch": {"POST": read(measured("get", get_batch), Reach.SERVER, body=KeysBody, answer=list[WireEntry])},
    f"{_KEYS}/delete-batch": {
        "POST": write(
            measured("delete", delete_batch),
            Reach.SERVER,
            body=KeysBody,
            answer=answers.Deleted,
            errors=(NOT_SUPPORTED,),
        )
    },
    f"{_KEYS}/list": {
        "POST": read(
            measured("list", list_exactly),
            Reach.SERVER,
            body=ListBody,
            answer=list[WireEntry],
            errors=(NOT_SUPPORTED,),
        )
    },
    f"{_KEYS}/{{key:path}}": {
        "GET": read(measured("get", get_key), Reach.SERVER, query=(STRINGS,), answer=WireEntry, errors=(_NO_KEY,)),
        "PUT": write(
            measured("set", put_key),
            Reach.SERVER,
            query=(STRINGS, _EXPIRES_IN),
            body=msgspec.Raw,
            answer=answers.Written,
        ),
        "DELETE": write(
            measured("delete", delete_key),
            Reach.SERVER,
            query=(STRINGS, _EXACT),
            body=DeleteBody,
            body_optional=True,
            answer=answers.Deleted,
            errors=(NOT_SUPPORTED,),
        ),
    },
}
