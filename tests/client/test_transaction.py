"""Transactions, against a real server."""

from __future__ import annotations

import pytest

from hark.client.calling import Caller
from hark.client.client import Client
from hark.client.keys import KeyValue
from hark.client.queue_admin import QueueAdmin
from hark.client.transaction import Transaction
from hark.client.transport.api import ConnectionFailed
from hark.errors import InvalidInput, TransactionRefused
from hark.model import Status
from tests.client.deliveries import Wrapper, pop, push, settle
from tests.client.transports import Recorder, first_of, no_sleep, path

ROUTE = path("transaction")


@pytest.fixture
def lossy(caller: Caller) -> Recorder:
    """The way to the server; the first answer to a transaction gets lost on it."""
    return Recorder(caller.transport, lose=first_of(ROUTE))


@pytest.fixture
def unlucky(lossy: Recorder) -> Caller:
    return Caller(lossy, sleep=no_sleep)


async def test_settlement_push_and_keys_happen_together(caller: Caller, queue: str) -> None:
    await push(caller, queue, {"order": 17})
    [message] = await pop(caller, queue)
    out = f"{queue}-out"
    transaction = Transaction(caller).ack(Wrapper(message)).push(out, {"invoice": 17}, partition="p", key="i-17")
    transaction.kv.check((queue, "done"), None).set((queue, "done"), True)
    done = await transaction.commit()
    ack, pushed = done.results
    assert (ack.type, ack.success, ack.dead_lettered) == ("ack", True, False)
    assert (pushed.type, pushed.status, pushed.queue, pushed.transaction_id) == ("push", "queued", out, "i-17")
    entry = await KeyValue(caller).get((queue, "done"))
    assert entry is not None
    assert (entry.value, entry.versionstamp) == (True, done.versionstamp)
    assert [one.data for one in await pop(caller, out)] == [{"invoice": 17}]
    assert (await QueueAdmin(caller, queue).stats()).totals.completed == 1


@pytest.mark.parametrize("status", ["completed", "failed", "dlq", None])
async def test_the_block_of_a_message_says_no_more_of_what_a_transaction_settled(
    recorder: Recorder, queue: str, status: Status | None
) -> None:
    async with Client(recorder) as client:
        await client.queue(queue).push(1)
        [message] = await client.queue(queue).pop()
        async with message:
            if status is None:
                client.transaction().ack(message, "dlq")  # It is dropped: the block acks.
            else:
                await client.transaction().ack(message, status).commit()
                assert message.settled == status
        assert message.settled == (status or "completed")
        assert (await client.queue(queue).stats()).totals.completed == (message.settled == "completed")
    assert recorder.count(path("ack")) + recorder.count(path("ack", "batch")) == (status is None)


async def test_failed_retry_and_dlq_do_what_they_do_elsewhere(caller: Caller, queue: str) -> None:
    for name, status in (("a", "failed"), ("b", "retry"), ("c", "dlq")):
        await push(caller, f"{queue}-{name}", name)
        [message] = await pop(caller, f"{queue}-{name}")
        delay = None if status == "dlq" else 3600
        done = await Transaction(caller).ack(message, status, error="why", delay=delay).commit()  # type: ignore[arg-type]
        assert done.results[0].dead_lettered is (status == "dlq")
        assert await pop(caller, f"{queue}-{name}") == []
        totals = (await QueueAdmin(caller, f"{queue}-{name}").stats()).totals
        assert (totals.failed, totals.dead_letter) == (int(status == "failed"), int(status == "dlq"))


async def test_a_refused_settlement_and_a_check_that_fails_refuse_all_and_say_which(caller: Caller, queue: str) -> None:
    await push(caller, queue, 1, 2)
    first, second = await pop(caller, queue)
    await settle(caller, second, "dlq")
    transaction = Transaction(caller).push(f"{queue}-out", 1).ack(first).ack(second)
    with pytest.raises(TransactionRefused) as caught:
        await transaction.commit()
    assert (caught.value.code, caught.value.index, caught.value.status) == ("dead_lettered", 2, 409)
    await KeyValue(caller).set((queue,), 1)
    transaction = Transaction(caller).push(f"{queue}-out", 1)
    transaction.kv.check((queue,), None).delete((queue,))
    with pytest.raises(TransactionRefused) as caught:
        await transaction.commit()
    assert (caught.value.code, caught.value.index) == ("check_failed", None)
    assert await pop(caller, f"{queue}-out") == []
    assert await KeyValue(caller).get((queue,)) is not None


