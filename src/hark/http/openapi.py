"""Generates the OpenAPI document from the table of routes, so that the two always agree."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args

import msgspec

from hark._version import __version__
from hark.api.fields import PATH_TEXTS, describe_fields
from hark.api.operations import WEBSOCKET, Role
from hark.api.types import Answer, ErrorAnswer
from hark.api.types.messages import AheadMessage, GroupReason
from hark.http.checks import MAX_NAME_BYTES
from hark.http.routing import JSON, Failure, Operation, Table
from hark.model import Counts

Schemas = Callable[[Any], dict[str, Any]]
"""Returns the schema of a type."""

VERSION = "3.1.0"
_REF = "#/components/schemas/{name}"
_KEYVAL = "/keyval/api"
_NAMES = re.compile(r"\{(\w+)(:path)?\}")
_SENTENCE = re.compile(r"(.+?\.)(?:\s|$)", re.DOTALL)

_TAGS = {
    "pages": "The files of the dashboard.",
    "server": "Health, metrics, statistics, settings and maintenance of the server.",
    "messages": "Push, receive, acknowledge and inspect messages.",
    "queues": "Create, list, pause, purge and delete queues.",
    "groups": "List, seek, pause, limit and delete consumer groups.",
    "dead letters": "List, requeue and delete messages that could not be delivered.",
    "traces": "Record and list trace events about messages.",
    "work queues": "Work queues of the key-value API: each message goes to one of many consumers.",
    "keys": "Keys and values of the key-value store.",
}
_TAG_OF = {
    **dict.fromkeys(
        ("push", "pop", "ack", "listen", "consume", "transaction", "lease", "leases", "messages", "explain"), "messages"
    ),
    **dict.fromkeys(("configure", "resources"), "queues"),
    **dict.fromkeys(("consumer-groups", "consumers"), "groups"),
    "dlq": "dead letters",
    "traces": "traces",
}
"""Tag by the first word of the path after /api/v1. All other routes have the tag `server`."""

_STATUS_TEXTS = {
    101: "The server switched the connection to the WebSocket protocol.",
    200: "The request succeeded.",
    201: "The data is stored durably.",
    204: "No message is available.",
    304: "The cached copy of the client is current.",
    400: "The request is invalid.",
    401: "The token is missing, unknown, expired or revoked.",
    403: "The request is not allowed.",
    404: "The requested object does not exist.",
    409: "The request conflicts with the stored state.",
    413: "The request body is too large.",
    429: "The server or the queue is at its limit; retry later.",
    501: "The server does not support this feature.",
    503: "The service is unavailable; retry later.",
    507: "The disk of the store is full or nearly full; retry later.",
}


_WITH_NULLS = (GroupReason, AheadMessage)
"""Answers that leave out fields and have nulls, too: the reason determines their fields."""
_ABOUT = (
    "Hark is a durable message queue. Requests and responses are JSON in UTF-8. Times in responses are ISO 8601 "
    "in UTC. Times in requests are ISO 8601 (UTC unless they have an offset) or integer milliseconds since 1970. "
    "Every error response has a text for people in `error` and a stable code for programs in `code`."
)


def document(table: Table) -> dict[str, object]:
    """Return the OpenAPI document of a table of routes."""
    operations = [(path, *one) for path, methods in table.items() for one in methods.items()]
    types = list(_types(operation for _, _, operation in operations))
    found, components = msgspec.json.schema_components(types, schema_hook=_of_any, ref_template=_REF)
    _require_answers(components)
    describe_fields(components)
    # Types are compared by equality, because `list[X]` is a different object each time.
    known = list(zip(types, found, strict=True))

    def schemas(type: Any) -> dict[str, Any]:
        return next(schema for one, schema in known if one == type)

    ids = _ids(operations)
    paths: dict[str, dict[str, object]] = {}
    for index, (path, method, operation) in enumerate(operations):
        shown = paths.setdefault(_NAMES.sub(r"{\1}", path), {})
        shown["get" if method == WEBSOCKET else method.lower()] = {
            "operationId": ids[index],
            "tags": [_tag(path)],
            **_texts(operation),
            "parameters": [*_path_parameters(path), *_query_parameters(operation)],
            **_body(operation, schemas),
            "responses": _responses(operation, schemas),
            "security": [] if operation.role is None else [{"token": []}],
        }
    return {
        "openapi": VERSION,
        "info": {"title": "Hark", "version": __version__, "description": _ABOUT},
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "An API token or a JWT."}},
        },
    }


# Types -----------------------------------------------------------------------------------------------------


def _of_any(type: Any) -> dict[str, Any]:
    """Return the schema of `object`, which msgspec does not support: any JSON, checked later."""
    if type is object:
        return {"description": "Any JSON value."}  # msgspec treats an empty schema as missing.
    raise NotImplementedError


def _types(operations: Iterator[Operation]) -> Iterator[Any]:
    yield ErrorAnswer
    for operation in operations:
        if operation.body is not None:
            yield operation.body
        yield from (type for type in operation.answers.values() if type is not None)


def _require_answers(components: Mapping[str, dict[str, Any]]) -> None:
    """Say which fields of answers are always there: all of them, unless their type leaves out defaults."""
    for answer in (*_subclasses(Counts), *_subclasses(Answer)):
        schema = components.get(answer.__name__)
        if schema is None:
            continue
        for field in msgspec.structs.fields(answer):
            shown = schema["properties"][field.encode_name]
            shown.pop("default", None)
            if answer.__struct_config__.omit_defaults and not field.required and answer not in _WITH_NULLS:
                _never_null(shown)
        if not answer.__struct_config__.omit_defaults:
            fields = msgspec.structs.fields(answer)
            schema["required"] = [one.encode_name for one in fields if msgspec.UnsetType not in get_args(one.type)]


def _never_null(schema: dict[str, Any]) -> None:
    """Leave null out of the types of a field, which is absent instead."""
    types = [one for one in schema.pop("anyOf", ()) if one != {"type": "null"}]
    schema.update(types[0] if len(types) == 1 else {"anyOf": types} if types else {})


def _subclasses(base: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    yield base
    for one in base.__subclasses__():
        yield from _subclasses(one)


# Words -----------------------------------------------------------------------------------------------------


def _ids(operations: list[tuple[str, str, Operation]]) -> list[str]:
    """Return operation ids: the function names, with words of the path where a function has several routes."""
    paths = [path for path, _, _ in operations]
    names = [
        f"keyval_{one.endpoint.__name__}" if path.startswith(_KEYVAL) else one.endpoint.__name__
        for path, _, one in operations
    ]
    names = _distinct(
        names, paths, lambda path: ["of", *(name for name, _ in found)] if (found := _NAMES.findall(path)) else []
    )
    return _distinct(names, paths, lambda path: [path.rpartition("/")[2]])


def _distinct(names: list[str], paths: list[str], words: Callable[[str], list[str]]) -> list[str]:
    several = {name for name, number in Counter(names).items() if number > 1}
    return [
        "_".join([name, *words(path)]) if name in several else name for name, path in zip(names, paths, strict=True)
    ]


def _tag(path: str) -> str:
    if path.startswith(_KEYVAL):
        return "work queues" if path.startswith(f"{_KEYVAL}/queue") else "keys"
    words = path.split("/")
    if words[1:3] == ["api", "v1"]:
        return _TAG_OF.get(words[3], "server")
    return "pages" if words[1] in {"", "assets"} else "server"


def _texts(operation: Operation) -> dict[str, str]:
    text = " ".join((operation.endpoint.__doc__ or "").split())
    sentence = _SENTENCE.match(text)
    summary = sentence[1].rstrip(".:;") if sentence else text
    rest = text[len(summary) :].lstrip(".").strip() or text
    role = operation.role
    needs = "no token" if role is None else f"{'' if role is Role.ADMIN else 'at least '}the role {role.text}"
    return {"summary": summary, "description": f"{rest} Requires {needs}."}


# Parameters and bodies -------------------------------------------------------------------------------------


def _path_parameters(path: str) -> Iterator[dict[str, object]]:
    for name, rest in _NAMES.findall(path):
        schema = {"type": "string", "minLength": 1} | ({} if rest else {"maxLength": MAX_NAME_BYTES})
        yield {"name": name, "in": "path", "required": True, "description": PATH_TEXTS[name], "schema": schema}


def _query_parameters(operation: Operation) -> Iterator[dict[str, object]]:
    for param in operation.query:
        yield {"name": param.name, "in": "query", "description": param.described(), "schema": param.schema()}


def _body(operation: Operation, schemas: Schemas) -> dict[str, object]:
    if operation.body is None:
        return {}
    content = {JSON: {"schema": schemas(operation.body)}}
    return {"requestBody": {"required": not operation.body_optional, "content": content}}


# Answers ---------------------------------------------------------------------------------------------------


def _responses(operation: Operation, schemas: Schemas) -> Mapping[str, object]:
    responses: dict[int, dict[str, object]] = {}
    for status, type in operation.answers.items():
        responses[status] = {"description": _STATUS_TEXTS[status]}
        if type is not None:
            responses[status]["content"] = {operation.media: {"schema": schemas(type)}}
    error = {JSON: {"schema": schemas(ErrorAnswer)}}
    for status, codes in _failures(operation).items():
        if status not in responses:
            responses[status] = {"description": f"{_STATUS_TEXTS[status]} Codes: {', '.join(codes)}.", "content": error}
    return {str(status): responses[status] for status in sorted(responses)}


def _failures(operation: Operation) -> dict[int, list[str]]:
    """Error codes by status: those of the operation, and those that all operations share."""
    common = [
        Failure(400, "invalid_input"),
        Failure(403, "cross_origin"),
        Failure(403, "host_not_allowed"),
        Failure(429, "overloaded"),
        Failure(503, "engine_failure"),
        Failure(503, "store_unavailable"),
    ]
    if operation.role is not None and operation.role >= Role.READ_WRITE:
        common.append(Failure(507, "disk_full"))
    if operation.body is not None:
        common += [Failure(400, "invalid_json"), Failure(413, "body_too_large")]
    if operation.role is not None:
        common += [Failure(401, "unauthorized"), Failure(403, "forbidden"), Failure(403, "queue_not_allowed")]
    codes: dict[int, list[str]] = {}
    for failure in (*operation.errors, *common):
        codes.setdefault(failure.status, []).append(failure.code)
    return codes
