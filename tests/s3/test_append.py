"""Append is the commit: who won a number, whatever becomes of the answers."""

from __future__ import annotations

import asyncio

import pytest

from hark.clock import FakeClock
from hark.engine.s3.bucket.api import Bucket, Refused, Unclear
from hark.engine.s3.log import places
from hark.engine.s3.log.append import Appender
from hark.engine.s3.log.record import Record, encode
from hark.errors import EngineFailure
from tests.s3.rests import Rests, no_jitter
from tests.s3.stub.faults import Fault, Faults
from tests.s3.stub.inprocess import StubBucket
from tests.s3.stub.store import Request, StubStore

LOG = "log/"


def body_of(nonce: str, seq: int = 1) -> bytes:
    """A record of somebody."""
    return encode(Record(seq, "epoch", 0, "writer", nonce, "", 1, b"changes", b"payload"))


MINE, THEIRS = body_of("mine"), body_of("theirs")


@pytest.fixture
def store() -> StubStore:
    """The objects."""
    return StubStore(FakeClock())


@pytest.fixture
def faults() -> Faults:
    """What goes wrong."""
    return Faults()


@pytest.fixture
def bucket(store: StubStore, faults: Faults) -> StubBucket:
    """The bucket of the process that appends."""
    return StubBucket(store, FakeClock(), faults=faults)


@pytest.fixture
def rests() -> Rests:
    """The rests between the tries."""
    return Rests()


def appender_on(bucket: Bucket, rests: Rests, patience: float = 30.0) -> Appender:
    """An appender whose rests take no time."""
    return Appender(bucket, patience, pause=rests.pause, random=no_jitter, monotonic=rests.monotonic)


@pytest.fixture
def appender(bucket: StubBucket, rests: Rests) -> Appender:
    """The one under test."""
    return appender_on(bucket, rests)


def refuse(request: Request) -> None:
    """A hook: the store has another answer."""
    raise Refused(f"{request.kind}: 403 AccessDenied")


def put_theirs(store: StubStore) -> None:
    """Somebody else is first."""
    store.execute(Request(kind="put", key=places.record(1), body=THEIRS))


async def test_a_record_that_was_created_took_one_request(appender: Appender, store: StubStore) -> None:
    assert await appender.append(1, MINE, "mine") is None
    assert store.read(places.record(1)) == MINE
    assert store.log == [("put", places.record(1), 200)]


async def test_who_comes_second_gets_what_is_there(appender: Appender, store: StubStore, rests: Rests) -> None:
    put_theirs(store)
    found = await appender.append(1, MINE, "mine")
    assert found is not None and found.body == THEIRS
    assert (store.counts["put"], store.counts["get"], rests.taken) == (1, 1, [])


async def test_of_many_at_once_exactly_one_wins_and_all_others_see_its_record(store: StubStore) -> None:
    async def contend(nonce: str) -> str:
        bucket = StubBucket(store, FakeClock())
        found = await appender_on(bucket, Rests()).append(1, body_of(nonce), nonce)
        return nonce if found is None else "lost to " + next(n for n in nonces if body_of(n) == found.body)

    nonces = [f"process-{number}" for number in range(20)]
    outcomes = await asyncio.gather(*map(contend, nonces))
    (winner,) = (outcome for outcome in outcomes if not outcome.startswith("lost"))
    assert outcomes.count(f"lost to {winner}") == 19


