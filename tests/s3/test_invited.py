"""A push and its delivery share one record: those who wait are told before it is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from hark.clock import FakeClock
from hark.engine.api import Answers
from hark.engine.s3 import S3Engine
from hark.engine.s3.log import places
from hark.model import Hint, NewMessage, PopRequest, PopResult
from tests.s3.processes import NEVER
from tests.s3.stub.inprocess import StubBucket
from tests.s3.stub.store import StubStore

WISH = PopRequest(queue="orders", patient=True)


async def test_what_is_pushed_to_one_who_waits_costs_one_record(
    stub_store: StubStore, stub_bucket: StubBucket, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It waits for whom it told, however slow this machine is.
    monkeypatch.setattr("hark.engine.s3.replica.thread._INVITED_SECONDS", 60)
    engine = S3Engine("s3://stub/invited", clock=clock, bucket=stub_bucket, polling=NEVER)
    asking: asyncio.Future[asyncio.Task[Answers[PopResult]]] = asyncio.get_running_loop().create_future()

    def look_when_told(hints: Sequence[Hint]) -> None:
        if not asking.done() and any(hint.news == "message" for hint in hints):
            asking.set_result(asyncio.ensure_future(engine.pop([WISH])))

    await engine.start(look_when_told)
    [nothing] = await engine.pop([WISH])
    assert isinstance(nothing, PopResult) and not nothing.messages
    stub_store.forget_requests()
    await engine.push([[NewMessage(queue="orders", partition="p", payload=b"1")]])
    [got] = await (await asking)
    assert isinstance(got, PopResult)
    assert [one.offset for one in got.messages] == [1]
    written = [key for kind, key, _ in stub_store.log if kind == "put"]
    assert written == [places.record(2)], "the first contact of the group was the first record"
    await engine.close()
