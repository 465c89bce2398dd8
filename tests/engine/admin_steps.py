"""What an administrator can do to an engine and to the model, and all that he can see of both.

What an engine says of every message and every group is compared with what the rules say would become of them.
"""

from __future__ import annotations

from hypothesis import strategies as st

from hark.broker.explain import Circumstances, explain, moment
from hark.clock import SECOND
from hark.model import Explain, Limits, PositionStats, QueueSpec

from .comparing import Disagreement, agree, engine_view
from .driver import given
from .model_nouns import DeadLetter, Message, PopParams
from .model_positions import OrderedPosition, Position, SharedPosition
from .steps import FIXED_OPTIONS, NAMESPACE, OPTIONS, PARTITIONS, QUEUES, Steps, pick

DONE = frozenset({"done", "discarded", "before_start"})
AT_ONCE = Circumstances(waiting=1)


class ExplainSteps(Steps):
    """Asks why messages are where they are."""

    def look_at_reasons(self) -> None:
        """Every message, for every group that its queue has."""
        answers = self.run(self.q.engine.explain([Explain(one) for one in self.ids.values()]))
        for message, answer in zip(self.ids, answers, strict=True):
            facts = given(answer)
            for group in facts.groups:
                found = explain(facts, group, AT_ONCE)
                reasons, data = self.expected(message, group.group)
                if found.reason not in reasons or not data.items() <= found.data.items():
                    raise Disagreement(
                        f"{message!r} for {group.group}: the engine says {found}, the rules say {set(reasons)} {data}"
                    )

    def expected(self, message: Message, group: str) -> tuple[frozenset[str], dict[str, object]]:
        """The reasons that may be given, and what must be said beside."""
        stored = message in message.partition.log
        if stored and message.only_for not in (None, group):
            return frozenset({"other_group"}), {}
        queue, partition = message.address
        position = self.model.positions[queue, partition, group]
        if message not in position.todo:
            if any(one.message is message and one.group == group for one in self.model.dead):
                return frozenset({"dead_lettered"}), {}
            return (DONE if stored else frozenset({"removed", "discarded"})), {}
        if message in position.in_flight():
            return frozenset({"leased"}), {"until": moment(position.holder[message].expires_at)}
        if self.model.queues[queue].paused:
            return frozenset({"queue_paused"}), {}
        if self.model.groups[queue, group].paused:
            return frozenset({"group_paused"}), {}
        waits = self.expected_wait(position, message)
        if waits:
            return waits, {}
        room, limits = self.model.room(queue, group, auto_ack=False)
        here, limits_here = self.model.room_in(position, auto_ack=False)
        return (limits | limits_here, {}) if min(room, here) <= 0 else (frozenset({"ready"}), {})

    def expected_wait(self, position: Position, message: Message) -> frozenset[str]:
        """What may be said of a message that can't be delivered yet; empty: it can."""
        now = self.model.now
        own = frozenset({"delayed", "retry"}) if position.not_before(message) > now else frozenset()
        if isinstance(position, SharedPosition):
            return own
        assert isinstance(position, OrderedPosition)
        before = position.todo[: position.todo.index(message)]
        blocked = position.lease is not None or any(position.not_before(one) > now for one in before)
        return own | {"behind"} if blocked else own


