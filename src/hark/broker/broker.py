"""The broker: one method per verb, batched on the way to the engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from hark.broker.batching import Batcher
from hark.broker.sealing import Sealer
from hark.broker.upkeep.expiry import keep_expiring
from hark.broker.upkeep.flags import keep_learning
from hark.broker.upkeep.retention import keep_collecting
from hark.broker.waiting import Waiter, WaitingRoom
from hark.clock import SECOND, Clock
from hark.engine.api import Engine
from hark.errors import Conflict, EngineFailure, HarkError, InvalidInput, Unavailable
from hark.model import (
    DeadLetterFilter,
    DeadLetters,
    MessageView,
    NewMessage,
    PopRequest,
    PopResult,
    PushOutcome,
    QueueInfo,
    QueueSpec,
    Renewal,
    RenewOutcome,
    Settlement,
    SettleOutcome,
    Trace,
    Transaction,
    TransactionOutcome,
)
from hark.settings import Settings

log = logging.getLogger(__name__)

T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")

PUSH_MAINTENANCE = "push_maintenance"
POP_MAINTENANCE = "pop_maintenance"
_SEALING_TRIES = 3
_CALLS = 2
"""Calls of one verb at a time, in a store of many servers: one is prepared or answered while the other runs."""
_BYTES_PER_ITEM = 16 * 1024


class Broker:
    """The rules above the store: batching, waiting, sealing, maintenance.

    Verbs that need none of it are called on `engine` directly.
    """

    def __init__(self, engine: Engine, settings: Settings, clock: Clock) -> None:
        self.engine = engine
        self._settings = settings
        self._clock = clock
        encryption = settings.encryption
        self._sealer = Sealer([key for key in (encryption.key, *encryption.old_keys) if key])
        self._sealed_queues: set[str] = set()
        self._room = WaitingRoom(settings.limits.max_waiting, settings.fallback, clock, patrolled=engine.shared)
        self._flags: dict[str, bool] = {}
        self._duties: list[asyncio.Task[None]] = []
        self._closing = False

    async def start(self) -> None:
        """Open the engine and begin the upkeep."""
        await self.engine.start(self._room.hint)
        self._flags = await self.engine.read_flags()
        await self._learn_sealed_queues()
        self._make_batchers()
        self._duties = [
            asyncio.create_task(keep_expiring(self.engine, self._clock), name="expiry"),
            asyncio.create_task(
                keep_collecting(self.engine, self._settings.retention.interval_ms / 1000), name="retention"
            ),
        ]
        if self.engine.shared:
            self._duties.append(asyncio.create_task(keep_learning(self.refresh_flags), name="flags"))

    def _make_batchers(self) -> None:
        engine = self.engine
        # In a store of many servers calls that push to the same partitions wait for each other, so all that waits goes
        # with one call; those of the other verbs pass each other by.
        self._push: Batcher[Sequence[NewMessage], list[PushOutcome]] = self._batcher("push", engine.push, max_calls=1)
        # Pops that settle wait for the disk, those that only lease do not: they must not share a call.
        self._pop: Batcher[PopRequest, PopResult] = self._batcher("pop", engine.pop, self._give_back)
        self._pop_auto_ack: Batcher[PopRequest, PopResult] = self._batcher("pop", engine.pop)
        self._settle: Batcher[Sequence[Settlement], list[SettleOutcome]] = self._batcher("ack", engine.settle)
        self._transact: Batcher[Transaction, TransactionOutcome] = self._batcher("transaction", engine.transact)
        self._renew: Batcher[Renewal, RenewOutcome] = self._batcher("renew", engine.renew)
        self._releases: set[asyncio.Task[None]] = set()

    def _batcher(
        self,
        name: str,
        call: Callable[[Sequence[Q]], Awaitable[Sequence[A | HarkError]]],
        orphaned: Callable[[A], None] | None = None,
        max_calls: int = _CALLS,
    ) -> Batcher[Q, A]:
        batching, limits = self._settings.batching, self._settings.limits
        return Batcher(
            name,
            call,
            max_items=batching.max_items,
            max_wait=batching.max_wait_ms / 1000,
            max_pending=limits.max_pending,
            max_calls=max_calls if self.engine.shared else None,
            orphaned=orphaned,
        )

    def stop_waiting(self) -> None:
        """Answer all waiting pops now; the server is about to stop."""
        self._closing = True
        self._room.close()

    async def close(self) -> None:
        """Finish what was accepted, then close the engine."""
        self.stop_waiting()
        for duty in self._duties:
            duty.cancel()
        await asyncio.gather(*self._duties, return_exceptions=True)
        for batcher in (self._push, self._pop, self._pop_auto_ack, self._settle, self._transact, self._renew):
            await batcher.drain()
        if self._releases:
            await asyncio.wait(self._releases)
        await self.engine.close()

    @property
    def waiting(self) -> int:
        """How many pops are waiting."""
        return len(self._room)

    # Messages ----------------------------------------------------------------------------------------------

    async def push(self, items: Sequence[NewMessage]) -> list[PushOutcome]:
        """Append messages; returns when they are on stable storage."""
        if self._flags.get(PUSH_MAINTENANCE):
            raise Unavailable(
                "pushes are stopped for maintenance; nothing was stored, try again later",
                code="maintenance",
                retry_after=5,
            )
        if self._sealed_queues:
            items = self._seal(items)
        outcomes = await self._push.submit(items, _weight(items))
        for outcome in outcomes:
            if outcome.code == "sealing_mismatch":
                return await self._push_again(items, outcomes)
        return outcomes

    async def pop(self, request: PopRequest, wait_seconds: float = 0) -> PopResult:
        """Lease messages; with `wait_seconds` wait that long for the first one."""
        if self._flags.get(POP_MAINTENANCE):
            return PopResult(reason="paused")
        if request.auto_ack and self._may_be_sealed(request):
            return await self._pop_sealed(request, wait_seconds)
        batcher = self._pop_auto_ack if request.auto_ack else self._pop
        if wait_seconds <= 0:
            result = await self._pop_once(batcher, request)
        else:
            result = await self._pop_waiting(batcher, request, wait_seconds)
        if self._sealer.enabled or self._sealed_queues or self.engine.shared:
            self._open_deliveries(result)
        return result

    def _may_be_sealed(self, request: PopRequest) -> bool:
        return bool(self._sealed_queues) if request.queue is None else request.queue in self._sealed_queues

    async def _pop_sealed(self, request: PopRequest, wait_seconds: float) -> PopResult:
        """Auto-ack where payloads are sealed: what can't be opened must not be settled, so it is opened first."""
        result = await self.pop(msgspec.structs.replace(request, auto_ack=False), wait_seconds)
        if result.messages:
            await self.settle(
                [
                    Settlement(
                        message.transaction_id, message.partition_id, "completed", result.lease_id, group=request.group
                    )
                    for message in result.messages
                ]
            )
            result.lease_id = ""
        return result

    async def _pop_waiting(
        self, batcher: Batcher[PopRequest, PopResult], request: PopRequest, seconds: float
    ) -> PopResult:
        deadline = self._clock.now() + round(seconds * SECOND)
        with self._room.enter(request) as waiter:
            while not self._flags.get(POP_MAINTENANCE):
                result = await self._look(batcher, request, waiter)
                now = self._clock.now()
                until = deadline
                if isinstance(result, PopResult):
                    if result.messages or now >= deadline:
                        return result
                    until = min(until, result.look_again_at or until)
                if now < until and not self._room.closed:
                    await waiter.wait((until - now) / SECOND)
                if self._room.closed or (isinstance(result, EngineFailure) and self._clock.now() >= deadline):
                    return _raised(result)
        return PopResult(reason="paused")

    async def _look(
        self, batcher: Batcher[PopRequest, PopResult], request: PopRequest, waiter: Waiter
    ) -> PopResult | EngineFailure:
        """One look of a waiting pop. That the store is away is no reason to give up: it may be back in time."""
        try:
            result = await self._pop_once(batcher, request)
        except EngineFailure as failure:
            # With an unknown outcome messages may have been leased to nobody: they come again when that lease ends. But
            # what was settled at once does not, and the client should hear of it.
            if request.auto_ack and failure.code == "outcome_unknown":
                raise
            waiter.failed()
            return failure
        waiter.looked(found=bool(result.messages))
        return result

    async def _pop_once(self, batcher: Batcher[PopRequest, PopResult], request: PopRequest) -> PopResult:
        answer = batcher.submit(request)
        try:
            return await answer
        except asyncio.CancelledError:
            # The answer may have arrived in the very turn in which its client left.
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self._give_back(answer.result())
            raise

    def _give_back(self, result: PopResult) -> None:
        """The client that asked has gone: what it would have got is free again, uncounted."""
        if result.lease_id:
            self.release(result.lease_id)

    def release(self, lease_id: str) -> None:
        """Give back what a lease holds because its consumer never received it."""
        task = asyncio.get_running_loop().create_task(self.engine.release([lease_id]))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def settle(self, items: Sequence[Settlement]) -> list[SettleOutcome]:
        """Complete, fail, retry or dead-letter messages."""
        return await self._settle.submit(items, len(items))

    async def transact(self, transaction: Transaction) -> TransactionOutcome:
        """Apply pushes and settlements together or not at all."""
        pushes = any(isinstance(operation, NewMessage) for operation in transaction.operations)
        if pushes and self._flags.get(PUSH_MAINTENANCE):
            raise Unavailable("pushes are stopped for maintenance; try again later", code="maintenance", retry_after=5)
        for _ in range(_SEALING_TRIES):
            wanted = transaction
            if self._sealed_queues:
                operations = [
                    self._seal([operation])[0] if isinstance(operation, NewMessage) else operation
                    for operation in transaction.operations
                ]
                wanted = Transaction(operations, transaction.required_leases)
            outcome = await self._transact.submit(wanted, len(wanted.operations))
            if outcome.code != "sealing_mismatch":
                return outcome
            await self._learn_sealed_queues()
        raise Conflict("the encryption of a queue is being changed; try again")

    async def renew(self, renewal: Renewal) -> RenewOutcome:
        """Hold a lease longer."""
        return await self._renew.submit(renewal)

    # Queues ------------------------------------------------------------------------------------------------

    async def configure(self, spec: QueueSpec) -> QueueInfo:
        """Make a queue, or replace the options of one."""
        if spec.options.encryption_enabled and not self._sealer.enabled:
            raise InvalidInput(
                "options.encryptionEnabled: this server has no encryption key; set encryption.key "
                "(HARK_ENCRYPTION_KEY), 64 hexadecimal characters",
                code="encryption_unavailable",
            )
        info = first(await self.engine.configure([spec]))
        self._note_sealing(info)
        return info

    async def set_maintenance(self, flag: str, enabled: bool) -> None:
        """Stop or resume all pushes or all pops, over restarts too."""
        await self.engine.write_flag(flag, enabled)
        self._flags[flag] = enabled
        self._room.wake_all()

    async def refresh_flags(self) -> None:
        """Learn what another server was told to stop or resume."""
        flags = await self.engine.read_flags()
        if flags != self._flags:
            self._flags = flags
            self._room.wake_all()

    def maintenance(self, flag: str) -> bool:
        """Whether pushes or pops are stopped."""
        return self._flags.get(flag, False)

    # Payloads that administrators see ----------------------------------------------------------------------

    async def dead_letters(self, where: DeadLetterFilter) -> DeadLetters:
        """A page of dead letters with readable payloads."""
        page = await self.engine.dead_letters(where)
        items = [
            msgspec.structs.replace(item, payload=self._open(item.queue, item.payload), sealed=False)
            if item.sealed
            else item
            for item in page.items
        ]
        return DeadLetters(items, page.total)

    async def message(self, partition_id: str, transaction_id: str) -> MessageView | None:
        """One message with a readable payload; `sealed` still says whether it is encrypted at rest."""
        view = await self.engine.message(partition_id, transaction_id)
        if view is not None and view.sealed and view.payload is not None:
            view.payload = self._open(view.queue, view.payload)
        return view

    async def traces(
        self,
        partition_id: str | None = None,
        transaction_id: str | None = None,
        name: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> tuple[list[Trace], int]:
        """Events of one message or of one name, with readable payloads."""
        traces, total = await self.engine.traces(partition_id, transaction_id, name, limit, offset)
        readable = [
            msgspec.structs.replace(trace, payload=self._open(trace.queue, trace.payload), sealed=False)
            if trace.sealed and trace.payload is not None
            else trace
            for trace in traces
        ]
        return readable, total

    # Sealing -----------------------------------------------------------------------------------------------

    def _seal(self, items: Sequence[NewMessage]) -> list[NewMessage]:
        return [self._sealed(item) if item.queue in self._sealed_queues and not item.sealed else item for item in items]

    def _sealed(self, item: NewMessage) -> NewMessage:
        if not self._sealer.enabled:
            raise Unavailable(
                f"queue {item.queue!r} is encrypted and this server has no key; set encryption.key",
                code="encryption_unavailable",
            )
        return msgspec.structs.replace(item, payload=self._sealer.seal(item.queue, item.payload), sealed=True)

    async def _push_again(self, items: Sequence[NewMessage], outcomes: list[PushOutcome]) -> list[PushOutcome]:
        """Some queue's encryption was changed since we last looked: seal or unseal those items, and push them."""
        for _ in range(_SEALING_TRIES):
            await self._learn_sealed_queues()
            again = [index for index, outcome in enumerate(outcomes) if outcome.code == "sealing_mismatch"]
            if not again:
                return outcomes
            retried = [self._resealed(items[index]) for index in again]
            answers = await self._push.submit(retried, len(retried))
            for index, answer in zip(again, answers, strict=True):
                outcomes[index] = answer
        raise Conflict("the encryption of a queue is being changed; try again")

    def _resealed(self, item: NewMessage) -> NewMessage:
        if item.queue in self._sealed_queues:
            return item if item.sealed else self._sealed(item)
        if not item.sealed:
            return item
        return msgspec.structs.replace(item, payload=self._sealer.open(item.queue, item.payload), sealed=False)

    def _open(self, queue: str, payload: msgspec.Raw) -> msgspec.Raw:
        return msgspec.Raw(self._sealer.open(queue, bytes(payload)))

    def _open_deliveries(self, result: PopResult) -> None:
        for message in result.messages:
            if message.sealed:
                try:
                    message.payload = self._open(message.queue, message.payload)
                except HarkError:
                    # Not this consumer's fault: nothing is counted, the operator has to bring the key.
                    self._give_back(result)
                    raise

    async def _learn_sealed_queues(self) -> None:
        infos = await self.engine.queue_infos()
        self._sealed_queues = {info.name for info in infos if info.options.encryption_enabled}

    def _note_sealing(self, info: QueueInfo) -> None:
        if info.options.encryption_enabled:
            self._sealed_queues.add(info.name)
        else:
            self._sealed_queues.discard(info.name)


def _weight(items: Sequence[NewMessage]) -> int:
    """What a push counts against the bound of what may wait: large payloads count for more than one."""
    if len(items) == 1:
        return 1 + len(items[0].payload) // _BYTES_PER_ITEM
    return len(items) + sum([len(item.payload) for item in items]) // _BYTES_PER_ITEM


def first(answers: Sequence[T | HarkError]) -> T:
    """The answer to a batch of one; raised when it is an error."""
    return _raised(answers[0])


def _raised(answer: T | HarkError) -> T:
    if isinstance(answer, HarkError):
        raise answer
    return answer
