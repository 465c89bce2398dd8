"""What an engine says of every message and every group, against what the rules say would become of them."""

from __future__ import annotations

from hark.broker.explaining import Circumstances, explain
from hark.broker.explaining_words import moment
from hark.model import Explain

from .comparing import Disagreement
from .driver import given
from .model_nouns import Message
from .model_tracks import OrderedTrack, SharedTrack, Track
from .steps import Steps

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
        queue, partition = message.place
        track = self.model.tracks[queue, partition, group]
        if message not in track.todo:
            if any(one.message is message and one.group == group for one in self.model.dead):
                return frozenset({"dead_lettered"}), {}
            return (DONE if stored else frozenset({"removed", "discarded"})), {}
        if message in track.in_flight():
            return frozenset({"leased"}), {"until": moment(track.holder[message].expires_at)}
        if self.model.queues[queue].paused:
            return frozenset({"queue_paused"}), {}
        if self.model.groups[queue, group].paused:
            return frozenset({"group_paused"}), {}
        waits = self.expected_wait(track, message)
        if waits:
            return waits, {}
        room, limits = self.model.room(queue, group, auto_ack=False)
        return (limits, {}) if room <= 0 else (frozenset({"ready"}), {})

    def expected_wait(self, track: Track, message: Message) -> frozenset[str]:
        """What may be said of a message that can't be delivered yet; empty: it can."""
        now = self.model.now
        own = frozenset({"delayed", "retry"}) if track.not_before(message) > now else frozenset()
        if isinstance(track, SharedTrack):
            return own
        assert isinstance(track, OrderedTrack)
        before = track.todo[: track.todo.index(message)]
        blocked = track.lease is not None or any(track.not_before(one) > now for one in before)
        return own | {"behind"} if blocked else own
