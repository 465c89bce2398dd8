"""The broker: one method per verb, with batched calls to the engine."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from hark import model
from hark.api.types.server import Stopped, Waiting
from hark.batching import Answer, Batcher, BatchSizes
from hark.broker.delivery.delivery import Delivery, Gone
from hark.broker.explain import Circumstances, explain, explain_without_groups
from hark.broker.export import export_queue
from hark.broker.keyvalue import KeyValue, read_together
from hark.broker.observer import Observer
from hark.broker.peers import Peers
from hark.broker.schedules import Schedules
from hark.broker.sealing import ReadablePops, SealedQueues, shown_dead_letters
from hark.broker.tallies import EngineCalls, LastPolls, Operations, Tallies, instrumented
from hark.broker.tasks import Tasks
from hark.broker.timers import LoopTimers, Timers
from hark.broker.unique import UniquePushes
from hark.broker.upkeep import Duties, Readiness, keep_moving
from hark.broker.work_queues import QueueLookup, WorkQueues
from hark.clock import Clock, ShiftedClock
from hark.engine.api import Engine
from hark.errors import EngineFailure, HarkError, Unavailable
from hark.ids import IdSource
from hark.model import PopRequest, PopResult, Settlement
from hark.settings import Settings

log = logging.getLogger(__name__)

T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")
E = TypeVar("E", bound=msgspec.Struct)

PUSH_MAINTENANCE = "push_maintenance"
POP_MAINTENANCE = "pop_maintenance"
_BYTES_PER_ITEM = 16 * 1024


_CALLS = 2
"""Calls of one verb at a time in a shared store: one is prepared or answered while the other runs."""


class Batchers:
    """The batchers of all verbs with many concurrent calls."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        give_back: Callable[[PopResult], object],
        pop_auto_ack: Callable[[Sequence[PopRequest]], Awaitable[Sequence[PopResult | HarkError]]],
        renew: Callable[[Sequence[model.Renewal]], Awaitable[Sequence[model.RenewOutcome | HarkError]]],
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._all: dict[str, Batcher[Any, Any]] = {}
        # In a shared store calls that push to the same partitions wait for each other, so all waiting pushes share one
        # call. Calls of the other verbs do not block each other.
        self.push = self._make("push", engine.push, max_calls=1)
        # Pops that settle wait for the disk, those that only lease do not: they must not share a call.
        self.pop = self._make("pop", engine.pop, orphaned=give_back)
        self.pop_auto_ack = self._make("pop_auto_ack", pop_auto_ack)
        self.settle = self._make("ack", engine.settle)
        self.transact = self._make("transaction", engine.transact)
        self.renew = self._make("renew", renew)
        self.read_keys = self._make("read_keys", partial(read_together, engine))
        self.write_keys = self._make("write_keys", engine.write_keys)

    def _make(
        self,
        name: str,
        call: Callable[[Sequence[Q]], Awaitable[Sequence[A | HarkError]]],
        orphaned: Callable[[A], object] | None = None,
        max_calls: int = _CALLS,
    ) -> Batcher[Q, A]:
        """A batcher of one verb. `orphaned` receives answers whose caller has left."""
        batching = self._settings.batching
        self._all[name] = batcher = Batcher(
            name.removesuffix("_auto_ack"),
            call,
            max_items=batching.max_items,
            max_wait=batching.max_wait_ms / 1000,
            max_pending=self._settings.limits.max_pending,
            max_calls=max_calls if self._engine.shared and not self._engine.follows else None,
            orphaned=orphaned,
        )
        return batcher

    async def drain(self) -> None:
        """Wait until all accepted requests are answered."""
        for batcher in self._all.values():
            await batcher.drain()

    def sizes(self) -> dict[str, BatchSizes]:
        """By verb, the number of requests that shared an engine call."""
        return {name: batcher.sizes for name, batcher in self._all.items()}


