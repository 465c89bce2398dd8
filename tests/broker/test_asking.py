"""When consumers last asked, by what they asked for."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from hark.broker.asking import Asking
from hark.clock import FakeClock
from hark.model import MessageFacts, PopRequest

MESSAGE = MessageFacts(id="m", queue="orders", partition="p", partition_id="p", offset=1, namespace="shop", task="pay")


def noted(asking: Asking, **wish: Any) -> None:
    """A consumer of g asks for something."""
    asking.note(PopRequest(group="g", **wish))


def test_the_last_time_of_those_who_could_get_the_message() -> None:
    clock = FakeClock()
    asking = Asking(clock)
    assert asking.last(MESSAGE, "g") is None
    for wish in (
        {"queue": "orders"},
        {"namespace": "shop"},
        {"task": "pay"},
        {"namespace": "shop", "task": "pay"},
        {"queue": "orders", "partition": "other"},
    ):
        clock.advance(1)
        noted(asking, **wish)
        assert asking.last(MESSAGE, "g") == clock.now()


def test_others_do_not_count() -> None:
    clock = FakeClock()
    asking = Asking(clock)
    for wish in ({"queue": "mails"}, {"namespace": "other"}, {"namespace": "shop", "task": "other"}):
        noted(asking, **wish)
    assert asking.last(MESSAGE, "g") is None
    noted(asking, queue="orders")
    assert asking.last(MESSAGE, "h") is None


def test_who_was_forgotten_has_not_asked_since() -> None:
    clock = FakeClock()
    asking = Asking(clock, most=2)
    start = clock.now()
    assert asking.since == start
    for name in ("orders", "mails", "orders", "third"):
        clock.advance(1)
        noted(asking, queue=name)
    assert asking.last(MESSAGE, "g") is None
    assert asking.since == start + 3_000_000
    assert asking.last(replace(MESSAGE, queue="mails"), "g") == start + 2_000_000
