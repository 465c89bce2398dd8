"""Loads settings from hark.toml, the environment and flags, and explains invalid ones."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from hark.errors import InvalidSetting
from hark.settings.addresses import peer_addresses
from hark.settings.table import FILE_ALIASES, SETTINGS, Setting, value_of
from hark.settings.tree import Settings
from hark.settings.worker import POLL_INTERVAL

DEFAULT_FILE = Path("hark.toml")

# Variables of clients, the command line, the tests and the benchmark. They are not settings of a server.
_NOT_SETTINGS = frozenset({"HARK_URL", "HARK_CONFIG", "HARK_TOKEN", "HARK_CA_FILE"})
_NOT_SETTINGS_PREFIXES = ("HARK_TEST_", "HARK_BENCH_")

# Prefixes that only the earlier systems use. An unknown variable with one of them is meant for Hark.
_SEED_PREFIXES = ("SIDECAR_", "QUEEN_UDP_", "QO_POLLING_")

_STRATEGY = "worker.polling.strategy"

_NOT_ABOVE = (
    ("pop.default_timeout_ms", "pop.max_timeout_ms"),
    ("pop.default_batch", "limits.max_batch"),
    ("fallback.initial_ms", "fallback.max_ms"),
)


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """Settings, the source of each, and warnings for the user."""

    settings: Settings
    sources: Mapping[str, str]
    """By dotted name: `default`, `hark.toml`, `HARK_PORT`, `PORT (alias)` or `--port`."""
    notes: tuple[str, ...] = ()
    """Warnings about variables that look like settings and have no effect."""


def load(flags: Mapping[str, object], env: Mapping[str, str], toml_path: Path | None = None) -> Loaded:
    """Merge hark.toml, the environment and flags (by dotted name; None means not given). Raises `InvalidSetting`.

    The file is `toml_path`, otherwise the file that HARK_CONFIG names, otherwise ./hark.toml if it exists.
    """
    values: dict[str, object] = {}
    sources = dict.fromkeys(SETTINGS, "default")
    for level in (_from_file(toml_path, env), _from_env(env), _from_flags(flags)):
        said: dict[str, str] = {}
        for name, value, source in level:
            if name in said and values[name] != value:
                raise InvalidSetting(
                    f"setting {name}: {said[name]} sets {_short(values[name])}, but {source} implies {_short(value)}; "
                    "remove one of them"
                )
            values[name], sources[name], said[name] = value, source, source
    settings = msgspec.convert(_nested(values), Settings)
    for lower, upper in _NOT_ABOVE:
        _check_not_above(settings, sources, lower, upper)
    if settings.worker.polling.strategy == "adaptive":
        _check_not_above(settings, sources, "worker.polling.min_interval_ms", "worker.polling.max_interval_ms")
    _check_peers(settings, sources)
    return Loaded(settings=settings, sources=sources, notes=tuple(_notes(env)))


Found = tuple[str, object, str]
"""A setting's dotted name, its checked value, and its source. If a name occurs twice, both values must be equal."""


def _from_file(path: Path | None, env: Mapping[str, str]) -> Iterator[Found]:
    """Read the TOML file, if it exists."""
    if path is None and env.get("HARK_CONFIG"):
        path = Path(env["HARK_CONFIG"])
    if path is None:
        if not DEFAULT_FILE.exists():
            return
        path = DEFAULT_FILE
    try:
        with path.open("rb") as file:
            tree = tomllib.load(file)
    except OSError as error:
        raise InvalidSetting(
            f"cannot read the settings file {path}: {error.strerror}; check the path and its permissions"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"the settings file {path} is not valid TOML: {error}") from error
    found: dict[str, str] = {}
    for key, value in _flat(tree, str(path)):
        name = FILE_ALIASES.get(key, key)
        if name in found:
            raise InvalidSetting(
                f"setting {name}: {path} sets it twice, as {found[name]} and as {key}; remove one of them"
            )
        found[name] = key
        source = f"{path} (poll_interval)" if key in POLL_INTERVAL else str(path)
        yield name, _checked(SETTINGS[name], value, source, strict=True), source
    if not POLL_INTERVAL.isdisjoint(found.values()):
        yield _STRATEGY, "fixed", f"{path} (poll_interval)"


def _flat(tree: Mapping[str, Any], source: str, prefix: str = "") -> Iterator[tuple[str, object]]:
    """List a TOML tree by dotted name. Names that are not settings are errors."""
    for key, value in tree.items():
        name = prefix + key
        is_part = any(known.startswith(name + ".") for known in SETTINGS)
        if is_part and isinstance(value, dict):
            yield from _flat(value, source, name + ".")
        elif is_part:
            raise InvalidSetting(f"setting {name}: {source} sets a single value, expected a table: [{name}]")
        elif name in SETTINGS or name in FILE_ALIASES:
            yield name, value
        else:
            raise InvalidSetting(f"unknown setting {name!r} in {source}{_nearest(name, SETTINGS)}")


