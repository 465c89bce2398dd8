"""One batch of verbs on the state, not yet in the log.

Everything happens at once: each verb changes the tables, inside one open transaction, and memory, as if it were
committed. Nobody sees either before the record is in the log. If it does not get there, the transaction is rolled
back and memory is read from the tables again; `Fold` does that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import apsw

from hark.engine.hints import HintBook
from hark.engine.s3.log.record import PAYLOADS_AT
from hark.engine.s3.replica import rates
from hark.engine.s3.replica.calls import Chore, Renew
from hark.engine.s3.replica.leases import LeaseRows
from hark.engine.sqlite import leases
from hark.engine.sqlite.calls import Call, Claim, Expire, Write
from hark.engine.sqlite.claim import Claimer
from hark.engine.sqlite.expire import expire, settle_held
from hark.engine.sqlite.groups import first_contact
from hark.engine.sqlite.notes import Notes
from hark.engine.sqlite.placing import place_payloads
from hark.engine.sqlite.shared.track import SharedTrack
from hark.engine.sqlite.state import State
from hark.engine.sqlite.store import run
from hark.engine.sqlite.track import AnyTrack
from hark.engine.sqlite.transaction import WriteTransaction
from hark.ids import IdSource
from hark.model import Hint, Key, KeyNews, PopResult

T = TypeVar("T")
_EXPIRE_AT_ONCE = 10_000
INLINE_BYTES = 24
"""A payload up to this size stays in its row: where it is would take as much to say."""


class CallFailed(Exception):
    """A verb could not be done; the others are to be tried without it."""

    def __init__(self, call: Call, cause: Exception) -> None:
        super().__init__(str(cause))
        self.call = call
        self.cause = cause


class Flush:
    """One attempt to write one record."""

    def __init__(
        self, connection: apsw.Connection, state: State, ids: IdSource, lease_rows: LeaseRows, seq: int, now: int
    ) -> None:
        self._connection = connection
        self._state = state
        self._ids = ids
        self._lease_rows = lease_rows
        self._notes = Notes()
        self._touched: dict[AnyTrack, None] = {}
        self._taken: dict[AnyTrack, None] = {}
        self._renewed: list[str] = []
        self._keys: list[Key] | None = []
        self._expired = False
        self.seq = seq
        self.now = now
        self.payloads = bytearray()
        """What the messages of this batch carry, in their order."""
        self.hints: list[Hint] = []
        self.parked: set[str] = set()
        """Queues whose consumers found nothing and wait."""
        self.uncertain = False
        """Whether somebody was refused, or found nothing, who has to be certain of that."""

    @property
    def news(self) -> KeyNews | None:
        """Which keys were changed."""
        if self._keys is None:
            return KeyNews(None)
        return KeyNews(tuple(self._keys)) if self._keys else None

    def is_due(self) -> bool:
        """Whether leases are to be expired by now."""
        due = self._state.next_expiry()
        return due is not None and due <= self.now

    def expire_first(self, calls: Sequence[Call]) -> None:
        """Apply what is due; no more than they were asked to where nobody wants anything else."""
        if self.is_due():
            limits = [call.limit for call in calls if isinstance(call, Expire)]
            only_expiry = len(limits) == len(calls)
            self._expire(max(limits, default=_EXPIRE_AT_ONCE) if only_expiry else _EXPIRE_AT_ONCE)

    def write(self, calls: Sequence[Call], most_bytes: int) -> list[Call]:
        """Do what writes say; those that are left are for the next record."""
        left: list[Call] = []
        for call in calls:
            if len(self.payloads) >= most_bytes:
                left.append(call)
            else:
                self._do(call, self._write)
                # A refusal is worth as much as what it was judged by.
                self.uncertain = self.uncertain or not isinstance(call, (Expire, Chore))
        return left

    def claim(self, calls: Sequence[Call]) -> None:
        """Serve pops, after the writes."""
        for call in calls:
            self._do(call, self._claim)

    def _do(self, call: Call, body: Callable[[Call], None]) -> None:
        try:
            body(call)
        except Exception as error:
            raise CallFailed(call, error) from error

    def _transact(self, body: Callable[[WriteTransaction], T]) -> T:
        transaction = WriteTransaction(self._connection, self._state, self.now, self._ids)
        result = body(transaction)
        transaction.seal()
        self._touched |= dict.fromkeys(transaction.changed)
        place_payloads(transaction.messages, self._place)
        transaction.flush()
        self.hints += transaction.publish()
        self._tell_keys(transaction.keys.news())
        return result

    def _tell_keys(self, news: KeyNews | None) -> None:
        if news is None or self._keys is None:
            return
        # Not as a set: Python takes keys such as (1,) and (True,) for the same.
        self._keys = None if news.keys is None else [*self._keys, *news.keys]

    def _place(self, payload: bytes) -> tuple[int, int, int] | None:
        if len(payload) <= INLINE_BYTES:
            return None
        offset = PAYLOADS_AT + len(self.payloads)
        self.payloads += payload
        return self.seq, offset, len(payload)

    # Verbs -------------------------------------------------------------------------------------------------

    def _expire(self, limit: int) -> None:
        def body(transaction: WriteTransaction) -> int:
            expire(transaction, limit)
            return transaction.expired

        self.expired = self._transact(body)

    expired = 0
    """How many leases it ended because their time was up."""

    def _write(self, call: Call) -> None:
        if isinstance(call, Renew):
            call.result = leases.renew(self._state, self.now, call.requests)
            self._renewed += [request.lease_id for request in call.requests]
        elif isinstance(call, Write):

            def body(transaction: WriteTransaction) -> object:
                transaction.expired = self.expired  # The verb expire answers how many there were.
                return call.body(transaction)

            call.result = self._transact(body)

    def _claim(self, call: Call) -> None:
        assert isinstance(call, Claim)
        claimer = self._claimer()
        contacts = [contact for request in call.requests for contact in claimer.contacts(request)]
        if contacts:
            self._transact(lambda transaction: first_contact(transaction, contacts))
        claimer = self._claimer()
        answers = claimer.serve(call.requests)
        self._notes.add(claimer)
        rest = HintBook()
        claimer.tell_rest(rest)
        self.hints += rest.hints()
        self._settle_at_once(claimer, answers)
        for answer in answers:
            if isinstance(answer, PopResult) and answer.lease_id:
                self._taken |= dict.fromkeys(self._state.leases[answer.lease_id].parts)
        for request, answer in zip(call.requests, answers, strict=True):
            if isinstance(answer, PopResult) and not answer.messages:
                self.uncertain = self.uncertain or not request.patient
                if request.patient and request.queue is not None:
                    self.parked.add(request.queue)
        call.result = call.answers = list(answers)

    def _claimer(self) -> Claimer:
        return Claimer(self._connection, self._state, self.now, self._ids)

    def _settle_at_once(self, claimer: Claimer, answers: Sequence[object]) -> None:
        """Pops with auto-ack settle what they took."""
        at_once = claimer.settled_at_once
        if not at_once:
            return

        def body(transaction: WriteTransaction) -> None:
            for lease in at_once.values():
                self._taken |= dict.fromkeys(lease.parts)
                for track in list(lease.parts):
                    settle_held(transaction, lease, track)

        self._transact(body)
        for answer in answers:
            if isinstance(answer, PopResult) and answer.lease_id in at_once:
                answer.lease_id, answer.expires_at = "", None

    # The end -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write down what claims did: where lanes are, what is held, what is left of rates."""
        lanes = [track for track in self._taken if isinstance(track, SharedTrack) and track.unsaved]
        if lanes or self._notes:

            def body(transaction: WriteTransaction) -> None:
                self._notes.save(transaction, self._state)
                for track in lanes:
                    if track.group.tracks.get(track.partition.id) is track:
                        transaction.draft(track)

            self._transact(body)
        self._touched |= self._taken
        self._lease_rows.save(self._connection, self._touched, self._renewed)
        rates.save(self._connection, self._state, self._taken)
        if self.payloads:
            run(
                self._connection,
                "insert into segments (seq, bytes, dead_since) values (?1, ?2, null)",
                self.seq,
                len(self.payloads),
            )