class AdminSteps(ExplainSteps):
    """The steps of an administrator."""

    def configure(self, queue: str, options: str) -> None:
        """Change a queue's options."""
        known = self.model.queues.get(queue)
        if known is not None and known.options in FIXED_OPTIONS.values():
            return
        spec = QueueSpec(name=queue, namespace=NAMESPACE, options=(OPTIONS | FIXED_OPTIONS)[options])
        self.run(self.q.configure_spec(spec))
        self.model.configure(queue, NAMESPACE, spec.options)

    def seek(self, data: st.DataObject) -> None:
        """Move a group that exists."""
        partition = data.draw(st.sampled_from([None, *PARTITIONS]), "partition")
        where = data.draw(st.sampled_from(["end", "time", "offset"]), "where")
        queue, group = data.draw(st.sampled_from(sorted(self.model.groups)), "group")
        known = self.model.queues[queue].partitions
        if partition is not None and partition not in known:
            return
        if self.model.queues[queue].options.drop_settled:
            return  # Whether what all groups skipped is settled, the rules do not say.
        tail = max(one.tail for name, one in known.items() if partition in (None, name))
        offset = data.draw(st.integers(1, tail + 1), "offset") if where == "offset" else None
        # Never exactly the time of a push: an engine may have to move that by a microsecond.
        ago = data.draw(st.sampled_from([0.25, 2.25, 100.25]), "ago")
        after = self.clock.now() - round(ago * SECOND) if where == "time" else None
        outcome = self.run(
            self.q.seek(queue, partition, group=group, to_end=where == "end", timestamp=after, offset=offset)
        )
        agree("partitions moved", outcome.partitions, self.model.seek(queue, group, partition, offset, after))
        self.tidy()
        self.cursors = {key: one for key, one in self.cursors.items() if (key[0], key[2]) != (queue, group)}

    def requeue(self, data: st.DataObject) -> None:
        """Bring a dead letter back."""
        letter = pick(data, self.model.dead, "dead letter")
        [found] = [
            one
            for one in self.run(self.q.dead_letters(group=letter.group))
            if one.message_id == self.ids[letter.message]
        ]
        new_id = self.run(self.q.requeue(found))
        self.ids[self.model.requeue(letter)] = new_id

    def pause(self, queue: str, group: str | None, paused: bool) -> None:
        """Pause or resume a queue or a group."""
        done = self.run(self.q.engine.pause(queue, group, paused))
        agree("whether there is such a thing", done, group is None or (queue, group) in self.model.groups)
        if group is None:
            self.model.queues[queue].paused = paused
        elif done:
            self.model.groups[queue, group].paused = paused

    def purge(self, queue: str, group: str | None) -> None:
        """Empty a queue, or settle all that a group has open."""
        agree("number of purged", self.run(self.q.engine.purge(queue, group)), self.model.purge(queue, group))
        self.tidy()

    def delete_message(self, data: st.DataObject, queue: str) -> None:
        """Delete one message, leased or not."""
        stored = [one for partition in self.model.queues[queue].partitions.values() for one in partition.log]
        if stored:
            chosen = pick(data, stored, "message")
            agree("deleted", self.run(self.q.engine.delete_messages([self.ids[chosen]])), [True])
            self.model.remove(chosen)

    def cancel_message(self, data: st.DataObject) -> None:
        """Take a message back, if nobody has had it."""
        if self.ids:
            chosen = pick(data, list(self.ids)[-8:], "message")
            [outcome] = self.run(self.q.engine.cancel([self.ids[chosen]]))
            allowed = self.model.cancel(chosen)
            if outcome not in allowed:
                agree(f"cancellation of {chosen!r}", outcome, allowed)
            if outcome == "cancelled":
                self.model.remove(chosen)

    def limit_group(self, data: st.DataObject) -> None:
        """Bound what a group may hold, or no longer."""
        queue, group = data.draw(st.sampled_from(sorted(self.model.groups)), "group")
        limit = data.draw(st.sampled_from([0, 1, 2, "1 each"]), "limit")
        limits = Limits(max_in_flight=limit) if isinstance(limit, int) else Limits(max_in_flight_per_partition=1)
        agree("limited", self.run(self.q.engine.limit_group(queue, group, limits)), True)
        self.model.groups[queue, group].limits = limits

    # Looking -----------------------------------------------------------------------------------------------

    def look_around(self) -> None:
        """Compare what an administrator sees."""
        self.look_at_dead_letters()
        self.look_at_reasons()
        for queue in QUEUES:
            stats = self.run(self.q.stats(queue))
            agree(f"discarded of {queue}", stats.discarded, self.model.discarded.get(queue, 0))
        for group in self.run(self.q.engine.group_stats()):
            waiting, scheduled = self.backlog(list(self.model.positions_of(group.queue, group.group)))
            what = f"of {group.group} in {group.queue}"
            agree(f"backlog {what}", (group.lag, group.scheduled), (len(waiting), len(scheduled)))
            self.look_at_oldest(what, group.oldest_waiting, waiting)
            known = self.model.groups[group.queue, group.group]
            agree(f"pause of {group.group}", group.paused, known.paused)
            agree(f"mode of {group.group}", group.mode, known.mode)
            agree(f"limits of {group.group}", group.limits, known.limits)
            in_flight = self.model.in_flight(group.queue, group.group)
            agree(f"in flight {what}", group.in_flight, len(in_flight))
        for one in self.run(self.q.engine.position_stats()):
            key = (one.queue, one.partition, one.group)
            position = self.model.positions[key]
            waiting, scheduled = self.backlog([position])
            agree(f"backlog at {key}", (one.lag, one.scheduled), (len(waiting), len(scheduled)))
            self.look_at_oldest(f"at {key}", one.oldest_waiting, waiting)
            if isinstance(position, OrderedPosition):
                self.look_at_cursor(key, position, one)

    def backlog(self, positions: list[Position]) -> tuple[list[Message], list[Message]]:
        """What waits at some positions, and what is scheduled there (rule 28): the others are in flight."""
        now = self.q.clock.now()
        free = [(at, one) for at in positions for one in at.todo if one not in at.in_flight()]
        waiting = [one for at, one in free if at.not_before(one) <= now]
        return waiting, [one for at, one in free if at.not_before(one) > now]

    def look_at_oldest(self, what: str, oldest: int | None, waiting: list[Message]) -> None:
        """Since when the first of them has waited; among delayed ones it may be another."""
        since = [max(one.created_at, one.deliver_at) for one in waiting]
        if oldest not in since and (oldest, since) != (None, []):
            raise Disagreement(f"oldest {what}: {oldest}, none of {since}")
        if all(one.deliver_at <= one.created_at for one in waiting):
            agree(f"oldest {what}", oldest, min(since, default=None))

    def look_at_cursor(self, key: tuple[str, str, str], position: OrderedPosition, one: PositionStats) -> None:
        """How far an ordered group has got, and who keeps others out."""
        agree(f"lease at {key}", one.lease_expires_at, position.lease.expires_at if position.lease else None)
        log = [waiting for waiting in position.todo if waiting not in position.requeued]
        end = log[0].offset - 1 if log else position.partition.tail
        if not position.partition.gaps:
            agree(f"cursor at {key}", one.cursor, end)
        if not self.cursors.get(key, 0) <= one.cursor <= end:
            raise Disagreement(f"cursor at {key} is {one.cursor}, was {self.cursors.get(key)}, end is {end}")
        self.cursors[key] = one.cursor

    def look_at_dead_letters(self) -> None:
        """Every one is there, once, as it died."""
        found = self.run(self.q.dead_letters())
        agree("dead letters", sorted(map(engine_view, found)), sorted(map(self.model_view, self.model.dead)))

    def model_view(self, letter: DeadLetter) -> tuple[object, ...]:
        """A dead letter in comparable form."""
        return (self.ids[letter.message], letter.group, letter.attempts, letter.failed_at, letter.error)

    def drain(self) -> None:
        """Nothing is lost and nothing invented: deliver and settle all that is left."""
        self.pass_time(1000)
        for queue, group in self.model.groups:
            self.pause(queue, None, False)
            self.pause(queue, group, False)
            for _ in range(10_000):
                if not self.pop_once(PopParams([queue], None, group, "all", 100, 100, auto_ack=True)):
                    break
                self.pass_time(20)  # Where a rate bounds it.
            agree(f"left for {group}", [one.todo for one in self.model.positions_of(queue, group) if one.todo], [])
