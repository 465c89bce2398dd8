"""The store thread: the only one that touches the state, and the order in which calls are served.

Calls come in through an inbox. All write calls that wait share one transaction; a second thread commits it, so that
the store thread can go on with claims, which only lease and read, while the disk is busy:

    event loop --call--> inbox --> store thread --commit--> commit thread
        ^                              |   ^                     |
        +------answers and hints-------+   +------committed------+

When a commit fails everything in memory is thrown away and read again, and the calls are tried one by one: only
the one that can't be done fails. (Leases are lost then, as in a crash: their messages are delivered again.)
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

import apsw

from hark.clock import Clock
from hark.engine.api import Listener
from hark.engine.sqlite.claim import Claimer
from hark.engine.sqlite.expire import expire, settle_held
from hark.engine.sqlite.groups import first_contact, note_seen
from hark.engine.sqlite.loader import Loader
from hark.engine.sqlite.state import Group, State, Track
from hark.engine.sqlite.store import Store
from hark.engine.sqlite.transaction import WriteTransaction
from hark.errors import EngineFailure, HarkError
from hark.ids import IdCodec, IdSource
from hark.model import Expired, Hint, PopRequest, PopResult

log = logging.getLogger(__name__)

_EXPIRE_AT_ONCE = 10_000
_CHECKPOINT_PAGES = 2_000
_BLOCKING_CHECKPOINT_PAGES = 40_000


class Call:
    """A verb on its way: what to do, and who waits for it."""

    def __init__(self, future: asyncio.Future[Any] | None) -> None:
        self.future = future
        self.result: Any = None
        self.error: Exception | None = None


class Write(Call):
    """A call that changes the store; answered after the commit."""

    def __init__(self, future: asyncio.Future[Any] | None, body: Callable[[WriteTransaction], object]) -> None:
        super().__init__(future)
        self.body = body


class Expire(Write):
    """The verb expire: does what every transaction does first, but no more of it than it was asked to."""

    def __init__(self, future: asyncio.Future[Any], limit: int) -> None:
        super().__init__(future, lambda transaction: Expired(transaction.expired, transaction.state.next_expiry()))
        self.limit = limit


class Look(Call):
    """A call that only needs memory, such as a renewal; answered at once."""

    def __init__(self, future: asyncio.Future[Any] | None, body: Callable[[State, int], object]) -> None:
        super().__init__(future)
        self.body = body


class Claim(Call):
    """Pops; answered at once, or with auto-ack after the commit that settles them."""

    def __init__(self, future: asyncio.Future[Any], requests: Sequence[PopRequest]) -> None:
        super().__init__(future)
        self.requests = requests
        self.answers: list[PopResult | HarkError | None] = [None] * len(requests)

    @property
    def open(self) -> list[int]:
        """Positions without an answer."""
        return [index for index, answer in enumerate(self.answers) if answer is None]


class Committed:
    """What the commit thread reports."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error


class Stop(Call):
    """The last call."""