def _from_env(env: Mapping[str, str]) -> Iterator[Found]:
    """Read HARK_* variables, or an alias if the HARK_* variable is not set. Empty variables count as not set."""
    known = {name for setting in SETTINGS.values() for name in (setting.env, *setting.aliases) if name[:5] == "HARK_"}
    for variable in sorted(env):
        if not variable.startswith("HARK_") or variable in known or variable in _NOT_SETTINGS:
            continue
        if not variable.startswith(_NOT_SETTINGS_PREFIXES):
            hint = _kubernetes(variable, env[variable]) or _nearest(variable, known)
            raise InvalidSetting(f"unknown setting {variable} in the environment{hint}")
    for setting in SETTINGS.values():
        for variable in (setting.env, *setting.aliases):
            if text := env.get(variable, "").strip():
                source = variable if variable == setting.env else f"{variable} (alias)"
                yield setting.name, _checked(setting, text, source, strict=False), source
                break
    for variable in sorted(POLL_INTERVAL):
        if env.get(variable, "").strip():
            yield _STRATEGY, "fixed", f"{variable} (alias)"


def _from_flags(flags: Mapping[str, object]) -> Iterator[Found]:
    """Read the flags that were given."""
    for name, value in flags.items():
        if value is not None:
            setting = SETTINGS[name]
            yield name, _checked(setting, value, setting.flag, strict=False), setting.flag


def _checked(setting: Setting, value: object, source: str, *, strict: bool) -> object:
    """Convert a value to the setting's type. Unless `strict` (TOML), text can become a number or a list."""
    if isinstance(value, str) and setting.choices:
        candidate: object = value.lower()
    elif isinstance(value, str) and setting.many and not strict:
        candidate = [item for part in value.split(",") if (item := part.strip())]
    else:
        candidate = value
    try:
        return msgspec.convert(candidate, setting.type, strict=strict)
    except msgspec.ValidationError:
        given = "invalid value (not shown)" if setting.secret else f"invalid value {_short(value)}"
        hint = _kubernetes(source, value)
        raise InvalidSetting(
            f"setting {setting.name}: {given} from {source}, expected {setting.expected}{hint}"
        ) from None


def _check_not_above(settings: Settings, sources: Mapping[str, str], lower: str, upper: str) -> None:
    """Reject a value above the setting that limits it."""
    value, bound = value_of(settings, lower), value_of(settings, upper)
    if value > bound:
        raise InvalidSetting(
            f"setting {lower}: invalid value {value} from {sources[lower]}, expected at most {bound}, "
            f"the value of {upper} ({sources[upper]})"
        )


def _check_peers(settings: Settings, sources: Mapping[str, str]) -> None:
    """Reject invalid peer addresses at start-up."""
    for entry in settings.peers:
        try:
            peer_addresses(entry)
        except ValueError:
            raise InvalidSetting(
                f"setting peers: invalid value {_short(entry)} from {sources['peers']}, "
                f"expected {SETTINGS['peers'].expected}"
            ) from None


def _notes(env: Mapping[str, str]) -> Iterator[str]:
    """Warn about variables of earlier systems that have no effect."""
    aliases = {alias for setting in SETTINGS.values() for alias in setting.aliases}
    for variable in sorted(env):
        if variable.startswith(_SEED_PREFIXES) and variable not in aliases:
            yield f"{variable} is not a setting and has no effect{_nearest(variable, aliases)}"


def _nested(values: Mapping[str, object]) -> dict[str, Any]:
    """Turn dotted names back into a tree."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *parts, last = name.split(".")
        part = tree
        for key in parts:
            part = part.setdefault(key, {})
        part[last] = value
    return tree


def _nearest(name: str, known: Iterable[str]) -> str:
    """Suggest the most similar name."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else "; docs/settings.md lists all settings"


def _kubernetes(variable: str, value: object) -> str:
    """Explain the variables that Kubernetes generates for a Service named `hark`."""
    invented = variable.startswith(("HARK_SERVICE_", "HARK_PORT_")) or str(value).startswith("tcp://")
    if not (variable.startswith("HARK_") and invented):
        return ""
    return (
        "; Kubernetes sets this variable for a Service named hark: set `enableServiceLinks: false` in the pod, "
        "or rename the Service"
    )


def _short(value: object) -> str:
    """Shorten a value to at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
