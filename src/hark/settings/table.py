"""All settings as one table, derived from the tree."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import inspect

from hark.settings.tree import Settings

HIDDEN = "******"
_IN_QUERY = re.compile(r"([?&][^=&]*(?:password|secret|key|token)[^=&]*=)[^&]*", re.IGNORECASE)
_SHORT_FLAGS = {"strategy": "polling", "grace_seconds": "grace"}


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting: its names, default and accepted values."""

    name: str
    """The dotted name, as in hark.toml."""
    type: Any
    default: Any
    meaning: str
    expected: str
    aliases: tuple[str, ...]
    secret: bool
    many: bool
    """A list; in the environment its items are separated by commas."""
    choices: tuple[str, ...]
    env: str
    """The variable that sets it."""

    @property
    def flag(self) -> str:
        """The flag that sets it, where a command has one. Flags of `hark work` omit `worker` and `polling`."""
        name = self.name.removeprefix("worker.").removeprefix("polling.")
        return "--" + _SHORT_FLAGS.get(name, name).replace(".", "-").replace("_", "-")


def _range(kind: str, of: inspect.IntType | inspect.FloatType) -> str:
    """Describe the accepted range of numbers."""
    low, high = (f"{bound:.15g}" if bound is not None else None for bound in (of.ge, of.le))
    return f"{kind} from {low} to {high}" if low is not None and high is not None else kind


def _expected(of: inspect.Type) -> str:
    """Describe the values that a type accepts."""
    match of:
        case inspect.IntType():
            return _range("a whole number", of)
        case inspect.FloatType():
            return _range("a number", of)
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType(values):
            return "one of: " + ", ".join(map(str, values))
        case _:
            return "text"


def _rows(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[Setting]:
    """List the settings of a struct and of its nested structs, in order."""
    for field in msgspec.structs.fields(struct):
        name = prefix + field.name
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _rows(field.type, name + ".")
            continue
        about = inspect.type_info(field.type)
        if not isinstance(about, inspect.Metadata) or about.extra is None:
            raise TypeError(f"setting {name} is not described")
        yield Setting(
            name=name,
            type=field.type,
            default=field.default,
            meaning=(about.extra_json_schema or {})["description"],
            expected=about.extra["expected"] or _expected(about.type),
            aliases=about.extra["aliases"],
            secret=about.extra["secret"],
            many=isinstance(about.type, inspect.VarTupleType),
            choices=tuple(map(str, about.type.values)) if isinstance(about.type, inspect.LiteralType) else (),
            env=about.extra["env"] or "HARK_" + name.replace(".", "_").upper(),
        )


SETTINGS: Mapping[str, Setting] = MappingProxyType({setting.name: setting for setting in _rows(Settings)})
"""Every setting by its dotted name."""

FILE_ALIASES: Mapping[str, str] = MappingProxyType(
    {alias: setting.name for setting in SETTINGS.values() for alias in setting.aliases if "." in alias}
)
"""Alternative names in hark.toml, and the setting of each."""


def value_of(settings: Settings, name: str) -> Any:
    """Look up a setting by its dotted name."""
    value: Any = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value


def shown(settings: Settings, name: str) -> Any:
    """Return a setting's value without keys and passwords, so that it can be shown."""
    value = value_of(settings, name)
    if SETTINGS[name].secret:
        return HIDDEN if value else value
    return _without_passwords(value) if isinstance(value, str) else value


def _without_passwords(text: str) -> str:
    """Mask the passwords of a URL, before its host and in its query. A password can contain any character."""
    text = _IN_QUERY.sub(rf"\1{HIDDEN}", text)
    return re.sub(r"(://[^:@/]*):.*@", rf"\1:{HIDDEN}@", text)
