"""Log records as objects, and append, which is the commit: who won a number, whatever becomes of the answers."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from hark.clock import FakeClock
from hark.engine.s3 import objects
from hark.engine.s3.bucket import Unclear
from hark.engine.s3.log import append
from hark.engine.s3.objects import KIND, PAYLOADS_AT, BucketRetries, Record, decode, encode, nonce_of
from hark.errors import EngineFailure, StoreUnusable
from tests.s3.rests import Party, no_jitter, refuse
from tests.s3.stub.faults import Fault, Faults
from tests.s3.stub.store import Kind, Request, StubStore

RECORD = Record(
    seq=17,
    epoch="e" * 32,
    time=1_700_000_000_000_000,
    writer="worker-1",
    nonce="n17",
    previous="n16",
    schema=1,
    changes=b"change " * 100,
    payloads=b"first payload" + b"second payload",
)


def resealed(body: bytes, other: bytes | None = None, **fields: object) -> bytes:
    """The same object with other changes and another header, and a checksum that is right."""
    payloads, changes, header = objects.unseal(KIND, body)
    encoded = msgspec.json.encode({**msgspec.json.decode(header), **fields})
    return objects.seal(KIND, bytes(payloads), bytes(changes) if other is None else other, encoded)


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(RECORD, id="plain"),
        pytest.param(msgspec.structs.replace(RECORD, payloads=b""), id="no payloads"),
        pytest.param(msgspec.structs.replace(RECORD, changes=b""), id="no changes"),
        pytest.param(msgspec.structs.replace(RECORD, changes=bytes(range(256))), id="changes that do not shrink"),
        pytest.param(msgspec.structs.replace(RECORD, seq=1, previous=""), id="the first"),
    ],
)
def test_what_was_encoded_is_decoded(record: Record) -> None:
    body = encode(record)
    assert decode(body, record.seq) == record
    assert nonce_of(body, record.seq) == record.nonce


def test_a_payload_is_where_it_was_stated_to_be_and_keys_sort_as_their_numbers_do() -> None:
    body = encode(RECORD)
    second_at = PAYLOADS_AT + len(b"first payload")
    assert body[second_at : second_at + len(b"second payload")] == b"second payload"
    assert objects.record(17) == "log/00000000000000000017"
    assert objects.snapshot(17) == "snap/00000000000000000017"
    assert objects.record(9) < objects.record(10) < objects.record(10**19)


def test_changes_are_compressed_where_that_makes_them_smaller() -> None:
    shrinking, random = b"change " * 10_000, bytes(range(256))
    empty = len(encode(msgspec.structs.replace(RECORD, changes=b"")))
    assert len(encode(msgspec.structs.replace(RECORD, changes=shrinking))) < empty + 1_000
    assert len(encode(msgspec.structs.replace(RECORD, changes=random))) < empty + len(random) + 10


def test_each_bit_that_is_wrong_is_found() -> None:
    body = encode(msgspec.structs.replace(RECORD, changes=b"c", payloads=b"p"))
    for index in range(len(body)):
        for bit in range(8):
            damaged = bytearray(body)
            damaged[index] ^= 1 << bit
            with pytest.raises(StoreUnusable):
                decode(bytes(damaged), 17)


def test_an_object_that_was_cut_off_anywhere_is_found() -> None:
    body = encode(msgspec.structs.replace(RECORD, changes=b"c", payloads=b"p"))
    for length in range(len(body)):
        with pytest.raises(StoreUnusable, match="damaged"):
            decode(body[:length], 17)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        pytest.param(encode(RECORD)[:-1], "cut off", id="cut off"),
        pytest.param(b"", "first bytes are wrong", id="empty"),
        pytest.param(b"<Error>no such thing</Error>" * 3, "first bytes are wrong", id="something else"),
        pytest.param(encode(RECORD).replace(b"payload", b"paYload", 1), "checksum", id="changed"),
        pytest.param(encode(msgspec.structs.replace(RECORD, seq=18)), "record 18", id="another number"),
        pytest.param(resealed(encode(RECORD), plain_bytes=3), "length of its changes", id="wrong length of changes"),
        pytest.param(resealed(encode(RECORD), nonce=3), "header", id="wrong header"),
        pytest.param(objects.seal(KIND, b"", b"no zlib", b"{}"), "header", id="empty header"),
        pytest.param(resealed(encode(RECORD), b"no zlib"), "cannot be decompressed", id="changes that are not packed"),
    ],
)
def test_a_damaged_record_is_refused_with_its_number_its_store_and_what_to_do(body: bytes, why: str) -> None:
    with pytest.raises(StoreUnusable) as error:
        decode(body, 17, "s3://bucket/prefix")
    assert "log record 17 of s3://bucket/prefix is damaged" in error.value.text
    assert why in error.value.text
    assert "backup" in error.value.text


def test_a_newer_format_is_refused_with_what_to_use() -> None:
    newer = KIND[:-1] + bytes([KIND[-1] + 1])
    with pytest.raises(StoreUnusable, match=r"log record 17 of s3://b has format 2.*upgrade Hark"):
        decode(objects.seal(newer, b"", b"", b"{}"), 17, "s3://b")


# Append: who won a number, whatever becomes of the answers --------------------------------------------------


LOG = "log/"


def body_of(nonce: str, seq: int = 1) -> bytes:
    """A record of somebody."""
    return encode(Record(seq, "epoch", 0, nonce, 1, "writer", "", b"changes", b"payload"))


MINE, THEIRS = body_of("mine"), body_of("theirs")


class Writer(Party):
    """A process that appends."""

    def __init__(
        self, store: StubStore | None = None, faults: Faults | None = None, retry_seconds: float = 30.0
    ) -> None:
        super().__init__(store, faults)
        self.retry_seconds, self.random = retry_seconds, no_jitter

    async def append(self, nonce: str = "mine", seq: int = 1) -> bytes | None:
        """Append a record; what is there instead, if it did not win."""
        rests = self.rests
        retries = BucketRetries(
            seconds=self.retry_seconds, pause=rests.pause, random=self.random, monotonic=rests.monotonic
        )
        found = await append(self.bucket, retries, seq, body_of(nonce, seq), nonce)
        return None if found is None else found.body

    async def fails(self, text: str | None = None) -> EngineFailure:
        """Append a record, and fail."""
        with pytest.raises(EngineFailure, match=text) as failure:
            await self.append()
        return failure.value

    def answers(self) -> list[tuple[str, int]]:
        """What was asked, and what was answered; 0: nothing."""
        return [(kind, status) for kind, _, status in self.store.log]


@pytest.fixture
def writer() -> Writer:
    """The one under test."""
    return Writer()


def put_theirs(store: StubStore) -> None:
    """Somebody else is first."""
    store.execute(Request(kind="put", key=objects.record(1), body=THEIRS))


async def test_a_record_that_was_created_took_one_request_and_who_comes_second_gets_what_is_there(
    writer: Writer,
) -> None:
    assert await writer.append() is None
    assert writer.store.read(objects.record(1)) == MINE
    assert writer.store.log == [("put", objects.record(1), 200)]
    assert await writer.append("theirs") == MINE
    assert (writer.store.counts["put"], writer.store.counts["get"], writer.rests.taken) == (2, 1, [])


async def test_of_many_at_once_exactly_one_wins_and_all_others_see_its_record() -> None:
    store = StubStore(FakeClock())
    nonces = [f"process-{number}" for number in range(20)]
    outcomes = await asyncio.gather(*(Writer(store).append(nonce) for nonce in nonces))
    (winner,) = (nonce for nonce, outcome in zip(nonces, outcomes, strict=True) if outcome is None)
    assert outcomes.count(body_of(winner)) == 19


@pytest.mark.parametrize(
    "fault", [Fault.LOST_ERROR, Fault.LOST_SLOW_DOWN, Fault.RESET, Fault.LOST_TIMEOUT, Fault.TWICE]
)
async def test_a_lost_answer_is_a_success_once_our_own_record_was_read(writer: Writer, fault: Fault) -> None:
    writer.faults.next(fault, kind="put", key=LOG)
    assert await writer.append() is None
    assert writer.store.read(objects.record(1)) == MINE
    assert writer.store.counts["put"] == 1


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.SLOW_DOWN, Fault.DROP, Fault.TIMEOUT, Fault.CONFLICT])
async def test_what_did_not_happen_is_tried_again_after_a_look(writer: Writer, fault: Fault) -> None:
    writer.faults.next(fault, kind="put", key=LOG)
    assert await writer.append() is None
    assert writer.store.read(objects.record(1)) == MINE
    assert [kind for kind, _ in writer.answers()] == ["put", "get", "put"]


@pytest.mark.parametrize("looked", [True, False], ids=["in vain", "and failed"])
async def test_a_try_that_may_have_landed_makes_the_next_one_a_412_and_a_success(writer: Writer, looked: bool) -> None:
    """It lands after the look, or the look itself fails."""
    writer.faults.next(Fault.LATE if looked else Fault.RESET, kind="put", key=LOG)
    if not looked:
        writer.faults.next(Fault.ERROR, kind="get", key=LOG)
    assert await writer.append() is None
    assert writer.answers() == [("put", 0), ("get", 404 if looked else 500), ("put", 412), ("get", 200)]


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.DROP, Fault.CONFLICT])
async def test_a_number_that_someone_else_wins_between_the_tries_is_lost(writer: Writer, fault: Fault) -> None:
    writer.faults.next(fault, kind="put", key=LOG)
    writer.faults.hook("before", lambda _: put_theirs(writer.store), kind="put", key=LOG, times=1)
    assert await writer.append() == THEIRS
    assert writer.store.counts["put"] == 1


async def test_a_number_that_was_taken_and_is_gone_is_never_won(writer: Writer) -> None:
    put_theirs(writer.store)

    def remove(_: Request) -> None:
        writer.store.execute(Request(kind="delete", key=objects.record(1)))

    writer.faults.hook("before", remove, kind="get", key=LOG, times=1)
    assert (await writer.fails()).code == "outcome_unknown"
    assert (writer.store.read(objects.record(1)), writer.store.counts["put"]) == (None, 1)


# Giving up -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.DROP, Fault.ERROR, Fault.SLOW_DOWN])
async def test_the_outcome_is_unknown_when_the_time_limit_is_over(writer: Writer, fault: Fault) -> None:
    writer.faults.next(fault, kind="put", key=LOG, times=float("inf"))
    failure = await writer.fails("log record 1")
    assert failure.code == "outcome_unknown"
    assert failure.retry_after == (10.0 if fault is Fault.SLOW_DOWN else 2.0)
    assert writer.rests.now == pytest.approx(30.0)


async def test_the_last_look_is_at_the_end_of_the_time_limit() -> None:
    writer = Writer(retry_seconds=0.1)
    writer.faults.next(Fault.DROP, kind="put", key=LOG, times=float("inf"))
    await writer.fails()
    assert writer.rests.taken == pytest.approx([0.05, 0.05])
    assert [kind for kind, _ in writer.answers()] == ["put", "get"] * 3


def no_connection(_request: object) -> None:
    """A hook: what never had a connection was surely not kept."""
    raise Unclear("no connection", was_sent=False)


@pytest.mark.parametrize("why", ["conflicts", "no connection"])
async def test_nothing_but_conflicts_means_that_nothing_was_kept(writer: Writer, why: str) -> None:
    if why == "conflicts":
        writer.faults.next(Fault.CONFLICT, kind="put", key=LOG, times=float("inf"))
    else:
        writer.faults.hook("before", no_connection, key=LOG, times=float("inf"))
    assert (await writer.fails("the request had no effect")).code == "engine_failure"


async def test_a_refusal_of_the_first_try_is_notified_in_the_stores_words_at_once(writer: Writer) -> None:
    writer.faults.hook("before", refuse, kind="put", key=LOG)
    failure = await writer.fails("s3://stub rejects log record 1: 403 AccessDenied")
    assert (failure.code, writer.rests.taken, writer.store.counts["get"]) == ("engine_failure", [], 0)


@pytest.mark.parametrize(
    ("fault", "kind", "skip"),
    [(Fault.DROP, "put", 1), (Fault.RESET, "get", 0)],
    ids=["the next try", "the look after a lost answer"],
)
async def test_a_refusal_after_an_unclear_try_leaves_the_outcome_unknown(
    writer: Writer, fault: Fault, kind: Kind, skip: int
) -> None:
    writer.faults.next(fault, kind="put", key=LOG)
    writer.faults.hook("before", refuse, kind=kind, key=LOG, skip=skip)
    assert (await writer.fails()).code == "outcome_unknown"


async def test_rests_double_up_to_the_longest_and_are_longer_when_the_store_asks_for_less(writer: Writer) -> None:
    writer.faults.next(Fault.ERROR, kind="put", key=LOG, times=7)
    writer.faults.next(Fault.SLOW_DOWN, kind="put", key=LOG, times=1)
    assert await writer.append() is None
    assert writer.rests.taken == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 10.0])
    other = Writer()
    other.random = lambda: 0.0
    other.faults.next(Fault.SLOW_DOWN, kind="put", key=LOG)
    assert await other.append() is None
    assert other.rests.taken == pytest.approx([0.5]), "jitter halves a rest at most"


@pytest.mark.parametrize("seed", range(20))
async def test_contenders_on_a_bad_line_agree_about_every_number(seed: int) -> None:
    store = StubStore(FakeClock())
    won: dict[int, list[bytes]] = {}

    async def contend(number: int) -> None:
        writer = Writer(store, Faults.by_chance(seed * 10 + number, 0.4), retry_seconds=1000.0)
        for seq in range(1, 11):
            if await writer.append(f"p{number}-{seq}", seq) is None:
                won.setdefault(seq, []).append(body_of(f"p{number}-{seq}", seq))

    await asyncio.gather(*(contend(number) for number in range(3)))
    assert won == {seq: [store.read(objects.record(seq))] for seq in range(1, 11)}
