"""How records and snapshots lie in an object: a kind, two sections, a header, and a footer that proves them.

    kind (8 bytes) | first section | second section | header | lengths, crc32 of all before it, kind again

The first section begins at `FIRST_AT`, whatever follows it: who writes an object can say where a part of it will be
before the rest is known. The last byte of the kind is the version of the format.
"""

from __future__ import annotations

import struct
import zlib

FIRST_AT = 8
_LENGTHS = struct.Struct("<QQI")
_PROOF = struct.Struct("<I8s")
_FOOTER_BYTES = _LENGTHS.size + _PROOF.size


class Damaged(Exception):
    """The object is not what was written; the text says in what way."""


class Newer(Exception):
    """The object has a format that this Hark does not know."""


def seal(kind: bytes, first: bytes, second: bytes, header: bytes) -> bytes:
    """The bytes of an object."""
    before = b"".join((kind, first, second, header, _LENGTHS.pack(len(first), len(second), len(header))))
    return before + _PROOF.pack(zlib.crc32(before), kind)


def unseal(kind: bytes, body: bytes) -> tuple[memoryview, memoryview, memoryview]:
    """The first section, the second and the header; raises `Damaged` or `Newer`."""
    _check_kind(kind, body[:FIRST_AT])
    if len(body) < FIRST_AT + _FOOTER_BYTES:
        raise Damaged("it is cut off")
    view = memoryview(body)
    checksum, kind_again = _PROOF.unpack(view[-_PROOF.size :])
    if kind_again != kind:
        raise Damaged("it is cut off")
    if zlib.crc32(view[: -_PROOF.size]) != checksum:
        raise Damaged("its checksum is wrong")
    first, second, header = _LENGTHS.unpack(view[-_FOOTER_BYTES : -_PROOF.size])
    if FIRST_AT + first + second + header + _FOOTER_BYTES != len(body):
        raise Damaged("its lengths are wrong")
    second_at = FIRST_AT + first
    header_at = second_at + second
    return view[FIRST_AT:second_at], view[second_at:header_at], view[header_at : header_at + header]


def _check_kind(kind: bytes, found: bytes) -> None:
    if found == kind:
        return
    if len(found) == FIRST_AT and found[:-1] == kind[:-1] and found[-1] > kind[-1]:
        raise Newer(f"format {found[-1]}")
    raise Damaged("its first bytes are wrong")
