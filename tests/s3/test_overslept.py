"""A process that slept in the middle of an append, and wakes up to a bucket that does not answer."""

from __future__ import annotations

import asyncio

import pytest

from hark.clock import FakeClock
from hark.engine.s3.log import places
from hark.engine.s3.log.sight import Sight
from hark.errors import HarkError
from tests.engine.driver import payloads
from tests.s3.processes import running, until
from tests.s3.stub.faults import Fault
from tests.s3.stub.store import StubStore


def sleep_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next answer is too late to be trusted."""
    is_void, late = Sight.is_void, [True]
    monkeypatch.setattr(Sight, "is_void", lambda self, since: bool(late and late.pop()) or is_void(self, since))


@pytest.mark.parametrize("answered", [0, 1], ids=["never", "once"])
async def test_who_wakes_up_to_a_silent_bucket_goes_on_when_it_answers(
    stub_store: StubStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, answered: int
) -> None:
    """`answered`: how often the pointer can be read before the bucket falls silent."""
    async with (
        running(stub_store, clock, snapshot_records=1) as other,
        running(stub_store, clock, patience_ms=100) as sleeper,
    ):
        held = sleeper.faults.stop("before", kind="put", key="log/")
        pushing = asyncio.ensure_future(sleeper.push("orders", "p", "late"))
        request = await held.reached()
        await other.push("orders", "p", "in time")
        await until(lambda: b'"seq":1' in (stub_store.read(places.POINTER) or b""))
        stub_store.execute(type(request)(kind="delete", key=request.key))
        sleep_once(monkeypatch)
        sleeper.faults.next(Fault.ERROR, kind="get", key=places.POINTER, skip=answered, times=float("inf"))
        held.go()
        with pytest.raises(HarkError) as failure:
            await pushing
        # It was created, and nobody will ever read it there: who sent it must not take it for refused.
        assert failure.value.code == "outcome_unknown"
        sleeper.faults.heal()
        stub_store.execute(type(request)(kind="delete", key=request.key))
        await sleeper.push("orders", "p", "later")
        assert payloads(await other.pop("orders", batch=10)) == ["in time", "later"]
        assert payloads(await sleeper.pop("orders", group="all", batch=10)) == ["in time", "later"]
