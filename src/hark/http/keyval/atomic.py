"""Atomic commits: checks, changes of keys and messages that are applied together or not at all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hark.errors import Conflict, InvalidInput
from hark.http.answers import keyval as answers
from hark.http.checks import MAX_NUMBER, check_int, check_name, decode_json, raw_default, short
from hark.http.edge.identities import identity_of
from hark.http.edge.reaching import stamp
from hark.http.edge.trace_contexts import carry
from hark.http.exchange import exchange_of
from hark.http.keyval.entries import version_of, versionstamp
from hark.http.keyval.keys import check_value
from hark.http.keyval.measuring import measured
from hark.http.keyval.messages import ABSENT, EnqueueOptions, new_message
from hark.http.keyval.params import BASE, QUEUE, queue_param
from hark.http.keyval.paths import key_of
from hark.http.push_items import MAX_TTL_MS
from hark.http.routes.requests import (
    MAINTENANCE,
    QUEUE_FULL,
    TOO_MANY,
    broker_of,
    query_of,
    read_json,
    reply,
    settings_of,
)
from hark.http.routes.table import Failure, Reach, Table, write
from hark.model import KeyCheck, KeyMutation, KeyWrite, NewMessage

_KINDS = ("set", "delete", "sum", "min", "max", "append", "prepend")
_MUTATION = re.compile(r"mutations\[(\d+)\]")


class CheckBody(msgspec.Struct):
    """A condition on the version of a key. Null: the key must not exist."""

    key: object = None
    versionstamp: str | msgspec.UnsetType | None = msgspec.UNSET


class MutationBody(msgspec.Struct, rename="camel"):
    """A change of a key, or a message to enqueue."""

    type: str
    key: object = None
    value: msgspec.Raw = raw_default(ABSENT)
    expires_in: int | None = None
    queue: str | None = None
    options: EnqueueOptions | None = None


class AtomicBody(msgspec.Struct):
    """An atomic commit: checks and mutations."""

    mutations: list[MutationBody]
    checks: list[CheckBody] | None = None


async def commit(request: Request) -> Response:
    """Commit checks and mutations atomically.

    Applies all mutations in one commit if all checks hold. If a check fails, nothing is applied and the response is 200
    with `ok` false. A mutation of the type `enqueue` adds a message to a work queue.
    """
    broker = broker_of(request)
    body = await read_json(request, AtomicBody, "body")
    queue = queue_param(query_of(request))
    write = parse_key_write(body, settings_of(request).limits.max_batch, queue=queue)
    stamp(identity_of(request), write.messages)
    carry(exchange_of(request), write.messages)
    if write.messages:
        await broker.work_queues.admit(write.messages)
    try:
        written = await broker.keyvalue.write_keys(write)
    except Conflict as error:
        raise Conflict(_as_numbered(error.text, body.mutations), code=error.code) from None
    if not written.success or written.version is None:
        refused: answers.Committed = {"ok": False}
        return reply(refused)
    answer: answers.Committed = {"ok": True, "versionstamp": versionstamp(written.version)}
    if written.messages:
        answer["ids"] = [outcome.message_id for outcome in written.messages]
    return reply(answer)


def parse_key_write(body: AtomicBody, most: int, *, where: str = "", queue: str | None = None) -> KeyWrite:
    """Return the checked write. Errors name a field as `{where}mutations[2].key`.

    Messages go to the queue that they name, else to `queue`. Without `queue` messages are rejected.
    """
    checks = body.checks or ()
    for field, number in (("checks", len(checks)), ("mutations", len(body.mutations))):
        if number > most:
            raise InvalidInput(
                f"{where}{field}: at most {most} in one request (setting limits.max_batch), got {number}; "
                "send smaller batches",
                code="batch_too_large",
            )
    mutations: list[KeyMutation] = []
    messages: list[NewMessage] = []
    for index, item in enumerate(body.mutations):
        place = f"{where}mutations[{index}]"
        if item.type == "enqueue":
            messages.append(_message(item, queue, place))
        else:
            mutations.append(_mutation(item, place))
    return KeyWrite(
        [_check(check, f"{where}checks[{index}]") for index, check in enumerate(checks)], mutations, messages
    )


def _check(check: CheckBody, where: str) -> KeyCheck:
    stamp = check.versionstamp
    if stamp is msgspec.UNSET:
        raise InvalidInput(f"{where}.versionstamp: is required; send null if the key must not exist")
    version = None if stamp is None else version_of(stamp, f"{where}.versionstamp")
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
    if item.value is ABSENT:
        raise InvalidInput(f"{where}.value: is required; send null to store null")
    value = check_value(bytes(item.value), f"{where}.value")
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
    name = queue if item.queue is None else check_name(item.queue, f"{where}.queue")
    return new_message(name, item.value, item.options, f"{where}.")


def _as_numbered(text: str, mutations: Sequence[MutationBody]) -> str:
    """Return an error text with the position of the mutation in the request: the store does not count messages."""
    places = [index for index, item in enumerate(mutations) if item.type != "enqueue"]
    return _MUTATION.sub(lambda match: f"mutations[{places[int(match[1])]}]", text, count=1)


TABLE: Table = {
    f"{BASE}/atomic": {
        "POST": write(
            measured("atomic_commit", commit),
            Reach.SERVER,
            query=(QUEUE,),
            body=AtomicBody,
            answer=answers.Committed,
            errors=(TOO_MANY, Failure(409, "value_mismatch"), MAINTENANCE, QUEUE_FULL),
        )
    }
}