class StoreThread:
    """Runs the store: see the module's text."""

    def __init__(self, store: Store, clock: Clock, ids: IdSource, listener: Listener) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._inbox: SimpleQueue[Call | Committed] = SimpleQueue()
        self._writes: list[Write | Claim] = []
        self._claims: list[Claim] = []
        self._looks: list[Look] = []
        self._stop: Stop | None = None
        self._running: tuple[WriteTransaction, list[Write | Claim]] | None = None
        self._stepped: dict[Track, set[int]] = {}
        self._expired_counts: dict[str, int] = {}
        self._seen: dict[Group, None] = {}
        self._answers: list[Call] = []
        self._hints: list[Hint] = []
        self._commits: SimpleQueue[bool] = SimpleQueue()
        self._pages = 0
        self.state = State(IdCodec(store.tag))
        self._thread = threading.Thread(target=self._run, name="hark-store", daemon=True)
        self._commit_thread = threading.Thread(target=self._run_commits, name="hark-store-commit", daemon=True)
        self._checkpoint_wanted = threading.Event()
        self._checkpoint_thread = threading.Thread(target=self._run_checkpoints, name="hark-store-move", daemon=True)

    def start(self) -> None:
        """Load what is always in memory, and begin."""
        Loader(self._store.reader, self.state).queues()
        self._thread.start()
        if not self._store.memory:
            self._store.writer.set_wal_hook(self._note_pages)
            self._commit_thread.start()
            self._checkpoint_thread.start()

    def submit(self, call: Call) -> None:
        """Hand in a call from the event loop."""
        self._inbox.put(call)

    def join(self) -> None:
        """Wait for the threads to end after a `Stop`."""
        self._thread.join()
        if not self._store.memory:
            self._commits.put(False)
            self._commit_thread.join()
            self._checkpoint_thread.join()

    # The store thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._sort(self._inbox.get())
            try:
                while True:
                    self._sort(self._inbox.get_nowait())
            except Empty:
                pass
            self._progress()
            self._deliver()
            if self._stop is not None and not (self._running or self._writes or self._claims or self._looks):
                self._finish(self._stop)
                self._deliver()
                return

    def _sort(self, message: Call | Committed) -> None:
        if isinstance(message, Committed):
            self._committed(message.error)
        elif isinstance(message, Claim):
            auto_ack = any(request.auto_ack for request in message.requests)
            (self._writes if auto_ack else self._claims).append(message)
        elif isinstance(message, Expire) and not self._is_due(self._clock.now()):
            message.result = Expired(0, self.state.next_expiry())
            self._finish(message)
        elif isinstance(message, Write):
            self._writes.append(message)
        elif isinstance(message, Look):
            self._looks.append(message)
        elif isinstance(message, Stop):
            self._stop = message

    def _progress(self) -> None:
        """Serve what can be served now. What needs only memory goes first, unless a lease is due: that comes before."""
        while True:
            now = self._clock.now()
            due = self._is_due(now)
            if not due:
                self._serve(now)
            waiting = self._writes or self._has_notes() or (due and (self._claims or self._looks))
            if self._running is not None or not waiting:
                return
            self._begin(now)

    def _is_due(self, now: int) -> bool:
        due = self.state.next_expiry()
        return due is not None and due <= now

    def _has_notes(self) -> bool:
        return bool(self._stepped or self._expired_counts or self._seen)

    def _serve(self, now: int) -> None:
        # Those who look must see what is due as done: not before it is committed.
        looks, self._looks = ([], self._looks) if self.state.expiring else (self._looks, [])
        for look in looks:
            try:
                look.result = look.body(self.state, now)
            except Exception as error:
                look.error = _translate(error)
            self._finish(look)
        claims, self._claims = self._claims, []
        for claim in claims:
            self._serve_claim(claim, now)

    def _serve_claim(self, claim: Claim, now: int) -> None:
        claimer = Claimer(self._store.reader, self.state, now, self._ids)
        try:
            positions = claim.open
            if any(claimer.contacts(claim.requests[position]) for position in positions):
                # First contact has to be on stable storage before the answer: through a transaction.
                self._writes.append(claim)
                return
            answers = claimer.serve([claim.requests[position] for position in positions])
        except Exception as error:
            claim.error = _translate(error)
            self._finish(claim)
            return
        self._note(claimer)
        for position, answer in zip(positions, answers, strict=True):
            claim.answers[position] = answer
        if claim.open:
            self._claims.append(claim)  # Until the commit that is in the way is through.
        else:
            claim.result = claim.answers
            self._finish(claim)

    def _note(self, claimer: Claimer) -> None:
        for track, touched in claimer.stepped.items():
            self._stepped.setdefault(track, set()).update(touched)
        for queue, number in claimer.expired.items():
            self._expired_counts[queue] = self._expired_counts.get(queue, 0) + number
        self._seen.update(claimer.seen)

    # Transactions ------------------------------------------------------------------------------------------

    def _begin(self, now: int) -> None:
        """Run the bodies of all waiting writes, and hand the transaction over to be committed."""
        writes, self._writes = self._writes, []
        try:
            self._running = self._execute(writes, now), writes
            self._commit()
        except Exception as error:
            self._recover(writes, error)

    def _execute(self, writes: Sequence[Write | Claim], now: int) -> WriteTransaction:
        connection = self._store.writer
        connection.execute("begin immediate")
        transaction = WriteTransaction(connection, self.state, now, self._ids)
        only_expire = writes and all(isinstance(write, Expire) for write in writes)
        limit = max(write.limit for write in writes if isinstance(write, Expire)) if only_expire else _EXPIRE_AT_ONCE
        expire(transaction, limit)
        self._save_notes(transaction)
        for write in writes:
            if isinstance(write, Claim):
                self._claim_in(transaction, write)
            else:
                write.result = write.body(transaction)
        transaction.flush()
        return transaction

    def _save_notes(self, transaction: WriteTransaction) -> None:
        stepped, self._stepped = self._stepped, {}
        counts, self._expired_counts = self._expired_counts, {}
        seen, self._seen = self._seen, {}
        for track, touched in stepped.items():
            if track.group.tracks.get(track.partition.id) is track:
                transaction.draft(track).touched_ranges.update(touched)
        for queue, number in counts.items():
            transaction.count(queue, "expired", number)
        note_seen(transaction, seen)

    def _claim_in(self, transaction: WriteTransaction, claim: Claim) -> None:
        """First contacts; and pops with auto-ack, which settle what they claim in the same transaction."""
        claimer = Claimer(self._store.reader, self.state, transaction.now, self._ids)
        first_contact(
            transaction,
            [contact for position in claim.open for contact in claimer.contacts(claim.requests[position])],
        )
        positions = [position for position in claim.open if claim.requests[position].auto_ack]
        answers = claimer.serve([claim.requests[position] for position in positions])
        self._note(claimer)
        for position, answer in zip(positions, answers, strict=True):
            claim.answers[position] = answer
            if isinstance(answer, PopResult) and answer.lease_id:
                lease = self.state.leases.pop(answer.lease_id)
                for track in lease.parts:
                    settle_held(transaction, lease, track)
                answer.lease_id = ""

    def _commit(self) -> None:
        if self._store.memory:
            self._store.commit()
            self._committed(None)
        else:
            self._commits.put(True)

    def _committed(self, error: Exception | None) -> None:
        assert self._running is not None
        transaction, writes = self._running
        self._running = None
        if error is not None:
            self._recover(writes, error)
            return
        self._hints += transaction.publish()
        for write in writes:
            if isinstance(write, Claim):
                if write.open:
                    auto_ack = any(write.requests[position].auto_ack for position in write.open)
                    (self._writes if auto_ack else self._claims).append(write)
                    continue
                write.result = write.answers
            self._finish(write)

    def _recover(self, writes: list[Write | Claim], error: Exception) -> None:
        """Roll back, forget everything in memory, and try the calls one by one."""
        self._reset()
        log.error(
            "a transaction of %d calls failed: %s",
            len(writes),
            error,
            exc_info=not isinstance(error, apsw.Error),
        )
        for write in writes:
            if len(writes) > 1:
                try:
                    self._running = self._execute([write], self._clock.now()), [write]
                    self._store.commit()
                except Exception as own:
                    self._reset()
                    write.error = _translate(own)
                    self._finish(write)
                else:
                    self._committed(None)
            else:
                write.error = _translate(error)
                self._finish(write)

    def _reset(self) -> None:
        self._running = None
        if self._store.writer.in_transaction:
            self._store.writer.execute("rollback")
        self._stepped, self._expired_counts, self._seen = {}, {}, {}
        self.state.clear()
        Loader(self._store.writer, self.state).queues()

    def _finish(self, call: Call) -> None:
        self._answers.append(call)

    def _deliver(self) -> None:
        """Answers and hints to the event loop, in one go."""
        if self._answers or self._hints:
            answers, self._answers = self._answers, []
            hints, self._hints = self._hints, []
            self._loop.call_soon_threadsafe(self._hand_over, answers, hints)

    def _hand_over(self, answers: list[Call], hints: list[Hint]) -> None:
        for call in answers:
            future = call.future
            if future is None or future.done():
                continue
            if call.error is not None:
                future.set_exception(call.error)
            else:
                future.set_result(call.result)
        if hints:
            self._listener(hints)

    # The other threads -------------------------------------------------------------------------------------

    def _run_commits(self) -> None:
        while self._commits.get():
            try:
                self._store.commit()
            except Exception as error:
                self._inbox.put(Committed(error))
            else:
                self._inbox.put(Committed(None))
        self._pages = -1
        self._checkpoint_wanted.set()

    def _note_pages(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        self._pages = pages
        if pages >= _CHECKPOINT_PAGES:
            self._checkpoint_wanted.set()
        return apsw.SQLITE_OK

    def _run_checkpoints(self) -> None:
        """Move the log into the database beside the writer, so that no commit has to."""
        connection = self._store.connect_checkpointer()
        while True:
            self._checkpoint_wanted.wait()
            self._checkpoint_wanted.clear()
            pages = self._pages
            if pages < 0:
                break
            blocking = pages >= _BLOCKING_CHECKPOINT_PAGES
            try:
                # A passive checkpoint can't rewind a log that is being written to; now and then writers must wait.
                mode = apsw.SQLITE_CHECKPOINT_RESTART if blocking else apsw.SQLITE_CHECKPOINT_PASSIVE
                connection.wal_checkpoint(mode=mode)
            except apsw.BusyError:
                pass
            except apsw.Error as error:
                log.error("the log could not be moved into the database: %s", error)
        connection.close()


def _translate(error: Exception) -> Exception:
    if isinstance(error, HarkError):
        return error
    if isinstance(error, apsw.FullError):
        return EngineFailure("the disk is full: nothing of this request was kept", code="disk_full", retry_after=10)
    if isinstance(error, apsw.Error):
        return EngineFailure(f"the store failed: {error}; nothing of this request was kept")
    log.exception("a bug in the SQLite engine", exc_info=error)
    return EngineFailure(f"internal error: {type(error).__name__}; nothing of this request was kept", code="internal")
