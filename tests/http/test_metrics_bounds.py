"""GET /metrics at its worst: which queues have series, and that a store that is away or large does not matter."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from hark.broker import Broker
from hark.broker.survey import Depths, QueueDepth
from hark.broker.tallies import VERBS, Tallies, Tally
from hark.clock import SECOND, FakeClock, SystemClock
from hark.engine.sqlite import SqliteEngine
from hark.errors import EngineFailure
from hark.http import metrics as scraping
from hark.http.app import App
from hark.http.exchange import Exchange, Requests
from hark.http.metrics import ELSEWHERE, REST, STORE, BusiestQueues, Metrics, depth_metrics
from hark.model import NewMessage, PushOutcome
from hark.prometheus import text
from hark.settings import Settings
from tests.http.scraping import Scrape

QUEUES = 10_000
MOST_SERIES = 4_000


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = Broker(SqliteEngine(":memory:", clock=SystemClock()), Settings(), SystemClock())
    await broker.start()
    yield broker
    await broker.close()


async def taken(metrics: Metrics) -> Scrape:
    """What a scraper gets."""
    metrics.load = lambda: (3, 2)
    return Scrape((await metrics.scrape()).decode())


def depth(backlog: int, oldest: int | None = None) -> QueueDepth:
    """A queue with some messages."""
    return QueueDepth(partitions=1, backlog=backlog, in_flight=1, oldest_waiting=oldest, dead_letters=2, scheduled=3)


def depths(now: int, by_queue: dict[str, QueueDepth]) -> Depths:
    """A survey that found these, and a queue that it remembers only in its sums."""
    return Depths(
        began=now - 6 * SECOND,
        at=now - 5 * SECOND,
        queues=len(by_queue) + 1,
        partitions=len(by_queue) + 1,
        backlog=sum(one.backlog for one in by_queue.values()) + 1,
        scheduled=3 * len(by_queue) + 1,
        in_flight=len(by_queue) + 1,
        oldest_waiting=min((one.oldest_waiting for one in by_queue.values() if one.oldest_waiting), default=None),
        dead_letters=2 * len(by_queue) + 1,
        by_queue=by_queue,
    )


class _Peers:
    """Peers with every number that there may be."""

    def metrics(self) -> dict[str, float]:
        """All of them."""
        names = ("peers", "datagrams_sent", "hints_sent", "send_errors", "datagrams_received", "hints_received")
        reasons = ("size", "magic", "version", "signature", "own", "time", "replay", "content")
        return dict.fromkeys((*names, "datagrams_refused", *(f"refused_{reason}" for reason in reasons)), 1.0)

    def notify(self, _hints: object) -> None:
        """Tell nobody."""

    async def close(self) -> None:
        """Nothing to close."""


def noted(requests: Requests, route: str, method: str, status: int) -> None:
    """A request that is answered."""
    exchange = Exchange(method, route.encode(), b"", {}, None, secure=False)
    exchange.answers = requests.admit(route, method)
    App.begin(exchange, status, ())


async def at_its_worst(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> tuple[Metrics, Requests]:
    """Everything that can have a series has one, or tries to."""
    for start in range(0, QUEUES, 1000):
        names = [f"queue-{number}" for number in range(start, start + 1000)]
        broker.tallies.pushed([[NewMessage(name)] for name in names], [[PushOutcome("queued", None)]] * 1000)
    for verb in VERBS:
        broker.engine_calls.ended(verb, broker.engine_calls.timer())
        for code in range(10):
            broker.engine_calls.ended(verb, broker.engine_calls.timer(), EngineFailure("x", code=f"code-{code}"))
    requests = Requests()
    for route in range(200):
        for status in (*range(200, 210), 999, 12345):
            noted(requests, f"/route/{route}", ("GET", "POST")[route % 2], status)
    every = dict.fromkeys((*STORE, *ELSEWHERE), 1.0)
    monkeypatch.setattr(broker.engine, "store_metrics", lambda: asyncio.sleep(0, every))
    monkeypatch.setattr(broker, "_peers", _Peers())
    now = broker.delivery.timers.now()
    surveyed = depths(now, {f"queue-{number}": depth(number, now - SECOND) for number in range(QUEUES)})
    monkeypatch.setattr(broker.observed, "depths", surveyed)
    return Metrics(broker, requests), requests


async def test_there_are_never_more_than_4000_series_and_sums_over_labels_are_right(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics, _ = await at_its_worst(broker, monkeypatch)
    found = await taken(metrics)
    assert len(found.samples) <= MOST_SERIES
    assert len(found.samples) > 3000, "is this the worst?"
    queues = {sample.labels["queue"] for sample in found.samples if "queue" in sample.labels}
    assert len(queues) == 101
    assert found.sum("hark_queue_pushed_messages_total") == QUEUES == found("hark_pushed_messages_total")
    assert found.sum("hark_queue_backlog_messages") == found("hark_backlog_messages")
    assert found.sum("hark_queue_dead_letters") == found("hark_dead_letters")
    assert found.sum("hark_http_requests_total") == 200 * 12 == found.sum("hark_http_request_seconds_count")
    assert found.sum("hark_engine_errors_total") == 10 * len(VERBS)


async def test_a_store_that_goes_away_leaves_the_other_numbers_and_its_counters_do_not_fall(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def numbers() -> dict[str, float]:
        return {"leases_expired": 7, "expiries_dead_lettered": 2, "pool_connects": 3, "pool_idle": 4}

    async def away() -> dict[str, float]:
        raise EngineFailure("away")

    async def silent() -> dict[str, float]:
        await asyncio.Event().wait()
        return {}

    metrics = Metrics(broker, Requests())
    for answer in (numbers, away, silent):
        monkeypatch.setattr(broker.engine, "store_metrics", answer)
        found = await taken(metrics)
        assert found("hark_lease_expiries_total") == 7
        assert found("hark_dead_lettered_messages_total") == 2
        assert found("hark_store_pool_connects_total") == 3
        assert found("hark_store_up") == (answer is numbers)
        assert {"hark_pushed_messages_total", "hark_http_connections"} <= found.names()
        assert "hark_store_database_bytes" not in found.names()
        monkeypatch.setattr(scraping, "STORE_SECONDS", 0)


def test_depths_are_those_of_the_last_survey_and_what_has_no_series_is_summed_up() -> None:
    now = 1000 * SECOND
    known = {"a": depth(5, now - 90 * SECOND), "b": depth(7, now - 30 * SECOND), "c": depth(0)}
    found = Scrape(text(depth_metrics(depths(now, known), ["a", "c", "unknown", REST], now)).decode())
    assert (found("hark_survey_age_seconds"), found("hark_queues")) == (5, 4)
    assert (found("hark_backlog_messages"), found("hark_oldest_waiting_seconds")) == (13, 90)
    assert found("hark_queue_backlog_messages", queue="a") == 5
    assert found("hark_queue_backlog_messages", queue=REST) == 8
    assert found("hark_queue_oldest_waiting_seconds", queue="a") == 90
    assert found("hark_queue_oldest_waiting_seconds", queue="c") == 0
    assert found("hark_queue_oldest_waiting_seconds", queue=REST) == 30
    assert found("hark_queue_in_flight_messages", queue=REST) == 2
    assert found("hark_queue_dead_letters", queue=REST) == 3
    assert not any(sample.labels.get("queue") == "unknown" for sample in found.samples)


async def test_what_the_broker_has_surveyed_is_shown(broker: Broker) -> None:
    metrics = Metrics(broker, Requests())
    while "hark_queues" not in (found := await taken(metrics)).names():
        pass  # The first survey is under way.
    assert found("hark_queues") == 0
    assert {"hark_backlog_messages", "hark_queue_backlog_messages"} <= found.names()


async def test_names_that_need_escaping_can_be_read(broker: Broker) -> None:
    name = 'a "queue"\\with\nlines, {braces} and ü'
    await broker.push([NewMessage(name)])
    found = await taken(Metrics(broker, Requests()))
    assert found("hark_queue_pushed_messages_total", queue=name) == 1


async def test_load_is_that_of_the_moment(broker: Broker) -> None:
    found = await taken(Metrics(broker, Requests()))
    assert (found("hark_http_connections"), found("hark_http_requests_in_flight")) == (3, 2)


# The busiest queues, of whose counters none ever jumps -----------------------------------------------------


@pytest.fixture
def tallies() -> Tallies:
    """What is counted by queue."""
    return Tallies(FakeClock())


def push(tallies: Tallies, queue: str, number: int) -> None:
    """Count so many messages."""
    tallies.pushed([[NewMessage(queue)] * number], [[PushOutcome("queued", None)] * number])


def pushed(numbers: dict[str, Tally]) -> dict[str, int]:
    """What was counted."""
    return {queue: tally.pushed for queue, tally in numbers.items()}


def test_the_busiest_are_shown_and_the_others_summed_up(tallies: Tallies) -> None:
    busiest = BusiestQueues(tallies, most=2)
    for queue, number in {"a": 5, "b": 1, "c": 9, "d": 2}.items():
        push(tallies, queue, number)
    assert pushed(busiest.look({})) == {"c": 9, "a": 5, REST: 3}


def test_a_queue_that_becomes_busy_is_counted_from_there_on(tallies: Tallies) -> None:
    busiest = BusiestQueues(tallies, most=1)
    push(tallies, "a", 10)
    push(tallies, "b", 4)
    assert pushed(busiest.look({})) == {"a": 10, REST: 4}
    push(tallies, "b", 100)
    push(tallies, "a", 1)
    assert pushed(busiest.look({})) == {"b": 0, REST: 105}, "the others keep what they had"
    push(tallies, "b", 7)
    assert pushed(busiest.look({})) == {"b": 7, REST: 105}


def test_a_queue_that_is_only_a_little_busier_replaces_none(tallies: Tallies) -> None:
    busiest = BusiestQueues(tallies, most=1)
    push(tallies, "a", 10)
    busiest.look({})
    push(tallies, "a", 10)
    push(tallies, "b", 19)
    assert set(busiest.look({})) == {"a", REST}


def test_a_queue_with_nothing_but_duplicates_hides_no_other(tallies: Tallies) -> None:
    busiest = BusiestQueues(tallies, most=1)
    push(tallies, "quiet", 2)
    push(tallies, "busy", 1)
    assert set(busiest.look({})) == {"quiet", REST}
    push(tallies, "busy", 50)
    tallies.pushed([[NewMessage("quiet")]], [[PushOutcome("duplicate", None)]])
    assert set(busiest.look({})) == {"busy", REST}


def test_among_idle_queues_the_longest_backlogs_are_shown(tallies: Tallies) -> None:
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
