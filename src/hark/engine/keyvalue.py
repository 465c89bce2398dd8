"""Shared code of the key-value part of all engines: ranges, combined values, rejections.

PostgreSQL combines values in `keyvalue.sql`, by the same rules and with the same bytes as the result.
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable

import msgspec

from hark.clock import SECOND
from hark.errors import Conflict, HarkError, Overloaded
from hark.keys import EXACT, encode_key, prefix_bounds
from hark.model import (
    KeyMutation,
    KeyRange,
    KeyStats,
    KeyWritten,
    NewMessage,
    PushOutcome,
    Settlement,
    Transaction,
    TransactionOutcome,
)

MOST_NAMED = 1000
"""Maximum number of keys in the notification of one deletion; above it, the notification covers every key."""

CHECK_FAILED = "check_failed"
REPEATED = "repeated"
VALUE_MISMATCH = "value_mismatch"
NO_NUMBER, NO_STORED_NUMBER, NOT_EXACT, NO_ARRAY, NO_STORED_ARRAY, TOO_LONG, TOO_MUCH = 1, 2, 3, 4, 5, 6, 7
LONGEST_ARRAY = 16 << 20
"""Maximum size in bytes of an appended value: each append rewrites the whole value, and other writes wait for it."""
MOST_APPENDED = 256 << 20
"""Maximum size in bytes of all values that the appends of one request rewrite."""
_MISMATCHES: dict[int, str] = {
    NO_NUMBER: "the value is not an exact number (integers up to 2^53)",
    NO_STORED_NUMBER: "the stored value is not an exact number (integers up to 2^53)",
    NOT_EXACT: "the result is not an exact number (integers up to 2^53)",
    NO_ARRAY: "the value is not an array",
    NO_STORED_ARRAY: "the stored value is not an array",
    TOO_LONG: f"the array would be longer than {LONGEST_ARRAY} bytes; use another key",
    TOO_MUCH: f"the appends of one request would rewrite more than {MOST_APPENDED} bytes; append in one mutation",
}

_SPACE = b" \t\n\r"
_NUMBER = re.compile(rb"(-?[0-9]+)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_LONGEST_FIXED = 1e15
"""From here on numbers that are not whole have an exponent, as PostgreSQL writes them."""
_MANY_ENTRIES = 100_000
_COUNT_AGAIN = 60 * SECOND


class Misfit(Exception):
    """A mutation that cannot be applied to the stored value."""

    def __init__(self, why: int) -> None:
        super().__init__(mismatch_text(why))


def bounds(wanted: KeyRange) -> tuple[bytes, bytes]:
    """The first encoded key of a range, and the first encoded key after it."""
    low, high = prefix_bounds(wanted.prefix)
    if wanted.start is not None:
        low = max(low, encode_key(wanted.start))
    if wanted.end is not None:
        high = min(high, encode_key(wanted.end))
    if wanted.after is not None:
        after = encode_key(wanted.after)
        if wanted.reverse:
            high = min(high, after)
        else:
            low = max(low, after + b"\0")
    return low, high


# Values that are combined ----------------------------------------------------------------------------------


def combine(kind: str, stored: bytes | None, value: bytes) -> bytes:
    """Apply `sum`, `min`, `max`, `append` or `prepend` to a stored value. Raises `Misfit`."""
    if kind in ("append", "prepend"):
        return _joined(kind, stored, value)
    number = _number(value)
    if number is None:
        raise Misfit(NO_NUMBER)
    if stored is None:
        return _text(number)
    old = _number(stored)
    if old is None:
        raise Misfit(NO_STORED_NUMBER)
    if kind != "sum":
        return _text(min(old, number) if kind == "min" else max(old, number))
    total = old + number
    if abs(total) > EXACT if isinstance(total, int) else math.isinf(total):
        raise Misfit(NOT_EXACT)
    return _text(total)


def _number(text: bytes) -> int | float | None:
    """The number in a JSON text, or None if it is not a number or not exact."""
    match = _NUMBER.fullmatch(text.strip(_SPACE))
    if match is None:
        return None
    whole, fraction, exponent = match.groups()
    number = float(match[0])
    if fraction is None and exponent is None:
        return int(number) if abs(number) <= EXACT and int(number) == int(whole) else None
    vanished = number == 0 and (whole + (fraction or b"")).strip(b"-.0")
    return None if math.isinf(number) or vanished else number


def _text(number: float) -> bytes:
    """A number as canonical JSON."""
    if abs(number) <= EXACT and number == int(number):
        return b"%d" % int(number)
    text = repr(float(number))
    if "e" not in text and abs(number) >= _LONGEST_FIXED:
        sign, digits = text[: text[0] == "-"], text.lstrip("-").replace(".", "").rstrip("0")
        text = f"{sign}{digits[0]}.{digits[1:]}e+15"
    return text.encode()


def _joined(kind: str, stored: bytes | None, value: bytes) -> bytes:
    """Concatenate two arrays. The elements keep their bytes."""
    new = _elements(value)
    if new is None:
        raise Misfit(NO_ARRAY)
    old = b"" if stored is None else _elements(stored)
    if old is None:
        raise Misfit(NO_STORED_ARRAY)
    if len(old) + len(new) > LONGEST_ARRAY:
        raise Misfit(TOO_LONG)
    both = (old, new) if kind == "append" else (new, old)
    return b"[" + b",".join(elements for elements in both if elements) + b"]"


def _elements(text: bytes) -> bytes | None:
    """The bytes between the brackets of an array."""
    array = text.strip(_SPACE)
    return array[1:-1].strip(_SPACE) if array.startswith(b"[") else None


# Transactions with keys ------------------------------------------------------------------------------------


def joined(request: Transaction) -> Transaction:
    """A transaction whose operations end with the messages of its key-value part."""
    if request.keys is None or not request.keys.messages:
        return request
    return msgspec.structs.replace(request, operations=[*request.operations, *request.keys.messages])


def parted(request: Transaction, outcome: TransactionOutcome) -> TransactionOutcome:
    """The outcome of a joined transaction, with the results of those messages moved to the key-value part."""
    if outcome.success and outcome.keys is not None and len(outcome.results) > len(request.operations):
        own = len(request.operations)
        pushed = [one for one in outcome.results[own:] if isinstance(one, PushOutcome)]
        outcome.keys = msgspec.structs.replace(outcome.keys, messages=pushed)
        outcome.results = outcome.results[:own]
    return outcome


# Refusals --------------------------------------------------------------------------------------------------


def repeated(index: int, operation: NewMessage | Settlement) -> TransactionOutcome:
    """The outcome of a transaction that was not applied because an operation repeats an earlier one."""
    text = (
        "ACK operation failed: the message is settled already"
        if isinstance(operation, Settlement)
        else "PUSH operation failed: the message is a duplicate"
    )
    return TransactionOutcome(False, (), REPEATED, text, index)


def failed_check(index: int) -> TransactionOutcome:
    """The outcome of a transaction that was not applied because a key has another version."""
    text = f"checks[{index}]: the key has another version; read it again and retry"
    return TransactionOutcome(False, (), CHECK_FAILED, text, keys=KeyWritten(False, failed_check=index))


def misfit(index: int, mutation: KeyMutation, why: str) -> TransactionOutcome:
    """The outcome of a transaction that was not applied because a mutation does not match the stored value."""
    text = f"mutations[{index}]: cannot apply {mutation.kind}: {why}"
    return TransactionOutcome(False, (), VALUE_MISMATCH, text, keys=KeyWritten(False))


def mismatch_text(why: int) -> str:
    """The text for a mismatch number."""
    return _MISMATCHES[why]


def written_of(outcome: TransactionOutcome) -> KeyWritten | HarkError:
    """The result of `write_keys`, from the outcome of its transaction."""
    if outcome.keys is not None and (outcome.success or outcome.code == CHECK_FAILED):
        return outcome.keys
    text = outcome.error or "the request was rejected"
    if outcome.code == "queue_full":
        return Overloaded(text, code=outcome.code)
    return Conflict(text, code=outcome.code)


# Statistics ------------------------------------------------------------------------------------------------


class StatsMemory:
    """Counts entries, and caches the result for a minute if the count is large."""

    def __init__(self, count: Callable[[], Awaitable[KeyStats]]) -> None:
        self._count = count
        self._known: KeyStats | None = None
        self._read_at = 0

    async def stats(self, now: int) -> KeyStats:
        """The statistics, at most a minute old."""
        known = self._known
        if known is None or known.entries < _MANY_ENTRIES or not 0 <= now - self._read_at < _COUNT_AGAIN:
            known = self._known = await self._count()
            self._read_at = now
        return known
