"""Which queues have series of their own, and that no counter of them ever jumps."""

from __future__ import annotations

import random

from hark.broker.tallies import Tallies, Tally
from hark.clock import FakeClock
from hark.http.metrics.busiest import REST, BusiestQueues
from hark.model import NewMessage, PushOutcome


def push(tallies: Tallies, queue: str, number: int) -> None:
    """Count so many messages."""
    tallies.pushed([[NewMessage(queue)] * number], [[PushOutcome("queued", None)] * number])


def pushed(numbers: dict[str, Tally]) -> dict[str, int]:
    """What was counted."""
    return {queue: tally.pushed for queue, tally in numbers.items()}


def test_the_busiest_are_shown_and_the_others_summed_up() -> None:
    tallies = Tallies(FakeClock())
    busiest = BusiestQueues(tallies, most=2)
    for queue, number in {"a": 5, "b": 1, "c": 9, "d": 2}.items():
        push(tallies, queue, number)
    assert pushed(busiest.look({})) == {"c": 9, "a": 5, REST: 3}


def test_a_queue_that_becomes_busy_is_counted_from_there_on() -> None:
    tallies = Tallies(FakeClock())
    busiest = BusiestQueues(tallies, most=1)
    push(tallies, "a", 10)
    push(tallies, "b", 4)
    assert pushed(busiest.look({})) == {"a": 10, REST: 4}
    push(tallies, "b", 100)
    push(tallies, "a", 1)
    assert pushed(busiest.look({})) == {"b": 0, REST: 105}, "the others keep what they had"
    push(tallies, "b", 7)
    assert pushed(busiest.look({})) == {"b": 7, REST: 105}


def test_a_queue_that_is_only_a_little_busier_replaces_none() -> None:
    tallies = Tallies(FakeClock())
    busiest = BusiestQueues(tallies, most=1)
    push(tallies, "a", 10)
    busiest.look({})
    push(tallies, "a", 10)
    push(tallies, "b", 19)
    assert set(busiest.look({})) == {"a", REST}


def test_a_queue_with_nothing_but_duplicates_hides_no_other() -> None:
    tallies = Tallies(FakeClock())
    busiest = BusiestQueues(tallies, most=1)
    push(tallies, "quiet", 2)
    push(tallies, "busy", 1)
    assert set(busiest.look({})) == {"quiet", REST}
    push(tallies, "busy", 50)
    tallies.pushed([[NewMessage("quiet")]], [[PushOutcome("duplicate", None)]])
    assert set(busiest.look({})) == {"busy", REST}


def test_among_idle_queues_the_longest_backlogs_are_shown() -> None:
    tallies = Tallies(FakeClock())
    busiest = BusiestQueues(tallies, most=2)
    push(tallies, "busy", 1)
    assert pushed(busiest.look({"stuck": 1000, "short": 1, "empty": 0})) == {"busy": 1, "stuck": 0, REST: 0}


def test_sums_of_growth_are_right_and_nothing_shrinks_whatever_happens() -> None:
    chance = random.Random(7)
    tallies = Tallies(FakeClock(), most_queues=20)
    busiest = BusiestQueues(tallies, most=5)
    before = pushed(busiest.look({}))
    for _ in range(300):
        sent = 0
        for _ in range(chance.randrange(6)):
            number = chance.randrange(1, 50)
            push(tallies, f"q{chance.randrange(40)}", number)
            sent += number
        now = pushed(busiest.look({}))
        assert len(now) <= 6
        # As Prometheus reads counters: one that is smaller than before began anew, at 0.
        growth = {queue: number - before.get(queue, 0) for queue, number in now.items()}
        assert growth[REST] >= 0
        seen = sum(number if number >= 0 else now[queue] for queue, number in growth.items())
        assert seen == sent
        before = now
