"""What falls due is known here: nobody has to ask the bucket for it."""

from __future__ import annotations

from hark.clock import SECOND, FakeClock
from hark.engine.api import Engine
from hark.engine.s3.log import places
from hark.model import NewMessage, PopRequest, PopResult
from tests.s3.processes import running
from tests.s3.stub.store import StubStore


async def pop(engine: Engine) -> PopResult:
    """What somebody gets who waits."""
    [answer] = await engine.pop([PopRequest(queue="orders", patient=True)])
    assert isinstance(answer, PopResult)
    return answer


async def test_a_delayed_message_is_handed_out_in_time_without_a_look_at_the_log(
    stub_store: StubStore, clock: FakeClock
) -> None:
    async with running(stub_store, clock) as process:
        due = clock.now() + 5 * SECOND
        await process.engine.push([[NewMessage(queue="orders", partition="p", payload=b"1", deliver_at=due)]])
        waiting = await pop(process.engine)
        assert (waiting.messages, waiting.look_again_at) == ((), due)
        stub_store.forget_requests()
        clock.advance(5)
        assert [one.offset for one in (await pop(process.engine)).messages] == [1]
        assert [(kind, key) for kind, key, _ in stub_store.log] == [("put", places.record(3))]


async def test_a_lease_that_nobody_renewed_ends_in_time_without_a_look_at_the_log(
    stub_store: StubStore, clock: FakeClock
) -> None:
    async with running(stub_store, clock) as process:
        await process.engine.push([[NewMessage(queue="orders", partition="p", payload=b"1")]])
        held = await pop(process.engine)
        assert held.expires_at is not None
        assert (await process.engine.expire()).next_due == held.expires_at
        stub_store.forget_requests()
        clock.advance((held.expires_at - clock.now()) / SECOND)
        assert (await process.engine.expire()).leases == 1
        assert [kind for kind, *_ in stub_store.log] == ["put"]
        assert (await pop(process.engine)).messages[0].attempt == 2
