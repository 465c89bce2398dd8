"""The thread that owns the state. It runs verbs, writes records, and applies the records of other processes.

    event loop --calls--> inbox --> this thread: run verbs -> append the record -> keep, answer
                            ^            |                        | taken: undo, apply theirs, run again
        tail --found--------+            +--requests--> hark-s3-io (an event loop of its own)

All waiting calls share one record. Until it is in the log, no other thread reads memory, so it can be undone.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

import apsw

from hark.engine.core.verbs import Call, Claim, Look, Outbox, Stop, Write, translate
from hark.engine.hints import HintBook
from hark.engine.s3 import objects as records
from hark.engine.s3 import state
from hark.engine.s3.bucket import Stored
from hark.engine.s3.flush import CallFailed, Chore, Confirm, Flush, Found, Renew, Wake, WritePacing
from hark.engine.s3.log import MOST_AT_ONCE, LogClient, Overslept
from hark.engine.s3.objects import Record
from hark.engine.s3.state import Change, Head, LocalState
from hark.errors import EngineFailure, HarkError, StoreUnusable
from hark.model import Hint

log = logging.getLogger(__name__)
_WRITES = (Write, Renew)
_SILENCE = frozenset({"outcome_unknown", "engine_failure"})
"""Error codes of a bucket that does not answer."""
_ALWAYS = (Stop, Found, Wake)
"""Calls without a caller, which are not refused while the bucket is unavailable."""
_AWAY, _BACK = {"store": "away"}, {"store": "back"}
_INVITED_SECONDS = 0.004
"""How long a record waits for pops of notified consumers, before it is stored."""


_FEW = 2
"""Number of records to request at once if there is probably a new one."""
_MUCH_BYTES = 16 << 20
"""After this number of bytes, the number of records per request is not raised."""

OnHead = Callable[[Head, int, bool], None]
"""Called for each applied record, with the new head, the size, and whether this process wrote it."""


class ReplicaThread:
    """The thread; see the module."""

    def __init__(
        self,
        log_client: LogClient,
        local: LocalState,
        outbox: Outbox,
        *,
        writer: str,
        now: Callable[[], int],
        pacing: WritePacing,
        most_bytes: int,
        on_head: OnHead,
        on_missed: Callable[[], None] = lambda: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._log_client = log_client
        self._local = local
        self._outbox = outbox
        self._writer = writer
        self._clock = now
        self._pacing = pacing
        self._most_bytes = most_bytes
        self._on_head = on_head
        self._on_missed = on_missed
        self._sleep = sleep
        self._inbox: SimpleQueue[Call] = SimpleQueue()
        self._open: dict[int, Call] = {}
        """Calls that are served now and not answered yet, by their identity."""
        self._backlog: list[Call] = []
        """Calls that arrived during a record and did not fit into it."""
        self._parked: set[str] = set()
        """Queues with waiting consumers."""
        self._latest = 0
        self._in_doubt = False
        """It is unknown whether the last record is in the log, so the log must be read before the next one."""
        self._lost = 0
        """Number of records in a row that other processes wrote first."""
        self._away = False
        """The bucket does not answer, so calls are refused at once (rule 29)."""
        self._returned = False
        """The bucket answers again, and waiting consumers are not notified yet."""
        self._broken: HarkError | None = None
        """The permanent failure: the log is damaged, or a newer Hark wrote it."""
        self._thread = threading.Thread(target=self._run, name="hark-s3-state", daemon=True)

    def start(self) -> None:
        """Load the newest snapshot and the records after it, which blocks; then start the thread."""
        self._restart()
        self._read_on()
        self._thread.start()

    def submit(self, call: Call) -> None:
        """Queue a call, from any thread."""
        self._inbox.put(call)
        if self._away:
            self._refuse_waiting()

    def refuse(self) -> None:
        """Refuse all calls until `resume`, also waiting ones. For any thread, also while this thread blocks."""
        self._away = True
        log.warning(
            "%s does not respond; requests are refused until it does", self._log_client.name, extra={"fields": _AWAY}
        )
        self._refuse_waiting()

    def resume(self) -> None:
        """Serve calls again, because the bucket answers."""
        self._away = False
        self._returned = True
        log.warning("%s responds again", self._log_client.name, extra={"fields": _BACK})
        self.submit(Wake(None))

    def _refusal(self, retry_after: float = 1.0) -> EngineFailure:
        text = f"{self._log_client.name} does not respond; the request had no effect; retry later"
        return EngineFailure(text, code="store_unavailable", retry_after=retry_after)

    def _refuse_waiting(self) -> None:
        refused: list[Call] = []
        for call in self._take():
            if isinstance(call, _ALWAYS):
                self._inbox.put(call)
            else:
                call.error = self._refusal()
                refused.append(call)
        self._outbox.post(refused, [])
        self._outbox.deliver()

    def _take(self) -> list[Call]:
        """Remove and return all waiting calls, from any thread."""
        calls: list[Call] = []
        with suppress(Empty):
            while True:
                calls.append(self._inbox.get_nowait())
        return calls

    def end(self) -> None:
        """Stop the thread and wait for it. Later calls are not answered."""
        if self._thread.ident is not None:
            self.submit(Stop(None))
            self._thread.join()

    # The loop ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        stop: Stop | None = None
        while stop is None or self._backlog or not self._inbox.empty():
            calls, self._backlog = self._backlog, []
            if not calls and stop is None:
                calls = [self._inbox.get()]
            calls += self._take()
            stop = next((call for call in calls if isinstance(call, Stop)), stop)
            if stop is None and any(isinstance(call, (Write, Claim, Renew)) for call in calls):
                if (pause := self._pacing.pause(time.monotonic())) > 0:
                    self._sleep(pause)
                    calls += self._take()
                stop = next((call for call in calls if isinstance(call, Stop)), None)
            self._serve([call for call in calls if not isinstance(call, Stop)])
            self._outbox.deliver()
        self._outbox.post([stop], [])
        self._outbox.deliver()

    def _invite(self, flush: Flush) -> list[Call]:
        """Notify waiting consumers before the record is stored, so that their pops share it."""
        concerned = self._parked & {hint.queue for hint in flush.hints if hint.kind == "message"}
        if not concerned:
            return []
        # Only these hints: a lease, for example, has not ended before the record is in the log.
        self._outbox.post([], [hint for hint in flush.hints if hint.kind == "message" and hint.queue in concerned])
        self._outbox.deliver()
        try:
            calls = [self._inbox.get(timeout=_INVITED_SECONDS)]
        except Empty:
            self._parked -= concerned  # The consumers have left or are slow; the next waiting pop adds the queue again.
            return []
        return [*calls, *self._take()]

    def _serve(self, calls: list[Call]) -> None:
        self._open = {id(call): call for call in calls}
        try:
            if self._broken is not None:
                raise self._broken
            if self._away:
                raise self._refusal()
            if self._local.mend() or self._returned:
                self._returned = False
                self._notify_all()
            self._take_remote_changes([call for call in calls if isinstance(call, (Found, Wake))])
            self._write([call for call in calls if isinstance(call, (Write, Claim, Renew))])
            self._confirm([call for call in calls if isinstance(call, Confirm)])
            self._look([call for call in calls if isinstance(call, Look)])
        except Exception as error:
            failure = translate(error)
            if isinstance(error, StoreUnusable):
                log.critical("%s is unusable; all requests fail until you restart: %s", self._log_client.name, error)
                self._broken = EngineFailure(str(error), code="store_unusable")
                failure = self._broken
            missed = any(isinstance(call, Found) for call in self._open.values())
            self._fail(failure)
            if missed and self._broken is None:
                self._on_missed()
        self._outbox.post([], self._local.forgotten())

    def _fail(self, failure: HarkError) -> None:
        """Fail the open calls, and if the bucket does not answer, also those that arrived meanwhile."""
        others = failure
        if failure.code in _SILENCE:
            # Otherwise each of them would wait as long as this one.
            others = self._refusal(failure.retry_after or 1)
            waiting = self._take()
            self._backlog += [call for call in waiting if isinstance(call, _ALWAYS)]
            self._open |= {id(call): call for call in waiting if not isinstance(call, _ALWAYS)}
        else:
            waiting = []
        for call in self._open.values():
            had_part = isinstance(call, (*_WRITES, Claim)) and call not in waiting
            call.error = failure if had_part else others
        self._answer(list(self._open.values()))

    def _answer(self, calls: Sequence[Call], hints: Sequence[Hint] = (), flush: Flush | None = None) -> None:
        for call in calls:
            self._open.pop(id(call), None)
        self._outbox.post(calls, hints, None if flush is None else flush.notification)

    def _now(self) -> int:
        """Return the time of the next record, which never goes back, also not behind records of other processes."""
        self._latest = max(self._latest, self._clock(), self._local.head.time, self._local.state.latest_due)
        return self._latest

    # Verbs -------------------------------------------------------------------------------------------------

    def _write(self, calls: list[Call]) -> None:
        confirmed = False
        while calls:
            self._make_sure()
            flush = self._local.begin(self._now())
            try:
                left = self._do(flush, calls)
                changes = self._local.changes()
            except CallFailed as failed:
                self._local.undo()
                failed.call.error = translate(failed.cause)
                calls = [call for call in calls if call is not failed.call]
                self._answer([failed.call])
                continue
            except BaseException:
                self._local.undo()
                raise
            if not changes:
                self._local.keep(None)
                if flush.uncertain and not confirmed:
                    confirmed = True
                    if self._read_on():
                        continue
            elif not self._append(flush, changes, len(calls)):
                continue
            self._parked |= flush.parked
            done = [call for call in calls if call not in left]
            self._answer(done, flush.hints, flush)
            calls = left

    def _do(self, flush: Flush, calls: list[Call]) -> list[Call]:
        """Run calls in a batch, with the pops that it triggers; return the calls left for the next batch."""
        flush.expire_first(calls)
        left = flush.write([call for call in calls if isinstance(call, _WRITES)], self._most_bytes)
        invited = self._invite(flush)
        more = [call for call in invited if isinstance(call, (*_WRITES, Claim))]
        self._backlog += [call for call in invited if not isinstance(call, (*_WRITES, Claim))]
        self._open |= {id(call): call for call in more}
        calls += more
        left += flush.write([call for call in more if isinstance(call, _WRITES)], self._most_bytes)
        flush.claim([call for call in calls if isinstance(call, Claim)])
        flush.close()
        return left

    def _append(self, flush: Flush, changes: bytes, calls: int) -> bool:
        """Append the record to the log. False: another process wrote this number first, and the batch was undone."""
        head = self._local.head
        record = Record(
            seq=flush.seq,
            epoch=self._log_client.epoch,
            time=flush.now,
            writer=self._writer,
            nonce=secrets.token_hex(16),
            previous=head.nonce,
            schema=state.VERSION,
            changes=changes,
            payloads=bytes(flush.payloads),
        )
        body = records.encode(record)
        self._pacing.begin(time.monotonic())
        try:
            taken = self._log_client.append(record, body)
        except Overslept as slept:
            # The view of the log is out of date; the next call checks the pointer first.
            self._local.undo(changes)
            self._in_doubt = True
            if slept.is_ours:
                raise
            return False
        except BaseException:
            self._local.undo(changes)
            self._in_doubt = True
            raise
        if taken is None:
            self._pacing.wrote(time.monotonic(), calls)
            self._lost = 0
            self._log_client.keep_payloads(record)
            self._keep(record, changes, len(body))
            return True
        self._local.undo(changes)
        self._apply([taken])
        self._lost += 1
        # After two lost numbers this process is more than one record behind: a read costs less than another loss.
        self._in_doubt = self._in_doubt or self._lost > 1
        return False

    def _keep(self, record: Record, changes: bytes, size: int) -> None:
        """Keep a record that is in the log. It is committed even if the local copy fails."""
        try:
            self._local.keep(Head(record.seq, record.time, record.nonce))
        except apsw.Error as error:
            text = "%s: cannot apply record %d to the local copy; reading it back from the bucket: %s"
            log.warning(text, self._log_client.name, record.seq, error)
            self._in_doubt = True
            self._local.undo(changes)
        else:
            self._on_head(self._local.head, size, True)

    def _look(self, calls: list[Call]) -> None:
        if not calls:
            return
        if self._local.state.is_due(self._now()):
            self._write([Chore(None, lambda _: None)])
        for call in calls:
            assert isinstance(call, Look)
            try:
                call.result = call.body(self._local.state, self._now())
            except Exception as error:
                call.error = translate(error)
            self._answer([call])

    # Records of other processes ----------------------------------------------------------------------------

    def _take_remote_changes(self, calls: Iterable[Call]) -> None:
        for call in calls:
            if isinstance(call, Wake):
                self._check_pointer()
            elif isinstance(call, Found) and call.seq == self._local.head.seq + 1:
                self._make_sure()
                if call.seq == self._local.head.seq + 1:
                    self._apply([call.stored])
            self._answer([call])

    def _confirm(self, calls: list[Call]) -> None:
        if calls:
            self._make_sure()
            self._read_on()
            self._answer(calls)

    def _make_sure(self) -> None:
        """Ensure before an append that the head is known and that its number was not removed."""
        freshness = self._log_client.freshness
        if freshness.is_stale:
            self._check_pointer()
        if self._in_doubt or self._pacing.is_likely_behind(time.monotonic(), freshness.seconds_since(freshness.at)):
            self._read_on(_FEW)
            self._in_doubt = False

    def _check_pointer(self) -> None:
        """Restart from the newest snapshot if records that this process needs may be removed."""
        if not self._log_client.covers(self._local.head.seq):
            self._restart()

    def _restart(self) -> None:
        """Discard the state and start from the newest snapshot, or empty."""
        again = self._local.head.seq > 0
        self._log_client.begin_with_newest(self._local.open)
        if again:
            log.info(
                "%s: reloaded the state from the snapshot of record %d", self._log_client.name, self._local.head.seq
            )
        self._notify_all()
        self._on_head(self._local.head, 0, False)

    def _notify_all(self) -> None:
        """Notify all waiting consumers, because anything can have changed."""
        hints = HintBook()
        for queue in self._local.state.queues:
            hints.add(queue, None, None)
        self._outbox.post([], hints.hints())

    def _read_on(self, number: int = 1) -> bool:
        """Apply all new records, `number` per request; return whether there was one."""
        any_new, next_number = False, 1
        while True:
            found = self._log_client.read(self._local.head.seq + 1, number)
            if found is None:
                self._check_pointer()
                continue
            self._apply(found)
            any_new = any_new or bool(found)
            if len(found) < number:
                return any_new
            if sum(len(stored.body) for stored in found) > _MUCH_BYTES:
                next_number = 1  # They must fit into memory together.
            number, next_number = next_number, min(2 * next_number, MOST_AT_ONCE)

    def _apply(self, found: Sequence[Stored]) -> None:
        for stored in found:
            head = self._local.head
            record = records.decode(stored.body, head.seq + 1, self._log_client.name)
            self._log_client.check(record, head.nonce)
            change: Change = self._local.apply(record)
            self._log_client.keep_payloads(record)
            self._outbox.post([], change.hints, change.keys)
            self._pacing.saw_other(time.monotonic())
            self._on_head(self._local.head, len(stored.body), False)
