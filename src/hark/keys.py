"""Keys of the key-value store: checks, and an encoding as bytes that sort in key order (rule 25).

Each part begins with a byte for its type. Text is UTF-8 with a NUL at its end, and 0x00 0xFF for a NUL within; a number
is the eight bytes of a double, changed so that they sort. So no part is a prefix of another part, and the keys below a
prefix are a range of bytes. The part `OWN` sorts before all others, outside the range of the empty prefix.
"""

from __future__ import annotations

import math
import re
import struct

from hark.model.messages import OWN, Key, KeyPart

MAX_PARTS = 20
MAX_PART_LENGTH = 1024
"""Length limit of a text part, in UTF-16 units as in JavaScript."""
MAX_BYTES = 2048
"""Size limit of an encoded key, which every store can index."""
MAX_KEYS = 1000
EXACT = 2**53
"""Doubles represent integers exactly up to this value."""

_OWN, _TEXT, _NUMBER, _FALSE, _TRUE, _NO_PART = b"\x01", b"\x02", b"\x03", b"\x04", b"\x05", b"\x06"
_NUL, _NUL_WITHIN = b"\x00", b"\x00\xff"
_DOUBLE, _BITS = struct.Struct(">d"), struct.Struct(">Q")
_SIGN, _ALL = 1 << 63, (1 << 64) - 1


class InvalidKey(ValueError):
    """The value is not a valid key. The text gives the reason."""


# Bytes -----------------------------------------------------------------------------------------------------


def encode_key(key: Key) -> bytes:
    """Return the bytes of a key; they sort in key order."""
    return b"".join(
        [
            b"\x02%b\x00" % part.encode().replace(_NUL, _NUL_WITHIN) if isinstance(part, str) else _encode_part(part)
            for part in key
        ]
    )


def _encode_part(part: KeyPart) -> bytes:
    if part is OWN:
        return _OWN
    if isinstance(part, bool):
        return _TRUE if part else _FALSE
    (bits,) = _BITS.unpack(_DOUBLE.pack(float(part) + 0.0))  # -0.0 becomes 0.0
    return _NUMBER + _BITS.pack(bits ^ _ALL if bits & _SIGN else bits | _SIGN)


def decode_key(data: bytes) -> Key:
    """Return the key of encoded bytes; raises `InvalidKey` if they are not a key."""
    parts: list[KeyPart] = []
    at = 0
    try:
        while at < len(data):
            part, at = _decode_part(data, at)
            parts.append(part)
    except (ValueError, struct.error):
        raise InvalidKey("The bytes are not an encoded key.") from None
    return tuple(parts)


def _decode_part(data: bytes, at: int) -> tuple[KeyPart, int]:
    """Return the part that begins at a position, and its end."""
    kind, at = data[at : at + 1], at + 1
    if kind == _TEXT:
        end = data.index(_NUL, at)
        while data[end : end + 2] == _NUL_WITHIN:
            end = data.index(_NUL, end + 2)
        return data[at:end].replace(_NUL_WITHIN, _NUL).decode(), end + 1
    if kind == _NUMBER:
        (bits,) = _BITS.unpack_from(data, at)
        (number,) = _DOUBLE.unpack(_BITS.pack(bits ^ _SIGN if bits & _SIGN else bits ^ _ALL))
        return (int(number) if abs(number) <= EXACT and number.is_integer() else number), at + _BITS.size
    if kind in (_FALSE, _TRUE):
        return kind == _TRUE, at
    if kind == _OWN:
        return OWN, at
    raise ValueError(kind)


def prefix_bounds(prefix: Key) -> tuple[bytes, bytes]:
    """Return the bounds of the keys below a prefix: first bytes inclusive, end exclusive."""
    start = encode_key(prefix)
    return start + _TEXT, start + _NO_PART


# Text ------------------------------------------------------------------------------------------------------

_INTEGER = re.compile(r"-?[0-9]{1,16}", re.ASCII)


def part_of_text(text: str) -> str | int:
    """Return a part of a key that is written as a path: an integer that a double cannot represent is text."""
    return int(text) if _INTEGER.fullmatch(text) and abs(int(text)) < EXACT else text


# Checks ----------------------------------------------------------------------------------------------------


def check_key(value: object) -> Key:
    """Return a checked key from JSON; raises `InvalidKey`."""
    if not isinstance(value, (list, tuple)):
        raise InvalidKey("Key must be an array of (string | number | boolean).")
    if not value:
        raise InvalidKey("Key cannot be empty. Provide at least one key part.")
    if len(value) > MAX_PARTS:
        raise InvalidKey(f"Key too deep: {len(value)} parts (max {MAX_PARTS}).")
    key = tuple(_check_part(part, index) for index, part in enumerate(value))
    size = len(encode_key(key))
    if size > MAX_BYTES:
        raise InvalidKey(f"Key too long: {size} bytes (max {MAX_BYTES}).")
    return key


def check_keys(value: object) -> tuple[Key, ...]:
    """Return checked keys from JSON; raises `InvalidKey`, which names the invalid key."""
    if not isinstance(value, (list, tuple)):
        raise InvalidKey('Keys must be an array of key arrays, e.g. [["users", 1], ["users", 2]].')
    if not value:
        raise InvalidKey("Keys array cannot be empty. Provide at least one key.")
    if len(value) > MAX_KEYS:
        raise InvalidKey(f"Too many keys: {len(value)} (max {MAX_KEYS}).")
    keys = []
    for index, one in enumerate(value):
        try:
            keys.append(check_key(one))
        except InvalidKey as error:
            raise InvalidKey(f"Invalid key at index {index}: {error}") from None
    return tuple(keys)


def _check_part(part: object, index: int) -> KeyPart:
    if isinstance(part, bool):
        return part
    if isinstance(part, str):
        return _check_text(part, index)
    if isinstance(part, int):
        if abs(part) > EXACT:
            raise InvalidKey(f"Invalid key part at index {index}: expected an integer from -2^53 to 2^53.")
        return part
    if isinstance(part, float):
        if not math.isfinite(part):
            raise InvalidKey(f"Invalid key part at index {index}: expected a finite number.")
        return int(part) if abs(part) <= EXACT and part.is_integer() else part
    raise InvalidKey(f"Invalid key part at index {index}: expected string, number or boolean.")


def _check_text(part: str, index: int) -> str:
    try:
        length = len(part.encode("utf-16-le")) // 2
    except UnicodeEncodeError:
        raise InvalidKey(f"Invalid key part at index {index}: expected valid Unicode, got a lone surrogate.") from None
    if length > MAX_PART_LENGTH:
        raise InvalidKey(f"Key part at index {index} too long: {length} characters (max {MAX_PART_LENGTH}).")
    return part
