"""Queue options and limits of consumer groups: names, bounds and checks."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated

import msgspec

from hark.errors import InvalidInput
from hark.http.checks import MAX_NUMBER, check_int, decode_json, short
from hark.model import Limits, QueueOptions
from hark.model.queues import texts_of

log = logging.getLogger(__name__)

_YEAR = 365 * 86_400
_INTEGERS = {
    "leaseTime": (1, 10 * _YEAR),
    "retryLimit": (0, 1000),
    "retryDelay": (0, 10 * _YEAR * 1000),
    "retryMaxDelay": (0, 10 * _YEAR * 1000),
    "delayedProcessing": (0, 10 * _YEAR),
    "windowBuffer": (0, _YEAR),
    "priority": (-1_000_000, 1_000_000),
    "maxSize": (0, MAX_NUMBER),
    "ttl": (0, 100 * _YEAR),
    "retentionSeconds": (0, 100 * _YEAR),
    "completedRetentionSeconds": (0, 100 * _YEAR),
    "maxWaitTimeSeconds": (0, 100 * _YEAR),
    "maxInFlight": (0, 1_000_000_000),
    "rateBurst": (0, 1_000_000_000),
    "lockDuration": (0, 10 * _YEAR * 1000),
}
_MAX_MULTIPLIER = 1000
_RATES = (0.0001, 1_000_000)
"""Below the minimum, the wait for the next message would be longer than hours."""
_NUMBERS = {"retryMultiplier": (1, _MAX_MULTIPLIER), "rateLimit": (0, _RATES[1])}
_NAMES = frozenset(field.encode_name for field in msgspec.structs.fields(QueueOptions))
_LIMITS = tuple(field.encode_name for field in msgspec.structs.fields(Limits))


def _schema(options: type[QueueOptions | Limits]) -> dict[str, dict[str, object]]:
    """Return the JSON schemas of options. Null means the default."""
    properties: dict[str, dict[str, object]] = {}
    for field in msgspec.structs.fields(options):
        name, default = field.encode_name, field.default
        if name in _INTEGERS:
            low, high = _INTEGERS[name]
            properties[name] = {"type": ["integer", "null"], "minimum": low, "maximum": high, "default": default}
        elif name in _NUMBERS:
            least, most = _NUMBERS[name]
            properties[name] = {"type": ["number", "null"], "minimum": least, "maximum": most, "default": default}
        else:
            properties[name] = {"type": ["boolean", "null"], "default": default}
    for name, text in texts_of(options).items():
        properties[name] = {"description": text, **properties[name]}
    return properties


OptionsBody = Annotated[dict[str, msgspec.Raw], msgspec.Meta(extra_json_schema={"properties": _schema(QueueOptions)})]
LimitsBody = Annotated[
    dict[str, msgspec.Raw],
    msgspec.Meta(extra_json_schema={"properties": _schema(Limits), "additionalProperties": False}),
]


def read_options(given: Mapping[str, msgspec.Raw], queue: str) -> tuple[QueueOptions, list[str]]:
    """Return the checked options, and the names of unknown options. Null means the default."""
    values: dict[str, int | float | bool] = {}
    ignored: list[str] = []
    for name, raw in given.items():
        if name not in _NAMES:
            ignored.append(name)
        elif (value := bytes(raw)) != b"null":
            values[name] = _read_option(name, value, f"options.{name}")
    _check_burst(values, "options.rateBurst")
    if ignored:
        log.warning("queue %r: ignored unknown options %s; check their spelling", queue, ", ".join(map(short, ignored)))
    return msgspec.convert(values, QueueOptions), ignored


def read_limits(given: Mapping[str, msgspec.Raw]) -> Limits:
    """Return the checked limits of a group. Unknown names are rejected: to ignore them would remove a limit."""
    values: dict[str, int | float | bool] = {}
    for name, raw in given.items():
        if name not in _LIMITS:
            raise InvalidInput(f"{short(name)}: unknown limit; expected {', '.join(_LIMITS)}")
        if (value := bytes(raw)) != b"null":
            values[name] = _read_option(name, value, name)
    _check_burst(values, "rateBurst")
    return msgspec.convert(values, Limits)


def _check_burst(values: Mapping[str, int | float | bool], where: str) -> None:
    if values.get("rateBurst") and not values.get("rateLimit"):
        raise InvalidInput(f"{where}: allowed only together with rateLimit; set both")


def _read_option(name: str, value: bytes, where: str) -> int | float | bool:
    if name in _INTEGERS:
        return check_int(decode_json(value, int, where), where, *_INTEGERS[name])
    if name == "retryMultiplier":
        multiplier = decode_json(value, float, where)
        if not 1 <= multiplier <= _MAX_MULTIPLIER:
            raise InvalidInput(f"{where}: expected a number from 1 to {_MAX_MULTIPLIER}, got {short(multiplier)}")
        return multiplier
    if name == "rateLimit":
        rate = decode_json(value, float, where)
        low, high = _RATES
        if rate and not low <= rate <= high:
            raise InvalidInput(f"{where}: expected 0 (no limit) or a number from {low} to {high}, got {short(rate)}")
        return rate
    return decode_json(value, bool, where)
