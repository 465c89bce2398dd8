"""Encryption at rest: AES-256-GCM, encrypted queues, and messages that cannot be read (rule 26)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import math
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from hark.engine.api import Engine
from hark.errors import EngineFailure, HarkError, InvalidInput, InvalidSetting, Unavailable
from hark.model import (
    NULL_PAYLOAD,
    Delivery,
    MessageView,
    NewDeadLetter,
    NewMessage,
    PopRequest,
    PopResult,
    QueueInfo,
    QueueSpec,
    Settlement,
    SettleOutcome,
    StoredMessage,
    Transaction,
)
from hark.settings import Encryption

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

# A sealed payload is a JSON string `"<key id>.<base64 of nonce and ciphertext>"`: engines store it as they store any
# payload. The queue's name is authenticated with it, so a payload can't be moved to another queue unnoticed.


_NONCE_BYTES = 12
_SEALED = re.compile(rb'"([0-9a-f]{8})\.([A-Za-z0-9+/=]+)"')


def _corrupt(queue: str) -> EngineFailure:
    return EngineFailure(
        f"cannot decrypt a message of queue {queue!r}: its stored bytes changed; restore it from a backup",
        code="payload_corrupt",
    )


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
        found = _SEALED.fullmatch(sealed)
        if found is None:
            raise _corrupt(queue)
        key_id = found[1].decode()
        key = self._keys.get(key_id)
        if key is None:
            raise EngineFailure(
                f"a message of queue {queue!r} is encrypted with key {key_id}, which this server does not have; add it "
                "to encryption.old_keys",
                code="encryption_key_missing",
            )
        from cryptography.exceptions import InvalidTag

        try:
            raw = base64.b64decode(found[2])
            return key.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], queue.encode())
        except (InvalidTag, ValueError) as error:
            raise _corrupt(queue) from error

    def is_sealed(self, text: str) -> bool:
        """Whether a text looks like what `seal` makes."""
        return _SEALED.fullmatch(text.encode()) is not None

    def missing_key(self, sealed: bytes) -> str | None:
        """The id of the key that a payload is sealed with, if it is not here."""
        found = _SEALED.fullmatch(sealed)
        return None if found is None or found[1].decode() in self._keys else found[1].decode()

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


log = logging.getLogger(__name__)
_REPEAT_SECONDS = 60.0
_LEFT_OUT = "the error text was left out: the queue is encrypted, and the server that settled it has no encryption key"


class SealedQueues:
    """Seals what is pushed to encrypted queues and opens what comes out; the engine says when this is out of date."""

    def __init__(self, engine: Engine, encryption: Encryption, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._engine = engine
        self._sealer = Sealer([key for key in (encryption.key, *encryption.old_keys) if key])
        self.names: set[str] = set()
        """The encrypted queues."""
        self._unreadable: set[str] = set()
        """Queues that had a payload which could not be read, encrypted or not."""
        self._missing: dict[str, float] = {}
        """Keys that are missing, by their ids, and when that was last seen."""

    async def learn(self) -> None:
        """Ask the store which queues are encrypted."""
        infos = await self._engine.queue_infos()
        self.names = {info.name for info in infos if info.options.encryption_enabled}

    async def learn_of(self, queues: Iterable[str | None]) -> None:
        """Ask the store about these queues, if another server can have changed their encryption."""
        wanted = sorted({queue for queue in queues if queue is not None})
        if wanted and self._engine.shared:
            for info in await self._engine.queue_infos(wanted):
                self.note(info)

    def check(self, spec: QueueSpec) -> None:
        """Refuse an encrypted queue where there is no key."""
        if spec.options.encryption_enabled and not self._sealer.enabled:
            raise InvalidInput(
                "options.encryptionEnabled: this server has no encryption key; set encryption.key "
                "(HARK_ENCRYPTION_KEY), 64 hexadecimal characters",
                code="encryption_unavailable",
            )

    def note(self, info: QueueInfo) -> None:
        """A queue was configured here."""
        if info.options.encryption_enabled:
            self.names.add(info.name)
        else:
            self.names.discard(info.name)

    def may_concern(self, request: PopRequest) -> bool:
        """Whether a pop may get sealed payloads, as far as is known."""
        if request.queue is None:
            return bool(self.names or self._unreadable)
        return request.queue in self.names or request.queue in self._unreadable

    def seal(self, items: Sequence[NewMessage]) -> list[NewMessage]:
        """Messages as they are to be stored."""
        return [self._sealed(item) if item.queue in self.names and not item.sealed else item for item in items]

    def seal_transaction(self, transaction: Transaction) -> Transaction:
        """A transaction with its messages as they are to be stored."""
        operations = [
            self.seal([operation])[0] if isinstance(operation, NewMessage) else operation
            for operation in transaction.operations
        ]
        keys = transaction.keys
        if keys is not None and keys.messages:
            keys = msgspec.structs.replace(keys, messages=self.seal(keys.messages))
        return Transaction(operations, transaction.required_leases, keys)

    def seal_letters(self, letters: Sequence[NewDeadLetter]) -> list[NewDeadLetter]:
        """Dead letters as they are to be stored."""
        return [
            msgspec.structs.replace(
                letter,
                message=self.seal([letter.message])[0],
                error=self.seal_text(letter.message.queue, letter.error),
            )
            for letter in letters
        ]

    def reseal(self, item: NewMessage) -> NewMessage:
        """A message as it is to be stored after the encryption of its queue was changed."""
        if item.queue in self.names:
            return item if item.sealed else self._sealed(item)
        if not item.sealed:
            return item
        return msgspec.structs.replace(item, payload=self._sealer.open(item.queue, item.payload), sealed=False)

    def open(self, queue: str, payload: msgspec.Raw) -> msgspec.Raw:
        """A payload as it was pushed."""
        return msgspec.Raw(self._sealer.open(queue, bytes(payload)))

    def read(self, queue: str, payload: msgspec.Raw, sealed: bool) -> msgspec.Raw:
        """A stored payload as it was pushed; raises where the store has lost it or it can't be decrypted."""
        if not memoryview(payload).nbytes:
            raise EngineFailure(
                "the store has lost the payload of this message; restore it from a backup", code="payload_missing"
            )
        return self.open(queue, payload) if sealed else payload

    def unseal(self, result: PopResult) -> None:
        """Make the payloads of a pop readable; raises where there is no key."""
        # Without a key and without such a queue there can be none, unless another server made one a moment ago.
        if self._sealer.enabled or self.names or self._engine.shared:
            for message in result.messages:
                if message.sealed:
                    try:
                        message.payload = self.open(message.queue, message.payload)
                    except HarkError:
                        self._unreadable.add(message.queue)  # The next pop goes on without it.
                        raise
                    message.sealed = False

    def open_all(self, result: PopResult) -> dict[str, HarkError]:
        """Make the payloads of a pop readable; by the ids of their messages, why some of them can't be read."""
        failures: dict[str, HarkError] = {}
        for message in result.messages:
            try:
                message.payload = self.read(message.queue, message.payload, message.sealed)
                message.sealed = False
            except HarkError as error:
                failures[message.id] = error
                self._note(message, error)
        return failures

    def show_all(self, messages: Sequence[StoredMessage]) -> None:
        """Make the payloads of browsed messages readable; where that fails, say why."""
        for message in messages:
            message.payload, message.unreadable = self.shown(message.queue, message.payload, message.sealed)
            message.sealed = False

    def _note(self, message: Delivery, error: HarkError) -> None:
        self._unreadable.add(message.queue)
        if error.code != "encryption_key_missing":
            log.error("message %s of queue %s becomes a dead letter: %s", message.id, message.queue, error.text)
            return
        key, now = self._sealer.missing_key(bytes(message.payload)) or "", self._monotonic()
        if now - self._missing.get(key, -math.inf) >= _REPEAT_SECONDS:
            log.warning("messages of queue %s are withheld (key_missing): %s", message.queue, error.text)
            self._missing[key] = now

    def missing_keys(self) -> list[str]:
        """The ids of keys that messages were withheld for, lately."""
        now = self._monotonic()
        return sorted(key for key, seen in self._missing.items() if now - seen < 2 * _REPEAT_SECONDS)

    def missing_key(self, message: MessageView | None) -> str | None:
        """The id of the key that a message is sealed with, if it is not here."""
        if message is None or not message.sealed or message.payload is None:
            return None
        return self._sealer.missing_key(bytes(message.payload))

    def concerns(self, queue: str) -> bool:
        """Whether a queue is encrypted, or had messages that could not be read."""
        return queue in self.names or queue in self._unreadable

    def seal_bytes(self, queue: str | None, data: bytes) -> bytes:
        """What is to be stored beside the messages of a queue: sealed, if the queue is."""
        if queue is None or queue not in self.names:
            return data
        self._check_key(queue)
        return self._sealer.seal(queue, data)

    def seal_text(self, queue: str | None, text: str) -> str:
        """An error text as it is to be stored. Without a key it is left out: the settlement counts all the same."""
        if queue in self.names and not self._sealer.enabled:
            return _LEFT_OUT
        return self.seal_bytes(queue, text.encode()).decode()

    def shown_text(self, queue: str, text: str) -> str:
        """An error text as it was given; one that can't be read as it is stored."""
        return bytes(self.shown_data(queue, msgspec.Raw(text.encode()))).decode()

    def shown_data(self, queue: str, data: msgspec.Raw) -> msgspec.Raw:
        """The data of a trace as it was given; what can't be read as it is stored."""
        found, reason = self.shown(queue, data) if self._sealer.is_sealed(bytes(data).decode()) else (data, None)
        return found if reason is None else data

    def shown(self, queue: str, payload: msgspec.Raw, sealed: bool = True) -> tuple[msgspec.Raw, str | None]:
        """A payload as it was pushed, for those who look at it; or null, and why it can't be read."""
        try:
            return self.read(queue, payload, sealed), None
        except HarkError as error:
            return msgspec.Raw(NULL_PAYLOAD), f"{error.code}: {error.text}"

    def _check_key(self, queue: str) -> None:
        if not self._sealer.enabled:
            raise Unavailable(
                f"queue {queue!r} is encrypted, but this server has no encryption key; set encryption.key",
                code="encryption_unavailable",
            )

    def _sealed(self, item: NewMessage) -> NewMessage:
        self._check_key(item.queue)
        return msgspec.structs.replace(item, payload=self._sealer.seal(item.queue, item.payload), sealed=True)


