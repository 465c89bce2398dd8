"""Datagrams: what goes in comes out, in packets of bounded size, and nothing else is believed."""

from __future__ import annotations

import hmac

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hark.broker.peers.datagrams import MAX_BYTES, Packer, Refusal, Unpacker
from hark.clock import FakeClock
from hark.model import Hint

SECRET = b"a secret that is shared"
HERE, THERE = b"h" * 16, b"t" * 16
HINT = Hint("orders", None, ("a",), "message")

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=63)
longest_names = st.sampled_from("äx").map(lambda letter: letter * (255 // len(letter.encode())))
any_name = names | longest_names
some_names = st.lists(any_name, max_size=40, unique=True).map(tuple)
amounts = st.sampled_from([1, 2, 127, 128, 65_535])
uncounted_arrivals = st.builds(Hint, any_name, st.none(), st.none() | some_names, st.just("message"))
uncounted_frees = st.builds(
    Hint,
    any_name,
    st.none() | any_name,
    st.none() | some_names,
    st.just("free"),
    ended=st.lists(st.uuids().map(str), max_size=60).map(tuple),
)


def counted(hint: Hint, amount: int) -> Hint:
    """It with a count for each partition."""
    return msgspec.structs.replace(hint, counts=(amount,) * len(hint.partitions or ()))


arrivals = uncounted_arrivals | st.builds(counted, uncounted_arrivals, amounts)
frees = uncounted_frees | st.builds(counted, uncounted_frees, amounts)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def packer(clock: FakeClock) -> Packer:
    """That of another server."""
    return Packer(SECRET, THERE, clock)


@pytest.fixture
def unpacker(clock: FakeClock) -> Unpacker:
    return Unpacker(SECRET, HERE, clock)


def packed(packer: Packer, *hints: Hint) -> bytes:
    """The only datagram that hints make."""
    [(datagram, _)] = packer.pack(hints or (HINT,))
    return datagram


def hints_of(unpacker: Unpacker, datagram: bytes) -> list[Hint]:
    """What a datagram says of work."""
    return [one for one in unpacker.unpack(datagram) if isinstance(one, Hint)]


def signed(content: bytes) -> bytes:
    """What somebody with the secret may send."""
    return content + hmac.digest(SECRET, content, "sha256")


def refusal(unpacker: Unpacker, datagram: bytes) -> str:
    """Why a datagram is refused."""
    with pytest.raises(Refusal) as caught:
        unpacker.unpack(datagram)
    return caught.value.reason


# What goes in comes out ------------------------------------------------------------------------------------

Facts = set[tuple[str, str, str | None, str, str | None, int]]


def facts(hints: list[Hint]) -> Facts:
    """All that hints say, one by one, however they are put together."""
    said: Facts = set()
    for hint in hints:
        subject = (hint.news, hint.queue, hint.group)
        places = (None,) if hint.partitions is None else hint.partitions
        counts = hint.counts or (0,) * len(places)
        said |= {(*subject, "place", place, count) for place, count in zip(places, counts, strict=True)}
        said |= {(*subject, "ended", lease, 0) for lease in hint.ended}
    return said


@given(st.lists(arrivals | frees, max_size=20))
def test_all_that_is_packed_is_unpacked_from_datagrams_of_bounded_size(hints: list[Hint]) -> None:
    clock = FakeClock()
    packer, unpacker = Packer(SECRET, THERE, clock), Unpacker(SECRET, HERE, clock)
    heard: list[Hint] = []
    for datagram, notices in packer.pack(hints):
        assert len(datagram) <= MAX_BYTES
        found = hints_of(unpacker, datagram)
        assert len(found) == notices
        heard += found
    assert facts(heard) == facts(hints)


def test_many_small_hints_share_a_datagram(packer: Packer, unpacker: Unpacker) -> None:
    hints = [Hint(f"queue-{number}", "g", ("p",)) for number in range(30)]
    assert unpacker.unpack(packed(packer, *hints)) == hints


def test_a_long_list_of_partitions_fills_its_datagrams(packer: Packer) -> None:
    hint = Hint("orders", None, tuple(f"customer-{number:04}" for number in range(1000)), "message")
    assert [len(datagram) > MAX_BYTES - 64 for datagram, _ in packer.pack([hint])][:-1] == [True] * 12


def test_leases_that_do_not_fit_beside_the_partitions_free_no_further_place(packer: Packer, unpacker: Unpacker) -> None:
    ended = tuple(f"{number:036}" for number in range(40))
    heard = [
        hint
        for datagram, _ in packer.pack([Hint("q", "g", None, ended=ended)])
        for hint in hints_of(unpacker, datagram)
    ]
    assert [hint.partitions for hint in heard] == [None] + [()] * (len(heard) - 1)
    assert [lease for hint in heard for lease in hint.ended] == list(ended)


def test_more_than_anybody_counts_is_told_as_much(packer: Packer, unpacker: Unpacker) -> None:
    hint = Hint("q", "g", ("a", "b"), counts=(10**9, 3))
    assert unpacker.unpack(packed(packer, hint)) == [msgspec.structs.replace(hint, counts=(65_535, 3))]


@pytest.mark.parametrize("counts", [[1], [1, 2, 3], []])
def test_counts_that_do_not_fit_the_partitions_are_left_out(
    unpacker: Unpacker, packer: Packer, counts: list[int]
) -> None:
    head = packed(packer)[:37]
    content = head + msgspec.msgpack.encode([[1, "q", ["a", "b"], counts]])
    assert unpacker.unpack(signed(content)) == [Hint("q", None, ("a", "b"), "message")]


def test_a_server_that_does_not_count_is_understood(unpacker: Unpacker, packer: Packer) -> None:
    head = packed(packer)[:37]
    content = head + msgspec.msgpack.encode([[1, "q", ["a"]], [2, "q", "g", ["a"], ["lease"]]])
    assert unpacker.unpack(signed(content)) == [
        Hint("q", None, ("a",), "message"),
        Hint("q", "g", ("a",), "free", ended=("lease",)),
    ]


def test_who_was_told_at_the_sender_does_not_travel(packer: Packer, unpacker: Unpacker) -> None:
    assert unpacker.unpack(packed(packer, msgspec.structs.replace(HINT, told=("g",)))) == [HINT]


# What is refused -------------------------------------------------------------------------------------------


@given(st.binary(max_size=2 * MAX_BYTES))
def test_bytes_of_anybody_are_refused_and_nothing_worse(datagram: bytes) -> None:
    assert refusal(Unpacker(SECRET, HERE, FakeClock()), datagram) in ("size", "magic")


@pytest.mark.parametrize("size", [0, 4, 68, MAX_BYTES + 1, 65_507])
def test_what_is_too_short_or_too_long_is_refused(unpacker: Unpacker, packer: Packer, size: int) -> None:
    assert refusal(unpacker, packed(packer)[:69].ljust(size, b"x")[:size]) == "size"


def test_another_protocol_or_version_is_refused(unpacker: Unpacker, packer: Packer) -> None:
    datagram = packed(packer)
    assert refusal(unpacker, b"BARK" + datagram[4:]) == "magic"
    assert refusal(unpacker, signed(datagram[:4] + b"\x02" + datagram[5:-32])) == "version"


@given(st.data())
def test_no_bit_can_be_changed(data: st.DataObject) -> None:
    clock = FakeClock()
    datagram = bytearray(packed(Packer(SECRET, THERE, clock)))
    bit = data.draw(st.integers(0, 8 * len(datagram) - 1))
    datagram[bit // 8] ^= 1 << bit % 8
    assert refusal(Unpacker(SECRET, HERE, clock), bytes(datagram)) in ("magic", "version", "signature")


def test_another_secret_is_refused(unpacker: Unpacker, clock: FakeClock) -> None:
    assert refusal(unpacker, packed(Packer(b"another secret", THERE, clock))) == "signature"


def test_what_was_cut_short_is_refused(unpacker: Unpacker, packer: Packer) -> None:
    assert refusal(unpacker, packed(packer)[:-1]) == "signature"


def test_what_this_server_sent_itself_is_refused(unpacker: Unpacker, clock: FakeClock) -> None:
    assert refusal(unpacker, packed(Packer(SECRET, HERE, clock))) == "own"


@pytest.mark.parametrize("seconds", [-30.1, 30.1, 86_400])
def test_what_is_old_or_comes_from_the_future_is_refused(seconds: float) -> None:
    sender, receiver = FakeClock(), FakeClock()
    sender.advance(seconds)
    assert refusal(Unpacker(SECRET, HERE, receiver), packed(Packer(SECRET, THERE, sender))) == "time"


@pytest.mark.parametrize("seconds", [-30, 30])
def test_clocks_may_differ_somewhat(seconds: float) -> None:
    sender, receiver = FakeClock(), FakeClock()
    sender.advance(seconds)
    assert Unpacker(SECRET, HERE, receiver).unpack(packed(Packer(SECRET, THERE, sender))) == [HINT]


def test_what_is_repeated_is_refused_and_what_was_overtaken_is_not(unpacker: Unpacker, packer: Packer) -> None:
    first, second = packed(packer), packed(packer)
    assert unpacker.unpack(second) == [HINT]
    assert unpacker.unpack(first) == [HINT]
    assert refusal(unpacker, first) == refusal(unpacker, second) == "replay"


@pytest.mark.parametrize(
    "content", [b"\xc1", b"\x91", b"\xc0", b"\x91\x92\x09\xa1q", b"\x91\x93\x01\xa1q\x05", b"\x90\x90"]
)
def test_content_that_is_no_list_of_notices_is_refused(unpacker: Unpacker, packer: Packer, content: bytes) -> None:
    assert refusal(unpacker, signed(packed(packer)[:37] + content)) == "content"
