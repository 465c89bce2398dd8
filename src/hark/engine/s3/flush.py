"""One batch of verbs on the state, not yet in the log, and the pace of records."""

from __future__ import annotations

import asyncio
import random as random_module
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import apsw

from hark.engine.core.claim import Claimer
from hark.engine.core.groups import first_contact
from hark.engine.core.position import Position
from hark.engine.core.settle import expire, settle_leased
from hark.engine.core.shared import SharedPosition
from hark.engine.core.state import State
from hark.engine.core.store import run, set_locations
from hark.engine.core.transaction import WriteTransaction
from hark.engine.core.verbs import Call, Claim, Expire, Notes, Write
from hark.engine.hints import HintBook
from hark.engine.s3 import leases
from hark.engine.s3.bucket import Stored
from hark.engine.s3.leases import LeaseRows
from hark.engine.s3.objects import PAYLOADS_AT
from hark.ids import IdSource
from hark.model import Hint, Key, KeyNotification, PopResult


class Renew(Call):
    """The verbs renew and shorten: every process has to know, so they take a record."""

    def __init__(
        self, future: asyncio.Future[Any] | None, lease_ids: Sequence[str], body: Callable[[State, int], object]
    ) -> None:
        super().__init__(future)
        self.lease_ids = lease_ids
        self.body = body
        """Changes when the leases end, as of a time."""


class Chore(Write):
    """A write that will be tried again: that there is nothing to do need not be the last word."""


class Confirm(Call):
    """Answered when all that was in the log at the time of the call has been applied."""


class Found(Call):
    """The tail has read a record."""

    def __init__(self, seq: int, stored: Stored) -> None:
        super().__init__(None)
        self.seq = seq
        self.stored = stored


class Wake(Call):
    """The tail has seen that it may have fallen behind what is kept: look at the pointer."""

    def __init__(self) -> None:
        super().__init__(None)


# A record costs the same whatever it carries. So under load records are a while apart, and cost is bounded by time,
# not
# by the number of messages; and whoever is alone does not wait.
#
# And who has just written lets others write, if there are others. A process that lost a number has to read who won it
# before it tries the next: without a rest of the winner it would be too late every time. Those who never won are not
# known to the winner, so one who writes record after record rests now and then all the same.


_FIRST_SECONDS = 0.004
OTHERS_SECONDS = 5.0
"""For so long a record of another process means that there are others."""
TURNS = 8
"""So many records in a row are written without a rest for those who are not known."""
_TRIPS = 3.0
"""A rest lasts so many round trips: one to read what was lost to, one to write."""
_SURE_TRIPS = 1.5
"""For so many round trips what was seen of the head is likely still so."""
_LONGEST_TRIP_SECONDS = 0.5
"""An append that took longer waited for a store that did not answer, or the process slept: others need no more."""
_WEIGHT = 0.2


