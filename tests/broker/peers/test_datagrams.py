"""Datagrams: what is gathered for them, what goes in comes out, in packets of bounded size; nothing else is heard."""

from __future__ import annotations

import hmac

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hark.broker.peers import (
    MAX_BYTES,
    MAX_KEYS,
    MAX_SENDERS,
    WINDOW,
    Gathering,
    Packer,
    Refusal,
    Senders,
    Unpacker,
)
from hark.clock import FakeClock
from hark.engine.hints import MANY
from hark.keys import encode_key
from hark.model import Hint, Key, KeyNotification, KeyPart

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


def with_count(hint: Hint, amount: int) -> Hint:
    """It with a count for each partition."""
    return msgspec.structs.replace(hint, counts=(amount,) * len(hint.partitions or ()))


arrivals = uncounted_arrivals | st.builds(with_count, uncounted_arrivals, amounts)
frees = uncounted_frees | st.builds(with_count, uncounted_frees, amounts)


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
    stated: Facts = set()
    for hint in hints:
        subject = (hint.kind, hint.queue, hint.group)
        partitions = (None,) if hint.partitions is None else hint.partitions
        counts = hint.counts or (0,) * len(partitions)
        stated |= {(*subject, "place", partition, count) for partition, count in zip(partitions, counts, strict=True)}
        stated |= {(*subject, "ended", lease, 0) for lease in hint.ended}
    return stated


@given(st.lists(arrivals | frees, max_size=20))
def test_all_that_is_packed_is_unpacked_from_datagrams_of_bounded_size(hints: list[Hint]) -> None:
    clock = FakeClock()
    packer, unpacker = Packer(SECRET, THERE, clock), Unpacker(SECRET, HERE, clock)
    received: list[Hint] = []
    for datagram, notices in packer.pack(hints):
        assert len(datagram) <= MAX_BYTES
        found = hints_of(unpacker, datagram)
        assert len(found) == notices
        received += found
    assert facts(received) == facts(hints)


def test_many_small_hints_share_a_datagram_count_up_to_a_bound_and_do_not_say_who_was_notified_at_the_sender(
    packer: Packer, unpacker: Unpacker
) -> None:
    hints = [Hint(f"queue-{number}", "g", ("p",)) for number in range(30)]
    much, excluding = Hint("q", "g", ("a", "b"), counts=(10**9, 3)), msgspec.structs.replace(HINT, excluded=("g",))
    received = [*hints, msgspec.structs.replace(much, counts=(65_535, 3)), HINT]
    assert unpacker.unpack(packed(packer, *hints, much, excluding)) == received


def test_a_long_list_of_partitions_fills_its_datagrams(packer: Packer) -> None:
    hint = Hint("orders", None, tuple(f"customer-{number:04}" for number in range(1000)), "message")
    assert [len(datagram) > MAX_BYTES - 64 for datagram, _ in packer.pack([hint])][:-1] == [True] * 12


def test_leases_that_do_not_fit_beside_the_partitions_free_no_further_place(packer: Packer, unpacker: Unpacker) -> None:
    ended = tuple(f"{number:036}" for number in range(40))
    received = [
        hint
        for datagram, _ in packer.pack([Hint("q", "g", None, ended=ended)])
        for hint in hints_of(unpacker, datagram)
    ]
    assert [hint.partitions for hint in received] == [None] + [()] * (len(received) - 1)
    assert [lease for hint in received for lease in hint.ended] == list(ended)


@pytest.mark.parametrize(
    ("content", "received"),
    [
        *(([1, "q", ["a", "b"], counts], Hint("q", None, ("a", "b"), "message")) for counts in ([1], [1, 2, 3], [])),
        ([1, "q", ["a"]], Hint("q", None, ("a",), "message")),
        ([2, "q", "g", ["a"], ["lease"]], Hint("q", "g", ("a",), "free", ended=("lease",))),
    ],
)
def test_counts_that_do_not_fit_the_partitions_are_left_out_and_a_server_that_does_not_count_is_understood(
    unpacker: Unpacker, packer: Packer, content: list[object], received: Hint
) -> None:
    assert unpacker.unpack(signed(packed(packer)[:37] + msgspec.msgpack.encode([content]))) == [received]


# What is refused -------------------------------------------------------------------------------------------


@given(st.binary(max_size=2 * MAX_BYTES))
def test_bytes_of_anyone_are_refused_and_nothing_worse(datagram: bytes) -> None:
    assert refusal(Unpacker(SECRET, HERE, FakeClock()), datagram) in ("size", "magic")


