"""Keys on every engine: what is written is read, listed in order, counted, told of, and gone once expired (rule 25)."""

from __future__ import annotations

import msgspec
import pytest

from hark.clock import MILLISECOND, FakeClock
from hark.engine.api import Engine
from hark.model import OWN, Key, KeyCheck, KeyEntry, KeyMutation, KeyRange, KeyWrite

from .driver import Driver, given
from .key_words import change, changed_keys, delete, delete_tree, entry, listed, put, set_to, text, value, write

MIXED: list[Key] = [
    ("user",),
    ("user", "", "x"),
    ("user", "a"),
    ("user", "a", 1),
    ("user", "a\0"),
    ("user", "b"),
    ("user", -1.5),
    ("user", 0),
    ("user", 2),
    ("user", 10),
    ("user", 2**53),
    ("user", False),
    ("user", True, "x"),
    ("user\0",),
    ("user-archive",),
    ("users", 1),
    ("ÿ",),
    (1,),
    (True,),
]
"""Keys in their order."""
A: Key = ("a",)


async def test_a_list_and_a_count_of_all_keys_leave_out_the_keys_of_hark_itself(engine: Engine) -> None:
    own: list[Key] = [(OWN, "schedule", "a"), (OWN, "schedule", "b"), (OWN, "task")]
    await put(engine, *own, ("",), A)
    assert await listed(engine, KeyRange()) == [("",), A]
    assert await listed(engine, KeyRange(reverse=True)) == [A, ("",)]
    assert await engine.count_keys(()) == 2
    assert await listed(engine, KeyRange(prefix=own[0][:2])) == own[:2]
    assert await engine.count_keys((OWN,)) == 3
    assert [one and one.key for one in await engine.read_keys(own)] == own
    await write(engine, delete_tree(own[0][:2]))
    assert await listed(engine, KeyRange(prefix=(OWN,))) == own[2:]


# One by one ------------------------------------------------------------------------------------------------


async def test_what_is_set_is_read_by_position(engine: Engine) -> None:
    key: Key = ("a", 1, True, 0.5)
    version = await put(engine, key, ("b",))
    first, none, *twice = await engine.read_keys([("b",), ("none",), key, ("b",)])
    assert twice == [KeyEntry(key, msgspec.Raw(b'["a",1,true,0.5]'), version), first]
    assert (first and first.key, none) == (("b",), None)
    assert await engine.read_keys([]) == []


async def test_of_a_key_that_is_set_twice_in_one_write_the_last_value_counts(engine: Engine) -> None:
    await write(engine, set_to(("b",), 1), set_to(A, 1), set_to(A, 2), set_to(("b",), 0))
    assert [await value(engine, key) for key in (A, ("b",))] == [2, 0]


async def test_keys_that_look_alike_are_different(engine: Engine) -> None:
    await put(engine, (1,), ("1",), (True,), ("true",))
    assert [await value(engine, key) for key in ((1,), ("1",), (True,), ("true",))] == [[1], ["1"], [True], ["true"]]
    await write(engine, set_to((1.0,), "one"), set_to((-0.0,), "zero"))
    assert (await value(engine, (1,)), await value(engine, (0,))) == ("one", "zero")


@pytest.mark.parametrize(
    "json", [b"null", b"0.10", b' {"b":1, "a":[] } ', b'"\\u0000\\ud83d\\ude00"', b"1E400", b"12" * 99]
)
async def test_values_keep_their_bytes(engine: Engine, json: bytes) -> None:
    await write(engine, msgspec.structs.replace(set_to(("a",), None), value=json))
    found = await text(engine, ("a",))
    assert found is not None and found.strip() == json.strip()


async def test_a_large_value_and_the_longest_keys_are_kept_whole(engine: Engine) -> None:
    await write(engine, set_to(("large",), "x" * 3_000_000))
    assert await value(engine, ("large",)) == "x" * 3_000_000
    keys: list[Key] = [("€" * 600, "x" * 200 + str(number)) for number in range(3)]
    await put(engine, *keys)
    assert await listed(engine, KeyRange(prefix=("€" * 600,))) == keys


async def test_every_write_has_a_version_of_its_own(engine: Engine) -> None:
    versions = [await put(engine, ("a",), ("b",)) for _ in range(3)]
    assert [one.version for one in await engine.read_keys([("a",), ("b",)]) if one] == [versions[-1]] * 2
    answers = await engine.write_keys([KeyWrite(mutations=[set_to((number,), number)]) for number in range(5)])
    versions += [given(one).version or 0 for one in answers]
    assert sorted(set(versions)) == versions, "also those of one call"


