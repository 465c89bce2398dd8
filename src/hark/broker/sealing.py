"""Encryption at rest: AES-256-GCM, with the key's id in the ciphertext so that keys can be changed.

A sealed payload is a JSON string `"<key id>.<base64 of nonce and ciphertext>"`: engines store it as they store any
payload. The queue's name is authenticated with it, so a payload can't be moved to another queue unnoticed.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hark.errors import EngineFailure, InvalidSetting

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE_BYTES = 12


class Sealer:
    """Seals with the first key, opens with any."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys: dict[str, AESGCM] = {}
        self._current = ""
        for key in keys:
            self._add(key)

    @property
    def enabled(self) -> bool:
        """Whether there is a key to seal with."""
        return bool(self._keys)

    def seal(self, queue: str, payload: bytes) -> bytes:
        """The ciphertext of a payload, as a JSON string."""
        nonce = os.urandom(_NONCE_BYTES)
        ciphertext = self._keys[self._current].encrypt(nonce, payload, queue.encode())
        return b'"%b.%b"' % (self._current.encode(), base64.b64encode(nonce + ciphertext))

    def open(self, queue: str, sealed: bytes) -> bytes:
        """The payload again; raises when the key is missing or the bytes were changed."""
        key_id, _, encoded = sealed.strip(b'"').partition(b".")
        key = self._keys.get(key_id.decode("ascii", "replace"))
        if key is None:
            raise EngineFailure(
                f"a message of queue {queue!r} is encrypted with key {key_id.decode('ascii', 'replace')}, which this "
                "server does not have; add it to encryption.old_keys",
                code="encryption_key_missing",
            )
        from cryptography.exceptions import InvalidTag

        raw = base64.b64decode(encoded)
        try:
            return key.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], queue.encode())
        except InvalidTag as error:
            raise EngineFailure(
                f"cannot decrypt a message of queue {queue!r}: its stored bytes changed; restore it from a backup",
                code="payload_corrupt",
            ) from error

    def _add(self, key: str) -> None:
        try:
            raw = bytes.fromhex(key)
        except ValueError:
            raw = b""
        if len(raw) != 32:
            raise InvalidSetting(
                "setting encryption.key: expected 64 hexadecimal characters (32 bytes); create one with: "
                "openssl rand -hex 32"
            )
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise InvalidSetting(
                "setting encryption.key: the cryptography package is missing; install it with: pip install cryptography"
            ) from error
        key_id = hashlib.sha256(raw).hexdigest()[:8]
        self._keys[key_id] = AESGCM(raw)
        self._current = self._current or key_id
