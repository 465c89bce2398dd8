"""What a look that came up empty says of what was heard before it, and of what came meanwhile."""

from __future__ import annotations

from hark.broker.delivery.ready import Believed


def test_an_empty_look_disproves_what_was_heard_before_it_and_not_what_came_meanwhile() -> None:
    believed = Believed(100)
    believed.hear([("q", "old")], "message")
    mark = believed.begin_look()
    believed.hear([("q", "new")], "message")
    believed.disprove(None, "q", mark)
    assert believed.work("q", ["old", "new"]) == (1, {"new": 1})
    believed.disprove(None, "q", believed.begin_look())
    assert not believed