async def test_a_required_lease_must_be_live(caller: Caller, queue: str) -> None:
    await push(caller, queue, 1)
    [message] = await pop(caller, queue)
    await Transaction(caller).require(message).push(f"{queue}-out", 1).commit()
    await settle(caller, message)
    with pytest.raises(TransactionRefused):
        await Transaction(caller).require(message.lease_id).push(f"{queue}-out", 2).commit()
    assert [one.data for one in await pop(caller, f"{queue}-out")] == [1]


async def test_a_block_commits_at_its_end_unless_it_raises(caller: Caller, queue: str) -> None:
    async with Transaction(caller) as transaction:
        transaction.push(queue, 1).queue(queue).partition("Default").push(2, priority=3)
        assert await pop(caller, queue) == []
    with pytest.raises(RuntimeError, match="no"):
        async with Transaction(caller) as transaction:
            transaction.push(queue, 3)
            raise RuntimeError("no")
    assert [one.data for one in await pop(caller, queue)] == [1, 2]


async def test_a_block_commits_nothing_empty_and_not_again_what_was_tried_in_it(
    unlucky: Caller, lossy: Recorder
) -> None:
    async with Transaction(unlucky):
        pass
    assert (await Transaction(unlucky).commit()).results == ()
    assert lossy.requests == []
    async with Transaction(unlucky) as transaction:
        transaction.kv.sum(("tried",), 1)
        with pytest.raises(ConnectionFailed):
            await transaction.commit()
    assert lossy.count(ROUTE) == 1


async def test_what_was_committed_takes_no_more(caller: Caller, queue: str) -> None:
    transaction = Transaction(caller).push(queue, 1)
    await transaction.commit()
    with pytest.raises(InvalidInput, match="already committed; start a new one"):
        transaction.push(queue, 2)
    with pytest.raises(InvalidInput, match="already committed; start a new one"):
        transaction.require("lease")
    with pytest.raises(InvalidInput, match="already committed"):
        await transaction.commit()


async def test_a_lost_reply_is_requested_again_and_doubles_nothing(
    caller: Caller, unlucky: Caller, lossy: Recorder, queue: str
) -> None:
    await push(caller, queue, 1)
    [message] = await pop(caller, queue)
    transaction = Transaction(unlucky).ack(message).push(f"{queue}-out", "a").push(f"{queue}-out", "b")
    transaction.kv.set((queue,), "done")
    done = await transaction.commit()
    assert lossy.count(ROUTE) == 2
    assert [one.status for one in done.results] == [None, "duplicate", "duplicate"]
    assert [one.data for one in await pop(caller, f"{queue}-out")] == ["a", "b"]


@pytest.mark.parametrize("what", ["failed", "require", "check", "sum", "append"])
async def test_a_lost_reply_is_an_error_where_a_second_answer_would_mean_nothing(
    caller: Caller, unlucky: Caller, lossy: Recorder, queue: str, what: str
) -> None:
    await push(caller, queue, 1)
    [message] = await pop(caller, queue)
    transaction = Transaction(unlucky).push(f"{queue}-out", 1)
    match what:
        case "failed":
            transaction.ack(message, "failed")
        case "require":
            transaction.require(message).ack(message)
        case "check":
            transaction.kv.check((queue,), None).set((queue,), 1)
        case "sum":
            transaction.kv.sum((queue,), 1)
        case "append":
            transaction.kv.append((queue,), [1])
    with pytest.raises(ConnectionFailed) as caught:
        await transaction.commit()
    assert caught.value.sent
    assert lossy.count(ROUTE) == 1
    assert len(await pop(caller, f"{queue}-out")) == 1


async def test_what_never_went_out_is_sent_again_whatever_is_in_it(caller: Caller, queue: str) -> None:
    lossy = Recorder(caller.transport, refuse=first_of(ROUTE))
    transaction = Transaction(Caller(lossy, sleep=no_sleep))
    transaction.kv.sum((queue,), 5)
    await transaction.commit()
    entry = await KeyValue(caller).get((queue,))
    assert entry is not None
    assert entry.value == 5


async def test_a_commit_without_an_answer_may_be_tried_again_with_the_same_keys(
    caller: Caller, unlucky: Caller, queue: str
) -> None:
    await push(caller, queue, 1)
    [message] = await pop(caller, queue)
    transaction = Transaction(unlucky).ack(message).require(message).push(f"{queue}-out", 1)
    with pytest.raises(ConnectionFailed):
        await transaction.commit()
    with pytest.raises(TransactionRefused):  # The lease ended with the first one.
        await transaction.commit()
    assert len(await pop(caller, f"{queue}-out")) == 1
