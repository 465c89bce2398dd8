"""The rules of the queue by the simplest possible code: lists, linear scans, no store.

It follows the rules and knows nothing of any engine. A position (a group in a partition) has its open messages in a
list; settled means: no longer in that list. An ordered position keeps the list in the order of delivery, a shared one
sorts it on demand. Left out, because single tests show them better: ttl, retention, delayed processing, the window
buffer. The parts: `model_nouns`, `model_positions`, `model_pop`, and here what is said of messages.
"""

from __future__ import annotations

from dataclasses import replace

from hark.clock import MILLISECOND, SECOND
from hark.model import CancelOutcome

from .model_nouns import STALE, Answer, Cancelled, DeadLetter, Lease, Message, SettleDecision
from .model_pop import PopModel
from .model_positions import OrderedPosition, Position


class Model(PopModel):
    """The queue."""

    def advance(self, seconds: float) -> None:
        """Let time pass; what is due happens at its time, in order of time."""
        self.now += round(seconds * SECOND)
        over = [
            (position, lease)
            for position in self.positions.values()
            for lease in position.leases()
            if lease.expires_at <= self.now
        ]
        for position, lease in sorted(over, key=lambda one: one[1].expires_at):
            for message in position.expire(lease):
                self._use_attempt(position, message, "", lease.expires_at, delay_ms=0)
        self.drop_settled()

    def restart(self, leases_survive: bool) -> None:
        """The order of service is lost, and leases are unless the engine keeps them."""
        for position in self.positions.values():
            position.served = 0
            if not leases_survive:
                position.forget_leases()
        self.order_is_known = False

    # Settlements -------------------------------------------------------------------------------------------

    def settle(self, decisions: list[SettleDecision]) -> list[Answer]:
        """Settle; every item is judged before anything is done."""
        authorized = [(one, self.authorize(one), self._is_done(one)) for one in decisions]
        answers = [self._apply(*one) for one in authorized]
        self.drop_settled()
        return answers

    def authorize_strictly(self, decision: SettleDecision, required: list[int]) -> Answer:
        """What a settlement inside a transaction would be answered: completed again only under the same lease."""
        answer = self.authorize(decision, required)
        message = decision.message
        position = self.positions.get((*message.address, decision.group))
        if not answer.success or position is None or message in position.todo:
            return answer
        lease = position.done.get(message)
        if lease is None and message in position.unsure:
            return Answer(None)
        if lease is None or (decision.lease != lease and not (decision.lease is None and lease in required)):
            return Answer(False, STALE)
        return Answer(None) if message in position.unsure else answer

    def transact(self, decisions: list[SettleDecision], required: list[int]) -> int | None:
        """The index of the settlement that is refused (-1: a required lease), or None: all is done."""
        if any(not self.is_live(one) for one in required):
            return -1
        for index, one in enumerate(decisions):
            if not self.authorize_strictly(one, required).success:
                return index
        for one, answer in zip(decisions, self.settle(decisions), strict=True):
            if one.status == "completed" and answer.lease is not None:
                self.positions[(*one.message.address, one.group)].unsure.discard(one.message)
        return None

    def holds(self, message: Message, group: str, lease_id: int) -> bool:
        """Whether a message was last delivered under that lease, and its verdict is open."""
        position = self.positions.get((*message.address, group))
        lease = None if position is None else position.holder.get(message)
        return lease is not None and lease.id == lease_id and lease.expires_at > self.now

    def named(self, message: Message) -> Message:
        """The message that a key names: it outlives a removed message if another one has it now."""
        same = [one for one in message.partition.log if one.push.key == message.push.key is not None]
        return same[0] if same and message not in message.partition.log else message

    def authorize(self, decision: SettleDecision, required: list[int] | None = None) -> Answer:
        """What a settlement would be answered."""
        message = decision.message
        position = self.positions.get((*message.address, decision.group))
        dead = any(one.message is message and one.group == decision.group for one in self.dead)
        if message not in message.partition.log:
            return self._authorize_removed(decision, position, dead)
        if position is None:
            return Answer(False, STALE)
        if message not in position.todo:
            if decision.status == "completed":
                return Answer(None if dead else True)
            return Answer(False, STALE | {"dead_lettered"})
        lease = position.holder.get(message)
        known = lease is not None and lease.expires_at > self.now
        if known and decision.lease is None:
            known = not required or (lease is not None and lease.id in required)
        elif known and lease is not None:
            known = lease.id == decision.lease
        return Answer(known, frozenset() if known else STALE)

    @staticmethod
    def _authorize_removed(decision: SettleDecision, position: Position | None, dead: bool) -> Answer:
        """What is said of a message that is no longer stored; its id still says that there was one."""
        by_id = decision.by_id or decision.message.push.key is None
        if decision.status == "completed" and by_id:
            if dead:
                return Answer(False, frozenset({"dead_lettered"}))
            return Answer(True if position is not None and decision.message in position.done else None)
        return Answer(False, STALE | {"not_found", "dead_lettered"} if by_id else frozenset({"not_found"}))

    def _is_done(self, decision: SettleDecision) -> bool:
        position = self.positions.get((*decision.message.address, decision.group))
        return position is not None and decision.message not in position.todo

    def _apply(self, decision: SettleDecision, answer: Answer, before: bool) -> Answer:
        message = decision.message
        if not answer.success:
            return answer
        position = self.positions[(*message.address, decision.group)]
        lease = position.holder.pop(message, None)
        if lease is None:  # Completed before, or said twice in one request: the first word counts.
            return answer if before else Answer(None)
        answer.lease = lease.id
        if decision.status == "completed":
            position.settled(message)
            position.done[message] = lease.id
            position.unsure.add(message)
        elif decision.status == "dlq":
            used = position.attempts.get(message, 0) + 1
            answer.dead_lettered = self._dead_letter(
                position, DeadLetter(message, position.group, used, decision.error, self.now)
            )
        elif decision.status == "failed":
            answer.dead_lettered = self._use_attempt(position, message, decision.error, self.now, decision.delay_ms)
        else:
            position.due[message] = self.now + (decision.delay_ms or 0) * MILLISECOND
        if decision.status != "completed":
            position.given_back(lease)
        answer.lease_released = self._is_released(position, lease)
        return answer

    def _is_released(self, position: Position, lease: Lease) -> bool:
        """An ordered position is let go by itself; in shared ones the lease is over with the last of its messages."""
        if isinstance(position, OrderedPosition):
            return position.lease is not lease
        return not any(lease in one.holder.values() for one in self.positions.values())

    def _use_attempt(self, position: Position, message: Message, error: str, at: int, delay_ms: int | None) -> bool:
        options = position.partition.queue.options
        used = position.attempts[message] = position.attempts.get(message, 0) + 1
        allowed = (options.retry_limit if message.push.backoff_ms is None else len(message.push.backoff_ms)) + 1
        if used >= allowed:
            return self._dead_letter(position, DeadLetter(message, position.group, used, error, at), exhausted=True)
        growth = options.retry_multiplier ** (used - 1)
        delay = min(options.retry_delay * growth, options.retry_max_delay)
        if message.push.backoff_ms is not None:
            delay = message.push.backoff_ms[used - 1]
        position.due[message] = at + int(delay if delay_ms is None else delay_ms) * MILLISECOND
        return False

    def _dead_letter(self, position: Position, letter: DeadLetter, exhausted: bool = False) -> bool:
        queue = position.partition.queue
        position.settled(letter.message)
        if not queue.options.dead_letter_queue or (exhausted and not queue.options.dlq_after_max_retries):
            self.discarded[queue.name] = self.discarded.get(queue.name, 0) + 1
            return False
        # A message that was replayed and died again is still one dead letter.
        self.dead = [one for one in self.dead if (one.message, one.group) != (letter.message, letter.group)]
        self.dead.append(letter)
        return True

    # Leases ------------------------------------------------------------------------------------------------

    def renew(self, lease_id: int, seconds: int) -> int | None:
        """The lease's new end, or None when it is over."""
        leased = [lease for position in self.positions.values() for lease in position.leases() if lease.id == lease_id]
        if not leased:
            return None
        leased[0].expires_at = max(leased[0].expires_at, self.now + seconds * SECOND)
        return leased[0].expires_at

    def release(self, lease_id: int) -> None:
        """Give back, uncounted."""
        for position in self.positions.values():
            position.release(lease_id)

    def is_live(self, lease_id: int) -> bool | None:
        """Whether a lease keeps others out; None: no longer, but settlements under it may still count."""
        if any(lease.id == lease_id for one in self.positions.values() for lease in one.leases()):
            return True
        return (
            None
            if any(lease.id == lease_id for one in self.positions.values() for lease in one.holder.values())
            else False
        )

    # Administration ----------------------------------------------------------------------------------------

    def seek(self, queue: str, group: str, partition: str | None, offset: int | None, after: int | None) -> int:
        """Go on at an offset, after a time, or (neither) at the end; how many partitions moved."""
        positions = [one for one in self.positions_of(queue, group) if partition in (None, one.partition.name)]
        for position in positions:
            log = [one for one in position.partition.log if position.concerns(one)]
            if after is not None:
                todo = [one for one in log if one.created_at > after]
            else:
                todo = [one for one in log if offset is not None and one.offset >= offset]
            position.restart(todo)
        self.drop_settled()
        return len(positions)

    def requeue(self, letter: DeadLetter) -> Message:
        """Put a dead letter in front of its partition, for its group; its key stays with the one that died."""
        self.dead.remove(letter)
        old = letter.message
        taken = any(one.push.key == old.push.key for one in old.partition.log)
        push = replace(old.push, key=None) if taken else old.push
        return self.append(old.partition, push, old.deliver_at, letter.group)

    def purge(self, queue: str, group: str | None) -> int:
        """Remove all messages, or settle all that a group has open; how many."""
        if group is not None:
            positions = list(self.positions_of(queue, group))
            done = sum(len(one.todo) for one in positions)
            for position in positions:
                position.restart([])
            self.drop_settled()
            return done
        messages = [one for partition in self.queues[queue].partitions.values() for one in partition.log]
        for message in messages:
            self.remove(message)
        return len(messages)

    def cancel(self, message: Message) -> Cancelled:
        """What may be answered to a wish to take a message back; whether it is gone is for the caller to say."""
        if message not in message.partition.log:
            return frozenset({"not_found"})
        positions = [one for one in self.positions_in(message.partition) if one.concerns(message)]
        found: set[CancelOutcome] = set()
        for position in positions:
            if message not in position.todo:
                found.add("settled")
            elif message in position.in_flight() or position.attempts.get(message):
                found.add("leased")
        allowed = found or {"cancelled"}
        # A consumer had it and may say more of it, or gave it back: whether that is too late, the rules do not say.
        if any(message in one.holder or message in one.due for one in positions):
            allowed = allowed | {"leased"}
        return frozenset(allowed)
