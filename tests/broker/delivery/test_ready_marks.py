"""What a look that came up empty says of what was heard before it, and of what came meanwhile."""

from __future__ import annotations

from hark.broker.delivery.ready import ReadyWork


def test_an_empty_look_disproves_what_was_received_before_it_and_not_what_came_meanwhile() -> None:
    ready_work = ReadyWork(100)
    ready_work.add([("q", "old")], "message")
    mark = ready_work.begin_look()
    ready_work.add([("q", "new")], "message")
    ready_work.disprove(None, "q", mark)
    assert ready_work.work("q", ["old", "new"]) == (1, {"new": 1})
    ready_work.disprove(None, "q", ready_work.begin_look())
    assert not ready_work
