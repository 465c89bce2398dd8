"""Entries and versions in the form of the HTTP API."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping

import msgspec

from hark.broker.watching.watcher import Change, Shown
from hark.clock import MILLISECOND
from hark.errors import InvalidInput
from hark.http.checks import short
from hark.http.keyval.paths import key_of_text
from hark.keys import MAX_KEYS, InvalidKey, check_key, decode_key, encode_key
from hark.model import Key, KeyEntry

NO_VALUE = msgspec.Raw(b"null")
_DIGITS = 20
_MOST = 2**63 - 1
_VERSION = re.compile(r"[0-9]{1,20}", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z0-9_./-]+", re.ASCII)
"""Text that needs no escaping in a path, in a query or in a list with commas and colons."""
_OPAQUE = "~"


class WireEntry(msgspec.Struct, gc=False):
    """A key and its value. A missing key has null as its value and its versionstamp."""

    key: Key
    value: msgspec.Raw
    versionstamp: str | None
    expires_at: int | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="expiresAt")
    """Milliseconds since 1970; absent when the key does not expire."""


def wire_entry(entry: KeyEntry) -> WireEntry:
    """Return an entry in the form of the HTTP API."""
    ends = msgspec.UNSET if entry.expires_at is None else entry.expires_at // MILLISECOND
    return WireEntry(entry.key, entry.value, versionstamp(entry.version), ends)


def wire_missing(key: Key) -> WireEntry:
    """Return a missing key in the form of the HTTP API."""
    return WireEntry(key, NO_VALUE, None)


def wire_changes(changes: Iterable[Change]) -> list[WireEntry]:
    """Return changes in the form of the HTTP API."""
    return [wire_missing(change.key) if change.entry is None else wire_entry(change.entry) for change in changes]


# Versions --------------------------------------------------------------------------------------------------


def versionstamp(version: int) -> str:
    """Return a version as text with leading zeros, which sorts in the order of versions."""
    return f"{version:0{_DIGITS}d}"


def version_of(text: str, field: str) -> int:
    """Return the version of a versionstamp."""
    if not _VERSION.fullmatch(text) or int(text) > _MOST:
        raise InvalidInput(f"{field}: expected a versionstamp from a response of this server, got {short(text)}")
    return int(text)


# Places ----------------------------------------------------------------------------------------------------


def cursor_of(key: Key) -> str:
    """Return the cursor after a key, as text that needs no encoding in a URL."""
    return base64.urlsafe_b64encode(encode_key(key)).rstrip(b"=").decode()


def key_at(cursor: str, field: str) -> Key:
    """Return the key of a cursor."""
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        return check_key(decode_key(base64.b64decode(padded, altchars=b"-_", validate=True)))
    except (UnicodeEncodeError, binascii.Error, InvalidKey):
        raise InvalidInput(f"{field}: expected the value of an earlier response, got {short(cursor)}") from None


# What a client knows of a prefix ---------------------------------------------------------------------------


def known_text(shown: Mapping[bytes, Shown]) -> str:
    """Return keys with their versions, `users/1:00000000000000000007,...`. Keys without a path form are cursors."""
    return ",".join(f"{_token(shown[one].key)}:{versionstamp(shown[one].version)}" for one in sorted(shown))


def known_of_text(text: str, prefix: Key, field: str) -> dict[bytes, Shown]:
    """Return the versions that a client knows. Keys outside the prefix are ignored."""
    known: dict[bytes, Shown] = {}
    below = encode_key(prefix)
    items = text.split(",") if text else []
    if len(items) > MAX_KEYS:
        raise InvalidInput(f"{field}: at most {MAX_KEYS} keys, got {len(items)}; watch a longer prefix")
    for item in items:
        token, colon, stamp = item.rpartition(":")
        key = key_at(token[1:], field) if token.startswith(_OPAQUE) else key_of_text(token, field)
        if not colon or key is None:
            raise InvalidInput(f"{field}: expected key:versionstamp,key:versionstamp, got {short(item)}")
        identity = encode_key(key)
        if identity.startswith(below) and identity != below:
            known[identity] = Shown(key, version_of(stamp, field))
    return known


def _token(key: Key) -> str:
    text = "/".join(part if isinstance(part, str) else str(part) for part in key)
    if _PLAIN.fullmatch(text):
        said = key_of_text(text, "key")
        if said is not None and encode_key(said) == encode_key(key):
            return text
    return _OPAQUE + cursor_of(key)
