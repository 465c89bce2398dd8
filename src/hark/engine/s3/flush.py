"""One batch of verbs on the state, before it is in the log, and the pauses between records."""

from __future__ import annotations

import random as random_module
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import apsw

from hark.engine.core.claim import Claimer
from hark.engine.core.groups import first_contact
from hark.engine.core.position import Position
from hark.engine.core.settle import expire, settle_leased
from hark.engine.core.shared import SharedPosition
from hark.engine.core.state import State
from hark.engine.core.store import PayloadLocation, run, set_locations
from hark.engine.core.transaction import WriteTransaction
from hark.engine.core.verbs import Call, Claim, Expire, Notes, Write
from hark.engine.hints import HintBook
from hark.engine.s3 import leases
from hark.engine.s3.bucket import Stored
from hark.engine.s3.leases import LeaseRows
from hark.engine.s3.objects import PAYLOADS_AT
from hark.ids import IdSource
from hark.model import Hint, KeyNotification, PopResult


@dataclass(eq=False)
class Renew(Call):
    """The verbs renew and shorten: they take a record, because every process needs the new end of the lease."""

    lease_ids: Sequence[str]
    body: Callable[[State, int], object]
    """Changes when the leases end."""


class Chore(Write):
    """A write that is tried again periodically, so an answer from an older state is good enough."""


class Confirm(Call):
    """Answered when all that was in the log at the time of the call has been applied."""


@dataclass(eq=False)
class Found(Call):
    """The log reader has read a record."""

    seq: int
    stored: Stored


class Wake(Call):
    """The log reader may be behind the oldest record that is kept: check the pointer to the snapshot."""


# A record costs the same whatever it carries. So under load a process waits between records: the cost is bounded by
# time, not by the number of messages. A lone call does not wait.
#
# A process that has just written a record pauses if other processes write too. A process that lost a number must read
# the winning record before it tries the next number, and would lose every time if the winner did not pause. A winner
# does not know of processes that never won, so it also pauses after several records in a row.


_FIRST_SECONDS = 0.004
OTHERS_SECONDS = 5.0
"""After a record of another process, other writers are assumed for this time."""
TURNS = 8
"""Number of records in a row before a pause for unknown writers."""
_TRIPS = 3.0
"""Length of a pause in round trips: the others need one to read the winning record and one to write."""
_SURE_TRIPS = 1.5
"""For this number of round trips, the last known head of the log is probably still the head."""
_LONGEST_TRIP_SECONDS = 0.5
"""Longer appends do not count as longer: the bucket did not answer, or the process was suspended."""
_WEIGHT = 0.2


class WritePacing:
    """Decides when the next record is written. Used by the state thread only; times are monotonic seconds."""

    def __init__(self, longest_seconds: float, random: Callable[[], float] = random_module.random) -> None:
        self._longest = longest_seconds
        self._random = random
        self._begun = self._ended = self._remote_at = float("-inf")
        self._is_ours = False
        """Whether this process wrote the last record."""
        self._in_a_row = 0
        self._between = 0.0
        """Estimated seconds between records of other processes; 0: unknown."""
        self.apart = 0.0
        """Seconds between the starts of records under load."""
        self.round_trip = 0.0
        """Estimated seconds of an append."""

    def pause(self, now: float) -> float:
        """Return the seconds to wait before the next record."""
        begin = self._begun + self.apart if self.apart else now
        if self._is_ours and (self.has_company(now) or self._in_a_row >= TURNS):
            self._in_a_row = 0
            begin = max(begin, self._ended + self._rest())
        return max(0.0, begin - now)

    def _rest(self) -> float:
        # Random, because processes that lost together would otherwise retry together.
        return self.round_trip * _TRIPS * (0.75 + self._random() / 2)

    def has_company(self, now: float) -> bool:
        """Return whether other processes write too."""
        return now - self._remote_at < OTHERS_SECONDS

    def is_likely_behind(self, now: float, seconds_since_seen: float) -> bool:
        """Return whether to read the log before an append: with other writers, a read costs less than a lost number."""
        if not self.has_company(now):
            return False
        return seconds_since_seen > max(_SURE_TRIPS * self.round_trip, self._between / 2)

    def begin(self, now: float) -> None:
        """Note the start of a record."""
        if now - self._ended > self.round_trip * _TRIPS:
            self._in_a_row = 0
        self._begun = now

    def wrote(self, now: float, calls: int) -> None:
        """Note that the record is in the log, and its number of calls."""
        took = min(now - self._begun, _LONGEST_TRIP_SECONDS)
        self.round_trip = took if not self.round_trip else self.round_trip + _WEIGHT * (took - self.round_trip)
        self._ended, self._is_ours = now, True
        self._in_a_row += 1
        if calls > 1:
            self.apart = min(self._longest, max(_FIRST_SECONDS, self.apart * 2))
        else:
            self.apart = self.apart / 2 if self.apart > _FIRST_SECONDS else 0.0

    def saw_other(self, now: float) -> None:
        """Note a record of another process."""
        if self.has_company(now):
            between = now - self._remote_at
            self._between = self._between + _WEIGHT * (between - self._between) if self._between else between
        else:
            self._between = 0.0
        self._remote_at, self._is_ours, self._in_a_row = now, False, 0