class WritePacing:
    """Belongs to the thread of the state; times are seconds of a monotonic clock."""

    def __init__(self, longest_seconds: float, random: Callable[[], float] = random_module.random) -> None:
        self._longest = longest_seconds
        self._random = random
        self._begun = self._ended = self._remote_at = float("-inf")
        self._is_ours = False
        """The last record is ours."""
        self._in_a_row = 0
        self._between = 0.0
        """How far apart the records of others are, about; 0: there was one, or none."""
        self.apart = 0.0
        """How many seconds records are apart under load, from begin to begin."""
        self.round_trip = 0.0
        """What an append takes, about."""

    def pause(self, now: float) -> float:
        """How long to wait before the next record is begun."""
        begin = self._begun + self.apart if self.apart else now
        if self._is_ours and (self.has_company(now) or self._in_a_row >= TURNS):
            self._in_a_row = 0
            begin = max(begin, self._ended + self._rest())
        return max(0.0, begin - now)

    def _rest(self) -> float:
        # Not all the same, or those who lost together would try together.
        return self.round_trip * _TRIPS * (0.75 + self._random() / 2)

    def has_company(self, now: float) -> bool:
        """Whether others write too."""
        return now - self._remote_at < OTHERS_SECONDS

    def is_likely_behind(self, now: float, seconds_since_seen: float) -> bool:
        """Whether to look before an append: where others write, a look costs less than a number that is lost."""
        if not self.has_company(now):
            return False
        return seconds_since_seen > max(_SURE_TRIPS * self.round_trip, self._between / 2)

    def begin(self, now: float) -> None:
        """A record is begun."""
        if now - self._ended > self.round_trip * _TRIPS:
            self._in_a_row = 0
        self._begun = now

    def wrote(self, now: float, calls: int) -> None:
        """It is in the log, with so many calls in it."""
        took = min(now - self._begun, _LONGEST_TRIP_SECONDS)
        self.round_trip = took if not self.round_trip else self.round_trip + _WEIGHT * (took - self.round_trip)
        self._ended, self._is_ours = now, True
        self._in_a_row += 1
        if calls > 1:
            self.apart = min(self._longest, max(_FIRST_SECONDS, self.apart * 2))
        else:
            self.apart = self.apart / 2 if self.apart > _FIRST_SECONDS else 0.0

    def saw_other(self, now: float) -> None:
        """A record of another process was applied."""
        if self.has_company(now):
            between = now - self._remote_at
            self._between = self._between + _WEIGHT * (between - self._between) if self._between else between
        else:
            self._between = 0.0
        self._remote_at, self._is_ours, self._in_a_row = now, False, 0


# Everything happens at once: each verb changes the tables, inside one open transaction, and memory, as if it were
# committed. Nobody sees either before the record is in the log. If it does not get there, the transaction is rolled
# back and memory is read from the tables again; `LocalState` does that.


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
        self._changed: dict[Position, None] = {}
        self._taken: dict[Position, None] = {}
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
    def notification(self) -> KeyNotification | None:
        """Which keys were changed."""
        if self._keys is None:
            return KeyNotification(None)
        return KeyNotification(tuple(self._keys)) if self._keys else None

    def is_due(self) -> bool:
        """Whether leases are to be expired by now."""
        return self._state.is_due(self.now)

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
        transaction.locate = self._locate
        result = body(transaction)
        transaction.seal()
        self._changed |= dict.fromkeys(transaction.changed)
        set_locations(transaction.messages, self._locate)
        transaction.flush()
        self.hints += transaction.publish()
        if transaction.keys is not None:
            self._notify_keys(transaction.keys.notification())
        return result

    def _notify_keys(self, notification: KeyNotification | None) -> None:
        if notification is None or self._keys is None:
            return
        # Not as a set: Python takes keys such as (1,) and (True,) for the same.
        self._keys = None if notification.keys is None else [*self._keys, *notification.keys]

    def _locate(self, payload: bytes) -> tuple[int, int, int] | None:
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
            call.result = call.body(self._state, self.now)
            self._renewed += call.lease_ids
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
        claimer.notify_rest(rest)
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
                for position in list(lease.parts):
                    settle_leased(transaction, lease, position)

        self._transact(body)
        for answer in answers:
            if isinstance(answer, PopResult) and answer.lease_id in at_once:
                answer.lease_id, answer.expires_at = "", None

    # The end -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write down what claims did: where lanes are, what is held, what is left of rates."""
        lanes = [position for position in self._taken if isinstance(position, SharedPosition) and position.unsaved]
        if lanes or self._notes.waiting:

            def body(transaction: WriteTransaction) -> None:
                self._notes.save(transaction, self._state)
                for position in lanes:
                    if position.group.positions.get(position.partition.id) is position:
                        transaction.draft(position)

            self._transact(body)
        self._changed |= self._taken
        self._lease_rows.save(self._connection, self._changed, self._renewed)
        leases.save(self._connection, self._state, self._taken)
        if self.payloads:
            run(
                self._connection,
                "insert into segments (seq, bytes, dead_since) values (?1, ?2, null)",
                self.seq,
                len(self.payloads),
            )
