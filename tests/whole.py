"""Answers for tests that give only the fields that matter to them."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import inspect


def whole(given: Any, shape: Any) -> Any:
    """The given part of a value of a type, with all that the type requires."""
    return _whole(given, msgspec.inspect.type_info(shape))


def _whole(given: Any, info: inspect.Type) -> Any:
    match info:
        case inspect.Metadata():
            return _whole(given, info.type)
        case inspect.StructType():
            known = {field.encode_name: field.type for field in info.fields}
            required = {field.encode_name: _something(field.type) for field in info.fields if field.required}
            return required | {name: _whole(one, known.get(name, inspect.AnyType())) for name, one in given.items()}
        case inspect.ListType() | inspect.VarTupleType() | inspect.CollectionType():
            return [_whole(one, info.item_type) for one in given]
        case inspect.DictType():
            return {name: _whole(one, info.value_type) for name, one in given.items()}
        case inspect.UnionType() if given is not None:
            fits = [one for one in info.types if not isinstance(one, inspect.StructType) or _tagged(given, one)]
            return _whole(
                given, next((one for one in fits if not isinstance(one, inspect.NoneType)), inspect.AnyType())
            )
    return given


def _tagged(given: Any, info: inspect.StructType) -> bool:
    return info.tag_field is None or given.get(info.tag_field) == info.tag


def _something(info: inspect.Type) -> Any:
    """The least value of a type."""
    match info:
        case inspect.Metadata():
            return _something(info.type)
        case inspect.StructType():
            return _whole({}, info)
        case inspect.UnionType():
            return None if info.includes_none else _something(info.types[0])
        case inspect.ListType() | inspect.VarTupleType() | inspect.CollectionType():
            return []
        case inspect.DictType():
            return {}
        case inspect.LiteralType():
            return info.values[0]
        case inspect.DateTimeType():
            return "2026-01-02T03:04:05.678Z"
        case inspect.BoolType():
            return False
        case inspect.IntType() | inspect.FloatType():
            return 0
        case inspect.StrType():
            return ""
    return None
