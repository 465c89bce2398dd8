"""The threads of the store, and the order in which they serve calls.

Two threads share the state under one lock. The writer runs all waiting write calls as one transaction. It holds the
lock while their bodies run and while it publishes the commit, but not while it waits for the disk. Meanwhile the
claimer serves calls that need only memory and reads: pops with leases, renewals, looks. The event loop serves small
pops itself while the lock is free.

    event loop --writes--> writer thread --(lock) bodies; write rows, commit; (lock) publish--+
        |                     ^  |  calls that must wait for a commit, or need one first       |
        |                     |  v                                                             |
        +--pops, looks---> claimer thread --(lock) claims--+                                   |
        ^                                                  |                                   |
        +---------------------answers and hints------------+-----------------------------------+

One thread runs the bodies and commits them, because with a busy event loop each change of thread can cost a turn of the
interpreter lock.

When a commit fails, memory is dropped and loaded again, and the calls are retried one by one, so that only those that
cannot be done fail. Leases are lost then, as in a crash, and their messages are redelivered. A commit whose sync failed
is still in the log: no call is answered before another commit has overwritten it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from math import inf
from queue import SimpleQueue
from time import monotonic

import apsw

from hark.clock import SECOND, Clock
from hark.engine.api import KeyListener, Listener
from hark.engine.core.claim import Claimer
from hark.engine.core.groups import first_contact
from hark.engine.core.loader import Loader
from hark.engine.core.settle import expire, settle_leased
from hark.engine.core.state import State
from hark.engine.core.transaction import WriteTransaction
from hark.engine.core.verbs import Call, Claim, Expire, Look, Notes, Outbox, Stop, Write, stopping, translate
from hark.engine.hints import HintBook
from hark.engine.sqlite.files import note_time
from hark.engine.sqlite.store import Checkpointer, Store
from hark.errors import EngineFailure, HarkError
from hark.ids import IdCodec, IdSource
from hark.model import Expired, PopRequest, PopResult

log = logging.getLogger(__name__)

_EXPIRE_AT_ONCE = 10_000
_MOST_AT_ONCE = 64
"""Number of messages that are claimed on the event loop."""
_SLOW_COMMIT = 0.1
"""A disk is slow if a commit takes longer than this, in seconds."""
_NOTE_EVERY = 10 * SECOND
"""How old the last known time of the store may be when a transaction is committed."""
_SLOW_CLAIM = 0.005
_SLOW_FOR = 1.0
"""After a slow claim on the event loop, the claimer serves all claims for this time."""


class StoreThreads:
    """The writer and the claimer of a store."""

    def __init__(
        self, store: Store, clock: Clock, ids: IdSource, listener: Listener, key_listener: KeyListener
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self.state = State(IdCodec(store.tag), store.refusal)
        self._lock = threading.Lock()
        self.writes: SimpleQueue[Call] = SimpleQueue()
        """For the writer."""
        self._claims: SimpleQueue[Call] = SimpleQueue()
        self._parked: list[Call] = []
        """Calls that wait for the transaction in progress."""
        self._outbox = Outbox(listener, key_listener)
        """Filled under the lock, emptied by the event loop."""
        self._broken: HarkError | None = None
        """Why memory is not valid: it could not be loaded after a failure."""
        self._in_doubt = False
        """The log may have a commit whose sync failed, which the next process to read it would apply."""
        self._notes = Notes()
        self._latest = 0
        """The latest time of a call. Time never goes back, because groups have passed messages that were due."""
        self._noted = 0
        """The last known time of the store, as stored."""
        self._commit_began = inf
        """When the commit in progress began, in seconds; infinite without one."""
        self._slow_until = 0.0
        self._claimed = HintBook()
        """Hints of the claims in progress."""
        self._writer = threading.Thread(target=self._run_writer, name="hark-store", daemon=True)
        self._claimer = threading.Thread(target=self._run_claimer, name="hark-store-pop", daemon=True)
        self._checkpointer = None if store.memory else Checkpointer(store)

    def start(self) -> None:
        """Load the queues and start the threads."""
        Loader(self._store.reader, self.state).queues()
        if self._checkpointer is not None:
            self._checkpointer.start()
        self._writer.start()
        self._claimer.start()

    def submit(self, call: Call) -> None:
        """Queue a call from the event loop that is not a write, or serve it at once."""
        if isinstance(call, Claim) and any(request.auto_ack for request in call.requests):
            self.writes.put(call)
        elif not (isinstance(call, Claim) and self._claim_at_once(call)):
            self._claims.put(call)

    def _claim_at_once(self, claim: Claim) -> bool:
        """Serve a small claim on the event loop, because that takes less time than to wake up the claimer.

        The claimer serves it if the disk may be slow, or if the messages are so large that they take long to read.
        """
        began = monotonic()
        if (
            began < self._slow_until
            or began > self._commit_began + _SLOW_COMMIT
            or not self._claims.empty()
            or sum(request.batch for request in claim.requests) > _MOST_AT_ONCE
            or not self._lock.acquire(blocking=False)
        ):
            return False
        try:
            self._serve_all([claim])
        finally:
            self._lock.release()
        self._outbox.deliver_soon()
        ended = monotonic()
        if ended - began > _SLOW_CLAIM:
            self._slow_until = ended + _SLOW_FOR
        return True

    def join(self) -> None:
        """Wait for the threads to end after a `Stop`."""
        self._claimer.join()
        self._writer.join()
        if self._checkpointer is not None:
            self._checkpointer.stop()

    # The claimer -------------------------------------------------------------------------------------------

    def _run_claimer(self) -> None:
        stop: Stop | None = None
        while stop is None:
            calls = [self._claims.get()]
            while not self._claims.empty():  # No other thread takes from it.
                calls.append(self._claims.get())
            stop = next((call for call in calls if isinstance(call, Stop)), None)
            with self._lock:
                self._serve_all([call for call in calls if not isinstance(call, Stop)])
            self._outbox.deliver()
        self.writes.put(stop)

    def _serve_all(self, calls: Sequence[Call]) -> None:
        self._latest = now = max(self._latest, self._clock.now())
        answered = [call for call in calls if self._serve(call, now)]
        if self._notes.waiting:
            self.writes.put(Write(None, lambda _: None))  # Every transaction saves the notes.
        self._outbox.post(answered, self._claimed.hints())
        self._claimed = HintBook()

    def _serve(self, call: Call, now: int) -> bool:
        """Serve a call from memory. False: it must wait for a transaction."""
        try:
            if self._broken is not None:
                self.writes.put(Write(None, lambda _: None))  # The next transaction tries to load memory again.
                raise self._broken
            if self.state.is_due(now):
                self.writes.put(call)  # Due leases are expired first, in a transaction.
                return False
            if isinstance(call, Claim):
                return self._serve_claim(call, now)
            assert isinstance(call, Look)
            if self.state.expiring:
                self._parked.append(call)  # A look must see due leases as expired.
                return False
            call.result = call.body(self.state, now)
        except Exception as error:
            call.error = translate(error)
        return True

    def _serve_claim(self, claim: Claim, now: int) -> bool:
        claimer = Claimer(self._store.reader, self.state, now, self._ids)
        numbers = claim.open
        if any(claimer.contacts(claim.requests[number]) for number in numbers):
            # A new group must be on stable storage before the answer, so this takes a transaction.
            self.writes.put(claim)
            return False
        requests = [claim.requests[number] for number in numbers]
        try:
            answers = claimer.serve(requests)
        except Exception:
            if len(requests) == 1:
                raise
            # One of them fails: serve each alone, so that only that one fails.
            answers = [self._serve_alone(claimer, request) for request in requests]
        self._notes.add(claimer)
        claimer.notify_rest(self._claimed)
        for number, answer in zip(numbers, answers, strict=True):
            claim.answers[number] = answer
        if claim.open:
            self._parked.append(claim)
            return False
        claim.result = claim.answers
        return True

    def _serve_alone(self, claimer: Claimer, request: PopRequest) -> PopResult | HarkError | None:
        try:
            return claimer.serve([request])[0]
        except Exception as error:
            return translate(error)

    # The writer --------------------------------------------------------------------------------------------

    def _run_writer(self) -> None:
        stop: Stop | None = None
        while stop is None or not self.writes.empty():
            calls = [self.writes.get()]
            while not self.writes.empty():  # No other thread takes from it.
                calls.append(self.writes.get())
            stop = next((call for call in calls if isinstance(call, Stop)), stop)
            writes = [call for call in calls if not isinstance(call, Stop)]
            if stop is not None:
                writes.append(Write(None, lambda transaction: note_time(transaction.connection, transaction.now)))
            if writes:
                self._transact(writes)
                self._outbox.deliver()
        # The claimer has ended, so these calls cannot be served any more.
        left = [*self._parked, *(self._claims.get() for _ in range(self._claims.qsize()))]
        for call in left:
            call.error = stopping()
        self._outbox.post([*left, stop], [])
        self._outbox.deliver()

    def _transact(self, writes: list[Call]) -> None:
        """Run all calls in one transaction. If recovery fails, they all fail, and the next transaction retries it."""
        begun = False
        try:
            if self._broken is not None:
                with self._lock:
                    self._reset()
            begun = True
            try:
                with self._lock:
                    if isinstance(writes[0], Expire) and self._nothing_due(writes):
                        return
                    transaction = self._run_bodies(writes)
                    if self._store.memory:  # It has only one connection, so the commit needs the lock.
                        self._write_down(transaction)
                if not self._store.memory:
                    self._write_down(transaction)
            except Exception as error:
                with self._lock:
                    self._recover(writes, error)
                return
            with self._lock:
                self._publish(transaction, writes)
        except Exception as error:
            self._fail(writes, error, begun)

    def _fail(self, writes: list[Call], error: Exception, begun: bool) -> None:
        text = "cannot reload the state of %s after a failure; retrying with the next request"
        log.critical(text, self._store.path, exc_info=error)
        with self._lock:
            self._broken = translate(error)
            parked, self._parked = self._parked, []
            for call in writes:
                call.error = _unknown(error) if begun and self._in_doubt else self._broken
            for call in parked:
                call.error = self._broken
            self._outbox.post([*writes, *parked], [])

    def _nothing_due(self, writes: Sequence[Call]) -> bool:
        """Answer the calls if all of them are `Expire` and no lease is due."""
        if self.state.is_due(self._clock.now()) or not all(isinstance(write, Expire) for write in writes):
            return False
        for write in writes:
            write.result = Expired(0, self.state.next_expiry())
        self._outbox.post(list(writes), [])
        return True

    def _run_bodies(self, writes: Sequence[Call]) -> WriteTransaction:
        self._latest = now = max(self._latest, self._clock.now())
        self._store.writer.execute("begin immediate")
        transaction = WriteTransaction(self._store.writer, self.state, now, self._ids)
        heap = self.state.lease_heap
        if heap and heap[0][0] <= now:  # Perhaps of a lease that ended before. That is for `expire` to find out.
            limits = [write.limit for write in writes if isinstance(write, Expire)]
            expire(transaction, max(limits) if len(limits) == len(writes) else _EXPIRE_AT_ONCE)
        if self._notes.waiting:
            self._notes.save(transaction, self.state)
        for write in writes:
            if isinstance(write, Claim):
                self._claim_in(transaction, write)
            elif isinstance(write, Write):
                write.result = write.body(transaction)
        if now - self._noted >= _NOTE_EVERY:
            note_time(transaction.connection, now)
            transaction.on_commit(lambda: setattr(self, "_noted", now))
        if transaction.shared or transaction.drops is not None:
            transaction.seal()
        return transaction

    def _claim_in(self, transaction: WriteTransaction, claim: Claim) -> None:
        """Create groups; serve pops with auto-ack, and settle their messages that are not sealed."""
        claimer = Claimer(self._store.reader, self.state, transaction.now, self._ids)
        first_contact(
            transaction, [contact for number in claim.open for contact in claimer.contacts(claim.requests[number])]
        )
        numbers = [number for number in claim.open if claim.requests[number].auto_ack]
        answers = claimer.serve([claim.requests[number] for number in numbers])
        self._notes.add(claimer)
        transaction.on_commit(lambda: claimer.notify_rest(transaction.hints))
        claim.uncommitted = dict(zip(numbers, answers, strict=True))
        for answer in answers:
            if isinstance(answer, PopResult) and answer.lease_id:
                lease = claimer.settled_at_once.get(answer.lease_id)
                if lease is None:
                    continue
                for position in lease.parts:
                    settle_leased(transaction, lease, position)
                answer.lease_id, answer.expires_at = "", None

    def _write_down(self, transaction: WriteTransaction) -> None:
        self._commit_began = monotonic()
        try:
            transaction.flush()
            try:
                self._store.commit()
            except apsw.FullError:
                raise  # The commit was not written completely.
            except apsw.Error:
                self._in_doubt = True
                raise
        finally:
            self._commit_began = inf

    def _publish(self, transaction: WriteTransaction, writes: Sequence[Call]) -> None:
        hints = transaction.publish()
        answered: list[Call] = []
        for write in writes:
            if isinstance(write, Claim):
                for number, answer in write.uncommitted.items():
                    write.answers[number] = answer
                if write.open:
                    self.submit(write)
                    continue
                write.result = write.answers
            elif isinstance(write, Look):
                self._claims.put(write)
                continue
            answered.append(write)
        if self._parked:
            self._unpark()
        if self._notes.waiting:
            self.writes.put(Write(None, lambda _: None))
        keys = transaction.keys
        self._outbox.post(answered, hints, None if keys is None else keys.notification())

    def _unpark(self) -> None:
        parked, self._parked = self._parked, []
        for call in parked:
            self._claims.put(call)

    def _recover(self, writes: list[Call], error: Exception) -> None:
        """Roll back, load memory again, and retry the calls one by one. `writes` keeps those without an answer."""
        self._reset()
        known = isinstance(error, apsw.Error)
        log.error(
            "a commit of %d calls to %s failed; check the disk: %s",
            len(writes),
            self._store.path,
            error,
            exc_info=None if known else error,
            extra={"fields": {"calls": len(writes), "reason": type(error).__name__}},
        )
        several = len(writes) > 1
        for write in tuple(writes):
            if several:
                try:
                    transaction = self._run_bodies([write])
                    self._write_down(transaction)
                except Exception as own:
                    self._reset()
                    error = own
                else:
                    writes.remove(write)
                    self._publish(transaction, [write])
                    continue
            writes.remove(write)
            write.error = translate(error)
            self._outbox.post([write], [])
        self._unpark()

    def _reset(self) -> None:
        """Roll back and load memory again. All leases are lost, so any message may be ready."""
        lost = list(self.state.leases.values())
        if self._store.writer.in_transaction:
            self._store.writer.execute("rollback")
        if self._in_doubt:
            self._store.overwrite_failed_commit()
            self._in_doubt = False
        self._notes.clear()
        self.state.clear()
        Loader(self._store.writer, self.state).queues()
        self._broken = None
        hints = HintBook()
        for queue in self.state.queues:
            hints.add(queue, None, None)
        for lease in lost:
            for position in lease.parts:
                hints.ended(position.group.queue_name, position.group.name, lease.id)
        self._outbox.post([], hints.hints())


def _unknown(error: Exception) -> HarkError:
    """The error for calls whose commit may be in the log."""
    text = f"the store failed: {error}; it is unknown whether the request took effect; see the server log"
    return EngineFailure(text, code="outcome_unknown")
