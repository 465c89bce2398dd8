"""What the key-value half has to do, as a dict; it follows the rules, not the code."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from hypothesis import strategies as st

from hark.model import Key, KeyCheck, KeyMutation, KeyPart, KeyRange, KeyWrite

from .key_words import change, delete, delete_tree, set_to

Ranked = tuple[tuple[int, str | float | bool], ...]
"""A key as Python sorts it rightly: parts by type, then by value; 1 and True are different."""


class Kept(NamedTuple):
    """A value that is stored."""

    value: object
    version: int
    expires_at: int | None


def ranked(key: Key) -> Ranked:
    """A key for the model."""
    return tuple((0 if isinstance(part, str) else 2 if isinstance(part, bool) else 1, part) for part in key)


def plain(key: Ranked) -> Key:
    """A key for the engine."""
    return tuple(part for _, part in key)


class KeyModel:
    """The entries, expired ones included until somebody asks."""

    def __init__(self) -> None:
        self._kept: dict[Ranked, Kept] = {}

    def entries(self, now: int) -> dict[Ranked, Kept]:
        """What is there, in its order."""
        live = {key: one for key, one in self._kept.items() if one.expires_at is None or one.expires_at > now}
        return dict(sorted(live.items()))

    def page(self, wanted: KeyRange, now: int) -> list[Ranked]:
        """The keys of a range."""
        prefix, found = ranked(wanted.prefix), []
        for key in self.entries(now):
            below = len(key) > len(prefix) and key[: len(prefix)] == prefix
            if below and ranked(wanted.start or ()) <= key and (wanted.end is None or key < ranked(wanted.end)):
                found.append(key)
        found = found[::-1] if wanted.reverse else found
        if wanted.after is not None:
            after = ranked(wanted.after)
            found = [key for key in found if (key < after if wanted.reverse else key > after)]
        return found[: wanted.limit]

    def failed_check(self, request: KeyWrite, now: int) -> int | None:
        """The first check that does not hold."""
        live = self.entries(now)
        for index, check in enumerate(request.checks):
            one = live.get(ranked(check.key))
            if (None if one is None else one.version) != check.version:
                return index
        return None

    def misfit(self, request: KeyWrite, now: int) -> int | None:
        """The first mutation that does not fit; tried on a copy."""
        trial = KeyModel()
        trial._kept = dict(self._kept)
        for index, mutation in enumerate(request.mutations):
            if not trial._mutate(mutation, 0, now)[0]:
                return index
        return None

    def write(self, request: KeyWrite, version: int, now: int) -> tuple[int, set[Ranked]]:
        """Apply a request; how many entries it deleted, and which keys it changed."""
        deleted, changed = 0, set()
        for mutation in request.mutations:
            _, gone = self._mutate(mutation, version, now)
            deleted += len(gone)
            changed |= gone if mutation.kind in ("delete", "delete_tree") else {ranked(mutation.key)}
        return deleted, changed

    def _mutate(self, mutation: KeyMutation, version: int, now: int) -> tuple[bool, set[Ranked]]:
        """Whether it fits, and what it removed."""
        key = ranked(mutation.key)
        if mutation.kind in ("delete", "delete_tree"):
            size = None if mutation.kind == "delete" else len(key)
            gone = {one for one in self.entries(now) if one == key or (size and one[:size] == key)}
            for one in gone:
                del self._kept[one]
            return True, gone
        value: object = msgspec.json.decode(mutation.value)
        if mutation.kind == "set":
            ends = None if mutation.ttl_ms is None else now + mutation.ttl_ms * 1000
            self._kept[key] = Kept(value, version, ends)
            return True, set()
        stored = self.entries(now).get(key)
        kind = list if mutation.kind in ("append", "prepend") else int
        if not isinstance(value, kind) or (stored is not None and not isinstance(stored.value, kind)):
            return False, set()
        if stored is not None:
            old = stored.value
            if isinstance(value, list) and isinstance(old, list):
                value = [*old, *value] if mutation.kind == "append" else [*value, *old]
            elif isinstance(value, int) and isinstance(old, int):
                value = {"sum": old + value, "min": min(old, value), "max": max(old, value)}[mutation.kind]
        self._kept[key] = Kept(value, version, None)
        return True, set()


FEW: list[KeyPart] = ["a", "b", "a\0", 1, True, -0.5]
PARTS = st.sampled_from(FEW)
KEYS: st.SearchStrategy[Key] = st.lists(PARTS, min_size=1, max_size=3).map(tuple)
PREFIXES: st.SearchStrategy[Key] = st.lists(PARTS, max_size=2).map(tuple)
RANGES = st.builds(
    KeyRange,
    prefix=PREFIXES,
    start=st.none() | KEYS,
    end=st.none() | KEYS,
    after=st.none() | KEYS,
    limit=st.integers(0, 5),
    reverse=st.booleans(),
)
VALUES = st.sampled_from([1, -2, [1], [], ["x"], "text", None])
MUTATIONS: st.SearchStrategy[KeyMutation] = st.one_of(
    st.builds(set_to, KEYS, VALUES, st.sampled_from([None, None, 1000, 5000])),
    st.builds(delete, KEYS),
    st.builds(delete_tree, KEYS),
    st.builds(change, st.sampled_from(["sum", "min", "max"]), KEYS, st.integers(-3, 3)),
    st.builds(change, st.sampled_from(["append", "prepend"]), KEYS, st.sampled_from([[], [2], [3, 4]])),
)


def checks(known: dict[Ranked, Kept]) -> st.SearchStrategy[KeyCheck]:
    """Checks of which some hold."""
    right = [KeyCheck(plain(key), one.version) for key, one in known.items()]
    wrong = st.builds(KeyCheck, KEYS, st.none() | st.integers(1, 5))
    return wrong | st.sampled_from(right) if right else wrong
