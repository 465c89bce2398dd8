"""Which queues are encrypted, and their payloads on the way in and out."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hark.broker.sealing import Sealer
from hark.engine.api import Engine
from hark.errors import InvalidInput, Unavailable
from hark.model import NewMessage, PopRequest, PopResult, QueueInfo, QueueSpec, Transaction
from hark.settings import Encryption


class SealedQueues:
    """Seals what is pushed to encrypted queues and opens what comes out; the engine says when this is out of date."""

    def __init__(self, engine: Engine, encryption: Encryption) -> None:
        self._engine = engine
        self._sealer = Sealer([key for key in (encryption.key, *encryption.old_keys) if key])
        self._names: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._names)

    async def learn(self) -> None:
        """Ask the store which queues are encrypted."""
        infos = await self._engine.queue_infos()
        self._names = {info.name for info in infos if info.options.encryption_enabled}

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
            self._names.add(info.name)
        else:
            self._names.discard(info.name)

    def may_concern(self, request: PopRequest) -> bool:
        """Whether a pop may get sealed payloads, as far as is known."""
        return bool(self._names) if request.queue is None else request.queue in self._names

    def seal(self, items: Sequence[NewMessage]) -> list[NewMessage]:
        """Messages as they are to be stored."""
        return [self._sealed(item) if item.queue in self._names and not item.sealed else item for item in items]

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

    def reseal(self, item: NewMessage) -> NewMessage:
        """A message as it is to be stored after the encryption of its queue was changed."""
        if item.queue in self._names:
            return item if item.sealed else self._sealed(item)
        if not item.sealed:
            return item
        return msgspec.structs.replace(item, payload=self._sealer.open(item.queue, item.payload), sealed=False)

    def open(self, queue: str, payload: msgspec.Raw) -> msgspec.Raw:
        """A payload as it was pushed."""
        return msgspec.Raw(self._sealer.open(queue, bytes(payload)))

    def unseal(self, result: PopResult) -> None:
        """Make the payloads of a pop readable; raises where there is no key."""
        # Without a key and without such a queue there can be none, unless another server made one a moment ago.
        if self._sealer.enabled or self._names or self._engine.shared:
            for message in result.messages:
                if message.sealed:
                    message.payload = self.open(message.queue, message.payload)
                    message.sealed = False

    def _sealed(self, item: NewMessage) -> NewMessage:
        if not self._sealer.enabled:
            raise Unavailable(
                f"queue {item.queue!r} is encrypted, but this server has no encryption key; set encryption.key",
                code="encryption_unavailable",
            )
        return msgspec.structs.replace(item, payload=self._sealer.seal(item.queue, item.payload), sealed=True)
