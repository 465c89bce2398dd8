"""What claims leave to be written down with the next transaction: worth saving, not worth waiting for."""

from __future__ import annotations

from hark.engine.sqlite.claim import Claimer
from hark.engine.sqlite.groups import note_seen
from hark.engine.sqlite.ordered import Draft
from hark.engine.sqlite.state import Group, State
from hark.engine.sqlite.track import AnyTrack
from hark.engine.sqlite.transaction import WriteTransaction


class Notes:
    """Places that moved over what is gone, messages whose time to live was over, groups that were seen."""

    def __init__(self) -> None:
        self._stepped: dict[AnyTrack, set[int]] = {}
        self._expired: dict[str, int] = {}
        self._seen: dict[Group, None] = {}

    def __bool__(self) -> bool:
        return bool(self._stepped or self._expired or self._seen)

    def add(self, claimer: Claimer) -> None:
        """Take over what a claimer has noted."""
        for track, touched in claimer.hand_out.stepped.items():
            self._stepped.setdefault(track, set()).update(touched)
        self._stepped.update({track: set() for track in claimer.picker.stepped if track not in self._stepped})
        for queue, number in (*claimer.hand_out.expired.items(), *claimer.picker.expired.items()):
            self._expired[queue] = self._expired.get(queue, 0) + number
        self._seen.update(claimer.seen)
        claimer.note_endings()

    def save(self, transaction: WriteTransaction, state: State) -> None:
        """Write all of it down, and forget it."""
        for track, touched in self._stepped.items():
            if track.group.tracks.get(track.partition.id) is track:
                draft = transaction.draft(track)
                if isinstance(draft, Draft):
                    draft.touched_ranges.update(touched)
            queue = state.queues.get(track.group.queue_name)
            if queue is not None:
                queue.open = None
        for name, number in self._expired.items():
            transaction.count(name, "expired", number)
        note_seen(transaction, self._seen)
        self.clear()

    def clear(self) -> None:
        """Forget all of it: memory was thrown away."""
        self._stepped, self._expired, self._seen = {}, {}, {}
