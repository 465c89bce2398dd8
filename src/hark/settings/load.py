"""Reading settings from their three sources, and saying clearly what is wrong with them."""

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

# Variables of clients and of the command line, of the tests and of the benchmark: not settings of a server.
_NOT_SETTINGS = frozenset({"HARK_URL", "HARK_CONFIG", "HARK_TOKEN", "HARK_CA_FILE"})
_NOT_SETTINGS_PREFIXES = ("HARK_TEST_", "HARK_BENCH_")

# Prefixes that only the seeds use, so that an unknown name under them is surely meant for us.
_SEED_PREFIXES = ("SIDECAR_", "QUEEN_UDP_", "QO_POLLING_")

_STRATEGY = "worker.polling.strategy"

_NOT_ABOVE = (
    ("pop.default_timeout_ms", "pop.max_timeout_ms"),
    ("pop.default_batch", "limits.max_batch"),
    ("fallback.initial_ms", "fallback.max_ms"),
)


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """Settings, where each came from, and what a user should know about them."""

    settings: Settings
    sources: Mapping[str, str]
    """By dotted name: `default`, `hark.toml`, `HARK_PORT`, `PORT (alias)` or `--port`."""
    notes: tuple[str, ...] = ()
    """Variables that look like settings and have no effect."""


def load(flags: Mapping[str, object], env: Mapping[str, str], toml_path: Path | None = None) -> Loaded:
    """Join hark.toml, the environment and flags (by dotted name, None: not given); raises `InvalidSetting`.

    The file is `toml_path`, else what HARK_CONFIG names, else ./hark.toml if there is one.
    """
    values: dict[str, object] = {}
    sources = dict.fromkeys(SETTINGS, "default")
    for level in (_from_file(toml_path, env), _from_env(env), _from_flags(flags)):
        said: dict[str, str] = {}
        for name, value, source in level:
            if name in said and values[name] != value:
                raise InvalidSetting(
                    f"setting {name}: {said[name]} says {_short(values[name])} and {source} means {_short(value)}; "
                    "leave one of them out"
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
"""A setting's dotted name, its checked value, and its source; a name that comes twice must have one value."""


def _from_file(path: Path | None, env: Mapping[str, str]) -> Iterator[Found]:
    """Read the TOML file, if there is one."""
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
        raise InvalidSetting(f"the settings file {path} can't be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"the settings file {path} is not TOML: {error}") from error
    found: dict[str, str] = {}
    for key, value in _flat(tree, str(path)):
        name = FILE_ALIASES.get(key, key)
        if name in found:
            raise InvalidSetting(f"setting {name}: {path} has it twice, as {found[name]} and as {key}")
        found[name] = key
        source = f"{path} (poll_interval)" if key in POLL_INTERVAL else str(path)
        yield name, _checked(SETTINGS[name], value, source, strict=True), source
    if not POLL_INTERVAL.isdisjoint(found.values()):
        yield _STRATEGY, "fixed", f"{path} (poll_interval)"


def _flat(tree: Mapping[str, Any], source: str, prefix: str = "") -> Iterator[tuple[str, object]]:
    """List a TOML tree by dotted name; names that are not settings are errors."""
    for key, value in tree.items():
        name = prefix + key
        is_part = any(known.startswith(name + ".") for known in SETTINGS)
        if is_part and isinstance(value, dict):
            yield from _flat(value, source, name + ".")
        elif is_part:
            raise InvalidSetting(f"setting {name}: {source} gives it a value, expected a table: [{name}]")
        elif name in SETTINGS or name in FILE_ALIASES:
            yield name, value
        else:
            raise InvalidSetting(f"there is no setting {name!r}, but {source} has it{_nearest(name, SETTINGS)}")


def _from_env(env: Mapping[str, str]) -> Iterator[Found]:
    """Read HARK_* variables and, where there is none, aliases; an empty variable counts as not set."""
    known = {name for setting in SETTINGS.values() for name in (setting.env, *setting.aliases) if name[:5] == "HARK_"}
    for variable in sorted(env):
        if not variable.startswith("HARK_") or variable in known or variable in _NOT_SETTINGS:
            continue
        if not variable.startswith(_NOT_SETTINGS_PREFIXES):
            hint = _kubernetes(variable, env[variable]) or _nearest(variable, known)
            raise InvalidSetting(f"there is no setting {variable}, but the environment has it{hint}")
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
    """Give a value its type; `strict` keeps TOML's types, else text may be a number or a list."""
    if isinstance(value, str) and setting.choices:
        candidate: object = value.lower()
    elif isinstance(value, str) and setting.many and not strict:
        candidate = [item for part in value.split(",") if (item := part.strip())]
    else:
        candidate = value
    try:
        return msgspec.convert(candidate, setting.type, strict=strict)
    except msgspec.ValidationError:
        says = "has a wrong value (not shown)" if setting.secret else f"says {_short(value)}"
        hint = _kubernetes(source, value)
        raise InvalidSetting(f"setting {setting.name}: {source} {says}, expected {setting.expected}{hint}") from None


def _check_not_above(settings: Settings, sources: Mapping[str, str], lower: str, upper: str) -> None:
    """Refuse a default that the server itself would refuse in a request."""
    value, bound = value_of(settings, lower), value_of(settings, upper)
    if value > bound:
        raise InvalidSetting(
            f"setting {lower}: {sources[lower]} says {value}, expected at most {bound}, "
            f"which is {upper} ({sources[upper]})"
        )


def _check_peers(settings: Settings, sources: Mapping[str, str]) -> None:
    """Refuse what is no address, now and not when it is first used."""
    for entry in settings.peers:
        try:
            peer_addresses(entry)
        except ValueError:
            raise InvalidSetting(
                f"setting peers: {sources['peers']} says {_short(entry)}, expected {SETTINGS['peers'].expected}"
            ) from None


def _notes(env: Mapping[str, str]) -> Iterator[str]:
    """Say which variables of the seeds have no effect, so that nothing is ignored in silence."""
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
    """Suggest what was probably meant."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else "; see docs/settings.md for those that there are"


def _kubernetes(variable: str, value: object) -> str:
    """Explain the variables that Kubernetes invents for a Service named `hark`."""
    invented = variable.startswith(("HARK_SERVICE_", "HARK_PORT_")) or str(value).startswith("tcp://")
    if not (variable.startswith("HARK_") and invented):
        return ""
    return (
        "; Kubernetes sets it for a Service named hark: give the pod `enableServiceLinks: false`, "
        "or the Service another name"
    )


def _short(value: object) -> str:
    """Show a value without flooding the terminal."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
