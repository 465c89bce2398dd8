"""Keys and their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hark.errors import InvalidInput, NotFound, Refused
from hark.http.checks import bool_param, check_int, decode_json, int_param, short
from hark.http.keyval.entries import cursor_of, key_at, versionstamp, wire_entry, wire_missing
from hark.http.keyval.measuring import measured
from hark.http.keyval.params import BASE, DEFAULT_LIMIT, MAX_LIMIT, limit_param
from hark.http.keyval.paths import key_of, key_param, keys_in_path, keys_of
from hark.http.push_items import MAX_DEPTH, MAX_TTL_MS, payload_too_deep
from hark.http.routes.requests import broker_of, query_of, read_body, read_json, reply
from hark.http.routes.table import Table
from hark.model import Key, KeyEntry, KeyMutation, KeyRange, KeyWrite

_KEYS = f"{BASE}/keys"
_NO_FILTER = msgspec.Raw(b"null")


# One key ---------------------------------------------------------------------------------------------------


async def get_key(request: Request) -> Response:
    """The entry of a key; a path that may mean two keys gives the first that is there."""
    for entry in await broker_of(request).keyvalue.read_keys(_keys_in_path(request)):
        if entry is not None:
            return reply(wire_entry(entry))
    raise NotFound("Key not found", code="key_not_found")


async def put_key(request: Request) -> Response:
    """Set the value of a key: the body, byte for byte."""
    query = query_of(request)
    key = _keys_in_path(request)[0]
    ttl_ms = int_param(query, "expiresIn", 0, 1, MAX_TTL_MS) if "expiresIn" in query else None
    value = check_value(await read_body(request), "value")
    mutation = KeyMutation(kind="set", key=key, value=value, ttl_ms=ttl_ms)
    written = await broker_of(request).keyvalue.write_keys(KeyWrite(mutations=[mutation]))
    return reply({"ok": True, "versionstamp": versionstamp(written.version or 0)})


class DeleteBody(msgspec.Struct):
    """How to delete."""

    exact: bool | None = None
    where: msgspec.Raw = _NO_FILTER


async def delete_key(request: Request) -> Response:
    """Delete a key and all below it, or with `exact` only the key; how many entries that were."""
    keys = _keys_in_path(request)
    # Whatever its content type: to overlook `exact` or `where` would delete too much.
    body = decode_json(await read_body(request) or b"{}", DeleteBody, "body")
    _refuse_filter(body.where)
    exact = bool_param(query_of(request), "exact") if body.exact is None else body.exact
    deleted = 0
    for key in keys:
        deleted = await _delete(request, [key], exact)
        if deleted:
            break
    return reply({"deletedCount": deleted})


async def _delete(request: Request, keys: Sequence[Key], exact: bool) -> int:
    mutations = [KeyMutation(kind="delete" if exact else "delete_tree", key=key) for key in keys]
    return (await broker_of(request).keyvalue.write_keys(KeyWrite(mutations=mutations))).deleted


def _keys_in_path(request: Request) -> list[Key]:
    return keys_in_path(cast(list[str], request.path_params["key"]), query_of(request))


# Ranges ----------------------------------------------------------------------------------------------------


async def list_keys(request: Request) -> Response:
    """The entries below a prefix, or all of them, in the order of their keys."""
    entries = await broker_of(request).keyvalue.list_keys(_range(query_of(request)))
    return _entries(entries)


async def paginate_keys(request: Request) -> Response:
    """A page of entries, and the cursor of the next one."""
    query = query_of(request)
    wanted = _range(query)
    if cursor := query.get("cursor"):
        wanted = msgspec.structs.replace(wanted, after=key_at(cursor, "cursor"))
    # One more than wanted: so that the last page is known to be the last.
    more = msgspec.structs.replace(wanted, limit=wanted.limit + 1)
    entries = await broker_of(request).keyvalue.list_keys(more)
    page, has_more = entries[: wanted.limit], len(entries) > wanted.limit
    return reply(
        {
            "entries": [wire_entry(entry) for entry in page],
            "cursor": cursor_of(page[-1].key) if has_more else None,
            "hasMore": has_more,
        }
    )


async def count_keys(request: Request) -> Response:
    """How many entries are below a prefix, or at all."""
    prefix = key_param(query_of(request), "prefix") or ()
    return reply({"count": await broker_of(request).keyvalue.count_keys(prefix)})


def _range(query: Mapping[str, str]) -> KeyRange:
    return KeyRange(
        prefix=key_param(query, "prefix") or (),
        start=key_param(query, "start"),
        end=key_param(query, "end"),
        limit=limit_param(query),
        reverse=bool_param(query, "reverse"),
    )


class ListBody(msgspec.Struct):
    """A range with keys as arrays, so that the types of their parts are exact."""

    prefix: list[object] | None = None
    start: list[object] | None = None
    end: list[object] | None = None
    limit: int | None = None
    reverse: bool | None = None
    where: msgspec.Raw = _NO_FILTER


async def list_exactly(request: Request) -> Response:
    """The entries below a prefix, as `list_keys`."""
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
    """Keys as arrays."""

    keys: object = None
    exact: bool | None = None
    where: msgspec.Raw = _NO_FILTER


async def get_batch(request: Request) -> Response:
    """The entries of keys, in the order of the request; where there is none its value and versionstamp are null."""
    keys = keys_of((await read_json(request, KeysBody, "body")).keys)
    entries = await broker_of(request).keyvalue.read_keys(keys)
    return reply(
        [wire_missing(key) if entry is None else wire_entry(entry) for key, entry in zip(keys, entries, strict=True)]
    )


async def delete_batch(request: Request) -> Response:
    """Delete keys and all below them, or with `exact` only the keys; all of them in one commit."""
    body = await read_json(request, KeysBody, "body")
    _refuse_filter(body.where)
    return reply({"deletedCount": await _delete(request, keys_of(body.keys), bool(body.exact))})


# Checks ----------------------------------------------------------------------------------------------------


def check_value(given: bytes, field: str) -> bytes:
    """A value as it is to be stored: valid JSON that is not nested too deeply, kept byte for byte."""
    value = given.strip(b" \t\r\n")
    if not value:
        raise InvalidInput(f"{field}: is required; send JSON, such as null")
    decode_json(value, msgspec.Raw, field)
    if payload_too_deep(value):
        raise InvalidInput(f"{field}: nested too deeply, at most {MAX_DEPTH} levels")
    return value


def _refuse_filter(where: msgspec.Raw) -> None:
    if bytes(where) != b"null":
        raise Refused(f"where: this server has no filters, and nothing was done: {short(bytes(where).decode())}")


TABLE: Table = {
    _KEYS: {"GET": measured("list", list_keys)},
    f"{_KEYS}/count": {"GET": measured("count", count_keys)},
    f"{_KEYS}/paginate": {"GET": measured("paginate", paginate_keys)},
    f"{_KEYS}/batch": {"POST": measured("get", get_batch)},
    f"{_KEYS}/delete-batch": {"POST": measured("delete", delete_batch)},
    f"{_KEYS}/list": {"POST": measured("list", list_exactly)},
    f"{_KEYS}/{{key:path}}": {
        "GET": measured("get", get_key),
        "PUT": measured("set", put_key),
        "DELETE": measured("delete", delete_key),
    },
}