# A damaged or missing payload makes a dead letter at once. A missing key is no damage: what is sealed with it is
# withheld, uncounted. What is left of the batch goes back, and is popped again without it.


WITHHELD_MS = 10_000
"""How long a message is withheld before the next server that pops it looks for its key."""
_TRIES = 20
"""Pops of one request. Each of them sets messages aside, so that the next one gets others."""
_MOST_ASIDE = 1000
"""Messages and partitions that one of these pops takes at the most."""

Take = Callable[[PopRequest], Awaitable[PopResult]]
Settle = Callable[[Sequence[Settlement]], Awaitable[list[SettleOutcome]]]
GiveBack = Callable[[PopResult], asyncio.Task[None] | None]


class _Sorted(NamedTuple):
    """What is to become of a batch with unreadable messages."""

    aside: list[Settlement]
    """Settlements of those that are set aside."""
    readable: int | None
    """How many readable messages come before one that can't be set aside, in the first partition of that kind: an
    ordered group must not get what is behind it."""


class ReadablePops:
    """Pops until what comes can be read."""

    def __init__(self, sealed: SealedQueues, take: Take, settle: Settle, give_back: GiveBack) -> None:
        self._sealed = sealed
        self._take = take
        self._settle = settle
        self._give_back = give_back
        self.damaged = 0
        """Messages that were dead-lettered because their payload is damaged or missing."""
        self.withheld = 0
        """Messages that were withheld because their key is missing, each time."""

    async def pop(self, request: PopRequest, result: PopResult | None = None) -> PopResult:
        """A pop with readable payloads, which may have a result already.

        With auto-ack, only messages whose settlement counted are returned.
        """
        plain = wanted = msgspec.structs.replace(request, auto_ack=False)
        for _ in range(_TRIES):
            result = result or await self._take(wanted)
            fits = len(result.messages) <= request.batch and result.partitions <= request.partitions
            try:
                failures = self._sealed.open_all(result)
                if not failures and fits:
                    return await self._acknowledged(request, result) if request.auto_ack else result
                batch = _sort(request.group, result, failures)
                await self._settle(batch.aside)
            except BaseException:
                self._give_back(result)
                raise
            released, result = self._give_back(result), None
            if released is not None:  # The next pop must find what is released.
                await asyncio.wait([released])
            self._count(batch.aside)
            if batch.readable is not None:
                wanted = msgspec.structs.replace(plain, batch=min(batch.readable, request.batch), partitions=1)
            elif batch.aside:
                # Many messages may have to be set aside before one that can be read.
                batches, partitions = (min(2 * one, _MOST_ASIDE) for one in (wanted.batch, wanted.partitions))
                wanted = msgspec.structs.replace(plain, batch=batches, partitions=partitions)
            else:
                wanted = plain
        return PopResult(reason="nothing_ready")

    async def _acknowledged(self, request: PopRequest, result: PopResult) -> PopResult:
        if not result.messages:
            return result
        items = [
            Settlement(one.transaction_id, one.partition_id, "completed", result.lease_id, group=request.group)
            for one in result.messages
        ]
        outcomes = await self._settle(items)
        # A lease can end meanwhile, by a seek for example. Then others get its messages.
        kept = [one for one, outcome in zip(result.messages, outcomes, strict=True) if outcome.success]
        return PopResult(kept, partitions=result.partitions, reason="" if kept else "nothing_ready")

    def _count(self, aside: Sequence[Settlement]) -> None:
        damaged = sum(item.damaged for item in aside)
        self.damaged += damaged
        self.withheld += len(aside) - damaged