async def test_versions_do_not_repeat_after_a_restart_or_a_deletion(q: Driver) -> None:
    first = await put(q.engine, ("a",))
    await write(q.engine, delete(("a",)))
    await q.reopen()
    assert await put(q.engine, ("a",)) > first


async def test_what_was_written_survives_a_restart(q: Driver) -> None:
    await put(q.engine, *MIXED)
    await q.reopen()
    assert await listed(q.engine, KeyRange(limit=1000)) == MIXED


# Deletions -------------------------------------------------------------------------------------------------


async def test_a_deletion_counts_what_it_removed_and_a_key_may_be_set_again_behind_it(engine: Engine) -> None:
    await put(engine, ("a",), ("a", "b"))
    assert (await write(engine, delete(("a",)), delete(("none",)))).deleted == 1
    assert await listed(engine, KeyRange()) == [("a", "b")]
    written = await write(engine, set_to(("a", 2), 2), delete_tree(("a",)), set_to(("a", 1), "new"))
    assert written.deleted == 2
    assert await listed(engine, KeyRange()) == [("a", 1)]
    assert await value(engine, ("a", 1)) == "new"


async def test_a_tree_is_deleted_with_its_root_and_without_its_siblings(engine: Engine) -> None:
    await put(engine, *MIXED)
    below = [key for key in MIXED if key[0] == "user"]
    assert (await write(engine, delete_tree(("user",)))).deleted == len(below)
    assert await listed(engine, KeyRange(limit=1000)) == [key for key in MIXED if key not in below]
    assert (await write(engine, delete_tree(("user",)))).deleted == 0


# Lists -----------------------------------------------------------------------------------------------------


async def test_rule_25_lists_are_in_the_order_of_keys(engine: Engine) -> None:
    await put(engine, *reversed(MIXED))
    assert await listed(engine, KeyRange(limit=1000)) == MIXED
    assert await listed(engine, KeyRange(limit=1000, reverse=True)) == MIXED[::-1]


async def test_rule_25_a_prefix_means_strict_descendants_part_by_part(engine: Engine) -> None:
    await put(engine, *MIXED)
    below = [key for key in MIXED if key[0] == "user" and len(key) > 1]
    assert await listed(engine, KeyRange(prefix=("user",))) == below
    assert await listed(engine, KeyRange(prefix=("user", "a"))) == [("user", "a", 1)]
    assert await listed(engine, KeyRange(prefix=("use",))) == []
    assert await engine.count_keys(("user",)) == len(below)
    assert await engine.count_keys(()) == len(MIXED)


@pytest.mark.parametrize("reverse", [False, True])
async def test_pages_together_are_the_whole(engine: Engine, reverse: bool) -> None:
    await put(engine, *MIXED)
    whole = await listed(engine, KeyRange(prefix=("user",), reverse=reverse))
    pages: list[Key] = []
    page = await listed(engine, KeyRange(prefix=("user",), limit=3, reverse=reverse))
    while page:
        pages += page
        page = await listed(engine, KeyRange(prefix=("user",), after=pages[-1], limit=3, reverse=reverse))
    assert pages == whole


@pytest.mark.parametrize("reverse", [False, True])
async def test_start_is_included_and_end_is_not(engine: Engine, reverse: bool) -> None:
    await put(engine, *MIXED)
    found = await listed(engine, KeyRange(prefix=("user",), start=("user", "b"), end=("user", 10), reverse=reverse))
    expected: list[Key] = [("user", "b"), ("user", -1.5), ("user", 0), ("user", 2)]
    assert found == (expected[::-1] if reverse else expected)


async def test_bounds_do_not_lead_out_of_the_prefix(engine: Engine) -> None:
    await put(engine, *MIXED)
    wide = KeyRange(prefix=("users",), start=("a",), end=(True, True), after=("a",))
    assert await listed(engine, wide) == [("users", 1)]
    assert await listed(engine, KeyRange(start=("x",), end=("a",))) == []


async def test_ranges_of_one_call_are_answered_by_position(engine: Engine) -> None:
    await put(engine, ("a", 1), ("a", 2), ("b", 1))
    found = await engine.list_keys([KeyRange(prefix=(name,), limit=1) for name in ("b", "none", "a")])
    assert [[one.key for one in entries] for entries in found] == [[("b", 1)], [], [("a", 1)]]
    assert await engine.list_keys([]) == []


async def test_statistics_count_entries_and_their_bytes(engine: Engine) -> None:
    assert (await engine.key_stats()).entries == 0
    await put(engine, ("a",), ("b",))
    stats = await engine.key_stats()
    assert (stats.entries, stats.bytes) == (2, 2 * (len(b"\x02a\x00") + len(b'["a"]')))


# HintKind ------------------------------------------------------------------------------------------------------


