"""What all answers share: their base, pages and errors, and how they are written as JSON."""

from __future__ import annotations

from typing import Any, TypeVar, dataclass_transform

import msgspec

from hark.errors import InvalidInput

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


def extended(shape: type[T], by: msgspec.Struct, **more: Any) -> T:
    """Return an answer with the fields of another one, which has a part of its fields, and more of them."""
    return shape(**{**msgspec.structs.asdict(by), **more})


encode = msgspec.json.Encoder().encode
"""Returns a body or an answer as JSON. `msgspec.Raw` parts are written byte for byte."""


# Payloads --------------------------------------------------------------------------------------------------


def decode_value(raw: msgspec.Raw, shape: type[T], what: str) -> T:
    """Decode a payload or a value as a type."""
    try:
        return msgspec.json.decode(raw, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{what} does not have the expected type: {error}", code="unexpected_value") from error