def _sort(group: str, result: PopResult, failures: dict[str, HarkError]) -> _Sorted:
    """Decide on the messages of a batch, by their ids; those without a failure can be read."""
    aside: list[Settlement] = []
    before: dict[str, int] = {}
    """By partition: readable messages before the first one that is withheld."""
    closed: set[str] = set()
    readable: int | None = None
    for message in result.messages:
        partition_id, failure = message.partition_id, failures.get(message.id)
        if failure is not None and failure.code != "encryption_key_missing":
            aside.append(_settlement(group, result, message, failure))
        elif partition_id in closed:
            if failure is not None and not before.get(partition_id):
                aside.append(_settlement(group, result, message, None))
        elif failure is None:
            before[partition_id] = before.get(partition_id, 0) + 1
        else:
            closed.add(partition_id)
            if not before.get(partition_id):
                aside.append(_settlement(group, result, message, None))
            elif readable is None:
                readable = before[partition_id]
    return _Sorted(aside, readable)


def _settlement(group: str, result: PopResult, message: Delivery, failure: HarkError | None) -> Settlement:
    item = Settlement(message.transaction_id, message.partition_id, "retry", result.lease_id, group=group)
    if failure is None:
        item.delay_ms = WITHHELD_MS
    else:
        item.status, item.damaged, item.error = "dlq", True, f"{failure.code}: {failure.text}"
    return item
