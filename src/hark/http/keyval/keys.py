"""Routes for keys and their values, and atomic commits of keys and messages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, cast

import msgspec
from msgspec import UnsetType

from hark.api import operations, types
from hark.api.types import OptionalRaw
from hark.api.types.keys import AtomicBody, CheckBody, DeleteBody, KeysBody, ListBody, MutationBody
from hark.errors import Conflict, EngineFailure, InvalidInput, NotFound, Refused
from hark.http import checks, routing
from hark.http.admission import stamp
from hark.http.checks import MAX_NUMBER, check_int, decode_json, in_turns, short
from hark.http.items import MAX_TTL_MS, check_not_unique, too_many
from hark.http.keyval import paths
from hark.http.keyval.paths import LIMIT, PREFIX, QUEUE, STRINGS, KeyParam, key_of, timed, versionstamp, wire_entry
from hark.http.keyval.queue import new_message
from hark.http.responses import carry
from hark.http.routing import Call, Query, bind, table
from hark.model import Key, KeyCheck, KeyEntry, KeyMutation, KeyRange, KeyWrite, NewMessage

_KINDS = ("set", "delete", "sum", "min", "max", "append", "prepend")
_MUTATION = re.compile(r"mutations\[(\d+)\]")


VALUES = checks.raw_parts("value", "mutations")
"""Returns the values of a commit, which are not decoded, for `decode_in_turns`."""


async def commit(call: Call) -> types.keys.AtomicResult:
    """Commit checks and mutations atomically.

    Applies all mutations in one commit if all checks hold. If a check fails, nothing is applied and the response is 200
    with `ok` false. A mutation of the type `enqueue` adds a message to a work queue.
    """
    body = await call.json(AtomicBody, "body", payloads=VALUES)
    queue = paths.queue_param(call.query)
    write = await parse_key_write(body, call.settings.limits.max_batch, queue=queue)
    stamp(call.identity, write.messages)
    carry(call.exchange, write.messages)
    if write.messages:
        await call.broker.work_queues.admit(write.messages)
    try:
        written = await call.broker.keyvalue.write_keys(write)
    except Conflict as error:
        # The store does not count messages: the text gets the position of the mutation in the request.
        indexes = [index for index, item in enumerate(body.mutations) if item.type != "enqueue"]
        text = _MUTATION.sub(lambda match: f"mutations[{indexes[int(match[1])]}]", error.text, count=1)
        raise Conflict(text, code=error.code) from None
    if not written.success or written.version is None:
        return types.keys.AtomicResult(ok=False)
    ids = tuple(outcome.message_id or "" for outcome in written.messages)
    return types.keys.AtomicResult(ok=True, versionstamp=versionstamp(written.version), ids=ids)


async def parse_key_write(body: AtomicBody, most: int, *, where: str = "", queue: str | None = None) -> KeyWrite:
    """Return the checked write. Errors name a field as `{where}mutations[2].key`.

    Messages go to the queue that they name, else to `queue`. Without `queue` messages are rejected.
    """
    checks = body.checks or ()
    for field, number in (("checks", len(checks)), ("mutations", len(body.mutations))):
        if number > most:
            raise too_many(f"{where}{field}", most, number)
    mutations: list[KeyMutation] = []
    messages: list[NewMessage] = []
    async for index, item in in_turns(enumerate(body.mutations)):
        path = f"{where}mutations[{index}]"
        if item.type == "enqueue":
            messages.append(_message(item, queue, path))
        else:
            mutations.append(_mutation(item, path))
    return KeyWrite(
        [_check(check, f"{where}checks[{index}]") async for index, check in in_turns(enumerate(checks))],
        mutations,
        messages,
    )


def _check(check: CheckBody, where: str) -> KeyCheck:
    stamp = check.versionstamp
    if stamp is msgspec.UNSET:
        raise InvalidInput(f"{where}.versionstamp: is required; send null if the key must not exist")
    version = None if stamp is None else paths.version_of(stamp, f"{where}.versionstamp")
    return KeyCheck(key_of(check.key, f"{where}.key"), version)


def _mutation(item: MutationBody, where: str) -> KeyMutation:
    if item.type not in _KINDS:
        raise InvalidInput(f"{where}.type: expected {', '.join(_KINDS)} or enqueue, got {short(item.type)}")
    kind = cast(Literal["set", "delete", "sum", "min", "max", "append", "prepend"], item.type)
    key = key_of(item.key, f"{where}.key")
    if item.expires_in is not None and kind != "set":
        raise InvalidInput(f"{where}.expiresIn: allowed only with type set, got type {kind}")
    if kind == "delete":
        return KeyMutation(kind=kind, key=key)
    if isinstance(item.value, UnsetType):
        raise InvalidInput(f"{where}.value: is required; send null to store null")
    value = bytes(item.value)
    if kind in ("append", "prepend"):
        if not value.startswith(b"["):
            raise InvalidInput(f"{where}.value: {kind} value must be an array")
    elif kind != "set":
        value = _number(value, f"{where}.value")
    ttl_ms = None if item.expires_in is None else check_int(item.expires_in, f"{where}.expiresIn", 1, MAX_TTL_MS)
    return KeyMutation(kind=kind, key=key, value=value, ttl_ms=ttl_ms)


class _BigInt(msgspec.Struct, tag_field="__type", tag="bigint"):
    """A big integer as JavaScript clients write it."""

    value: str


def _number(value: bytes, field: str) -> bytes:
    """Return a number as JSON. It may be sent as text or as a big integer."""
    given = decode_json(value, int | float | str | _BigInt, field)  # type: ignore[arg-type]  # A union is a type to msgspec.
    text = given.value if isinstance(given, _BigInt) else given
    if isinstance(text, str):
        if not re.fullmatch(r"-?[0-9]{1,16}", text, re.ASCII):
            raise InvalidInput(f"{field}: expected a number, got {short(text)}")
        given, value = int(text), str(int(text)).encode()
    if isinstance(given, int):
        check_int(given, field, -MAX_NUMBER, MAX_NUMBER)
    return value


def _message(item: MutationBody, queue: str | None, where: str) -> NewMessage:
    if queue is None:
        raise InvalidInput(f"{where}.type: enqueue is not allowed in a transaction; use an operation of type push")
    name = queue if item.queue is None else checks.check_name(item.queue, f"{where}.queue")
    return check_not_unique(new_message(name, item.value, item.options, f"{where}."), f"{where}.options")


# Keys ------------------------------------------------------------------------------------------------------

_START = KeyParam("start", "Return only this key and the keys after it.")
_END = KeyParam("end", "Return only keys before this key.")
_REVERSE = routing.BoolParam("reverse", "Return the keys in descending order.")
_CURSOR = routing.Param("cursor", "Cursor of the previous page. The default is the first page.")
_EXPIRES_IN = routing.IntParam(
    "expiresIn", "Time to live of the key, in milliseconds. By default the key does not expire.", 0, 1, MAX_TTL_MS
)
_EXACT = routing.BoolParam("exact", "Delete only the key itself and not the keys below it.")
_RANGE = (PREFIX, _START, _END, LIMIT, _REVERSE)


# One key ---------------------------------------------------------------------------------------------------


async def get_key(call: Call) -> types.keys.WireEntry:
    """Get the entry of a key.

    A path part that looks like a number can be a number or text. The server tries the number first.
    """
    for entry in await call.broker.keyvalue.read_keys(_keys_in_path(call)):
        if entry is not None:
            if entry.unreadable is not None:  # Not null: a client could store what it makes of that.
                code, _, text = entry.unreadable.partition(": ")
                raise EngineFailure(text, code=code)
            return wire_entry(entry)
    raise NotFound("Key not found", code="key_not_found")


async def put_key(call: Call) -> types.SuccessWith[str]:
    """Set the value of a key. The value is the JSON body, which is stored byte for byte."""
    key = _keys_in_path(call)[0]
    ttl_ms = _EXPIRES_IN.of(call.query) or None
    body = await call.body()
    # As deep as an atomic write can have it, so that an import can write it again.
    checks.check_nesting(b"[[[" + body + b"]]]")
    value = body.strip(b" \t\r\n")
    if not value:
        raise InvalidInput("value: is required; send a JSON value, for example null")
    decode_json(value, msgspec.Raw, "value")
    mutation = KeyMutation(kind="set", key=key, value=value, ttl_ms=ttl_ms)
    written = await call.broker.keyvalue.write_keys(KeyWrite(mutations=[mutation]))
    return types.keys.Written(True, versionstamp(written.version or 0))


async def delete_key(call: Call) -> types.Single[int]:
    """Delete a key.

    Deletes the key and all keys below it, or with `exact` only the key itself. Returns the number of deleted entries.
    """
    keys = _keys_in_path(call)
    # The body counts whatever its content type: to ignore `exact` or `where` would delete too much.
    body = await call.optional_json(DeleteBody, "body")
    _refuse_filter(body.where)
    exact = _EXACT.of(call.query) if body.exact is None else body.exact
    deleted = 0
    for key in keys:
        deleted = await _delete(call, [key], exact)
        if deleted:
            break
    return types.keys.Deleted(deleted)


async def _delete(call: Call, keys: Sequence[Key], exact: bool) -> int:
    mutations = [KeyMutation(kind="delete" if exact else "delete_tree", key=key) for key in keys]
    return (await call.broker.keyvalue.write_keys(KeyWrite(mutations=mutations))).deleted


def _keys_in_path(call: Call) -> list[Key]:
    return paths.keys_in_path(cast(list[str], call.exchange.params["key"]), call.query)


# Ranges ----------------------------------------------------------------------------------------------------


async def list_keys(call: Call) -> list[types.keys.WireEntry]:
    """List entries. Returns the entries below a prefix, or all entries, in the order of their keys."""
    return _entries(await call.broker.keyvalue.list_keys(_range(call.query)))


def _entries(entries: Sequence[KeyEntry]) -> list[types.keys.WireEntry]:
    routing.check_page(entry.value for entry in entries)
    return [wire_entry(entry) for entry in entries]


async def paginate_keys(call: Call) -> types.keys.EntryPage:
    """List entries in pages. Returns a page of entries and the cursor of the next page."""
    wanted = _range(call.query)
    if cursor := _CURSOR.text(call.query):
        wanted = msgspec.structs.replace(wanted, after=paths.key_at(cursor, _CURSOR.name))
    # One more entry than wanted shows whether there is another page.
    entries = await call.broker.keyvalue.list_keys(msgspec.structs.replace(wanted, limit=wanted.limit + 1))
    page, has_more = entries[: wanted.limit], len(entries) > wanted.limit
    cursor = paths.cursor_of(page[-1].key) if has_more else None
    return types.keys.EntryPage(entries=tuple(_entries(page)), cursor=cursor, has_more=has_more)


async def count_keys(call: Call) -> types.Single[int]:
    """Count entries. Returns the number of entries below a prefix, or of all entries."""
    return types.keys.KeyCount(await call.engine.count_keys(PREFIX.of(call.query) or ()))


def _range(query: Query) -> KeyRange:
    return KeyRange(
        prefix=PREFIX.of(query) or (),
        start=_START.of(query),
        end=_END.of(query),
        limit=LIMIT.of(query),
        reverse=_REVERSE.of(query),
    )


async def list_exactly(call: Call) -> list[types.keys.WireEntry]:
    """List entries of a range. Like GET /keyval/api/keys, with keys as JSON arrays of exact types."""
    body = await call.json(ListBody, "body")
    _refuse_filter(body.where)
    most = paths.MAX_LIMIT
    wanted = KeyRange(
        limit=paths.DEFAULT_LIMIT if body.limit is None else check_int(min(body.limit, most), "limit", 1, most),
        prefix=() if body.prefix is None else key_of(body.prefix, "prefix"),
        start=None if body.start is None else key_of(body.start, "start"),
        end=None if body.end is None else key_of(body.end, "end"),
        reverse=bool(body.reverse),
    )
    return _entries(await call.broker.keyvalue.list_keys(wanted))


# Several keys ----------------------------------------------------------------------------------------------


async def get_batch(call: Call) -> list[types.keys.WireEntry]:
    """Get the entries of several keys.

    Returns one entry for each key, in the order of the request. A missing key has null as its value and versionstamp.
    """
    keys = paths.keys_of((await call.json(KeysBody, "body")).keys)
    entries = await call.broker.keyvalue.read_keys(keys)
    routing.check_page(entry.value for entry in entries if entry is not None)
    return [
        paths.wire_missing(key) if entry is None else wire_entry(entry)
        for key, entry in zip(keys, entries, strict=True)
    ]


async def delete_batch(call: Call) -> types.Single[int]:
    """Delete several keys.

    Deletes the keys and all keys below them, or with `exact` only the keys themselves, in one commit.
    """
    body = await call.json(KeysBody, "body")
    _refuse_filter(body.where)
    return types.keys.Deleted(await _delete(call, paths.keys_of(body.keys), bool(body.exact)))


def _refuse_filter(where: OptionalRaw) -> None:
    if not isinstance(where, UnsetType) and bytes(where) != b"null":
        raise Refused(
            f"where: this server does not support filters, and nothing was changed: {short(bytes(where).decode())}"
        )


_NO_KEY = routing.Failure(404, "key_not_found")

TABLE = table(
    bind(
        operations.KEYVAL_COMMIT,
        timed("atomic_commit", commit),
        query=(QUEUE,),
        body=AtomicBody,
        body_bytes=routing.LARGE_BODY,
        errors=(routing.TOO_MANY, routing.Failure(409, "value_mismatch"), routing.MAINTENANCE, routing.QUEUE_FULL),
    ),
    bind(operations.KEYVAL_LIST_KEYS, timed("list", list_keys), query=_RANGE),
    bind(operations.KEYVAL_COUNT_KEYS, timed("count", count_keys), query=(PREFIX,)),
    bind(operations.KEYVAL_PAGINATE_KEYS, timed("paginate", paginate_keys), query=(*_RANGE, _CURSOR)),
    bind(operations.KEYVAL_GET_BATCH, timed("get", get_batch), body=KeysBody, body_bytes=routing.LARGE_BODY),
    bind(
        operations.KEYVAL_DELETE_BATCH,
        timed("delete", delete_batch),
        body=KeysBody,
        body_bytes=routing.LARGE_BODY,
        errors=(routing.NOT_SUPPORTED,),
    ),
    bind(operations.KEYVAL_LIST_EXACTLY, timed("list", list_exactly), body=ListBody, errors=(routing.NOT_SUPPORTED,)),
    bind(operations.KEYVAL_GET_KEY, timed("get", get_key), query=(STRINGS,), errors=(_NO_KEY,)),
    bind(
        operations.KEYVAL_PUT_KEY,
        timed("set", put_key),
        query=(STRINGS, _EXPIRES_IN),
        body=msgspec.Raw,
        body_bytes=routing.LARGE_BODY,
    ),
    bind(
        operations.KEYVAL_DELETE_KEY,
        timed("delete", delete_key),
        query=(STRINGS, _EXACT),
        body=DeleteBody,
        body_optional=True,
        errors=(routing.NOT_SUPPORTED,),
    ),
)
