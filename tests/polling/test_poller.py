"""The rests between polls: how long, what ends them, and their numbers; and the five tests that seed 002 asks for."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from hark.polling import Poller, PollingStrategy, PollMetrics
from hark.polling.poller import prometheus_text


class Pauses:
    """Stands in for the clock and for sleeping: a pause is written down, and is over at once."""

    def __init__(self) -> None:
        self.now = 0.0
        self.taken: list[float] = []

    def monotonic(self) -> float:
        """The time of the test."""
        return self.now

    async def pause(self, event: asyncio.Event, seconds: float) -> None:
        """Let the time pass, unless the event ends it before it began."""
        assert not event.is_set()
        self.taken.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


def middle() -> float:
    """A random number that makes no jitter."""
    return 0.5


FIXED = PollingStrategy.fixed(interval_ms=500)
ADAPTIVE = PollingStrategy.adaptive(min_interval_ms=100, max_interval_ms=5000, backoff_multiplier=2.0)


@pytest.fixture
def pauses() -> Pauses:
    """Time that passes because a test says so."""
    return Pauses()


@pytest.fixture
def poller(pauses: Pauses) -> Poller:
    """A poller whose rests are written down, without jitter."""
    return Poller(ADAPTIVE, monotonic=pauses.monotonic, random=middle, pause=pauses.pause)


def look(poller: Poller, found: bool) -> None:
    """Poll once."""
    poller.begin()
    poller.saw(found)


# How long --------------------------------------------------------------------------------------------------


async def test_a_busy_loop_does_not_rest_but_lets_others_run(poller: Poller, pauses: Pauses) -> None:
    ran: list[int] = []
    asyncio.get_running_loop().call_soon(ran.append, 1)
    look(poller, True)
    await poller.rest()
    assert (pauses.taken, ran) == ([], [1])


async def perform(poller: Poller, pauses: Pauses, step: str) -> None:
    """`empty`, `found` and `failed` polls; a `rest`, also after `waited:2` s, and if a message is `due:0.3` s later."""
    word, _, number = step.partition(":")
    if word in ("empty", "found"):
        look(poller, word == "found")
    elif word == "failed":
        poller.begin()
        poller.failed(retry_after=float(number) if number else None)
    elif word == "rest":
        await poller.rest()
    elif word == "waited":
        await poller.rest(waited=float(number))
    elif word == "due":
        await poller.rest(next_due=pauses.now + float(number))
    elif word == "rested":
        assert pauses.taken == pytest.approx([float(one) for one in number.split(",") if one])
    elif word in ("interval", "polls", "empties"):
        found = {"interval": poller.interval, "polls": poller.metrics.polls, "empties": poller.metrics.empty}
        assert found[word] == float(number)
    else:
        {"wake": poller.wake, "stop": poller.stop, "skip": poller.skip}[word]()


RESTS = {  # They begin with the strategy and the jitter, if that is not adaptive and none.
    "fixed polling rests equally long after each empty poll and not while busy": (
        "fixed~500 empty rest empty rest found rest empty rest rested:0.5,0.5,0.5"
    ),
    "work that was seen and lost to others is no reason to back off": "empty found rest rested: interval:0.1",
    "jitter changes the rest and not the interval": (
        "jitter~1 " + "empty rest " * 3 + "rested:0.22,0.44,0.88 interval:0.8"
    ),
    "a message that is due soon is not slept past, and one that is due late does not lengthen the rest": (
        "empty due:3600 empty empty empty empty empty due:0.3 rested:0.2,0.3"
    ),
    "one that is overdue and was not found makes no loop spin": "empty due:-1 " * 6 + "rested:0.1,0.1,0.1,0.1,0.1,0.1",
    "the time that the server waited counts as rest": (
        "empty " * 6 + "waited:0 rested:5 waited:2 rested:5,3 waited:5 waited:30 rested:5,3"
    ),
    "jitter makes no rest where the server has waited long enough": (
        "fixed~30000 jitter~1 empty waited:30 rested: waited:20 rested:11"
    ),
    "a hint ends one rest only": "empty wake rest rested: empty rest rested:0.4",
    "after stop there is no rest any more": "stop empty rest empty rest empty rest failed rest rested:",
    "a poll that is skipped is not counted and rests as long as the last": (
        "empty rest wake skip rest rested:0.2,0.2 polls:1 empties:1"
    ),
    "errors have a backoff of their own until a poll succeeds, and that of empty polls is as it was": (
        "empty " + "failed rest " * 11 + "rested:0.1,0.2,0.4,0.8,1.6,3.2,6.4,12.8,25.6,30,30 interval:0.2"
        " found failed rest rested:0.1,0.2,0.4,0.8,1.6,3.2,6.4,12.8,25.6,30,30,0.1"
    ),
    "a server that says when to come again is left alone so long": "failed:7 rest failed rest rested:7,0.2",
}


@pytest.mark.parametrize("script", RESTS.values(), ids=RESTS)
async def test_how_long_it_rests(pauses: Pauses, script: str) -> None:
    changed = dict(re.findall(r"(\w+)~(\d+)", script))
    strategy = PollingStrategy.fixed(interval_ms=int(changed["fixed"])) if "fixed" in changed else ADAPTIVE
    drawn = float(changed.get("jitter", middle()))
    poller = Poller(strategy, monotonic=pauses.monotonic, random=lambda: drawn, pause=pauses.pause)
    for step in script.split():
        if "~" not in step:
            await perform(poller, pauses, step)


# What ends a rest ------------------------------------------------------------------------------------------


@asynccontextmanager
async def an_hours_rest(poller: Poller) -> AsyncIterator[asyncio.Task[None]]:
    """A rest of an hour by the real clock, under way; it must be over soon after the block."""
    resting = asyncio.create_task(poller.rest())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not resting.done()
    yield resting
    async with asyncio.timeout(20):
        await resting


@pytest.fixture
def sleepy() -> Poller:
    """A poller that rests for an hour by the real clock."""
    return Poller(PollingStrategy.fixed(interval_ms=3_600_000))


async def test_a_rest_is_over_when_its_time_is_and_can_be_cancelled(sleepy: Poller) -> None:
    poller = Poller(PollingStrategy.fixed(interval_ms=1))
    look(poller, False)
    async with asyncio.timeout(20):
        await poller.rest()
    look(sleepy, False)
    resting = asyncio.create_task(sleepy.rest())
    await asyncio.sleep(0)
    resting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await resting


@pytest.mark.parametrize("end", [Poller.wake, Poller.stop, lambda poller: poller.follow(ADAPTIVE)])
async def test_a_hint_a_stop_and_another_strategy_end_the_rest_at_once(
    sleepy: Poller, end: Callable[[Poller], None]
) -> None:
    look(sleepy, False)
    async with an_hours_rest(sleepy):
        end(sleepy)
    assert sleepy.stopped == (end is Poller.stop)


async def test_a_hint_that_comes_while_a_poll_is_under_way_is_not_lost(sleepy: Poller) -> None:
    sleepy.begin()
    sleepy.wake()
    sleepy.saw(False)
    async with asyncio.timeout(20):
        await sleepy.rest()


async def test_a_hint_does_not_end_the_rest_after_an_error_and_stop_does() -> None:
    poller = Poller(ADAPTIVE)
    poller.failed(retry_after=3600)
    async with an_hours_rest(poller) as resting:
        poller.wake()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not resting.done()
        poller.stop()


async def test_a_poller_may_follow_another_strategy_from_its_first_interval_on(poller: Poller, pauses: Pauses) -> None:
    for _ in range(4):
        look(poller, False)
    poller.follow(PollingStrategy.adaptive(min_interval_ms=1000, max_interval_ms=9000, backoff_multiplier=3))
    assert poller.interval == poller.metrics.interval_seconds == 1.0
    for _ in range(3):
        look(poller, False)
        await poller.rest()
    assert pauses.taken == pytest.approx([3, 9, 9])


async def test_the_four_numbers_follow_the_polls(poller: Poller) -> None:
    metrics = PollMetrics()
    fixed = Poller(PollingStrategy.fixed(interval_ms=500), metrics=metrics)
    look(fixed, False)
    look(fixed, False)
    assert metrics == PollMetrics(interval_seconds=0.5, polls=2, empty=2, backoffs=0), "it never backs off"
    assert poller.metrics == PollMetrics(interval_seconds=0.1)
    for found in (True, False, False):
        look(poller, found)
    assert poller.metrics == PollMetrics(interval_seconds=0.4, polls=3, empty=2, backoffs=2)
    for _ in range(6):
        look(poller, False)
    assert poller.metrics == PollMetrics(interval_seconds=5.0, polls=9, empty=8, backoffs=6), "no growth, no backoff"
    look(poller, True)
    assert poller.metrics == PollMetrics(interval_seconds=0.1, polls=10, empty=8, backoffs=6)
    poller.begin()
    poller.failed()
    assert poller.metrics == PollMetrics(interval_seconds=0.1, polls=11, empty=8, backoffs=6)


def test_the_metrics_have_the_names_and_types_of_the_seed() -> None:
    metrics = PollMetrics(interval_seconds=0.1, polls=12_345_678_901, empty=2, backoffs=1)
    assert metrics.text().splitlines() == [
        "# HELP worker_poll_interval_seconds The current poll interval.",
        "# TYPE worker_poll_interval_seconds gauge",
        "worker_poll_interval_seconds 0.1",
        "# HELP worker_poll_total Polls.",
        "# TYPE worker_poll_total counter",
        "worker_poll_total 1.2345678901e+10",
        "# HELP worker_poll_empty_total Polls that found no work.",
        "# TYPE worker_poll_empty_total counter",
        "worker_poll_empty_total 2.0",
        "# HELP worker_backoff_total Times that the poll interval grew.",
        "# TYPE worker_backoff_total counter",
        "worker_backoff_total 1.0",
    ]
    assert metrics.text().endswith("\n")


def test_several_pollers_are_distinguished_by_labels_under_one_head_and_labels_are_escaped() -> None:
    text = prometheus_text([({"queue": "a"}, PollMetrics(polls=1)), ({"queue": "b"}, PollMetrics(polls=2))])
    assert text.count("# TYPE worker_poll_total counter") == 1
    assert 'worker_poll_total{queue="a"} 1.0\nworker_poll_total{queue="b"} 2.0\n' in text
    assert 'worker_poll_total{queue="a\\"b\\\\c\\nd",worker="w"} 0.0\n' in PollMetrics().text(
        {"queue": 'a"b\\c\nd', "worker": "w"}
    )


# The five tests that seed 002 asks for ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "current", "found", "wanted"),
    [
        pytest.param(FIXED, 0.5, True, 0.5, id="fixed-found"),
        pytest.param(FIXED, 0.5, False, 0.5, id="fixed-empty"),
        pytest.param(ADAPTIVE, 0.1, False, 0.2, id="adaptive-grows"),
        pytest.param(ADAPTIVE, 3.2, False, 5.0, id="adaptive-up-to-the-longest"),
        pytest.param(ADAPTIVE, 5.0, False, 5.0, id="adaptive-stays-at-the-longest"),
        pytest.param(ADAPTIVE, 5.0, True, 0.1, id="adaptive-found"),
    ],
)
def test_1_next_interval(strategy: PollingStrategy, current: float, found: bool, wanted: float) -> None:
    assert strategy.next_interval(current, found) == wanted


async def test_2_a_worker_picks_a_task_up_within_the_shortest_interval(
    poller: Poller, pauses: Pauses, server_url: str, queue: str
) -> None:
    """A loop of plain polls at a real server: what is pushed in a rest is there when the rest is over."""
    async with httpx.AsyncClient(base_url=server_url, trust_env=False) as http:

        async def push(number: int) -> None:
            body = {"items": [{"queue": queue, "payload": number}]}
            assert (await http.post("/api/v1/push", json=body)).status_code == 201

        async def poll() -> bool:
            poller.begin()
            answer = await http.get(f"/api/v1/pop/queue/{queue}?autoAck=true")
            poller.saw(answer.status_code == 200)
            return answer.status_code == 200

        await push(1)
        assert await poll()
        pushed_at = pauses.now
        await push(2)
        await poller.rest()
        assert await poll()
        assert pauses.now - pushed_at <= ADAPTIVE.initial_interval(), "busy: the next poll has it"

        assert not await poll()
        pushed_at = pauses.now
        await push(3)
        await poller.rest()
        assert await poll()
        # The k-th idle rest is min x mult^k, so what comes right after the last work waits for one multiplier at most.
        assert pauses.now - pushed_at <= ADAPTIVE.initial_interval() * ADAPTIVE.backoff_multiplier


async def test_3_the_interval_grows_while_there_is_nothing(poller: Poller, pauses: Pauses) -> None:
    for _ in range(8):
        look(poller, False)
        await poller.rest()
    assert pauses.taken == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0])


async def test_4_the_interval_is_the_shortest_again_as_soon_as_there_is_a_task(poller: Poller, pauses: Pauses) -> None:
    for found in (False, False, False, True):
        poller.saw(found)
    assert poller.interval == 0.1
    await poller.rest()
    assert pauses.taken == [], "a busy worker polls back to back"
    poller.saw(False)
    await poller.rest()
    assert pauses.taken == pytest.approx([0.2])


def test_5_jitter_stays_within_a_tenth_and_uses_all_of_it() -> None:
    assert ADAPTIVE.apply_jitter(10, lambda: 0.0) == pytest.approx(9.0)
    assert ADAPTIVE.apply_jitter(10, lambda: 1.0) == pytest.approx(11.0)
    drawn = [ADAPTIVE.apply_jitter(10) for _ in range(1000)]
    assert all(9.0 <= seconds <= 11.0 for seconds in drawn)
    assert min(drawn) < 9.5
    assert max(drawn) > 10.5
