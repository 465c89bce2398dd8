"""News of keys on their way to the peers: joined, in datagrams of bounded size, and believed only if they are keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hark.broker.peers.datagrams import MAX_BYTES, Packer, Unpacker
from hark.broker.peers.gathering import MAX_KEYS, Gathering
from hark.clock import FakeClock
from hark.keys import encode_key
from hark.model import Hint, Key, KeyNews, KeyPart

from .test_datagrams import HERE, SECRET, THERE, refusal, signed

parts: st.SearchStrategy[KeyPart] = st.text(st.characters(exclude_categories=["Cs"]), max_size=300) | st.booleans()
keys: st.SearchStrategy[Key] = st.lists(parts | st.integers(-5, 5), min_size=1, max_size=4).map(tuple)


def travelled(news: KeyNews, *hints: Hint) -> list[Hint | KeyNews]:
    """What arrives of news."""
    clock = FakeClock()
    packer, unpacker = Packer(SECRET, THERE, clock), Unpacker(SECRET, HERE, clock)
    heard = []
    for datagram, notices in packer.pack(hints, news):
        assert len(datagram) <= MAX_BYTES
        found = unpacker.unpack(datagram)
        assert len(found) == notices
        heard += found
    return heard


def gathered(*news: KeyNews) -> KeyNews | None:
    """What remains of news."""
    gathering = Gathering()
    for one in news:
        gathering.add_keys(one)
    assert gathering
    found = gathering.take_keys()
    assert not gathering and gathering.take_keys() is None
    return found


@given(st.lists(keys, min_size=1, max_size=40).map(tuple))
def test_keys_arrive_in_datagrams_of_bounded_size(told: tuple[Key, ...]) -> None:
    heard = [key for news in travelled(KeyNews(told)) if isinstance(news, KeyNews) for key in news.keys or (("any",),)]
    too_long = any(len(encode_key(key)) > MAX_BYTES - 120 for key in told)
    assert heard == [("any",)] if too_long else [*map(encode_key, heard)] == [*map(encode_key, told)]


def test_keys_share_a_datagram_with_hints() -> None:
    assert travelled(KeyNews((("a",),)), Hint("q")) == [Hint("q"), KeyNews((("a",),))]


@pytest.mark.parametrize("news", [KeyNews(None), KeyNews((("a",), ("x" * 1024, "y" * 900)))])
def test_what_does_not_fit_is_told_as_any_key(news: KeyNews) -> None:
    assert travelled(news) == [KeyNews(None)]


def test_keys_are_joined_and_told_once() -> None:
    assert gathered(KeyNews((("a",), (1,))), KeyNews(((True,), ("a",)))) == KeyNews((("a",), (1,), (True,)))


def test_many_keys_become_any_key() -> None:
    many = tuple((number,) for number in range(MAX_KEYS + 1))
    assert gathered(KeyNews(many[:-1]), KeyNews(many[1:])) == KeyNews(None)
    assert gathered(KeyNews((("a",),)), KeyNews(None), KeyNews((("b",),))) == KeyNews(None)


@pytest.mark.parametrize("content", [b"\x91\x92\x03\x91\xc4\x01\x09", b"\x91\x92\x03\x91\xa1a", b"\x91\x92\x03\x05"])
def test_bytes_that_are_no_key_are_refused(content: bytes) -> None:
    clock = FakeClock()
    [(datagram, _)] = Packer(SECRET, THERE, clock).pack((), KeyNews(None))
    assert refusal(Unpacker(SECRET, HERE, clock), signed(datagram[:37] + content)) == "content"