@pytest.mark.parametrize("size", [0, 4, 68, MAX_BYTES + 1, 65_507])
def test_what_is_too_short_or_too_long_is_refused(unpacker: Unpacker, packer: Packer, size: int) -> None:
    assert refusal(unpacker, packed(packer)[:69].ljust(size, b"x")[:size]) == "size"


def test_another_protocol_version_or_secret_is_refused(unpacker: Unpacker, packer: Packer, clock: FakeClock) -> None:
    datagram = packed(packer)
    assert refusal(unpacker, b"BARK" + datagram[4:]) == "magic"
    assert refusal(unpacker, signed(datagram[:4] + b"\x02" + datagram[5:-32])) == "version"
    assert refusal(unpacker, packed(Packer(b"another secret", THERE, clock))) == "signature"
    assert refusal(unpacker, datagram[:-1]) == "signature", "it was cut short"
    assert refusal(unpacker, packed(Packer(SECRET, HERE, clock))) == "own"


@given(st.data())
def test_no_bit_can_be_changed(data: st.DataObject) -> None:
    clock = FakeClock()
    datagram = bytearray(packed(Packer(SECRET, THERE, clock)))
    bit = data.draw(st.integers(0, 8 * len(datagram) - 1))
    datagram[bit // 8] ^= 1 << bit % 8
    assert refusal(Unpacker(SECRET, HERE, clock), bytes(datagram)) in ("magic", "version", "signature")


def test_what_is_old_or_comes_from_the_future_is_refused_but_clocks_may_differ_somewhat() -> None:
    for seconds in (-30, 30, -30.1, 30.1, 86_400):
        sender, unpacker = FakeClock(), Unpacker(SECRET, HERE, FakeClock())
        sender.advance(seconds)
        datagram = packed(Packer(SECRET, THERE, sender))
        if abs(seconds) <= 30:
            assert unpacker.unpack(datagram) == [HINT]
        else:
            assert refusal(unpacker, datagram) == "time"


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


# HintKind of keys on their way to the peers: joined, in datagrams of bounded size, and accepted only if t ------


parts: st.SearchStrategy[KeyPart] = st.text(st.characters(exclude_categories=["Cs"]), max_size=300) | st.booleans()
keys: st.SearchStrategy[Key] = st.lists(parts | st.integers(-5, 5), min_size=1, max_size=4).map(tuple)


def travelled(notification: KeyNotification, *hints: Hint) -> list[Hint | KeyNotification]:
    """What arrives of news."""
    clock = FakeClock()
    packer, unpacker = Packer(SECRET, THERE, clock), Unpacker(SECRET, HERE, clock)
    received = []
    for datagram, notices in packer.pack(hints, notification):
        assert len(datagram) <= MAX_BYTES
        found = unpacker.unpack(datagram)
        assert len(found) == notices
        received += found
    return received


def gathered_keys(*notification: KeyNotification) -> KeyNotification | None:
    """What remains of news."""
    gathering = Gathering()
    for one in notification:
        gathering.add_keys(one)
    assert gathering
    found = gathering.take_keys()
    assert not gathering and gathering.take_keys() is None
    return found


@given(st.lists(keys, min_size=1, max_size=40).map(tuple))
def test_keys_arrive_in_datagrams_of_bounded_size(given_keys: tuple[Key, ...]) -> None:
    received = [
        key
        for notification in travelled(KeyNotification(given_keys))
        if isinstance(notification, KeyNotification)
        for key in notification.keys or (("any",),)
    ]
    too_long = any(len(encode_key(key)) > MAX_BYTES - 120 for key in given_keys)
    assert received == [("any",)] if too_long else [*map(encode_key, received)] == [*map(encode_key, given_keys)]


def test_keys_share_a_datagram_with_hints() -> None:
    assert travelled(KeyNotification((("a",),)), Hint("q")) == [Hint("q"), KeyNotification((("a",),))]


@pytest.mark.parametrize("notification", [KeyNotification(None), KeyNotification((("a",), ("x" * 1024, "y" * 900)))])
def test_what_does_not_fit_is_notified_as_any_key(notification: KeyNotification) -> None:
    assert travelled(notification) == [KeyNotification(None)]


def test_keys_are_joined_and_notified_once_and_many_become_any_key() -> None:
    assert gathered_keys(KeyNotification((("a",), (1,))), KeyNotification(((True,), ("a",)))) == KeyNotification(
        (("a",), (1,), (True,))
    )
    many = tuple((number,) for number in range(MAX_KEYS + 1))
    assert gathered_keys(KeyNotification(many[:-1]), KeyNotification(many[1:])) == KeyNotification(None)
    assert gathered_keys(
        KeyNotification((("a",),)), KeyNotification(None), KeyNotification((("b",),))
    ) == KeyNotification(None)


@pytest.mark.parametrize("content", [b"\x91\x92\x03\x91\xc4\x01\x09", b"\x91\x92\x03\x91\xa1a", b"\x91\x92\x03\x05"])
def test_bytes_that_are_no_key_are_refused(content: bytes) -> None:
    clock = FakeClock()
    [(datagram, _)] = Packer(SECRET, THERE, clock).pack((), KeyNotification(None))
    assert refusal(Unpacker(SECRET, HERE, clock), signed(datagram[:37] + content)) == "content"


# The memory for what was heard: nothing twice, little forgotten, never more than a bounded size ------------


@given(st.lists(st.integers(0, 3 * WINDOW) | st.integers(0, 2**64 - 1), max_size=200))
def test_a_sequence_is_new_at_most_once_and_surely_if_it_is_within_the_window(sequences: list[int]) -> None:
    senders = Senders()
    accepted: set[int] = set()
    for sequence in sequences:
        within = sequence > max(accepted, default=sequence) - WINDOW
        assert senders.is_new(b"a", sequence) == (within and sequence not in accepted)
        if within:
            accepted.add(sequence)


def test_what_comes_after_the_window_has_passed_is_refused_and_senders_do_not_disturb_each_other() -> None:
    senders = Senders()
    assert senders.is_new(b"a", WINDOW)
    assert senders.is_new(b"a", 1)
    assert not senders.is_new(b"a", 0)
    assert senders.is_new(b"b", WINDOW)
    assert not senders.is_new(b"a", WINDOW)


def test_the_sender_received_longest_ago_is_forgotten() -> None:
    senders = Senders()
    for number in range(MAX_SENDERS):
        senders.is_new(b"%d" % number, 1)
    senders.is_new(b"0", 2)
    senders.is_new(b"one too many", 1)
    assert not senders.is_new(b"0", 1)
    assert senders.is_new(b"1", 1)


# Gathering: what is about the same thing is told once ------------------------------------------------------


PARTITIONS = tuple(f"p{number}" for number in range(MANY + 1))
APART = [Hint("q", "other", ("a",)), Hint("other", "g", ("a",)), Hint("q", None, ("a",))]
HINTS = [Hint("q", None, ("a",), "message"), Hint("q", None, ("b",), "free")]


@pytest.mark.parametrize(
    ("hints", "remains"),
    [
        pytest.param(
            [Hint("q", "g", ("a", "b"), ended=("1",)), Hint("q", "g", ("b", "c"), ended=("2", "1")), *APART],
            [Hint("q", "g", ("a", "b", "c"), ended=("1", "2")), *APART],
            id="partitions and leases of the same queue and group are joined",
        ),
        pytest.param(
            [
                Hint("q", "g", (*"ab",), counts=(2, 1)),
                Hint("q", "g", (*"bc",), counts=(5, 1)),
                Hint("q", "g", (*"ad",)),
            ],
            [Hint("q", "g", ("a", "b", "c", "d"), counts=(2, 6, 1, 1))],
            id="counts of the same partition are summed up",
        ),
        pytest.param(
            [Hint("q", "g", ("a",), counts=(2,)), Hint("q", "g", None, ended=("1",)), Hint("q", "g", ("b",))],
            [Hint("q", "g", None, ended=("1",))],
            id="anywhere covers every place and has no counts",
        ),
        pytest.param(HINTS, HINTS, id="arrivals and other news are kept apart"),
        pytest.param(
            [Hint("q", "g", (one,)) for one in PARTITIONS[:-1]], [Hint("q", "g", PARTITIONS[:-1])], id="many places"
        ),
        pytest.param(
            [Hint("q", "g", (one,)) for one in PARTITIONS], [Hint("q", "g", None)], id="too many are anywhere"
        ),
        pytest.param(
            [Hint("q", None, ("a",), "message", excluded=("g",)), Hint("q", "g", ("a",), "message")],
            [Hint("q", None, ("a",), "message")],
            id="arrivals for one group stay here because the general hint tells of them",
        ),
    ],
)
def test_what_is_about_the_same_thing_is_notified_once(hints: list[Hint], remains: list[Hint]) -> None:
    gathering = Gathering()
    for hint in hints:
        gathering.add([hint])
    assert gathering.take() == remains
    assert not gathering
    assert gathering.take() == []