@pytest.mark.parametrize(
    "fault", [Fault.LOST_ERROR, Fault.LOST_SLOW_DOWN, Fault.RESET, Fault.LOST_TIMEOUT, Fault.TWICE]
)
async def test_a_lost_answer_is_a_success_once_our_own_record_was_read(
    appender: Appender, store: StubStore, faults: Faults, fault: Fault
) -> None:
    faults.next(fault, kind="put", key=LOG)
    assert await appender.append(1, MINE, "mine") is None
    assert store.read(places.record(1)) == MINE
    assert store.counts["put"] == 1


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.SLOW_DOWN, Fault.DROP, Fault.TIMEOUT, Fault.CONFLICT])
async def test_what_did_not_happen_is_tried_again_after_a_look(
    appender: Appender, store: StubStore, faults: Faults, fault: Fault
) -> None:
    faults.next(fault, kind="put", key=LOG)
    assert await appender.append(1, MINE, "mine") is None
    assert store.read(places.record(1)) == MINE
    assert [kind for kind, _, _ in store.log] == ["put", "get", "put"]


async def test_a_try_that_lands_late_makes_the_next_one_a_412_and_a_success(
    appender: Appender, store: StubStore, faults: Faults
) -> None:
    faults.next(Fault.LATE, kind="put", key=LOG)
    assert await appender.append(1, MINE, "mine") is None
    assert [(kind, status) for kind, _, status in store.log] == [("put", 0), ("get", 404), ("put", 412), ("get", 200)]


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.DROP, Fault.CONFLICT])
async def test_a_number_that_somebody_else_wins_between_the_tries_is_lost(
    appender: Appender, store: StubStore, faults: Faults, fault: Fault
) -> None:
    faults.next(fault, kind="put", key=LOG)
    faults.hook("before", lambda _: put_theirs(store), kind="put", key=LOG, times=1)
    found = await appender.append(1, MINE, "mine")
    assert found is not None and found.body == THEIRS
    assert store.counts["put"] == 1


async def test_a_look_that_fails_is_repeated_and_the_lost_answer_still_found(
    appender: Appender, store: StubStore, faults: Faults
) -> None:
    faults.next(Fault.RESET, kind="put", key=LOG)
    faults.next(Fault.ERROR, kind="get", key=LOG)
    assert await appender.append(1, MINE, "mine") is None
    assert [(kind, status) for kind, _, status in store.log] == [("put", 0), ("get", 500), ("put", 412), ("get", 200)]


async def test_a_number_that_was_taken_and_is_gone_is_never_won(
    appender: Appender, store: StubStore, faults: Faults
) -> None:
    put_theirs(store)

    def remove(_: Request) -> None:
        store.execute(Request(kind="delete", key=places.record(1)))

    faults.hook("before", remove, kind="get", key=LOG, times=1)
    with pytest.raises(EngineFailure) as failure:
        await appender.append(1, MINE, "mine")
    assert failure.value.code == "outcome_unknown"
    assert (store.read(places.record(1)), store.counts["put"]) == (None, 1)


# Giving up -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.DROP, Fault.ERROR, Fault.SLOW_DOWN])
async def test_the_outcome_is_unknown_when_patience_is_over(
    appender: Appender, faults: Faults, rests: Rests, fault: Fault
) -> None:
    faults.next(fault, kind="put", key=LOG, times=float("inf"))
    with pytest.raises(EngineFailure, match="log record 1") as failure:
        await appender.append(1, MINE, "mine")
    assert failure.value.code == "outcome_unknown"
    assert failure.value.retry_after == (10.0 if fault is Fault.SLOW_DOWN else 2.0)
    assert rests.now == pytest.approx(30.0)


async def test_the_last_look_is_at_the_end_of_patience(store: StubStore, faults: Faults, rests: Rests) -> None:
    bucket = StubBucket(store, FakeClock(), faults=faults)
    faults.next(Fault.DROP, kind="put", key=LOG, times=float("inf"))
    with pytest.raises(EngineFailure):
        await appender_on(bucket, rests, patience=0.1).append(1, MINE, "mine")
    assert rests.taken == pytest.approx([0.05, 0.05])
    assert [kind for kind, _, _ in store.log] == ["put", "get"] * 3


async def test_nothing_but_conflicts_means_that_nothing_was_kept(appender: Appender, faults: Faults) -> None:
    faults.next(Fault.CONFLICT, kind="put", key=LOG, times=float("inf"))
    with pytest.raises(EngineFailure, match="Nothing was kept") as failure:
        await appender.append(1, MINE, "mine")
    assert failure.value.code == "engine_failure"


