"""A store that is removed and made anew under a process: it stops, and acknowledges nothing any more."""

from __future__ import annotations

import pytest

from hark.clock import FakeClock
from hark.engine.s3.log import places
from hark.errors import HarkError
from tests.s3.processes import running, until
from tests.s3.sights import lose_sight_once
from tests.s3.stub.store import Request, StubStore


async def test_who_finds_another_store_in_its_place_stops(
    stub_store: StubStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(stub_store, clock) as old:
        for number in range(3):
            await old.push("orders", "p", number)
        for key in stub_store.keys(""):
            stub_store.execute(Request(kind="delete", key=key))
        async with running(stub_store, clock, snapshot_records=1) as new:
            await new.push("orders", "p", "new")
            # Its snapshots are no further than what the old process knows: by their numbers alone all is well.
            await until(lambda: b'"seq":1' in (stub_store.read(places.POINTER) or b""))
            lose_sight_once(monkeypatch)
            for _ in range(2):
                with pytest.raises(HarkError) as failure:
                    await old.push("orders", "p", "for the old one")
                assert failure.value.code == "store_unusable"
                assert "made anew" in failure.value.text
            assert stub_store.read(places.record(4)) is None