# Each verb changes the tables, inside one open transaction, and memory, as if it were committed. No caller sees the
# result before the record is in the log. If the append fails, `LocalState` rolls the transaction back and reloads
# memory.


T = TypeVar("T")
_EXPIRE_AT_ONCE = 10_000
INLINE_BYTES = 24
"""A payload up to this size stays in its row, because a reference to it would be as large."""


class CallFailed(Exception):
    """A verb failed; the batch is tried again without it."""

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
        self._key_notifications: list[KeyNotification] = []
        self._expired = 0
        """Number of expired leases."""
        self.seq = seq
        self.now = now
        self.payloads = bytearray()
        """Payloads of the messages in this batch, in their order."""
        self.hints: list[Hint] = []
        self.parked: set[str] = set()
        """Queues with waiting consumers."""
        self.uncertain = False
        """Whether a call was refused or found nothing, and the log must be read to confirm that."""

    @property
    def notification(self) -> KeyNotification | None:
        """The changed keys."""
        if any(one.keys is None for one in self._key_notifications):
            return KeyNotification(None)
        # Not a set: Python treats keys such as (1,) and (True,) as equal.
        keys = tuple(key for one in self._key_notifications for key in one.keys or ())
        return KeyNotification(keys) if keys else None

    def expire_first(self, calls: Sequence[Call]) -> None:
        """Apply expiries that are due. If all calls are expiries, their limit applies."""
        if not self._state.is_due(self.now):
            return
        limits = [call.limit for call in calls if isinstance(call, Expire)]
        limit = max(limits, default=_EXPIRE_AT_ONCE) if len(limits) == len(calls) else _EXPIRE_AT_ONCE

        def body(transaction: WriteTransaction) -> int:
            expire(transaction, limit)
            return transaction.expired

        self._expired = self._transact(body)

    def write(self, calls: Sequence[Call], most_bytes: int) -> list[Call]:
        """Run writes; return those that do not fit into this record."""
        left: list[Call] = []
        for call in calls:
            if len(self.payloads) >= most_bytes:
                left.append(call)
            else:
                self._do(call, self._write)
                # A refusal is only valid if the state it was decided on is current.
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
        if transaction.keys is not None and (notification := transaction.keys.notification()) is not None:
            self._key_notifications.append(notification)
        return result

    def _locate(self, payload: bytes) -> PayloadLocation | None:
        if len(payload) <= INLINE_BYTES:
            return None
        offset = PAYLOADS_AT + len(self.payloads)
        self.payloads += payload
        return PayloadLocation(self.seq, offset, len(payload))

    # Verbs -------------------------------------------------------------------------------------------------

    def _write(self, call: Call) -> None:
        if isinstance(call, Renew):
            call.result = call.body(self._state, self.now)
            self._renewed += call.lease_ids
        elif isinstance(call, Write):

            def body(transaction: WriteTransaction) -> object:
                transaction.expired = self._expired  # The verb expire returns their number.
                return call.body(transaction)

            call.result = self._transact(body)

    def _claim(self, call: Call) -> None:
        assert isinstance(call, Claim)
        claimer = Claimer(self._connection, self._state, self.now, self._ids)
        contacts = [contact for request in call.requests for contact in claimer.contacts(request)]
        if contacts:
            self._transact(lambda transaction: first_contact(transaction, contacts))
            claimer = Claimer(self._connection, self._state, self.now, self._ids)
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

    def _settle_at_once(self, claimer: Claimer, answers: Sequence[object]) -> None:
        """Settle the messages of pops with auto-ack."""
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
        """Save what claims changed: lanes, tokens of partitions, leases, rate limits."""
        taken = [
            position
            for position in self._taken
            if position.group.each is not None or (isinstance(position, SharedPosition) and position.unsaved)
        ]
        if taken or self._notes.waiting:

            def body(transaction: WriteTransaction) -> None:
                self._notes.save(transaction, self._state)
                for position in taken:
                    if position.group.positions.get(position.partition.id) is position:
                        transaction.draft(position)

            self._transact(body)
        self._changed |= self._taken
        self._lease_rows.save(self._connection, self._changed, self._renewed)
        leases.save(self._connection, self._state, self._taken)
        if self.payloads:
            sql = "insert into segments (seq, bytes, dead_since) values (?1, ?2, null)"
            run(self._connection, sql, self.seq, len(self.payloads))