async def test_the_listener_is_notified_of_keys_that_were_written_or_removed(q: Driver, engine: Engine) -> None:
    await put(engine, ("a",), ("b", 1), ("b", 2))
    assert changed_keys(q.key_notifications) == {("a",), ("b", 1), ("b", 2)}
    q.key_notifications.clear()
    await write(engine, delete(("a",)), delete_tree(("b",)))
    assert {("a",), ("b", 1), ("b", 2)} <= (changed_keys(q.key_notifications) or set())
    q.key_notifications.clear()
    await write(engine)
    assert q.key_notifications == []


async def test_of_a_large_tree_that_is_gone_the_listener_is_notified_that_any_key_may_be(
    q: Driver, engine: Engine
) -> None:
    await put(engine, *(("a", number) for number in range(1001)))
    q.key_notifications.clear()
    assert (await write(engine, delete_tree(("a",)))).deleted == 1001
    assert changed_keys(q.key_notifications) is None


async def test_changes_of_keys_that_python_takes_for_the_same_name_them_all(q: Driver, engine: Engine) -> None:
    await put(engine, (1,), (True,), (1, "x"), (True, "x"))
    assert sorted(repr(key) for notification in q.key_notifications for key in notification.keys or ()) == sorted(
        map(repr, [(1,), (True,), (1, "x"), (True, "x")])
    )


# Expiry: entries whose time is over are not there, removed or not ------------------------------------------


async def expired(engine: Engine, clock: FakeClock, *keys: Key) -> None:
    """Entries that were there until just now."""
    await write(engine, *(set_to(key, [1], ttl_ms=10) for key in keys))
    clock.advance(0.01)


async def test_an_entry_is_there_until_its_time_is_over_to_the_millisecond(engine: Engine, clock: FakeClock) -> None:
    await write(engine, set_to(A, 1, ttl_ms=500))
    found = await entry(engine, A)
    assert found is not None and found.expires_at == clock.now() + 500 * MILLISECOND
    clock.advance(0.499)
    assert await entry(engine, A) is not None
    clock.advance(0.001)
    assert await entry(engine, A) is None


async def test_no_one_sees_what_has_expired(engine: Engine, clock: FakeClock) -> None:
    await put(engine, ("live",), ("live", 2))
    await expired(engine, clock, A, ("b", 1), *((number,) for number in range(10)))
    assert await listed(engine, KeyRange(limit=2)) == [("live",), ("live", 2)]
    assert await listed(engine, KeyRange(limit=2, reverse=True)) == [("live", 2), ("live",)]
    assert await engine.count_keys(()) == 2
    assert (await engine.key_stats()).entries == 2
    assert (await write(engine, delete(A), delete_tree(("b",)))).deleted == 0


async def test_a_check_takes_what_has_expired_for_absent(engine: Engine, clock: FakeClock) -> None:
    written = await write(engine, set_to(A, 1, ttl_ms=10))
    clock.advance(0.01)
    assert not (await write(engine, checks=(KeyCheck(A, written.version),))).success
    assert (await write(engine, set_to(A, 2), checks=(KeyCheck(A, None),))).success


@pytest.mark.parametrize("mutation", [change("append", A, [2]), change("prepend", A, [2])])
async def test_mutations_start_anew_where_something_has_expired(
    engine: Engine, clock: FakeClock, mutation: KeyMutation
) -> None:
    await expired(engine, clock, A)
    await write(engine, mutation)
    assert await value(engine, A) == [2]


async def test_a_write_without_expiry_clears_an_older_one(engine: Engine, clock: FakeClock) -> None:
    await write(engine, *(set_to((number,), 1, ttl_ms=10) for number in range(3)))
    await write(engine, set_to((0,), 1), change("sum", (1,), 1))
    clock.advance(1)
    assert await listed(engine, KeyRange()) == [(0,), (1,)]


async def test_a_sweep_removes_what_is_over_and_reports(q: Driver, engine: Engine, clock: FakeClock) -> None:
    await put(engine, ("live",))
    await write(engine, set_to(("later",), 1, ttl_ms=60_000))
    await expired(engine, clock, *((number,) for number in range(5)))
    q.key_notifications.clear()
    assert [await engine.sweep_keys(3) for _ in range(3)] == [3, 2, 0]
    assert changed_keys(q.key_notifications) == {(number,) for number in range(5)}
    assert await listed(engine, KeyRange()) == [("later",), ("live",)]


async def test_an_expiry_survives_a_restart(q: Driver, clock: FakeClock) -> None:
    await write(q.engine, set_to(A, 1, ttl_ms=1000))
    await q.reopen()
    assert await entry(q.engine, A) is not None
    clock.advance(1)
    assert await entry(q.engine, A) is None
