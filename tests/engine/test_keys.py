"""Keys on every engine: what is written is read, listed in order, counted, and told of (rule 25)."""

from __future__ import annotations

import msgspec
import pytest

from hark.engine.api import Engine
from hark.model import Key, KeyEntry, KeyRange, KeyWrite

from .driver import Driver
from .key_words import delete, delete_tree, entry, listed, put, set_to, text, told, value, write

MIXED: list[Key] = [
    ("user",),
    ("user", "", "x"),
    ("user", "a"),
    ("user", "a", 1),
    (
        "user",
        "a\0",
    ),
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


# One by one ------------------------------------------------------------------------------------------------


async def test_what_is_set_is_read(engine: Engine) -> None:
    version = await put(engine, ("a", 1, True, 0.5))
    assert await entry(engine, ("a", 1, True, 0.5)) == KeyEntry(
        ("a", 1, True, 0.5), msgspec.Raw(b'["a",1,true,0.5]'), version
    )


async def test_entries_come_by_position(engine: Engine) -> None:
    await put(engine, ("a",), ("b",))
    found = await engine.read_keys([("b",), ("none",), ("a",), ("b",)])
    assert [None if one is None else one.key for one in found] == [("b",), None, ("a",), ("b",)]
    assert await engine.read_keys([]) == []


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


async def test_a_large_value_is_kept_whole(engine: Engine) -> None:
    await write(engine, set_to(("large",), "x" * 3_000_000))
    assert await value(engine, ("large",)) == "x" * 3_000_000


async def test_the_longest_keys_are_kept(engine: Engine) -> None:
    keys: list[Key] = [("€" * 600, "x" * 200 + str(number)) for number in range(3)]
    await put(engine, *keys)
    assert await listed(engine, KeyRange(prefix=("€" * 600,))) == keys


async def test_every_write_has_a_version_of_its_own(engine: Engine) -> None:
    versions = [await put(engine, ("a",), ("b",)) for _ in range(3)]
    assert sorted(set(versions)) == versions
    assert [one.version for one in await engine.read_keys([("a",), ("b",)]) if one] == [versions[-1]] * 2


async def test_requests_of_one_call_have_different_versions(engine: Engine) -> None:
    answers = await engine.write_keys([KeyWrite(mutations=[set_to((number,), number)]) for number in range(5)])
    versions = {one.version for one in answers if not isinstance(one, Exception)}
    assert len(versions) == 5 and None not in versions


async def test_versions_do_not_repeat_after_a_restart_or_a_deletion(durable: Driver) -> None:
    first = await put(durable.engine, ("a",))
    await write(durable.engine, delete(("a",)))
    await durable.reopen()
    assert await put(durable.engine, ("a",)) > first


async def test_what_was_written_survives_a_restart(durable: Driver) -> None:
    await put(durable.engine, *MIXED)
    await durable.reopen()
    assert await listed(durable.engine, KeyRange(limit=1000)) == MIXED


# Deletions -------------------------------------------------------------------------------------------------


async def test_a_deletion_counts_what_it_removed(engine: Engine) -> None:
    await put(engine, ("a",), ("a", "b"))
    assert (await write(engine, delete(("a",)), delete(("none",)))).deleted == 1
    assert await entry(engine, ("a",)) is None
    assert await entry(engine, ("a", "b")) is not None


async def test_a_tree_is_deleted_with_its_root_and_without_its_siblings(engine: Engine) -> None:
    await put(engine, *MIXED)
    below = [key for key in MIXED if key[0] == "user"]
    assert (await write(engine, delete_tree(("user",)))).deleted == len(below)
    assert await listed(engine, KeyRange(limit=1000)) == [key for key in MIXED if key not in below]
    assert (await write(engine, delete_tree(("user",)))).deleted == 0


async def test_a_key_may_be_set_again_behind_its_deletion(engine: Engine) -> None:
    await put(engine, ("a",), ("a", 1))
    written = await write(engine, set_to(("a", 2), 2), delete_tree(("a",)), set_to(("a", 1), "new"))
    assert written.deleted == 3
    assert await listed(engine, KeyRange()) == [("a", 1)]
    assert await value(engine, ("a", 1)) == "new"


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


# News ------------------------------------------------------------------------------------------------------


async def test_the_listener_is_told_of_keys_that_were_written_or_removed(q: Driver, engine: Engine) -> None:
    await put(engine, ("a",), ("b", 1), ("b", 2))
    assert told(q.key_news) == {("a",), ("b", 1), ("b", 2)}
    q.key_news.clear()
    await write(engine, delete(("a",)), delete_tree(("b",)))
    assert {("a",), ("b", 1), ("b", 2)} <= (told(q.key_news) or set())
    q.key_news.clear()
    await write(engine)
    assert q.key_news == []


async def test_of_a_large_tree_that_is_gone_the_listener_is_told_that_any_key_may_be(q: Driver, engine: Engine) -> None:
    await put(engine, *(("a", number) for number in range(1001)))
    q.key_news.clear()
    assert (await write(engine, delete_tree(("a",)))).deleted == 1001
    assert told(q.key_news) is None


async def test_news_of_keys_that_python_takes_for_the_same_name_them_all(q: Driver, engine: Engine) -> None:
    await put(engine, (1,), (True,), (1, "x"), (True, "x"))
    assert sorted(repr(key) for news in q.key_news for key in news.keys or ()) == sorted(
        map(repr, [(1,), (True,), (1, "x"), (True, "x")])
    )
