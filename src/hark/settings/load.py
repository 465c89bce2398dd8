"""Loads settings from hark.toml, the environment and flags, and explains invalid ones."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import inspect

from hark.errors import InvalidSetting, did_you_mean
from hark.settings.sections import HIDDEN, POLL_INTERVAL, peer_addresses
from hark.settings.tree import Settings

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


DEFAULT_FILES = (Path("hark.toml"), Path("qo.toml"))
"""The first one that exists is read. The second has the name that an earlier system used."""
_MANIFEST = Path("manifest.yaml")
_LOCK_DURATION = re.compile(r"^\s*lockDuration:\s*(\d+)", re.MULTILINE)

# Variables of clients, the command line, the tests and the benchmark. They are not settings of a server.
_NOT_SETTINGS = frozenset({"HARK_URL", "HARK_CONFIG", "HARK_TOKEN", "HARK_CA_FILE"})
_NOT_SETTINGS_PREFIXES = ("HARK_TEST_", "HARK_BENCH_")

# Prefixes that only the earlier systems use. An unknown variable with one of them is meant for Hark.
_SEED_PREFIXES = ("SIDECAR_", "QUEEN_UDP_", "QO_POLLING_")

_LONG_NAME = 9
_ALIKE = 0.9
"""How similar a variable must be to a known one to count as misspelt."""
_PASSWORD = re.compile(r"postgres(ql)?://([^/?#]*:[^/?#]+@|.*[?&]\w*password=)", re.IGNORECASE)
"""The URL of a database with a password."""

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

    The file is `toml_path`, otherwise the file that HARK_CONFIG names, otherwise ./hark.toml or ./qo.toml.
    """
    values: dict[str, object] = {}
    sources = dict.fromkeys(SETTINGS, "default")
    for level in (_from_file(toml_path, env), _from_env(env), _from_flags(flags)):
        origins: dict[str, str] = {}
        for name, value, source in level:
            if name in origins and values[name] != value:
                raise InvalidSetting(
                    f"setting {name}: {origins[name]} sets {_short(values[name])}, "
                    f"but {source} implies {_short(value)}; "
                    "remove one of them"
                )
            values[name], sources[name], origins[name] = value, source, source
    settings = msgspec.convert(_nested(values), Settings)
    for lower, upper in _NOT_ABOVE:
        _check_not_above(settings, sources, lower, upper)
    if settings.worker.polling.strategy == "adaptive":
        _check_not_above(settings, sources, "worker.polling.min_interval_ms", "worker.polling.max_interval_ms")
    _check_peers(settings, sources)
    return Loaded(settings=settings, sources=sources, notes=(*_notes(env), *_exposed(settings, sources)))


Found = tuple[str, object, str]
"""A setting's dotted name, its checked value, and its source. If a name occurs twice, both values must be equal."""


def _from_file(path: Path | None, env: Mapping[str, str]) -> Iterator[Found]:
    """Read the TOML file, if it exists."""
    if path is None and env.get("HARK_CONFIG"):
        path = Path(env["HARK_CONFIG"])
    if path is None:
        path = next((file for file in DEFAULT_FILES if file.exists()), None)
        if path is None:
            return
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
            if name == "engine" and _PASSWORD.match(str(value)):
                raise InvalidSetting(
                    "setting engine: other users can see the password in a command line; set the URL in the variable "
                    "HARK_ENGINE or in hark.toml (engine) instead, or put the password into the file that PGPASSFILE "
                    "names (~/.pgpass)"
                )
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
    """Warn about variables and files of earlier systems that have no effect, and about misspelt variables."""
    aliases = {alias for setting in SETTINGS.values() for alias in setting.aliases}
    # Short names, such as PORT, resemble too many others.
    long = [alias for alias in aliases if "_" in alias and len(alias) >= _LONG_NAME]
    for variable in sorted(env.keys() - aliases):
        if variable.startswith("HARK_"):
            continue  # Known, or refused.
        if variable.startswith(_SEED_PREFIXES) or get_close_matches(variable, long, n=1, cutoff=_ALIKE):
            yield f"{variable} is not a setting and has no effect{_nearest(variable, aliases)}"
    if _MANIFEST.exists():
        hold = _LOCK_DURATION.search(_MANIFEST.read_text(errors="replace"))
        same = f"; in hark.toml write: [queue] lock_duration = {hold[1]}" if hold else "; write settings into hark.toml"
        yield f"{_MANIFEST} is not read and has no effect{same}"


def _exposed(settings: Settings, sources: Mapping[str, str]) -> Iterator[str]:
    """Warn about files with secrets that other users can read."""
    files = {source for name, source in sources.items() if SETTINGS[name].secret}
    if _PASSWORD.match(settings.engine):
        files.add(sources["engine"])
    files.add(settings.tls.key)
    for file in sorted(files):
        with suppress(OSError):  # Not a file: a variable, a flag, the default. Or a file that others report as missing.
            if file and Path(file).stat().st_mode & 0o077:
                yield f"other users can read {file}, which contains secrets; restrict it with: chmod 600 {file}"


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
    return did_you_mean(name, known) or "; docs/settings.md lists all settings"


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
