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
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from hark import model
from hark.engine.api import Engine
from hark.errors import Conflict, EngineFailure, HarkError, InvalidInput, InvalidSetting, Unavailable
from hark.model import NULL_PAYLOAD
from hark.settings import Encryption

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

T = TypeVar("T")

# A sealed payload is a JSON string `"<key id>.<base64 of nonce and ciphertext>"`: engines store it as they store any
# payload. The queue's name is authenticated with it, so a payload cannot be moved to another queue unnoticed.

_NONCE_BYTES = 12
_SEALED = re.compile(rb'"([0-9a-f]{8})\.([A-Za-z0-9+/=]+)"')


def _corrupt(queue: str) -> EngineFailure:
    text = f"cannot decrypt a message of queue {queue!r}: its stored bytes changed; restore it from a backup"
    return EngineFailure(text, code="payload_corrupt")


class Sealer:
    """Encrypts with the first key, decrypts with any key."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys: dict[str, AESGCM] = {}
        self._current = ""
        for key in keys:
            self._add(key)
        self.enabled = bool(keys)
        """Whether there is a key to encrypt with."""

    def seal(self, queue: str, payload: bytes) -> bytes:
        """The ciphertext of a payload, as a JSON string."""
        nonce = os.urandom(_NONCE_BYTES)
        ciphertext = self._keys[self._current].encrypt(nonce, payload, queue.encode())
        return b'"%b.%b"' % (self._current.encode(), base64.b64encode(nonce + ciphertext))

    def open(self, queue: str, sealed: bytes) -> bytes:
        """The payload of a ciphertext. Raises if the key is missing or the bytes were changed."""
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
        """Whether a text has the form of a ciphertext."""
        return _SEALED.fullmatch(text.encode()) is not None

    def missing_key(self, sealed: bytes) -> str | None:
        """The id of the key of a ciphertext, if this server does not have it."""
        found = _SEALED.fullmatch(sealed)
        return None if found is None or (key_id := found[1].decode()) in self._keys else key_id

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
_TRIES_TO_SEAL = 3
_LEFT_OUT = "the error text was left out: the queue is encrypted, and the server that settled it has no encryption key"


class SealedQueues:
    """Encrypts and decrypts the messages of encrypted queues. The engine rejects pushes if this list is out of date."""

    def __init__(self, engine: Engine, encryption: Encryption, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._engine = engine
        self._sealer = Sealer([key for key in (encryption.key, *encryption.old_keys) if key])
        self.may_open = self._sealer.enabled or engine.shared
        """Whether there can be encrypted messages although no queue is known to be encrypted."""
        self.names: set[str] = set()
        """The encrypted queues."""
        self.unreadable: set[str] = set()
        """Queues with a payload that could not be read, encrypted or not."""
        self._missing: dict[str, float] = {}
        """The ids of missing keys, and when each was last needed."""

    async def learn(self) -> None:
        """Read from the store which queues are encrypted."""
        infos = await self._engine.queue_infos()
        self.names = {info.name for info in infos if info.options.encryption_enabled}

    async def repeat(self, attempt: Callable[[], Awaitable[T | None]]) -> T:
        """Repeat a request that the engine rejects (None), because the encryption of a queue was changed meanwhile."""
        for _ in range(_TRIES_TO_SEAL):
            if (result := await attempt()) is not None:
                return result
            await self.learn()
        raise Conflict("the encryption of a queue was changed during this request; retry")

    async def learn_of(self, queues: Iterable[str | None]) -> None:
        """Read these queues again, if another server can have changed their encryption."""
        wanted = sorted({queue for queue in queues if queue is not None})
        if wanted and self._engine.shared:
            for info in await self._engine.queue_infos(wanted):
                self.note(info)

    def check(self, spec: model.QueueSpec) -> None:
        """Reject an encrypted queue on a server without a key."""
        if spec.options.encryption_enabled and not self._sealer.enabled:
            raise InvalidInput(
                "options.encryptionEnabled: this server has no encryption key; set encryption.key "
                "(HARK_ENCRYPTION_KEY), 64 hexadecimal characters",
                code="encryption_unavailable",
            )

    def note(self, info: model.QueueInfo) -> None:
        """Note the options of a queue."""
        if info.options.encryption_enabled:
            self.names.add(info.name)
        else:
            self.names.discard(info.name)

    def may_concern(self, request: model.PopRequest) -> bool:
        """Whether a pop may return payloads that are encrypted or cannot be read."""
        if request.queue is None:
            return bool(self.names or self.unreadable)
        return self.concerns(request.queue)

    def seal(self, items: Sequence[model.NewMessage]) -> list[model.NewMessage]:
        """Messages with encrypted payloads where the queue requires it."""
        return [self._sealed(item) if item.queue in self.names and not item.sealed else item for item in items]

    def seal_transaction(self, transaction: model.Transaction) -> model.Transaction:
        """A transaction with encrypted messages."""
        operations = [
            self.seal([operation])[0] if isinstance(operation, model.NewMessage) else operation
            for operation in transaction.operations
        ]
        keys = transaction.keys
        if keys is not None and keys.messages:
            keys = msgspec.structs.replace(keys, messages=self.seal(keys.messages))
        return msgspec.structs.replace(transaction, operations=operations, keys=keys)

    def seal_letters(self, letters: Sequence[model.NewDeadLetter]) -> list[model.NewDeadLetter]:
        """Dead letters with encrypted payloads and error texts."""
        return [
            msgspec.structs.replace(
                letter, message=self.seal([letter.message])[0], error=self.seal_text(letter.message.queue, letter.error)
            )
            for letter in letters
        ]

    def reseal(self, item: model.NewMessage) -> model.NewMessage:
        """Encrypt or decrypt a message after the encryption of its queue was changed."""
        if item.queue in self.names:
            return item if item.sealed else self._sealed(item)
        if not item.sealed:
            return item
        return msgspec.structs.replace(item, payload=self._sealer.open(item.queue, item.payload), sealed=False)

    def read(self, queue: str, payload: msgspec.Raw, sealed: bool) -> msgspec.Raw:
        """A stored payload, decrypted. Raises if the store has lost it or it cannot be decrypted."""
        if not memoryview(payload).nbytes:
            raise EngineFailure(
                "the store has lost the payload of this message; restore it from a backup", code="payload_missing"
            )
        return msgspec.Raw(self._sealer.open(queue, bytes(payload))) if sealed else payload

    def unseal(self, result: model.PopResult) -> None:
        """Decrypt the payloads of a pop. Raises if a key is missing."""
        for message in result.messages:
            if message.sealed:
                try:
                    message.payload = self.read(message.queue, message.payload, sealed=True)
                except HarkError:
                    self.unreadable.add(message.queue)  # The next pop sets the message aside.
                    raise
                message.sealed = False

    def open_all(self, result: model.PopResult) -> dict[str, HarkError]:
        """Decrypt the payloads of a pop. Returns the errors of unreadable ones by message id."""
        failures: dict[str, HarkError] = {}
        for message in result.messages:
            try:
                message.payload = self.read(message.queue, message.payload, message.sealed)
                message.sealed = False
            except HarkError as error:
                failures[message.id] = error
                self._note(message, error)
        return failures

    def show_all(self, messages: Sequence[model.StoredMessage]) -> None:
        """Decrypt the payloads of browsed messages. One that cannot be read is null, with the reason."""
        for message in messages:
            message.payload, message.unreadable = self.shown(message.queue, message.payload, message.sealed)
            message.sealed = False

    def _note(self, message: model.Delivery, error: HarkError) -> None:
        self.unreadable.add(message.queue)
        if error.code != "encryption_key_missing":
            log.error("message %s of queue %s becomes a dead letter: %s", message.id, message.queue, error.text)
            return
        key, now = self._sealer.missing_key(bytes(message.payload)) or "", self._monotonic()
        if now - self._missing.get(key, -math.inf) >= _REPEAT_SECONDS:
            log.warning("messages of queue %s are withheld (key_missing): %s", message.queue, error.text)
            self._missing[key] = now

    def missing_keys(self) -> list[str]:
        """The ids of missing keys for which messages were withheld recently."""
        now = self._monotonic()
        return sorted(key for key, seen in self._missing.items() if now - seen < 2 * _REPEAT_SECONDS)

    def missing_key(self, message: model.MessageView | None) -> str | None:
        """The id of the key of a message, if this server does not have it."""
        if message is None or not message.sealed or message.payload is None:
            return None
        return self._sealer.missing_key(bytes(message.payload))

    def concerns(self, queue: str) -> bool:
        """Whether a queue is encrypted, or has had messages that could not be read."""
        return queue in self.names or queue in self.unreadable

    def seal_bytes(self, queue: str | None, data: bytes) -> bytes:
        """Data that belongs to a queue, encrypted if the queue is."""
        if queue is None or queue not in self.names:
            return data
        self._check_key(queue)
        return self._sealer.seal(queue, data)

    def seal_text(self, queue: str | None, text: str) -> str:
        """An error text, encrypted if the queue is. Without a key it is left out, so that the settlement succeeds."""
        if queue in self.names and not self._sealer.enabled:
            return _LEFT_OUT
        return self.seal_bytes(queue, text.encode()).decode()

    def shown_text(self, queue: str, text: str) -> str:
        """An error text, decrypted if possible."""
        return bytes(self.shown_data(queue, msgspec.Raw(text.encode()))).decode()

    def shown_data(self, queue: str, data: msgspec.Raw) -> msgspec.Raw:
        """The data of a trace, decrypted if possible."""
        found, reason = self.shown(queue, data) if self._sealer.is_sealed(bytes(data).decode()) else (data, None)
        return found if reason is None else data

    def shown(self, queue: str, payload: msgspec.Raw, sealed: bool = True) -> tuple[msgspec.Raw, str | None]:
        """A payload for display; or null, and the reason why it cannot be read."""
        try:
            return self.read(queue, payload, sealed), None
        except HarkError as error:
            return msgspec.Raw(NULL_PAYLOAD), f"{error.code}: {error.text}"

    def _check_key(self, queue: str) -> None:
        if not self._sealer.enabled:
            text = f"queue {queue!r} is encrypted, but this server has no encryption key; set encryption.key"
            raise Unavailable(text, code="encryption_unavailable")

    def _sealed(self, item: model.NewMessage) -> model.NewMessage:
        self._check_key(item.queue)
        return msgspec.structs.replace(item, payload=self._sealer.seal(item.queue, item.payload), sealed=True)


async def shown_dead_letters(engine: Engine, sealed: SealedQueues, where: model.DeadLetterFilter) -> model.DeadLetters:
    """A page of dead letters, decrypted. A payload that cannot be read is null, with the reason."""
    page = await engine.dead_letters(where)
    items = []
    for letter in page.items:
        payload, reason, still_sealed = letter.payload, None, letter.sealed
        if where.payloads:
            payload, reason = sealed.shown(letter.queue, letter.payload, letter.sealed)
            still_sealed = False
        error = sealed.shown_text(letter.queue, letter.error)
        items.append(
            msgspec.structs.replace(letter, payload=payload, sealed=still_sealed, error=error, unreadable=reason)
        )
    return model.DeadLetters(items, page.total)


# A message with a damaged or missing payload is dead-lettered at once. A message whose key is missing is withheld,
# without using an attempt. The rest of the batch is released, and popped again without them.


WITHHELD_MS = 10_000
"""How long a message is withheld before another server, which may have its key, can pop it."""
_TRIES = 20
"""Maximum number of pops of one request. Each sets messages aside, so that the next one receives others."""
_MOST_ASIDE = 1000
"""Maximum number of messages and partitions of one of these pops."""

Take = Callable[[model.PopRequest], Awaitable[model.PopResult]]
Settle = Callable[[Sequence[model.Settlement]], Awaitable[list[model.SettleOutcome]]]
GiveBack = Callable[[model.PopResult], asyncio.Task[None] | None]


class _Sorted(NamedTuple):
    """The decision about a batch with unreadable messages."""

    aside: list[model.Settlement]
    """Settlements of the messages that are set aside."""
    readable: int | None
    """Number of readable messages before a withheld one, in the first partition with both: an ordered group must not
    receive later messages."""


class ReadablePops:
    """Pops of messages that can be read."""

    def __init__(self, sealed: SealedQueues, take: Take, settle: Settle, give_back: GiveBack) -> None:
        self._sealed = sealed
        self._take = take
        self._settle = settle
        self._give_back = give_back
        self.damaged = 0
        """Number of messages dead-lettered because of a damaged or missing payload."""
        self.withheld = 0
        """Number of times that a message was withheld because of a missing key."""

    async def pop(self, request: model.PopRequest, result: model.PopResult | None = None) -> model.PopResult:
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
            if released is not None:  # The next pop must find the released messages.
                await asyncio.wait([released])
            damaged = sum(item.damaged for item in batch.aside)
            self.damaged += damaged
            self.withheld += len(batch.aside) - damaged
            if batch.readable is not None:
                wanted = msgspec.structs.replace(plain, batch=min(batch.readable, request.batch), partitions=1)
            elif batch.aside:
                # Many messages may have to be set aside before one that can be read.
                batches, partitions = (min(2 * one, _MOST_ASIDE) for one in (wanted.batch, wanted.partitions))
                wanted = msgspec.structs.replace(plain, batch=batches, partitions=partitions)
            else:
                wanted = plain
        return model.PopResult(reason="nothing_ready")

    async def _acknowledged(self, request: model.PopRequest, result: model.PopResult) -> model.PopResult:
        if not result.messages:
            return result
        items = [
            model.Settlement(one.transaction_id, one.partition_id, "completed", result.lease_id, group=request.group)
            for one in result.messages
        ]
        outcomes = await self._settle(items)
        # A lease can end meanwhile, by a seek for example. Then others get its messages.
        kept = [one for one, outcome in zip(result.messages, outcomes, strict=True) if outcome.success]
        return model.PopResult(kept, partitions=result.partitions, reason="" if kept else "nothing_ready")


def _sort(group: str, result: model.PopResult, failures: dict[str, HarkError]) -> _Sorted:
    """Decide about the messages of a batch. `failures` are those of unreadable messages, by message id."""
    aside: list[model.Settlement] = []
    before: dict[str, int] = {}
    """By partition: number of readable messages before the first withheld one."""
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


def _settlement(
    group: str, result: model.PopResult, message: model.Delivery, failure: HarkError | None
) -> model.Settlement:
    item = model.Settlement(message.transaction_id, message.partition_id, "retry", result.lease_id, group=group)
    if failure is None:
        item.delay_ms = WITHHELD_MS
    else:
        item.status, item.damaged, item.error = "dlq", True, f"{failure.code}: {failure.text}"
    return item
