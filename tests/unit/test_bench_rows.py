"""The parts of the benchmark's rows that can be looked at without servers: delivery, work, clients, a bucket."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
import typer
from bench import must
from bench.__main__ import chosen
from bench.client import polling
from bench.client.program import PUSHERS, Taken, push_at_once
from bench.delivery.apart import apart
from bench.delivery.fair import Shares, empty_wakes
from bench.delivery.leaks import RELEASED, growth, queues
from bench.delivery.pair import free_udp_ports, peer_settings
from bench.delivery.sockets import TEXT, Frames, frame, upgrade
from bench.delivery.states import WAYS, Ledger, PopParams
from bench.delivery.waiters import decode_popped, item, items, waiting_pop
from bench.delivery.wires import Metrics, Waiting
from bench.figures import Figure, Run
from bench.rows import ALL, QUICK
from bench.s3.bucket import BucketStores, Counts, Stub
from bench.s3.process import PAYLOAD, Done, Job
from bench.s3.special import LONELY_RATE, PROCESSES, _pair
from bench.s3.team import Together
from bench.servers import command
from bench.work.keys import change_events
from bench.work.shared import CONSUMERS, Cycle, rows_of
from bench.wrk import lua_script

from hark.polling import PollingStrategy


def outcomes(engine: str, **values: float) -> dict[tuple[str, str], bool]:
    """What holds of what was measured on an engine, by text and unit."""
    run = Run(machine={"engine": engine, "generator": "wrk"}, values={name: [value] for name, value in values.items()})
    return {(demand.text, demand.unit): demand.holds for demand in must.demands(run) if demand.holds is not None}


# Which rows, and what is demanded of them --------------------------------------------------------------------


def test_rows_are_those_of_the_engine() -> None:
    assert chosen("postgres", "pinned,push1", quick=False) == ["push1", "pinned"]
    with pytest.raises(typer.BadParameter, match="pinned"):
        chosen("sqlite", "pinned", quick=False)
    assert set(chosen("postgres", None, quick=True)) > set(chosen("sqlite", None, quick=True))
    everywhere = {"shared", "due", "keys", "watch", "client", "libraries", "tasks", "polling"}
    assert set(chosen("sqlite", None, quick=False)) >= everywhere
    assert "deliver2" in chosen("postgres", None, quick=False), "two servers need a shared store"
    assert "deliver2" not in chosen("sqlite", None, quick=False)
    assert chosen("s3", None, quick=False) == list(ALL["s3"])
    assert chosen("s3", None, quick=True) == list(QUICK["s3"])
    assert chosen("s3", "quiet,served", quick=False) == ["served", "quiet"]
    with pytest.raises(typer.BadParameter, match="no such row: push1"):
        chosen("s3", "push1", quick=False)


def test_no_one_may_be_lost_on_the_way_and_none_is_too_few() -> None:
    assert outcomes("sqlite", deliver_lost=0.0, waiting_lost=1.0, deliver_p50=4.0) == {
        ("push to delivery at a waiting client: not delivered", "messages"): True,
        ("10,000 waiting pops: not delivered", "messages"): False,
        ("push to delivery at a waiting client: p50", "ms"): True,
    }


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_what_work_queues_must_do_is_demanded_of_both_engines(engine: str) -> None:
    found = {text: holds for (text, _), holds in outcomes(engine, due_p99=25.0, shared1=0.6).items()}
    assert found == {
        "a message due at T reaches a waiting consumer: p99 behind T": False,
        "shared group, one partition, 64 consumers: push 1, pop 1, ack": True,
    }


def test_what_client_and_worker_must_do_is_demanded() -> None:
    assert outcomes("sqlite", client_push=2.9, client_consume=2.1, tasks_celery=5.0, tasks_p50=11.0) == {
        ("single pushes of one client process", "x the official client"): False,
        ("consume + ack in batches of 100", "x the official client"): True,
        ("tasks that do nothing, per worker process", "x Celery"): True,
        ("push to the start of its handler, idle worker: p50", "ms"): False,
    }


def test_what_is_demanded_of_a_bucket_is_demanded_of_no_other_store() -> None:
    demanded = {bound.name for bound in must.SINGLE["s3"]}
    assert all(name.startswith("s3_") for name in demanded)
    for engine in ("sqlite", "postgres"):
        assert not demanded & {bound.name for bound in must.SINGLE[engine]}
    assert len(list(must.demands(Run(machine={"engine": "s3", "generator": "wrk"})))) == len(demanded)
    assert PROCESSES == 4, "as many as the demand says"


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("s3_served", 5000, 4999),
        ("s3_brokerless", 1000, 999),
        ("s3_single", 1.5, 1.51),
        ("s3_served_requests", 0.05, 0.051),
        ("s3_lonely_served_dollars", 0.15, 0.151),
        ("s3_quiet_gets", 12.5, 12.6),
        ("s3_quiet_lists", 0, 1),
    ],
)
def test_a_bound_is_kept_or_broken(name: str, good: float, bad: float) -> None:
    assert list(outcomes("s3", **{name: good}).values()) == [True]
    assert list(outcomes("s3", **{name: bad}).values()) == [False]


# Delivery --------------------------------------------------------------------------------------------------


def served(payload: bytes) -> bytes:
    """A server's frame: that of a client without its mask."""
    sent = frame(payload)
    start = len(sent) - len(payload)
    return bytes((sent[0], sent[1] & 0x7F)) + sent[2 : start - 4] + payload


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536])
def test_frames_are_cut_out_of_what_comes_in_any_parts(size: int) -> None:
    stream = served(b"x" * size) + served(b"next")
    frames = Frames()
    chunks = [stream[: size // 2 + 1], stream[size // 2 + 1 : -1], stream[-1:]]
    got = [each for chunk in chunks for each in frames.read(chunk)]
    assert got == [(TEXT, b"x" * size), (TEXT, b"next")]


def test_a_client_frame_says_that_it_is_masked_and_how_long_it_is() -> None:
    assert frame(b"ab") == b"\x81\x82\0\0\0\0ab"
    assert frame(b"a" * 300)[:4] == b"\x81\xfe\x01\x2c"
    assert upgrade(b"/x").startswith(b"GET /x HTTP/1.1\r\n")


def test_a_push_is_json_with_the_number_of_each_message_in_its_payload() -> None:
    [first, second] = msgspec.json.decode(items([item("q", 3, 7), item("q", 4, 8)]))["items"]
    assert (first["queue"], first["partition"], first["payload"]["n"]) == ("q", "p3", 7)
    assert len(msgspec.json.encode(second["payload"])) == pytest.approx(256, abs=5)
    answer = msgspec.json.encode({"messages": [{"data": first["payload"], "id": "m"}]})
    assert [message.data.n for message in decode_popped(answer).messages] == [7]
    assert waiting_pop("q", 500) == b"/api/v1/pop/queue/q?wait=true&timeout=500"


def test_the_subscription_of_a_socket_names_a_partition_only_if_it_wants_one() -> None:
    assert msgspec.json.decode(msgspec.json.encode(PopParams("q"))) == {
        "type": "subscribe",
        "queue": "q",
        "batch": 1,
        "id": "s",
    }
    assert msgspec.json.decode(msgspec.json.encode(PopParams("q", "p1")))["partition"] == "p1"


def waiting(**empty: int) -> Metrics:
    return Metrics(Waiting(1, 2, 3, 4, empty), {})


def test_what_is_left_has_a_client_and_only_wakes_since_the_first_look_were_for_nothing() -> None:
    assert waiting().delivery.left == 10
    assert empty_wakes(waiting(push=3, poll=1), waiting(push=5, poll=1, timer=2)) == {"push": 2, "timer": 2}


def test_the_spread_is_between_the_most_and_the_least_served() -> None:
    shares = Shares(counts=[10, 9, 11], seconds=1, empty_wakes={"push": 2, "poll": 1})
    assert (shares.spread, shares.all_empty) == (2, 3)


def test_growth_is_from_the_middle_of_the_first_quarter_to_that_of_the_last() -> None:
    assert growth([100, 101, 102, 90, 150, 150, 150, 150, 150, 110, 111, 112]) == 10
    assert growth([5]) == 0


def test_the_ledger_knows_what_no_one_settled_and_refuses_a_second_settlement() -> None:
    ledger = Ledger()
    first, _ = ledger.push("q"), ledger.push("q")
    ledger.settle("q", first)
    assert (ledger.pushed, ledger.settled, ledger.lost) == (2, 1, 1)
    with pytest.raises(KeyError):
        ledger.settle("q", first)


def test_clients_of_each_state_have_a_queue_of_their_own() -> None:
    names = queues()
    assert len(set(names)) == len(names)
    assert sum(name.endswith(RELEASED) for name in names) == 2 * len(WAYS) - 1


def test_two_servers_are_notified_of_each_others_ports() -> None:
    first, second = free_udp_ports(2)
    assert first != second
    assert peer_settings(first, second) == {"HARK_PEER_PORT": str(first), "HARK_PEERS": f"127.0.0.1:{second}"}


async def doubled(number: int) -> int:
    return number * 2


async def failing(why: str) -> None:
    raise ExceptionGroup("several", [ValueError(why)])


def test_a_client_apart_answers_or_says_what_went_wrong() -> None:
    assert apart(doubled, 21) == 42
    with pytest.raises(RuntimeError, match="why not"):
        apart(failing, "why not")


# Work queues, keys, clients and workers ----------------------------------------------------------------------


def figure(throughput: float, cpu_us: float) -> Figure:
    """Half of a message's life."""
    return Figure(row="shared", title="", server="hark", throughput=throughput, cpu_us=cpu_us)


def test_a_cycle_takes_the_time_of_both_halves_and_costs_by_the_clock_or_by_cpu_whichever_is_worse() -> None:
    plain = Cycle(figure(1000, 10), figure(1000, 10))
    assert plain.throughput == pytest.approx(500)
    assert Cycle(figure(3000, 5), figure(1500, 5)).throughput == pytest.approx(1000)
    assert Cycle(figure(500, 10), figure(500, 10)).cost_over(plain) == pytest.approx(2)
    assert Cycle(figure(1000, 30), figure(1000, 30)).cost_over(plain) == pytest.approx(3)


@pytest.mark.parametrize("batch", [1, 100])
def test_a_shared_row_has_one_partition_and_all_its_consumers(batch: int) -> None:
    push, pop = rows_of(batch, shared=True)
    assert (push.load.partitions, pop.load.partitions, pop.load.connections) == (1, 1, CONSUMERS)
    assert pop.load.shared
    assert "shared = true" in lua_script(pop.load)
    assert not rows_of(batch, shared=False)[1].load.shared


def test_only_the_data_of_changes_is_taken_from_a_stream() -> None:
    async def read() -> list[bytes]:
        reader = asyncio.StreamReader()
        reader.feed_data(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n1f\r\nevent: ping\ndata:\n\n\r\nevent: change\ndata: [1]\n\n")
        reader.feed_eof()
        return [data async for data in change_events(reader)]

    assert asyncio.run(read()) == [b"[1]"]


async def test_each_of_many_pushes_one_message_after_the_other() -> None:
    at_once = most = pushed = 0

    async def push(_payload: object) -> None:
        nonlocal at_once, most, pushed
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        pushed += 1

    taken = await push_at_once(push, 300)
    assert (pushed, taken.number, most) == (300, 300, PUSHERS)
    assert Taken(500, 2.0).rate == pytest.approx(250)


def test_a_quiet_day_costs_what_the_longest_interval_says() -> None:
    day = polling.live(PollingStrategy.adaptive(), seconds=3600, messages=5)
    # Twelve polls a minute while it is idle, and a few more behind each message.
    assert 700 < day.polls < 800
    assert len(day.latencies_ms) == 5
    assert polling.worst(day) <= 5_500


def test_a_fixed_interval_is_never_left() -> None:
    day = polling.live(PollingStrategy.fixed(interval_ms=500), seconds=600, messages=3)
    assert day.polls == pytest.approx(1200, rel=0.05)
    assert polling.worst(day) <= 550
    assert polling.Day(100_000, []).dollars == pytest.approx(1.2)


# A bucket --------------------------------------------------------------------------------------------------


def bucket() -> BucketStores:
    """Places in a bucket that does not run."""
    return BucketStores(Stub("http://127.0.0.1:1", "hark-stub", 1))


def test_requests_cost_what_the_price_table_says() -> None:
    counts = Counts(put=3, get=10, list=2, delete=1000)
    assert counts.requests == 15
    assert counts.dollars == pytest.approx((3 * 5.0 + 10 * 0.4 + 2 * 5.0) / 1e6)
    assert Counts(5, 6, 7, 8).since(Counts(1, 2, 3, 4)) == Counts(4, 4, 4, 4)


def test_what_several_processes_did_counts_when_it_was_pushed_and_consumed() -> None:
    parts = [Done(pushed=300, consumed=100, seconds=2), Done(pushed=100, consumed=100, seconds=4)]
    together = Together(parts, Counts(put=6, get=4))
    assert (together.pushed, together.consumed, together.seconds) == (400, 200, 4)
    assert together.throughput == pytest.approx(50)
    assert together.requests_per_message == pytest.approx(0.05)
    assert together.dollars_per_million == pytest.approx((6 * 5.0 + 4 * 0.4) / 200)
    idle = Together([Done(seconds=60)], Counts(get=12))
    assert (idle.throughput, idle.requests_per_message) == (0, 12)


def test_the_consumer_of_a_pair_outlives_its_producer() -> None:
    producer, consumer = _pair("s3://b/p", 6)
    assert (producer.producers, producer.consumers, consumer.producers, consumer.consumers) == (1, 0, 0, 1)
    assert producer.rate == LONELY_RATE
    assert consumer.seconds > producer.seconds


def test_a_job_reaches_its_process_as_it_is() -> None:
    job = Job(target="s3://b/p?endpoint=http://h:1", name="w", producers=2, seconds=1.5, kind="wait")
    assert msgspec.json.decode(msgspec.json.encode(job), type=Job) == job
    assert len(msgspec.json.encode(PAYLOAD)) == 256, "as large as in the other rows"


def test_each_place_is_a_prefix_of_its_own(tmp_path: Path) -> None:
    stores = [bucket().create(tmp_path / name) for name in ("001-hark", "002-hark")]
    assert stores[0].url == "s3://hark-stub/001-hark?endpoint=http://127.0.0.1:1"
    assert stores[1].url != stores[0].url
    assert command("hark", 80, stores[0])[1:] == ["serve", "--port", "80"]
    with pytest.raises(RuntimeError, match="can't be copied"):
        bucket().copy(stores[0], tmp_path / "new")
