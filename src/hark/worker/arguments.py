"""The arguments of a task: checked on push and on delivery, with a struct made from the function's signature."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_type_hints

import msgspec

from hark.errors import InvalidInput

OPTION_NAMES = frozenset({"delay"})
"""Keyword arguments that `push` uses itself."""

_encode = msgspec.json.Encoder().encode
_encode_canonically = msgspec.json.Encoder(order="deterministic").encode
_FIELD = re.compile(r"`\$\.([^`.\[]+)")
_NAMED = re.compile(r"field `([^`]+)`")


class WrongArguments(InvalidInput, TypeError):
    """A task was pushed or delivered with arguments that its function does not take."""

    code = "wrong_arguments"


class Signature:
    """The parameters of a function: encodes the arguments of a push, and decodes and checks those of a message."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.task = name
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidInput(f"task {name!r}: a task cannot be a generator function; remove the yield")
        parameters = list(inspect.signature(function).parameters.values())
        for parameter in parameters:
            _check_parameter(name, parameter)
        self._positional = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        self._by_position_only = {p.name for p in parameters if p.kind is p.POSITIONAL_ONLY}
        self._defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self.names = tuple(p.name for p in parameters)
        self._decode = msgspec.json.Decoder(_struct_of(name, function, parameters)).decode

    def encode(self, args: Sequence[object], kwargs: dict[str, object]) -> msgspec.Raw:
        """Check and encode the arguments of a push. Raises `WrongArguments`, which names the argument."""
        given = self._bind(args, kwargs)
        try:
            encoded = _encode(given)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise self._not_json(given, error) from error
        self._read(encoded)
        return msgspec.Raw(encoded)

    def decode(self, encoded: msgspec.Raw | bytes) -> dict[str, Any]:
        """Check and decode the arguments of a message, by name. Omitted arguments are not included."""
        values = msgspec.structs.asdict(self._read(encoded))
        if self._defaults:
            return {name: value for name, value in values.items() if value is not msgspec.UNSET}
        return values

    def call(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        """Call the function with these arguments."""
        if not self._by_position_only:
            return function(**arguments)
        first = [arguments[name] for name in self._positional if name in self._by_position_only and name in arguments]
        rest = {name: value for name, value in arguments.items() if name not in self._by_position_only}
        return function(*first, **rest)

    def check_unique(self, names: Sequence[str]) -> None:
        """Check that the defaults of these arguments can be part of a key."""
        for name in names:
            try:
                _encode_canonically(self._defaults.get(name))
            except (TypeError, ValueError, OverflowError, RecursionError) as error:
                raise InvalidInput(
                    f"task {self.task!r}: unique includes {name!r}, whose default cannot be encoded as JSON: {error}; "
                    "name the arguments that count: unique=(...)"
                ) from error

    def unique_key(self, encoded: msgspec.Raw, names: Sequence[str]) -> str:
        """A key that is equal for equal values of these arguments, given or by default."""
        values = self._defaults | self.decode(encoded)
        chosen = {name: values[name] for name in names}
        digest = hashlib.sha256(_encode_canonically([self.task, chosen])).hexdigest()
        return f"{self.task[:60]}:{digest}"

    def _bind(self, args: Sequence[object], kwargs: dict[str, object]) -> dict[str, object]:
        """Give each positional argument its name."""
        if len(args) > len(self._positional):
            raise WrongArguments(
                f"task {self.task!r} takes {len(self._positional)} positional arguments, {len(args)} were given"
            )
        given = dict(zip(self._positional, args, strict=False))
        for name, value in kwargs.items():
            if name in given:
                raise WrongArguments(f"task {self.task!r}: argument {name!r} was given twice")
            if name in self._by_position_only:
                raise WrongArguments(f"task {self.task!r}: argument {name!r} is positional only")
            given[name] = value
        return given

    def _read(self, encoded: msgspec.Raw | bytes) -> msgspec.Struct:
        try:
            found: msgspec.Struct = self._decode(encoded)
        except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise WrongArguments(f"task {self.task!r}: {self._explain(str(error))}") from error
        return found

    def _explain(self, text: str) -> str:
        """The error of msgspec in terms of arguments."""
        takes = f"it takes {', '.join(self.names) or 'no arguments'}"
        if (named := _NAMED.search(text)) and text.startswith("Object missing"):
            return f"argument {named[1]!r} is missing; {takes}"
        if named and text.startswith("Object contains unknown"):
            return f"unknown argument {named[1]!r}; {takes}"
        if field := _FIELD.search(text):
            reason = text.partition(" - at ")[0]
            return f"argument {field[1]!r}: {reason[:1].lower()}{reason[1:]}"
        return f"the arguments cannot be decoded: {text}"

    def _not_json(self, given: dict[str, object], error: Exception) -> WrongArguments:
        """Name the argument that cannot be encoded."""
        for name, value in given.items():
            try:
                _encode(value)
            except (TypeError, ValueError, OverflowError, RecursionError) as reason:
                return WrongArguments(f"task {self.task!r}: argument {name!r} cannot be encoded as JSON: {reason}")
        return WrongArguments(f"task {self.task!r}: the arguments cannot be encoded as JSON: {error}")


def _check_parameter(task: str, parameter: inspect.Parameter) -> None:
    """Reject parameters that cannot be part of a message, or that `push` uses itself."""
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise InvalidInput(
            f"task {task!r}: *{parameter.name} cannot be a parameter of a task, because its types are unknown; "
            "name each argument, or use a list or a dict"
        )
    if parameter.name in OPTION_NAMES:
        raise InvalidInput(
            f"task {task!r}: the parameter {parameter.name!r} is an option of push; rename it, "
            f"for example to {parameter.name}_seconds"
        )


def _struct_of(task: str, function: Callable[..., Any], parameters: Sequence[inspect.Parameter]) -> Any:
    """A struct with a field per parameter. Omitted fields use the function's defaults."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except Exception as error:
        raise InvalidInput(
            f"task {task!r}: cannot resolve an annotation: {error}; define or import its type in the module of the task"
        ) from error
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for parameter in parameters:
        kind = hints.get(parameter.name, Any)
        if parameter.default is parameter.empty:
            fields.append((parameter.name, kind))
        else:
            fields.append((parameter.name, kind | msgspec.UnsetType, msgspec.UNSET))
    try:
        struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        msgspec.json.Decoder(struct)  # Checks the types now, not at the first push.
    except TypeError as error:
        raise InvalidInput(f"task {task!r}: an annotation has a type that JSON cannot represent: {error}") from error
    return struct
