"""Settlements: shared requests, lost answers, refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from hark.client.calling import Caller, CallPolicy, path
from hark.client.delivery.settling import AckAnswer, AckItem, Settled, Settler, Verdict
from hark.client.delivery.sources import Delivered, PollSource, Wish
from hark.client.transport.api import ConnectionFailed
from hark.client.transport.http import HttpTransport
from hark.errors import InvalidInput
from hark.model import Status
from tests.client.deliveries import configure, spread
from tests.client.transports import Recorder, first_of, no_sleep

ACK = path("ack", "batch")


@pytest.fixture
async def wire(url: str) -> AsyncIterator[Recorder]:
    """A transport whose losses the test decides."""
    transport = Recorder(HttpTransport(url))
    yield transport
    await transport.close()


@pytest.fixture
def lossy(wire: Recorder) -> Caller:
    """Calls over it, which do not pause between attempts."""
    return Caller(wire, sleep=no_sleep)


def settler_of(caller: Caller) -> Settler:
    """A settler that does not pause between attempts."""
    return Settler(caller, sleep=no_sleep)


async def popped(caller: Caller, queue: str, number: int = 1, group: str = "g") -> list[Delivered]:
    """Push numbers, each into a partition of its own, and take them."""
    await spread(caller, queue, *range(number))
    return await taken(caller, queue, number, group)


async def taken(caller: Caller, queue: str, number: int = 1, group: str = "g") -> list[Delivered]:
    """What a shared group is given now."""
    wish = Wish(queue=queue, group=group, group_mode="shared", batch=number, partitions=number, wait=False)
    return await PollSource(caller, wish).take(number)


class _Letter(msgspec.Struct, rename="camel"):
    error_message: str
    attempts: int


class _Letters(msgspec.Struct):
    messages: list[_Letter]


async def dead_letters(caller: Caller, queue: str) -> list[_Letter]:
    """The dead letters of a queue."""
    return (await caller.read(_Letters, "GET", path("dlq"), query={"queue": queue})).messages


async def test_what_is_completed_does_not_come_again(caller: Caller, queue: str) -> None:
    messages = await popped(caller, queue, 2)
    assert await Settler(caller).settle_many([Verdict(message) for message in messages]) == [Settled(True)] * 2
    assert await taken(caller, queue, 2) == []


async def test_what_failed_comes_again_after_the_delay_and_counts(caller: Caller, queue: str) -> None:
    [message] = await popped(caller, queue)
    assert (await Settler(caller).settle(Verdict(message, "failed", "no luck", 0))).success
    [again] = await taken(caller, queue)
    assert (again.id, again.delivery_attempt) == (message.id, 2)
    assert (await Settler(caller).settle(Verdict(again, "failed", "no luck", 3_600_000))).success
    assert await taken(caller, queue) == []


async def test_a_retry_costs_no_attempt(caller: Caller, queue: str) -> None:
    [message] = await popped(caller, queue)
    await Settler(caller).settle(Verdict(message, "retry"))
    [again] = await taken(caller, queue)
    assert again.delivery_attempt == 1


async def test_a_dead_letter_has_the_error_and_is_said_to_be_one(caller: Caller, queue: str) -> None:
    [message] = await popped(caller, queue)
    assert await Settler(caller).settle(Verdict(message, "dlq", "broken")) == Settled(True, dead_lettered=True)
    assert [letter.error_message for letter in await dead_letters(caller, queue)] == ["broken"]


async def test_an_error_text_that_json_can_not_carry_is_no_obstacle(caller: Caller, queue: str) -> None:
    [message] = await popped(caller, queue)
    assert (await Settler(caller).settle(Verdict(message, "dlq", "odd \udc80 " + "x" * 20_000))).success
    [letter] = await dead_letters(caller, queue)
    assert letter.error_message.startswith("odd \\udc80 xxx")


async def test_settlements_that_are_made_together_share_a_request(wire: Recorder, lossy: Caller, queue: str) -> None:
    messages = await popped(lossy, queue, 100)
    settler = settler_of(lossy)
    settled = await asyncio.gather(*(settler.settle(Verdict(message)) for message in messages))
    assert settled == [Settled(True)] * 100
    assert wire.asked(ACK) == 1


async def test_each_group_has_requests_of_its_own(wire: Recorder, lossy: Caller, queue: str) -> None:
    first = await popped(lossy, queue, 2, "a")
    second = await taken(lossy, queue, 2, "b")
    verdicts = [Verdict(first[0]), Verdict(second[0], "dlq"), Verdict(first[1], "dlq"), Verdict(second[1])]
    settled = await settler_of(lossy).settle_many(verdicts)
    assert [outcome.dead_lettered for outcome in settled] == [False, True, True, False]
    assert all(outcome.success for outcome in settled)
    assert wire.asked(ACK) == 2


async def test_nothing_to_settle_asks_nothing(wire: Recorder, lossy: Caller) -> None:
    assert await settler_of(lossy).settle_many([]) == []
    assert wire.requests == []


async def test_many_settlements_are_cut_into_requests_by_number(wire: Recorder, lossy: Caller, queue: str) -> None:
    messages = await popped(lossy, queue, 25)
    settler = Settler(lossy, max_items=10, sleep=no_sleep)
    settled = await settler.settle_many([Verdict(message) for message in messages])
    assert settled == [Settled(True)] * 25
    assert wire.asked(ACK) == 3


async def test_long_errors_are_cut_into_requests_by_bytes(wire: Recorder, lossy: Caller, queue: str) -> None:
    messages = await popped(lossy, queue, 30)
    # Each 40,000 bytes: together they are more than one request may have.
    settled = await settler_of(lossy).settle_many(
        [Verdict(message, "dlq", "\U0001f41b" * 9_999) for message in messages]
    )
    assert all(outcome.success for outcome in settled)
    assert wire.asked(ACK) == 2


async def test_a_stale_settlement_is_an_answer_and_its_neighbours_count(caller: Caller, queue: str) -> None:
    messages = await popped(caller, queue, 2)
    settler = Settler(caller)
    await settler.settle(Verdict(messages[0], "retry"))
    await taken(caller, queue)
    stale, fine = await settler.settle_many([Verdict(messages[0]), Verdict(messages[1])])
    assert (stale.success, stale.code, fine.success) == (False, "lease_invalid", True)
    assert stale.error is not None and "lease" in stale.error


@pytest.mark.parametrize("status", ["completed", "failed", "retry", "dlq"])
async def test_a_settlement_whose_answer_was_lost_is_asked_again_and_counts_once(
    wire: Recorder, lossy: Caller, queue: str, status: Status
) -> None:
    await configure(lossy, queue, retryLimit=9)
    [message] = await popped(lossy, queue)
    wire.lose = first_of(ACK, 2)
    settled = await settler_of(lossy).settle(Verdict(message, status))
    assert settled == Settled(True, dead_lettered=status == "dlq")
    assert wire.asked(ACK) == 3
    again = await taken(lossy, queue)
    attempts = {"completed": [], "failed": [2], "retry": [1], "dlq": []}[status]
    assert [delivery.delivery_attempt for delivery in again] == attempts


async def test_the_last_failure_whose_answer_was_lost_is_known_as_a_dead_letter(
    wire: Recorder, lossy: Caller, queue: str
) -> None:
    await configure(lossy, queue, retryLimit=0)
    [message] = await popped(lossy, queue)
    wire.lose = first_of(ACK)
    assert await settler_of(lossy).settle(Verdict(message, "failed")) == Settled(True, dead_lettered=True)
    assert len(await dead_letters(lossy, queue)) == 1


async def test_a_completion_whose_answer_was_lost_counts_even_if_the_message_is_gone(
    wire: Recorder, lossy: Caller, queue: str
) -> None:
    await configure(lossy, queue, dropSettled=True)
    item = {"queue": queue, "payload": 1, "transactionId": "mine"}
    await lossy.call("POST", path("push"), body={"items": [item]})
    [message] = await taken(lossy, queue)
    wire.lose = first_of(ACK)
    assert await settler_of(lossy).settle(Verdict(message)) == Settled(True)


async def test_when_every_answer_is_lost_the_caller_hears_of_it(wire: Recorder, queue: str) -> None:
    caller = Caller(wire, CallPolicy(attempts=3), sleep=no_sleep)
    [message] = await popped(caller, queue)
    wire.lose = lambda request: request.path == ACK
    with pytest.raises(ConnectionFailed, match="lost by the test"):
        await settler_of(caller).settle(Verdict(message))
    assert wire.asked(ACK) == 3


async def test_drain_waits_for_what_is_on_its_way(lossy: Caller, queue: str) -> None:
    messages = await popped(lossy, queue, 3)
    settler = settler_of(lossy)
    tasks = [asyncio.create_task(settler.settle(Verdict(message))) for message in messages]
    await asyncio.sleep(0)  # Each has said its part.
    await settler.drain()
    await asyncio.sleep(0)
    assert [task.done() for task in tasks] == [True] * 3


async def test_what_the_server_can_not_read_fails_its_own_caller_only(lossy: Caller, queue: str) -> None:
    bad, fine = await popped(lossy, queue, 2)
    bad.partition_id = bad.id = ""
    settler = settler_of(lossy)
    answers = await asyncio.gather(settler.settle(Verdict(bad)), settler.settle(Verdict(fine)), return_exceptions=True)
    assert isinstance(answers[0], InvalidInput) and "transactionId" in answers[0].text
    assert answers[1] == Settled(True)


class _Socket:
    """Another road, which fails as it is told to."""

    def __init__(self, sent: bool | None) -> None:
        self.sent = sent
        self.asked: list[tuple[str, int]] = []

    async def settle(self, group: str, items: Sequence[AckItem]) -> list[AckAnswer]:
        """Answer, or fail: before it was sent, or after."""
        self.asked.append((group, len(items)))
        if self.sent is not None:
            raise ConnectionFailed("no road", sent=self.sent)
        return [AckAnswer(True) for _ in items]


@pytest.mark.parametrize(("sent", "requests"), [(None, 0), (False, 1), (True, 1)])
async def test_another_road_comes_first_and_requests_are_behind_it(
    wire: Recorder, lossy: Caller, queue: str, sent: bool | None, requests: int
) -> None:
    messages = await popped(lossy, queue, 2)
    road = _Socket(sent)
    settler = Settler(lossy, road=road, sleep=no_sleep)
    assert await settler.settle_many([Verdict(message) for message in messages]) == [Settled(True)] * 2
    assert (road.asked, wire.asked(ACK)) == ([("g", 2)], requests)
