"""The threads of the store: who may touch the state when, and the order in which calls are served.

Two threads share the state under one lock. The writer runs all write calls that wait as one transaction; it holds the
lock while their bodies run and again to publish what was committed, but not while it waits for the disk. Meanwhile
the claimer goes on with what needs only memory and reads: pops that lease, renewals, looks.

    event loop --writes--> writer thread --(lock) bodies; write rows, commit; (lock) publish--+
        |                     ^  |  calls that a commit is in the way of, or has to go before  |
        |                     |  v                                                             |
        +--pops, looks---> claimer thread --(lock) claims--+                                   |
        ^                                                  |                                   |
        +---------------------answers and hints------------+-----------------------------------+

There is no handing over between "run" and "commit": with a busy event loop each change of thread can cost
a turn of the interpreter lock.

When a commit fails everything in memory is thrown away and read again, and the calls are tried one by one: only
the one that can't be done fails. (Leases are lost then, as in a crash: their messages are delivered again.)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import TypeVar

import apsw

from hark.clock import Clock
from hark.engine.api import KeyListener, Listener
from hark.engine.hints import HintBook
from hark.engine.sqlite.calls import Call, Claim, Expire, Look, Nudge, Stop, Write
from hark.engine.sqlite.checkpoint import Checkpointer
from hark.engine.sqlite.claim import Claimer
from hark.engine.sqlite.expire import expire, settle_held
from hark.engine.sqlite.groups import first_contact
from hark.engine.sqlite.loader import Loader
from hark.engine.sqlite.notes import Notes
from hark.engine.sqlite.outbox import Outbox, translate
from hark.engine.sqlite.state import State
from hark.engine.sqlite.store import Store
from hark.engine.sqlite.transaction import WriteTransaction
from hark.errors import EngineFailure, HarkError
from hark.ids import IdCodec, IdSource
from hark.model import Expired, PopRequest, PopResult

log = logging.getLogger(__name__)

T = TypeVar("T")
_EXPIRE_AT_ONCE = 10_000


class StoreThreads:
    """Runs the store: see the module's text."""

    def __init__(
        self, store: Store, clock: Clock, ids: IdSource, listener: Listener, key_listener: KeyListener
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self.state = State(IdCodec(store.tag))
        self._lock = threading.Lock()
        self._writes: SimpleQueue[Call] = SimpleQueue()
        self._claims: SimpleQueue[Call] = SimpleQueue()
        self._parked: list[Call] = []
        """Calls that a transaction is in the way of; they go on when it is published."""
        self._outbox = Outbox(listener, key_listener)
        """Filled under the lock, emptied by the event loop."""
        self._broken: HarkError | None = None
        """Why memory can't be trusted: it could not be read back after a failure."""
        self._notes = Notes()
        self._latest = 0
        """The latest time that anybody was served at."""
        self._claimed = HintBook()
        """What the claims that are being served leave to others."""
        self._writer = threading.Thread(target=self._run_writer, name="hark-store", daemon=True)
        self._claimer = threading.Thread(target=self._run_claimer, name="hark-store-pop", daemon=True)
        self._checkpointer = None if store.memory else Checkpointer(store)

    def start(self) -> None:
        """Load what is always in memory, and begin."""
        Loader(self._store.reader, self.state).queues()
        if self._checkpointer is not None:
            self._checkpointer.start()
        self._writer.start()
        self._claimer.start()

    def submit(self, call: Call) -> None:
        """Hand in a call from the event loop."""
        needs_commit = isinstance(call, Write) or (
            isinstance(call, Claim) and any(request.auto_ack for request in call.requests)
        )
        (self._writes if needs_commit else self._claims).put(call)

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
            calls = take_all(self._claims)
            stop = next((call for call in calls if isinstance(call, Stop)), None)
            with self._lock:
                now = self._now()
                answered = [call for call in calls if not isinstance(call, Stop) and self._serve(call, now)]
                if self._notes:
                    self._writes.put(Nudge())
                self._outbox.post(answered, self._claimed.hints())
                self._claimed = HintBook()
            self._outbox.deliver()
        self._writes.put(stop)

    def _now(self) -> int:
        """The time, which never goes back: groups have passed what was due before (`State.latest_due`)."""
        self._latest = max(self._latest, self._clock.now(), self.state.latest_due)
        return self._latest

    def _is_due(self, now: int) -> bool:
        due = self.state.next_expiry()
        return due is not None and due <= now

    def _serve(self, call: Call, now: int) -> bool:
        """Serve a call from memory; False when it has to wait for a transaction."""
        try:
            if self._broken is not None:
                self._writes.put(Nudge())  # The next transaction tries to read everything back.
                raise self._broken
            if self._is_due(now):
                self._writes.put(call)  # What is due comes first, and takes a transaction.
                return False
            if isinstance(call, Claim):
                return self._serve_claim(call, now)
            assert isinstance(call, Look)
            if self.state.expiring:
                self._parked.append(call)  # Those who look must see what is due as done.
                return False
            call.result = call.body(self.state, now)
        except Exception as error:
            call.error = translate(error)
        return True

    def _serve_claim(self, claim: Claim, now: int) -> bool:
        claimer = Claimer(self._store.reader, self.state, now, self._ids)
        positions = claim.open
        if any(claimer.contacts(claim.requests[position]) for position in positions):
            # First contact has to be on stable storage before the answer: through a transaction.
            self._writes.put(claim)
            return False
        requests = [claim.requests[position] for position in positions]
        try:
            answers = claimer.serve(requests)
        except Exception:
            if len(requests) == 1:
                raise
            # One of them can't be served: find out which, so that only that one fails.
            answers = [self._serve_alone(claimer, request) for request in requests]
        self._notes.add(claimer)
        claimer.tell_rest(self._claimed)
        for position, answer in zip(positions, answers, strict=True):
            claim.answers[position] = answer
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
        while stop is None or not self._writes.empty():
            calls = take_all(self._writes)
            stop = next((call for call in calls if isinstance(call, Stop)), stop)
            writes = [call for call in calls if not isinstance(call, Stop)]
            if writes:
                self._transact_or_fail(writes)
                self._outbox.deliver()
        # The claimer has ended: what came back to it, or waits, will not be served any more.
        left = [*self._parked, *(self._claims.get() for _ in range(self._claims.qsize()))]
        for call in left:
            call.error = EngineFailure("the server is shutting down; retry", code="stopping")
        self._outbox.post([*left, stop], [])
        self._outbox.deliver()

    def _transact_or_fail(self, writes: list[Call]) -> None:
        """Run a transaction. If even recovery fails, all calls fail, and the next transaction retries the recovery."""
        try:
            if self._broken is not None:
                with self._lock:
                    self._reset()
            self._transact(writes)
        except Exception as error:
            log.critical(
                "cannot reload the state of %s after a failure; retrying with the next request",
                self._store.path,
                exc_info=error,
            )
            with self._lock:
                self._broken = translate(error)
                parked, self._parked = self._parked, []
                for call in (*writes, *parked):
                    call.error = self._broken
                self._outbox.post([*writes, *parked], [])

    def _transact(self, writes: list[Call]) -> None:
        """One transaction for all these calls."""
        try:
            with self._lock:
                now = self._now()
                if not self._is_due(now) and all(isinstance(write, Expire) for write in writes):
                    self._outbox.post(self._nothing_due(writes), [])
                    return
                transaction = self._run_bodies(writes, now)
                if self._store.memory:  # One connection for all: nobody else may use it meanwhile.
                    self._write_down(transaction)
            if not self._store.memory:
                self._write_down(transaction)
        except Exception as error:
            with self._lock:
                self._recover(writes, error)
            return
        with self._lock:
            self._publish(transaction, writes)

    def _nothing_due(self, writes: Sequence[Call]) -> list[Call]:
        for write in writes:
            write.result = Expired(0, self.state.next_expiry())
        return list(writes)

    def _run_bodies(self, writes: Sequence[Call], now: int) -> WriteTransaction:
        self._store.writer.execute("begin immediate")
        transaction = WriteTransaction(self._store.writer, self.state, now, self._ids)
        limits = [write.limit for write in writes if isinstance(write, Expire)]
        expire(transaction, max(limits) if len(limits) == len(writes) else _EXPIRE_AT_ONCE)
        self._notes.save(transaction, self.state)
        for write in writes:
            if isinstance(write, Claim):
                self._claim_in(transaction, write)
            elif isinstance(write, Write):
                write.result = write.body(transaction)
        transaction.seal()
        return transaction

    def _claim_in(self, transaction: WriteTransaction, claim: Claim) -> None:
        """First contacts; and pops with auto-ack, which settle what they claim in the same transaction."""
        claimer = Claimer(self._store.reader, self.state, transaction.now, self._ids)
        first_contact(
            transaction,
            [contact for position in claim.open for contact in claimer.contacts(claim.requests[position])],
        )
        positions = [position for position in claim.open if claim.requests[position].auto_ack]
        answers = claimer.serve([claim.requests[position] for position in positions])
        self._notes.add(claimer)
        transaction.on_commit(lambda: claimer.tell_rest(transaction.hints))
        claim.uncommitted = dict(zip(positions, answers, strict=True))
        for answer in answers:
            if isinstance(answer, PopResult) and answer.lease_id:
                lease = claimer.settled_at_once[answer.lease_id]
                for track in lease.parts:
                    settle_held(transaction, lease, track)
                answer.lease_id, answer.expires_at = "", None

    def _write_down(self, transaction: WriteTransaction) -> None:
        transaction.flush()
        self._store.commit()

    def _publish(self, transaction: WriteTransaction, writes: Sequence[Call]) -> None:
        hints = transaction.publish()
        answered: list[Call] = []
        for write in writes:
            if isinstance(write, Claim):
                for position, answer in write.uncommitted.items():
                    write.answers[position] = answer
            if isinstance(write, Look):
                self._claims.put(write)
            elif isinstance(write, Claim) and write.open:
                self.submit(write)
            else:
                if isinstance(write, Claim):
                    write.result = write.answers
                answered.append(write)
        self._unpark()
        if self._notes:
            self._writes.put(Nudge())
        self._outbox.post(answered, hints, transaction.keys.news())

    def _unpark(self) -> None:
        parked, self._parked = self._parked, []
        for call in parked:
            self._claims.put(call)

    def _recover(self, writes: Sequence[Call], error: Exception) -> None:
        """Roll back, forget everything in memory, and try the calls one by one."""
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
        failed: list[Call] = []
        for write in writes:
            if len(writes) > 1:
                try:
                    transaction = self._run_bodies([write], self._now())
                    self._write_down(transaction)
                except Exception as own:
                    self._reset()
                    error = own
                else:
                    self._publish(transaction, [write])
                    continue
            write.error = translate(error)
            failed.append(write)
        self._unpark()
        self._outbox.post(failed, [])

    def _reset(self) -> None:
        """Roll back and read everything again. Leases are lost with memory, so anything may be ready now."""
        lost = list(self.state.leases.values())
        if self._store.writer.in_transaction:
            self._store.writer.execute("rollback")
        self._notes.clear()
        self.state.clear()
        Loader(self._store.writer, self.state).queues()
        self._broken = None
        hints = HintBook()
        for queue in self.state.queues:
            hints.add(queue, None, None)
        for lease in lost:
            for track in lease.parts:
                hints.ended(track.group.queue_name, track.group.name, lease.id)
        self._outbox.post([], hints.hints())


def take_all(inbox: SimpleQueue[T]) -> list[T]:
    """Wait for a message, and take all that are there."""
    messages = [inbox.get()]
    try:
        while True:
            messages.append(inbox.get_nowait())
    except Empty:
        return messages