class Broker:
    """Adds batching, waiting, encryption and maintenance mode to an engine.

    Verbs that need none of these are called on `engine` directly.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        clock: Clock,
        *,
        peers: Peers | None = None,
        timers: Timers | None = None,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock = ShiftedClock(clock)
        """The time of the engine."""
        self.tallies = Tallies(clock)
        self.engine_calls = EngineCalls()
        self.engine = instrumented(engine, self.engine_calls, self.tallies)
        self.readiness = Readiness(self.engine, self.engine_calls)
        self._settings = settings
        self.sealed = SealedQueues(self.engine, settings.encryption)
        self.readable = ReadablePops(self.sealed, self._take, self.settle, self.give_back)
        self.queue_lookup = QueueLookup(self.engine)
        self.work_queues = WorkQueues(self, settings.queue, clock)
        self.operations = Operations(clock)
        self._peers = peers
        self._timers = timers or LoopTimers(clock)
        self._random = random
        self._flags: dict[str, bool] = {}
        self._flag_changes = 0
        self.duties = Duties()

    async def start(self) -> None:
        """Open the engine and start the background tasks."""
        self.batchers = Batchers(self.engine, self._settings, self.give_back, self._pop_at_once, self._renew_all)
        self._releases: set[asyncio.Task[None]] = set()
        self.delivery = Delivery(self.engine, self._settings, self._timers, self._random, self, self.tallies)
        self.keyvalue = KeyValue(
            self.engine,
            self._settings,
            self.sealed,
            self._timers,
            self._random,
            reads=self.batchers.read_keys,
            writes=self.batchers.write_keys,
            check_pushes=self.check_pushes,
        )
        self.tasks = Tasks(self, self.engine, self.keyvalue, self.sealed)
        self.unique = UniquePushes(self, self.engine, self.keyvalue, IdSource(self._clock).new)
        hint = self.delivery.hint if self._peers is None else self._hint
        self.schedules = Schedules(
            self.keyvalue, self.engine, self.sealed, self.queue_lookup, self._timers, self._random
        )
        await self.engine.start(hint, self._on_key_notification)
        self._clock.ahead = self.engine.ahead
        self._last_polls = LastPolls(self._clock)
        # In real time, independent of the clock: a test that advances a year must not observe every second of it.
        self.observed = Observer(
            self.engine, self.tallies, LoopTimers(self._clock), self._standing, self._settings.limits.max_streams
        )
        self._take_over(await self.engine.read_flags())
        await self.sealed.learn()
        if self._peers is not None:
            secret = self._settings.peer.secret.encode() or await self.engine.peer_secret()
            await self._peers.start(secret, self._on_peer_hints, self._on_peer_keys)
        self.duties.begin(
            self.engine, self._settings, self._clock, self.operations, self.refresh_flags, self.unique.clean
        )
        if (inbox := self.engine.inbox) is not None:
            stopped = partial(self.maintenance, PUSH_MAINTENANCE)
            sealed, tallies = self.sealed, self.tallies

            def note(messages: Sequence[model.NewMessage], outcomes: Sequence[model.PushOutcome]) -> None:
                tallies.pushed([messages], [outcomes], alone=False)

            self.duties.add("inbox", keep_moving(inbox, sealed.seal, note, sealed.learn, stopped))
        self.observed.start()
        self.schedules.start()

    def _standing(self) -> tuple[Waiting, Stopped]:
        """What a sample says of waiting consumers and of maintenance."""
        delivery = self.delivery
        return (
            Waiting(len(delivery.intentions), len(delivery.streams), len(delivery.browsers)),
            Stopped(push=self.maintenance(PUSH_MAINTENANCE), pop=self.maintenance(POP_MAINTENANCE)),
        )

    def _hint(self, hints: Sequence[model.Hint]) -> None:
        """Distribute hints about changes through this server, also to its peers."""
        self.delivery.hint(hints)
        if self._peers is not None:
            self._peers.notify(hints)

    def _on_peer_hints(self, hints: Sequence[model.Hint]) -> None:
        """Distribute hints about changes through another server."""
        for hint in hints:
            self.tallies.changed_queues.add(hint.queue)
        self.delivery.hint(self.engine.on_hints(hints), "peer")

    def _on_key_notification(self, notification: model.KeyNotification) -> None:
        """Distribute notifications of keys that were changed through this server."""
        self._on_peer_keys(notification)
        if self._peers is not None:
            self._peers.notify(keys=notification)

    def _on_peer_keys(self, notification: model.KeyNotification) -> None:
        """Distribute notifications of keys that were changed through another server."""
        self.keyvalue.watchers.notify(notification)
        self.schedules.notify(notification)

    def stop_waiting(self) -> None:
        """End all waiting pops, streams and watches, because the server shuts down."""
        self.readiness.stopping = True
        self.delivery.close()
        self.keyvalue.watchers.close()
        self.observed.stop_watching()

    async def close(self) -> None:
        """Finish the accepted requests, then close the engine."""
        self.stop_waiting()
        await self.delivery.drain()
        await self.schedules.close()
        await self.duties.end()
        await self.observed.close()
        await self.batchers.drain()
        if self._releases:
            await asyncio.wait(self._releases)
        await self.engine.close()
        if self._peers is not None:  # Last, so that peers are notified of work that the shutdown released.
            await self._peers.close()

    def peer_metrics(self) -> dict[str, float]:
        """Metrics of notifications to and from peers; empty without peers."""
        return {} if self._peers is None else self._peers.metrics()

    # Messages ----------------------------------------------------------------------------------------------

    def begin_push(self, items: Sequence[model.NewMessage]) -> Answer[list[model.PushOutcome]]:
        """Append messages; the future is done when they are on stable storage.

        Some outcomes can have the code `sealing_mismatch`; then `push_again` has to follow.
        """
        if self._flags:
            self.check_pushes()
        # Large payloads count as more than one item in `limits.max_pending`.
        size = len(items[0].payload) if len(items) == 1 else sum([len(item.payload) for item in items])
        sealed = self.sealed.seal(items) if self.sealed.names else items
        return self.batchers.push.submit(sealed, len(items) + size // _BYTES_PER_ITEM)

    async def push(self, items: Sequence[model.NewMessage]) -> list[model.PushOutcome]:
        """Append messages, also with unique keys. Returns when they are on stable storage."""
        if any(item.unique_key is not None for item in items):
            return await self.unique.push(items)
        outcomes = await self.begin_push(items)
        return await self.push_again(items, outcomes)

    def begin_pop(self, request: PopRequest, wait_seconds: float = 0, priority: int = 0) -> asyncio.Future[PopResult]:
        """Lease messages. With `wait_seconds`, wait that long for the first message.

        Waiting consumers with the highest `priority` are served first. Cancel the future if the client disconnects; if
        it is done already, `give_back` its result. The payloads are not decrypted: see `unseal`.
        """
        if self._flags.get(POP_MAINTENANCE):
            paused: asyncio.Future[PopResult] = asyncio.get_running_loop().create_future()
            paused.set_result(PopResult(reason="paused"))
            return paused
        if wait_seconds > 0:
            return self.delivery.wait(request, wait_seconds, priority)
        return self.submit(request, patient=False)

    async def pop(
        self, request: PopRequest, wait_seconds: float = 0, priority: int = 0, gone: Gone | None = None
    ) -> PopResult:
        """Lease messages, as `begin_pop` does, until the client disconnects, and decrypt them."""
        answer = self.begin_pop(request, wait_seconds, priority)
        watch = asyncio.create_task(gone()) if gone is not None and wait_seconds > 0 else None
        if watch is not None:
            watch.add_done_callback(lambda _: _answer_nothing(answer))
        try:
            result = await self._received(answer)
        finally:
            if watch is not None:
                watch.cancel()
        self.unseal(result)
        return result

    def submit(self, request: PopRequest, *, patient: bool = True) -> asyncio.Future[PopResult]:
        """Pop once, in a shared batch. `patient` tells that a waiting consumer repeats the pop."""
        if patient and self.engine.shared:  # If the store is not shared, this server knows of every change.
            request = msgspec.structs.replace(request, patient=True)
        self._last_polls.note(request)
        # An engine that follows others keeps payloads elsewhere. With auto-ack too, only what was read is settled.
        sealed = self.sealed
        if self.engine.follows or ((sealed.names or sealed.unreadable) and sealed.may_concern(request)):
            return asyncio.ensure_future(self.readable.pop(request))
        return (self.batchers.pop_auto_ack if request.auto_ack else self.batchers.pop).submit(request)

    async def _pop_at_once(self, requests: Sequence[PopRequest]) -> Sequence[PopResult | HarkError]:
        """Pop with auto-ack. Encrypted messages come on a lease, and are settled when they have been read."""
        answers = list(await self.engine.pop(requests))
        for number, (request, answer) in enumerate(zip(requests, answers, strict=True)):
            if isinstance(answer, PopResult) and answer.lease_id:
                try:
                    answers[number] = await self.readable.pop(request, answer)
                except HarkError as error:
                    answers[number] = error
        return answers

    async def _take(self, request: PopRequest) -> PopResult:
        return await self._received(self.batchers.pop.submit(request))

    async def _received(self, answer: asyncio.Future[PopResult]) -> PopResult:
        try:
            return await answer
        except asyncio.CancelledError:
            # The answer can arrive in the same turn of the event loop in which its client disconnects.
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self.give_back(answer.result())
            raise

    def give_back(self, result: PopResult) -> asyncio.Task[None] | None:
        """Release the messages of a client that disconnected, without using an attempt."""
        return self.release(result.lease_id) if result.lease_id else None

    def release(self, lease_id: str) -> asyncio.Task[None]:
        """Release the messages of a lease that its consumer never received."""
        task = asyncio.get_running_loop().create_task(self.engine.release([lease_id]))
        self._releases.add(task)
        task.add_done_callback(self._released)
        return task

    def _released(self, task: asyncio.Task[None]) -> None:
        self._releases.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("cannot release messages that no consumer received; they wait for their lease: %s", error)

    def settle(self, items: Sequence[Settlement]) -> asyncio.Future[list[model.SettleOutcome]]:
        """Settle messages: complete, fail, retry or dead-letter them. Error texts of encrypted queues are encrypted."""
        if any(item.task is not None for item in items):
            return asyncio.ensure_future(self.tasks.settle(items, self._settle))
        return self._settle(items)

    def _settle(self, items: Sequence[Settlement]) -> asyncio.Future[list[model.SettleOutcome]]:
        answer: asyncio.Future[list[model.SettleOutcome]]
        if any(item.error for item in items) and self._may_seal:

            async def settle_sealed() -> list[model.SettleOutcome]:
                return await self.batchers.settle.submit(await self._seal_errors(items), len(items))

            answer = asyncio.ensure_future(settle_sealed())
        else:
            answer = self.batchers.settle.submit(items, len(items))
        if self.delivery.streams.by_number:
            answer.add_done_callback(partial(self._note_settlements, items))
        return answer

    async def _seal_errors(self, items: Sequence[T]) -> list[T]:
        """Operations with the error texts of settlements as they are to be stored."""
        with_error = {
            index: item for index, item in enumerate(items) if isinstance(item, Settlement) and item.error is not None
        }
        if not with_error:
            return list(items)
        queues = await self.queue_lookup.queues_of(
            [item.partition_id or item.transaction_id for item in with_error.values()]
        )
        await self.sealed.learn_of(queues)
        sealed: list[Any] = list(items)
        for (index, item), queue in zip(with_error.items(), queues, strict=True):
            sealed[index] = msgspec.structs.replace(item, error=self.sealed.seal_text(queue, item.error or ""))
        return sealed

    @property
    def _may_seal(self) -> bool:
        """Whether there can be encrypted queues."""
        return bool(self.sealed.names) or self.engine.shared

    def _note_settlements(self, items: Sequence[Settlement], answer: asyncio.Future[list[model.SettleOutcome]]) -> None:
        if not answer.cancelled() and answer.exception() is None:
            self.delivery.streams.settled(items, answer.result())

    async def transact(self, transaction: model.Transaction) -> model.TransactionOutcome:
        """Apply pushes, settlements and key writes together or not at all."""
        keys = transaction.keys or model.KeyWrite()
        pushes = any(isinstance(operation, model.NewMessage) for operation in (*transaction.operations, *keys.messages))
        if pushes:
            self.check_pushes()
        weight = len(transaction.operations) + len(keys.checks) + len(keys.mutations) + len(keys.messages)
        sealed = transaction
        if self._may_seal:
            sealed = msgspec.structs.replace(transaction, operations=await self._seal_errors(transaction.operations))

        async def attempt() -> model.TransactionOutcome | None:
            wanted = self.sealed.seal_transaction(sealed) if self.sealed.names else sealed
            outcome = await self.batchers.transact.submit(wanted, weight)
            return None if outcome.code == "sealing_mismatch" else outcome

        outcome = await self.sealed.repeat(attempt)
        if self.delivery.streams:
            self._note_settled(transaction, outcome)
        return outcome

    def renew(self, renewal: model.Renewal) -> asyncio.Future[model.RenewOutcome]:
        """Renew a lease."""
        answer = self.batchers.renew.submit(renewal)
        if self.delivery.streams.by_number:
            answer.add_done_callback(partial(self._note_renewal, renewal.lease_id))
        return answer

    async def _renew_all(self, requests: Sequence[model.Renewal]) -> Sequence[model.RenewOutcome | HarkError]:
        return await self.tasks.renew(requests)

    def _note_renewal(self, lease_id: str, answer: asyncio.Future[model.RenewOutcome]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            return
        expires_at = answer.result().expires_at
        if expires_at is not None:
            self.delivery.streams.renewed(lease_id, expires_at)
        else:
            self.delivery.streams.tried_lease(lease_id)

    def _note_settled(self, transaction: model.Transaction, outcome: model.TransactionOutcome) -> None:
        if not outcome.success:
            self.delivery.streams.tried(one for one in transaction.operations if isinstance(one, Settlement))
            return
        for operation, result in zip(transaction.operations, outcome.results, strict=True):
            if isinstance(operation, Settlement) and isinstance(result, model.SettleOutcome):
                self.delivery.streams.settled([operation], [result])

    # Queues ------------------------------------------------------------------------------------------------

    async def configure(self, spec: model.QueueSpec) -> model.QueueInfo:
        """Create a queue, or replace all options of an existing one."""
        self.sealed.check(spec)
        info = first(await self.engine.configure([spec]))
        self.sealed.note(info)
        return info

    async def delete_queues(self, names: Sequence[str]) -> list[bool]:
        """Delete queues with their messages and groups. False for a queue that does not exist."""
        deleted = await self.engine.delete_queues(names)
        # Not those of unique keys, which the cleanup finds: a message may have been pushed again by now.
        trees = [(model.OWN, kind, name) for name in names for kind in ("task", "flow")]
        mutations = [model.KeyMutation(kind="delete_tree", key=tree) for tree in trees]
        await self.keyvalue.write_keys(model.KeyWrite(mutations=mutations))
        self.work_queues.forget(names)
        self.tallies.changed_queues.update(names)
        return deleted

    async def set_maintenance(self, flag: str, enabled: bool) -> None:
        """Stop or resume all pushes or all pops. The setting survives restarts."""
        await self.engine.write_flag(flag, enabled)
        self._flag_changes += 1
        self._take_over(self._flags | {flag: enabled})

    async def refresh_flags(self) -> None:
        """Read the maintenance flags, which another server can have changed."""
        sealed = self._flag_changes
        flags = await self.engine.read_flags()
        if sealed == self._flag_changes:  # Otherwise they can be older than a change through this server.
            self._take_over(flags)

    def _take_over(self, flags: dict[str, bool]) -> None:
        """Apply the maintenance flags; pop maintenance suspends or resumes waiting consumers."""
        was_stopped, is_stopped = self.maintenance(POP_MAINTENANCE), flags.get(POP_MAINTENANCE, False)
        self._flags = flags
        if is_stopped and not was_stopped:
            self.delivery.suspend()
        elif was_stopped and not is_stopped:
            self.delivery.resume()

    def check_pushes(self) -> None:
        """Reject pushes during push maintenance."""
        if self._flags.get(PUSH_MAINTENANCE):
            raise Unavailable(
                "pushes are stopped for maintenance; nothing was stored; retry later", code="maintenance", retry_after=5
            )

    def maintenance(self, flag: str) -> bool:
        """Whether pushes or pops are stopped for maintenance."""
        return self._flags.get(flag, False)

    # Payloads that administrators see ----------------------------------------------------------------------

    async def dead_letters(self, where: model.DeadLetterFilter) -> model.DeadLetters:
        """A page of dead letters with readable payloads and error texts."""
        return await shown_dead_letters(self.engine, self.sealed, where)

    async def import_dead_letters(self, letters: Sequence[model.NewDeadLetter]) -> list[bool]:
        """Store dead letters of another store in a queue; False for one that exists."""
        self.check_pushes()

        async def attempt() -> list[bool] | None:
            answers = await self.engine.import_dead_letters(self.sealed.seal_letters(letters))
            mismatch = any(isinstance(one, HarkError) and one.code == "sealing_mismatch" for one in answers)
            return None if mismatch else [first([one]) for one in answers]

        return await self.sealed.repeat(attempt)

    async def message(self, partition_id: str, transaction_id: str) -> model.MessageView | None:
        """One message with a readable payload. `sealed` still shows whether it is encrypted at rest."""
        view = await self.engine.message(partition_id, transaction_id)
        if view is not None and view.payload is not None:
            view.payload, view.unreadable = self.sealed.shown(view.queue, view.payload, view.sealed)
        return None if view is None else self._with_errors(view)

    async def messages(self, where: model.MessageFilter) -> list[model.MessageView]:
        """Messages, newest first, without payloads, and with readable error texts."""
        return [self._with_errors(view) for view in await self.engine.messages(where)]

    def _with_errors(self, view: model.MessageView) -> model.MessageView:
        """A message with readable error texts; others may have the same view."""
        groups = [
            group
            if group.error is None
            else msgspec.structs.replace(group, error=self.sealed.shown_text(view.queue, group.error))
            for group in view.groups
        ]
        return msgspec.structs.replace(view, groups=groups)

    async def explain(self, message_id: str, group: str | None = None) -> model.Explained:
        """Explain why a message was not delivered or settled, for one group or for every group of its queue."""
        facts = first(await self.engine.explain([model.Explain(message_id, group)]))
        facts = msgspec.structs.replace(facts, groups=[self._readable(facts, one) for one in facts.groups])
        missing = await self._missing_key(facts.message)
        explanations = [
            explain(facts, one, self._circumstances(facts.message, one.group, missing)) for one in facts.groups
        ]
        return model.Explained(facts.message, explanations or [explain_without_groups(facts)])

    def _readable(self, facts: model.Facts, group: model.GroupFacts) -> model.GroupFacts:
        """What is known of a message in a group, with readable error texts."""

        def opened(one: E | None) -> E | None:
            error = getattr(one, "error", None)
            if one is None or error is None:
                return one
            return msgspec.structs.replace(one, error=self.sealed.shown_text(facts.message.queue, error))

        ahead = group.ahead
        if ahead is not None:
            ahead = msgspec.structs.replace(ahead, retry=opened(ahead.retry))
        return msgspec.structs.replace(
            group, ahead=ahead, dead=opened(group.dead), retry=opened(group.retry), ending=opened(group.ending)
        )

    async def _missing_key(self, message: model.MessageFacts) -> str | None:
        if not message.stored or not self.sealed.concerns(message.queue):
            return None
        try:
            return self.sealed.missing_key(await self.engine.message(message.partition_id, message.id))
        except EngineFailure:
            return None  # Only the payload tells its key.

    def _circumstances(self, message: model.MessageFacts, group: str, missing_key: str | None) -> Circumstances:
        return Circumstances(
            missing_key=missing_key,
            pop_maintenance=self.maintenance(POP_MAINTENANCE),
            waiting=self.delivery.count_waiting(message, group),
            last_polled=self._last_polls.last(message, group),
            known_since=self._last_polls.since,
            alone=not self.engine.shared,
        )

    async def traces(
        self,
        partition_id: str | None = None,
        transaction_id: str | None = None,
        name: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> tuple[list[model.Trace], int]:
        """Events of one message or of one name, with readable payloads."""
        traces, total = await self.engine.traces(partition_id, transaction_id, name, limit, offset)
        return [self._readable_trace(trace) for trace in traces], total

    def _readable_trace(self, trace: model.Trace) -> model.Trace:
        trace = msgspec.structs.replace(trace, data=self.sealed.shown_data(trace.queue, trace.data))
        if trace.payload is None:
            return trace
        payload, reason = self.sealed.shown(trace.queue, trace.payload, trace.sealed)
        return msgspec.structs.replace(trace, payload=payload, sealed=False, unreadable=reason)

    async def trace(self, trace: model.NewTrace) -> str:
        """Record a trace event of a message. Returns its id. The data of an encrypted queue is encrypted."""
        if self._may_seal:
            [queue] = await self.queue_lookup.queues_of([trace.partition_id])
            await self.sealed.learn_of([queue])
            trace = msgspec.structs.replace(trace, data=self.sealed.seal_bytes(queue, trace.data))
        return first(await self.engine.trace([trace]))

    def export_queue(self, name: str) -> AsyncIterator[bytes]:
        """A queue as JSON lines with readable payloads (`hark.model.export`)."""
        return export_queue(self.engine, self.sealed, name)

    # Sealing -----------------------------------------------------------------------------------------------

    async def push_again(
        self, items: Sequence[model.NewMessage], outcomes: list[model.PushOutcome]
    ) -> list[model.PushOutcome]:
        """Push messages again that were rejected because the encryption of their queue was changed meanwhile."""

        def rejected() -> list[int]:
            return [index for index, outcome in enumerate(outcomes) if outcome.code == "sealing_mismatch"]

        async def attempt() -> list[model.PushOutcome] | None:
            again = rejected()
            retried = [self.sealed.reseal(items[index]) for index in again]
            answers = await self.batchers.push.submit(retried, len(retried))
            for index, answer in zip(again, answers, strict=True):
                outcomes[index] = answer
            return None if rejected() else outcomes

        if not rejected():
            return outcomes
        await self.sealed.learn()
        return await self.sealed.repeat(attempt)

    def show(self, messages: Sequence[model.StoredMessage]) -> None:
        """Decrypt the payloads of browsed messages. One that cannot be read is null, with the reason."""
        self.sealed.show_all(messages)

    def unseal(self, result: PopResult) -> None:
        """Decrypt payloads. If a key is missing, release all messages and raise."""
        # Without a key and encrypted queues nothing is encrypted, unless another server created a queue just now.
        if self.sealed.names or self.sealed.may_open:
            try:
                self.sealed.unseal(result)
            except HarkError:
                # No attempt is used: the operator has to add the key.
                self.give_back(result)
                raise


def _answer_nothing(answer: asyncio.Future[PopResult]) -> None:
    if not answer.done():
        answer.set_result(PopResult())


def first(answers: Sequence[T | HarkError]) -> T:
    """The answer to a batch of one. Raises it if it is an error."""
    answer = answers[0]
    if isinstance(answer, HarkError):
        raise answer
    return answer
