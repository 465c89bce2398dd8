"""What one server hears from another: it believes it, finds work by it without a search, and tells those who wait."""

from __future__ import annotations

import asyncio
from itertools import cycle, islice

import pytest

from hark.engine.api import Engine
from hark.engine.postgres import PostgresEngine, discovery
from hark.model import QUEUE_MODE, Hint
from tests.engine.driver import Driver, payloads


class Searches:
    """Counts how often an engine asks the database what it has not heard of."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        assert isinstance(engine, PostgresEngine)
        self.number = 0
        fetch = engine.pool.fetch

        async def counting(sql: str, *args: object) -> object:
            self.number += "discover_v1" in sql
            return await fetch(sql, *args)

        monkeypatch.setattr(engine.pool, "fetch", counting)


@pytest.fixture
def searches(there: Driver, monkeypatch: pytest.MonkeyPatch) -> Searches:
    """Those of the server that hears, which looks for more only when it has nothing to try."""
    monkeypatch.setattr(discovery, "_SEARCH_SECONDS", 3600.0)
    return Searches(there.engine, monkeypatch)


async def knows_partitions(driver: Driver, *partitions: str) -> None:
    """A server with a group that has been in these partitions, and found nothing more."""
    for partition in partitions:
        await driver.push("orders", partition, "old")
    assert await driver.drain("orders") == ["old"] * len(partitions)


def deliver(receiver: Driver, sender: Driver) -> list[Hint]:
    """One server hears what the other has told its own consumers, but for arrivals told to one group, as peers do."""
    hints, sender.hints = sender.hints, []
    return receiver.engine.on_hints([hint for hint in hints if hint.kind == "free" or hint.group is None])


# Beliefs ---------------------------------------------------------------------------------------------------


async def test_what_another_server_pushed_is_popped_without_a_search(
    here: Driver, there: Driver, searches: Searches
) -> None:
    await knows_partitions(there, "p1", "p2")
    searches.number = 0
    await here.push("orders", "p2", 1)
    deliver(there, here)
    assert payloads(await there.pop("orders")) == [1]
    assert searches.number == 0


async def test_what_another_server_gave_back_is_popped_without_a_search(
    here: Driver, there: Driver, searches: Searches
) -> None:
    await knows_partitions(there, "p1")
    await here.push("orders", "p1", 1, 2)
    [leased] = await here.pop("orders")
    assert await there.pop("orders") == []
    searches.number = 0
    here.hints.clear()
    await here.ack(leased)
    deliver(there, here)
    assert payloads(await there.pop("orders")) == [2]
    assert searches.number == 0


@pytest.mark.parametrize("kind", ["message", "free"])
async def test_changes_from_anywhere_in_a_queue_makes_the_next_pop_search(
    here: Driver, there: Driver, searches: Searches, kind: str
) -> None:
    await knows_partitions(there, "p1", "p2")
    await there.push("orders", "p1", "ready")
    await here.push("orders", "p2", "unheard of")
    searches.number = 0
    [leased] = await there.pop("orders")
    assert (leased.payload, searches.number) == ("ready", 0)
    await there.ack(leased)
    await there.push("orders", "p1", "ready too")
    there.engine.on_hints([Hint("orders", kind="message" if kind == "message" else "free")])
    assert payloads(await there.pop("orders")) == ["unheard of"]
    assert searches.number == 1


async def test_changes_for_one_group_are_not_expected_of_another(
    here: Driver, there: Driver, searches: Searches
) -> None:
    await knows_partitions(there, "p1")
    assert await there.drain("orders", group="g") == ["old"]
    await here.push("orders", "p1", 1)
    there.engine.on_hints([Hint("orders", "g", ("p1",))])
    searches.number = 0
    assert payloads(await there.pop("orders", group="g")) == [1]
    assert searches.number == 0
    assert payloads(await there.pop("orders")) == [1]
    assert searches.number == 1


async def test_a_lease_that_ended_elsewhere_is_forgotten(there: Driver) -> None:
    assert isinstance(there.engine, PostgresEngine)
    await there.push("orders", "p1", 1, transaction_id="t")
    [leased] = await there.pop("orders")
    assert there.engine.deliveries.partitions_of(leased.lease)
    ended = Hint("orders", leased.group, (), ended=(leased.lease,))
    assert there.engine.on_hints([ended]) == [ended]
    assert not there.engine.deliveries.partitions_of(leased.lease)


@pytest.mark.parametrize("leased_by", ["the one that hears", "the one that tells"])
async def test_a_push_after_a_lease_that_was_settled_elsewhere_is_offered(
    here: Driver, there: Driver, leased_by: str
) -> None:
    await there.push("orders", "p1", 1)
    [leased] = await (there if leased_by == "the one that hears" else here).pop("orders")
    assert (await there.pop("orders")).reason == "lease_held"
    await here.ack(leased)
    deliver(there, here)
    await here.push("orders", "p1", 2)
    assert Hint("orders", leased.group, ("p1",), "message") in deliver(there, here)


async def test_what_came_before_the_changes_of_a_lease_s_end_is_offered_with_it(here: Driver, there: Driver) -> None:
    await there.push("orders", "p1", 1)
    [leased] = await there.pop("orders")
    await here.ack(leased)
    ends, here.hints = here.hints, []
    await here.push("orders", "p1", 2)
    assert Hint("orders", leased.group, ("p1",), "message") not in deliver(there, here)
    assert any(hint.group == leased.group and hint.partitions == ("p1",) for hint in there.engine.on_hints(ends))
    assert payloads(await there.pop("orders")) == [2]


async def test_wrong_changes_cost_a_look_and_nothing_else(here: Driver, there: Driver) -> None:
    await knows_partitions(there, "p1")
    await here.push("orders", "p1", 1)
    [leased] = await here.pop("orders")
    there.engine.on_hints([Hint("orders", None, ("p1",), "message"), Hint("orders", leased.group, ("p1",))])
    assert (await there.pop("orders")).reason == "lease_held"
    assert (await here.ack(leased)).success
    await here.engine.delete_queues(["orders"])
    there.engine.on_hints([Hint("orders", None, ("p1",), "message"), Hint("orders", leased.group, ("p1",))])
    assert await there.pop("orders") == []


# Whom to tell ----------------------------------------------------------------------------------------------


async def test_an_arrival_is_for_the_groups_of_the_server_that_notices_it(here: Driver, there: Driver) -> None:
    await knows_partitions(there, "p1")
    assert await there.drain("orders", group="busy") == ["old"]
    assert await here.pop("orders", group="elsewhere", auto_ack=True)
    await there.push("orders", "p1", 1)
    assert await there.pop("orders", group="busy")
    here.hints.clear()
    await here.push("orders", "p1", 2)
    assert deliver(there, here) == [
        Hint("orders", None, ("p1",), "message", excluded=(QUEUE_MODE, "busy")),
        Hint("orders", QUEUE_MODE, ("p1",), "message"),
    ]


async def test_arrivals_in_a_partition_that_this_server_does_not_know_or_anywhere_are_changes_for_all_groups(
    here: Driver, there: Driver
) -> None:
    await knows_partitions(there, "p1")
    received = there.engine.on_hints([Hint("orders", None, ("p1",), "message"), Hint("orders", None, None, "message")])
    assert received == [
        Hint("orders", None, None, "message", excluded=(QUEUE_MODE,)),
        Hint("orders", QUEUE_MODE, None, "message"),
    ]
    assert await there.pop("orders", group="busy")
    assert there.engine.on_hints([Hint("orders", None, ("p1", "new"), "message")]) == [
        Hint("orders", None, ("p1", "new"), "message", excluded=(QUEUE_MODE, "busy")),
        Hint("orders", QUEUE_MODE, ("p1", "new"), "message"),
        Hint("orders", "busy", ("new",), "message"),
    ]
    await here.push("orders", "new", 1)
    assert payloads(await there.pop("orders")) == [1]


async def test_other_changes_are_passed_on_as_they_are(there: Driver) -> None:
    await knows_partitions(there, "p1")
    hints = [
        Hint("orders", QUEUE_MODE, ("p1", "unknown"), ended=("no lease",)),
        Hint("orders", "unknown group", ("p1",)),
        Hint("unknown queue", "g", ("p1",)),
        Hint("unknown queue"),
        Hint("unknown queue", None, ("p1",), "message"),
        Hint("\0", "\0", ("\0",)),
    ]
    assert there.engine.on_hints(hints) == hints
    assert there.engine.on_hints([]) == []
    there.hints.clear()
    await there.engine.close()
    assert there.engine.on_hints(hints) == []
    assert there.hints == []


# The secret ------------------------------------------------------------------------------------------------


async def test_servers_that_start_together_agree_on_a_random_secret(here: Driver, there: Driver) -> None:
    racers = islice(cycle([here, there]), 16)
    [secret] = set(await asyncio.gather(*(racer.engine.peer_secret() for racer in racers)))
    assert len(secret) == 32
    await here.reopen()
    assert await here.engine.peer_secret() == secret
    assert isinstance(there.engine, PostgresEngine)
    await there.engine.pool.fetch("delete from hark.meta where key like 'peer_secret:%'")
    assert await there.engine.peer_secret() != secret
