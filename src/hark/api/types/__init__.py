"""Bodies and answers of the HTTP API, by topic: their bases, pages and errors, and how they are written as JSON.

A field with another name on the wire says so. `from hark.api import types` loads no topic before it is used, so that a
command loads only what it shows.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar, dataclass_transform

import msgspec

from hark.errors import InvalidInput

if TYPE_CHECKING:
    from hark.api.types import dead_letters, delivery, flows, frames, groups, keys, messages, queues, server

__all__ = ["dead_letters", "delivery", "flows", "frames", "groups", "keys", "messages", "queues", "server"]

T = TypeVar("T")


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


class Success(Answer):
    """A successful operation."""

    success: bool


class ErrorAnswer(Answer):
    """An error: a text for people, and a stable code for programs."""

    error: str
    code: str


encode = msgspec.json.Encoder().encode
"""Returns a body or an answer as JSON. `msgspec.Raw` parts are written byte for byte."""


def decode_value(raw: msgspec.Raw, shape: type[T], what: str) -> T:
    """Decode a payload or a value as a type."""
    try:
        return msgspec.json.decode(raw, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{what} does not have the expected type: {error}", code="unexpected_value") from error


def __getattr__(name: str) -> ModuleType:
    """Import a topic on first use."""
    if name not in __all__:
        raise AttributeError(f"module 'hark.api.types' has no attribute {name!r}")
    return import_module(f"hark.api.types.{name}")
