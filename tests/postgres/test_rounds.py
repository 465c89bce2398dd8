"""A pop goes through rounds; what this server hears of between two of them must not spoil it."""

from __future__ import annotations

import pytest

from hark.clock import FakeClock
from hark.engine.postgres.discovery import Discovery
from hark.engine.postgres.jobs import Job
from tests.engine.driver import Driver, payloads


@pytest.fixture
def _searched_between_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time to ask the database for more comes when a pop has got something already."""

    def is_wanted(_self: Discovery, job: Job, _now: int) -> bool:
        unknown = any(group.ready.discovered is None for _, group in job.groups)
        return not job.discovered and (unknown or bool(job.messages))

    monkeypatch.setattr(Discovery, "is_wanted", is_wanted)


@pytest.mark.usefixtures("_searched_between_rounds")
async def test_rule_16_one_message_at_a_time_is_one_for_each_pop(here: Driver, clock: FakeClock) -> None:
    await here.configure("orders", lease_time=10)
    await here.push("orders", "p1", 1, 2, 3)
    assert payloads(await here.pop("orders", batch=3)) == [1, 2, 3]
    clock.advance(10)
    for number in (1, 2, 3):
        got = await here.pop("orders", batch=10, partitions=10, auto_ack=True)
        assert (payloads(got), got.partitions) == ([number], 1)


@pytest.mark.usefixtures("_searched_between_rounds")
async def test_a_partition_that_was_found_between_rounds_is_taken_too(here: Driver, there: Driver) -> None:
    await here.push("orders", "p1", 1)
    await here.push("orders", "p2", 2)
    assert len(await here.pop("orders", batch=1)) == 1
    await there.push("orders", "p3", 3)
    got = await here.pop("orders", batch=10, partitions=10, auto_ack=True)
    assert sorted(map(str, payloads(got))) == ["2", "3"]
