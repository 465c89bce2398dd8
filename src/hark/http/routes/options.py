"""The options of a queue: which there are, and what values they may have."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from hark.errors import InvalidInput
from hark.http.checks import MAX_NUMBER, check_int, decode_json, short
from hark.model import QueueOptions

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
}
_MAX_MULTIPLIER = 1000
_NAMES = frozenset(field.encode_name for field in msgspec.structs.fields(QueueOptions))


def read_options(given: Mapping[str, msgspec.Raw], queue: str) -> tuple[QueueOptions, list[str]]:
    """The checked options, and the names of those that mean nothing here; what is null has its default."""
    values: dict[str, int | float | bool] = {}
    ignored: list[str] = []
    for name, raw in given.items():
        if name not in _NAMES:
            ignored.append(name)
        elif (value := bytes(raw)) != b"null":
            values[name] = _read_option(name, value)
    if ignored:
        log.warning("queue %r: unknown options were ignored: %s", queue, ", ".join(map(short, ignored)))
    return msgspec.convert(values, QueueOptions), ignored


def _read_option(name: str, value: bytes) -> int | float | bool:
    where = f"options.{name}"
    if name in _INTEGERS:
        return check_int(decode_json(value, int, where), where, *_INTEGERS[name])
    if name == "retryMultiplier":
        multiplier = decode_json(value, float, where)
        if not 1 <= multiplier <= _MAX_MULTIPLIER:
            raise InvalidInput(f"{where}: expected a number from 1 to {_MAX_MULTIPLIER}, got {short(multiplier)}")
        return multiplier
    return decode_json(value, bool, where)