async def test_a_refusal_of_the_first_try_is_told_in_the_stores_words_at_once(
    appender: Appender, store: StubStore, faults: Faults, rests: Rests
) -> None:
    faults.hook("before", refuse, kind="put", key=LOG)
    with pytest.raises(EngineFailure, match="s3://stub refuses log record 1: put: 403 AccessDenied") as failure:
        await appender.append(1, MINE, "mine")
    assert (failure.value.code, rests.taken, store.counts["get"]) == ("engine_failure", [], 0)


async def test_a_refusal_after_an_unclear_try_leaves_the_outcome_unknown(appender: Appender, faults: Faults) -> None:
    faults.next(Fault.DROP, kind="put", key=LOG)
    faults.hook("before", refuse, kind="put", key=LOG, skip=1)
    with pytest.raises(EngineFailure) as failure:
        await appender.append(1, MINE, "mine")
    assert failure.value.code == "outcome_unknown"


async def test_a_look_that_is_refused_after_a_lost_answer_leaves_the_outcome_unknown(
    appender: Appender, faults: Faults
) -> None:
    faults.next(Fault.RESET, kind="put", key=LOG)
    faults.hook("before", refuse, kind="get", key=LOG)
    with pytest.raises(EngineFailure) as failure:
        await appender.append(1, MINE, "mine")
    assert failure.value.code == "outcome_unknown"


# Rests -----------------------------------------------------------------------------------------------------


async def test_rests_double_up_to_the_longest_and_are_longer_when_the_store_asks_for_less(
    appender: Appender, faults: Faults, rests: Rests
) -> None:
    faults.next(Fault.ERROR, kind="put", key=LOG, times=7)
    faults.next(Fault.SLOW_DOWN, kind="put", key=LOG, times=1)
    assert await appender.append(1, MINE, "mine") is None
    assert rests.taken == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 10.0])


async def test_jitter_halves_a_rest_at_most(bucket: StubBucket, faults: Faults, rests: Rests) -> None:
    faults.next(Fault.SLOW_DOWN, kind="put", key=LOG)
    appender = Appender(bucket, 30, pause=rests.pause, random=lambda: 0.0, monotonic=rests.monotonic)
    assert await appender.append(1, MINE, "mine") is None
    assert rests.taken == pytest.approx([0.5])


@pytest.mark.parametrize("seed", range(20))
async def test_contenders_on_a_bad_line_agree_about_every_number(seed: int) -> None:
    store = StubStore(FakeClock())
    won: dict[int, list[str]] = {}

    async def contend(name: str, faults: Faults) -> None:
        appender = appender_on(StubBucket(store, FakeClock(), faults=faults), Rests(), patience=1000.0)
        for seq in range(1, 11):
            nonce = f"{name}-{seq}"
            if await appender.append(seq, body_of(nonce, seq), nonce) is None:
                won.setdefault(seq, []).append(nonce)

    await asyncio.gather(*(contend(f"p{number}", Faults.by_chance(seed * 10 + number, 0.4)) for number in range(3)))
    assert {seq: [body_of(nonce, seq) for nonce in nonces] for seq, nonces in won.items()} == {
        seq: [store.read(places.record(seq))] for seq in range(1, 11)
    }


# Without a connection --------------------------------------------------------------------------------------


async def test_what_never_had_a_connection_was_surely_not_kept(appender: Appender, faults: Faults) -> None:
    def no_connection(_request: object) -> None:
        raise Unclear("no connection", was_sent=False)

    faults.hook("before", no_connection, key=LOG, times=float("inf"))
    with pytest.raises(EngineFailure, match="Nothing was kept") as failure:
        await appender.append(1, MINE, "mine")
    assert failure.value.code == "engine_failure"
