"""Bodies and answers of the HTTP API, by topic: their bases, pages and errors, and how they are written as JSON.

A field with another name on the wire says so. `from hark.api import types` loads no topic before it is used, so that a
command loads only what it shows.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, dataclass_transform, get_origin

import msgspec

from hark.errors import InvalidInput

if TYPE_CHECKING:
    from hark.api.types import dead_letters, delivery, frames, groups, keys, messages, queues, server, tasks

__all__ = ["dead_letters", "delivery", "frames", "groups", "keys", "messages", "queues", "server", "tasks"]

T = TypeVar("T")
Shape = TypeVar("Shape", bound=msgspec.Struct)
OptionalRaw = msgspec.Raw | msgspec.UnsetType
"""Any JSON, not decoded. UNSET is absent, which differs from null."""
Number = Annotated[Any, msgspec.Meta(extra_json_schema={"type": "number"})]
"""A number in a body. It is not typed, so that the server can limit the work of converting it."""


@dataclass_transform(field_specifiers=(msgspec.field,), frozen_default=True)
class Answer(msgspec.Struct, frozen=True, rename="camel"):
    """Base of answers: camelCase on the wire. Readers ignore unknown fields.

    All fields are always sent. With `omit_defaults`, those that have their default are left out.
    """


class Body(msgspec.Struct, rename="camel", omit_defaults=True):
    """Base of request bodies: camelCase on the wire. Null means absent, and absent fields are not sent."""


class Pagination(Answer):
    """The page of a list."""

    limit: int
    offset: int


class Single(Answer, Generic[T]):
    """One value, in a field whose name `renamed` gives."""

    value: T


class SingleBody(Body, Generic[T]):
    """A body with one field, which can be absent, and whose name `renamed` gives."""

    value: T | None = None


class Page(Answer, Generic[T]):
    """A page of a list, in a field whose name `renamed` gives, and the number of all matches."""

    items: tuple[T, ...]
    total: int
    pagination: Pagination


def renamed(shape: type[Shape], name: str, text: str, **names: str) -> type[Shape]:
    """Return a shape whose fields have other names on the wire, with its name and text in the OpenAPI document."""
    fields = msgspec.structs.fields(shape)
    return msgspec.defstruct(  # type: ignore[return-value]  # It inherits from the shape.
        name,
        [(field.name, field.type, *(() if field.required else (field.default,))) for field in fields],
        bases=(get_origin(shape) or shape,),
        namespace={"__doc__": text},
        rename={field.name: names.get(field.name, field.encode_name) for field in fields},
    )


class Success(Answer):
    """A successful operation."""

    success: bool


class SuccessWith(Success, Generic[T]):
    """A successful operation with a value, in fields whose names `renamed` gives."""

    value: T


class ErrorAnswer(Answer):
    """An error: a text for people, and a stable code for programs."""

    error: str
    code: str


encode = msgspec.json.Encoder().encode
"""Returns a body or an answer as JSON. `msgspec.Raw` parts are written byte for byte."""


def raw(value: object) -> msgspec.Raw:
    """Return a value as JSON for a field that is not decoded."""
    return msgspec.Raw(encode(value))


def decode_value(raw: msgspec.Raw, shape: type[T], what: str) -> T:
    """Decode a payload or a value as a type."""
    try:
        return msgspec.json.decode(raw, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{what} does not have the expected type: {error}", code="unexpected_value") from error


class WithPayload:
    """An answer with a payload, which is not decoded."""

    __slots__ = ()
    payload: msgspec.Raw
    _source = "message {0.id}"

    @property
    def data(self) -> Any:
        """The payload, decoded from JSON."""
        return msgspec.json.decode(self.payload)

    def decode(self, shape: type[T]) -> T:
        """Decode the payload as a type. Raises `InvalidInput` if it does not fit."""
        return decode_value(self.payload, shape, f"the payload of {self._source.format(self)}")


def __getattr__(name: str) -> ModuleType:
    """Import a topic on first use."""
    if name not in __all__:
        raise AttributeError(f"module 'hark.api.types' has no attribute {name!r}")
    return import_module(f"hark.api.types.{name}")
