"""Keys: their bytes sort as they do, come back as they were, and prefixes end where parts do."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hark.keys import EXACT, InvalidKey, check_key, check_keys, decode_key, encode_key, prefix_bounds
from hark.model import Key, KeyPart

texts = st.text(st.characters(exclude_categories=["Cs"])) | st.text("\0\x01ÿ\uffff\U0010ffffab", max_size=4)
numbers = st.integers(-EXACT, EXACT) | st.floats(allow_nan=False, allow_infinity=False)
parts: st.SearchStrategy[KeyPart] = texts | numbers | st.booleans()
keys: st.SearchStrategy[Key] = st.lists(parts, min_size=1, max_size=5).map(tuple)
few: list[KeyPart] = ["", "a", "a\0", "a\0b", "ab", "ÿ", 0, -1, 0.5, 1, False, True]
alike: st.SearchStrategy[Key] = st.lists(st.sampled_from(few), min_size=1, max_size=4).map(tuple)
"""Keys that differ in little, so that prefixes and ties come up."""


def rank(key: Key) -> list[tuple[int, KeyPart]]:
    """What the rule sorts by: the type of each part, then its value."""
    return [(0 if isinstance(part, str) else 2 if isinstance(part, bool) else 1, part) for part in key]


def is_within(key: Key, prefix: Key) -> bool:
    low, high = prefix_bounds(prefix)
    return low <= encode_key(key) < high


# Bytes -----------------------------------------------------------------------------------------------------


@given(keys | alike, keys | alike)
def test_rule_25_bytes_sort_as_keys_do(one: Key, other: Key) -> None:
    assert (encode_key(one) < encode_key(other)) == (rank(one) < rank(other))
    assert (encode_key(one) == encode_key(other)) == (rank(one) == rank(other))


@given(keys | alike)
def test_a_key_comes_back_as_it_was(key: Key) -> None:
    decoded = decode_key(encode_key(key))
    assert rank(decoded) == rank(key)
    assert [isinstance(part, float) for part in decoded] == [
        isinstance(part, float) and not (part.is_integer() and abs(part) <= EXACT) for part in key
    ]


@given(alike | keys, alike | st.just(()))
def test_rule_25_a_prefix_has_its_strict_descendants_and_nothing_else(key: Key, prefix: Key) -> None:
    expected = len(key) > len(prefix) and rank(key[: len(prefix)]) == rank(prefix)
    assert is_within(key, prefix) == expected


def test_rule_25_a_prefix_ends_where_its_last_part_does() -> None:
    assert is_within(("user", 1), ("user",))
    for sibling in (("user",), ("users", 1), ("user-archive",), ("user\0", 1), ("user\xff",), ("use", "r")):
        assert not is_within(sibling, ("user",))
    assert not is_within(("user", 1), ("user", True))
    assert not is_within(("user", "1", "x"), ("user", 1))


def test_types_keep_values_apart_that_look_alike() -> None:
    assert len({encode_key((part,)) for part in (1, "1", True, "true")}) == 4
    assert encode_key((1,)) == encode_key((1.0,))
    assert encode_key((-0.0,)) == encode_key((0,))
    assert decode_key(encode_key((True, 1))) == (True, 1)


@pytest.mark.parametrize("number", [2**53, -(2**53), 2**53 - 1, 5e-324, 1.7976931348623157e308, -1e300, 0.1])
def test_numbers_are_exact(number: float) -> None:
    assert decode_key(encode_key((number,))) == (number,)


@given(st.binary(max_size=20))
def test_bytes_of_anyone_are_a_key_or_refused(data: bytes) -> None:
    try:
        key = decode_key(data)
    except InvalidKey:
        return
    assert isinstance(key, tuple)


# Checks ----------------------------------------------------------------------------------------------------


@given(keys | alike)
def test_what_is_a_key_passes_the_check(key: Key) -> None:
    assert rank(check_key(list(key))) == rank(key)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("users", "Key must be an array of"),
        (None, "Key must be an array of"),
        ([], "Key cannot be empty."),
        (["x"] * 21, "Key too deep: 21 parts (max 20)."),
        (["a", None], "Invalid key part at index 1:"),
        ([["a"]], "Invalid key part at index 0:"),
        ([{}], "Invalid key part at index 0:"),
        ([math.inf], "Invalid key part at index 0:"),
        ([2**53 + 1], "Invalid key part at index 0:"),
        (["\ud800"], "Invalid key part at index 0:"),
        (["a", "b" * 1025], "Key part at index 1 too long: 1025"),
        (["😀" * 513], "Key part at index 0 too long: 1026"),
        (["b" * 1024, "c" * 1024], "Key too long: 2052 bytes (max 2048)."),
    ],
)
def test_what_is_no_key_is_refused_with_a_reason(value: object, text: str) -> None:
    with pytest.raises(InvalidKey) as refused:
        check_key(value)
    assert str(refused.value).startswith(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({}, "Keys must be an array of key arrays,"),
        ([], "Keys array cannot be empty."),
        ([["a"]] * 1001, "Too many keys: 1001 (max 1000)."),
        ([["a"], []], "Invalid key at index 1: Key cannot be empty."),
        ([["a"], ["a", None]], "Invalid key at index 1: Invalid key part at index 1:"),
    ],
)
def test_a_wrong_key_among_several_is_named(value: object, text: str) -> None:
    with pytest.raises(InvalidKey) as refused:
        check_keys(value)
    assert str(refused.value).startswith(text)


def test_the_largest_keys_pass() -> None:
    assert check_keys([["b" * 1024, 2**53, -0.0], ["x"] * 20]) == (("b" * 1024, 2**53, 0), ("x",) * 20)
