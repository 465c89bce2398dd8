"""Settlements: shared requests, lost answers, refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from hark.api.types.delivery import AckAnswer, AckBody, Delivered
from hark.client.builder import PopParams
from hark.client.calling import Caller, CallPolicy, ConnectionFailed
from hark.client.delivery.prefetcher import PollSource
from hark.client.delivery.settling import Settled, SettleDecision, Settler
from hark.errors import InvalidInput
from hark.model import Status
from tests.client.deliveries import configure, read, spread
from tests.client.transports import Recorder, first_of, no_sleep, path

ACK = path("ack", "batch")


@pytest.fixture
def lossy(recorder: Recorder) -> Caller:
    """Calls over the recorder, which do not pause between attempts."""
    return Caller(recorder, sleep=no_sleep)


def settler_of(caller: Caller) -> Settler:
    """A settler that does not pause between attempts."""
    return Settler(caller, sleep=no_sleep)


async def popped(caller: Caller, queue: str, number: int = 1, group: str = "g") -> list[Delivered]:
    """Push numbers, each into a partition of its own, and take them."""
    await spread(caller, queue, *range(number))
    return await taken(caller, queue, number, group)


async def taken(caller: Caller, queue: str, number: int = 1, group: str = "g") -> list[Delivered]:
    """What a shared group is given now."""
    params = PopParams(queue=queue, group=group, group_mode="shared", batch=number, partitions=number, wait=False)
    return await PollSource(caller, params).take(number)


class _Letter(msgspec.Struct, rename="camel"):
    error_message: str
    attempts: int


class _Letters(msgspec.Struct):
    messages: list[_Letter]


async def dead_letters(caller: Caller, queue: str) -> list[_Letter]:
    """The dead letters of a queue."""
    return (await read(caller, _Letters, "GET", path("dlq"), query={"queue": queue})).messages


@pytest.mark.parametrize(
    ("status", "error", "delay", "attempts", "letter"),
    [
        ("completed", None, None, [], None),
        ("failed", "no luck", 0, [2], None),
        ("failed", "no luck", 3_600_000, [], None),
        ("retry", None, None, [1], None),
        ("dlq", "broken", None, [], "broken"),
        # A text that JSON can't carry, and longer than a dead letter keeps.
        ("dlq", "odd \udc80 " + "x" * 20_000, None, [], "odd \\udc80 xxx"),
    ],
    ids=["completed", "failed", "delayed", "retry", "dlq", "odd text"],
)
async def test_a_decision_decides_whether_a_message_comes_again(
    caller: Caller,
    queue: str,
    status: Status,
    error: str | None,
    delay: int | None,
    attempts: list[int],
    letter: str | None,
) -> None:
    [message] = await popped(caller, queue)
    settled = await Settler(caller).settle(SettleDecision(message, status, error, delay))
    assert settled == Settled(True, dead_lettered=letter is not None)
    again = await taken(caller, queue)
    assert [(one.id, one.delivery_attempt) for one in again] == [(message.id, attempt) for attempt in attempts]
    texts = [one.error_message for one in await dead_letters(caller, queue)]
    assert [text.startswith(letter or "") for text in texts] == [True] * (letter is not None)
    assert letter != "broken" or texts == ["broken"]


@pytest.mark.parametrize(
    ("number", "most", "error", "requests"),
    [
        pytest.param(0, 1000, None, 0, id="nothing"),
        pytest.param(25, 10, None, 3, id="by number"),
        # Each 40,000 bytes: together they are more than one request may have.
        pytest.param(30, 1000, "\U0001f41b" * 9_999, 2, id="by bytes"),
    ],
)
async def test_many_settlements_are_cut_into_requests(
    recorder: Recorder, lossy: Caller, queue: str, number: int, most: int, error: str | None, requests: int
) -> None:
    messages = await popped(lossy, queue, number) if number else []
    settler = Settler(lossy, max_items=most, sleep=no_sleep)
    settled = await settler.settle_many([SettleDecision(message, "dlq", error) for message in messages])
    assert settled == [Settled(True, dead_lettered=True)] * number
    assert recorder.count(ACK) == requests


async def test_settlements_that_are_made_together_share_a_request_and_drain_waits_for_them(
    recorder: Recorder, lossy: Caller, queue: str
) -> None:
    messages = await popped(lossy, queue, 100)
    settler = settler_of(lossy)
    tasks = [asyncio.create_task(settler.settle(SettleDecision(message))) for message in messages]
    await asyncio.sleep(0)  # Each has said its part.
    await settler.drain()
    await asyncio.sleep(0)
    assert [task.done() for task in tasks] == [True] * 100
    assert [task.result() for task in tasks] == [Settled(True)] * 100
    assert recorder.count(ACK) == 1


async def test_each_group_has_requests_of_its_own(recorder: Recorder, lossy: Caller, queue: str) -> None:
    first = await popped(lossy, queue, 2, "a")
    second = await taken(lossy, queue, 2, "b")
    decisions = [
        SettleDecision(first[0]),
        SettleDecision(second[0], "dlq"),
        SettleDecision(first[1], "dlq"),
        SettleDecision(second[1]),
    ]
    settled = await settler_of(lossy).settle_many(decisions)
    assert [outcome.dead_lettered for outcome in settled] == [False, True, True, False]
    assert all(outcome.success for outcome in settled)
    assert recorder.count(ACK) == 2


async def test_a_stale_settlement_is_an_answer_and_its_neighbours_count(caller: Caller, queue: str) -> None:
    messages = await popped(caller, queue, 2)
    settler = Settler(caller)
    await settler.settle(SettleDecision(messages[0], "retry"))
    await taken(caller, queue)
    stale, fine = await settler.settle_many([SettleDecision(messages[0]), SettleDecision(messages[1])])
    assert (stale.success, stale.code, fine.success) == (False, "lease_invalid", True)
    assert stale.error is not None and "lease" in stale.error


@pytest.mark.parametrize("status", ["completed", "failed", "retry", "dlq"])
async def test_a_settlement_whose_answer_was_lost_is_requested_again_and_counts_once(
    recorder: Recorder, lossy: Caller, queue: str, status: Status
) -> None:
    await configure(lossy, queue, retryLimit=9, retryMaxDelay=0)
    [message] = await popped(lossy, queue)
    recorder.lose = first_of(ACK, 2)
    settled = await settler_of(lossy).settle(SettleDecision(message, status))
    assert settled == Settled(True, dead_lettered=status == "dlq")
    assert recorder.count(ACK) == 3
    again = await taken(lossy, queue)
    attempts = {"completed": [], "failed": [2], "retry": [1], "dlq": []}[status]
    assert [delivery.delivery_attempt for delivery in again] == attempts


@pytest.mark.parametrize(
    ("attempt", "delay_ms", "sent"),
    [(1, None, 1000), (2, None, 2000), (5, None, 16_000), (500, None, 2_048_000), (1, 0, None)],
)
async def test_a_rejection_carries_a_default_delay_that_grows_with_the_attempts(
    recorder: Recorder, lossy: Caller, queue: str, attempt: int, delay_ms: int | None, sent: int | None
) -> None:
    [message] = await popped(lossy, queue)
    message = msgspec.structs.replace(message, delivery_attempt=attempt)
    assert (await settler_of(lossy).settle(SettleDecision(message, "failed", "no", delay_ms))).success
    [item] = msgspec.json.decode(recorder.requests[-1].body or b"")["acknowledgments"]
    assert (item.get("defaultDelay"), item.get("delay")) == (sent, delay_ms)
    assert (await taken(lossy, queue) == []) == (sent is not None)


async def test_the_last_failure_whose_answer_was_lost_is_known_as_a_dead_letter(
    recorder: Recorder, lossy: Caller, queue: str
) -> None:
    await configure(lossy, queue, retryLimit=0)
    [message] = await popped(lossy, queue)
    recorder.lose = first_of(ACK)
    assert await settler_of(lossy).settle(SettleDecision(message, "failed")) == Settled(True, dead_lettered=True)
    assert len(await dead_letters(lossy, queue)) == 1


async def test_a_completion_whose_answer_was_lost_counts_even_if_the_message_is_gone(
    recorder: Recorder, lossy: Caller, queue: str
) -> None:
    await configure(lossy, queue, dropSettled=True)
    item = {"queue": queue, "payload": 1, "transactionId": "mine"}
    await lossy.call("POST", path("push"), body={"items": [item]})
    [message] = await taken(lossy, queue)
    recorder.lose = first_of(ACK)
    assert await settler_of(lossy).settle(SettleDecision(message)) == Settled(True)


async def test_when_every_answer_is_lost_the_caller_notices_it(recorder: Recorder, queue: str) -> None:
    caller = Caller(recorder, CallPolicy(attempts=3), sleep=no_sleep)
    [message] = await popped(caller, queue)
    recorder.lose = lambda request: request.path == ACK
    with pytest.raises(ConnectionFailed, match="lost by the test"):
        await settler_of(caller).settle(SettleDecision(message))
    assert recorder.count(ACK) == 3


async def test_a_settlement_whose_answer_was_lost_before_the_server_went_away_may_have_counted(
    recorder: Recorder, queue: str
) -> None:
    caller = Caller(recorder, CallPolicy(attempts=2), no_sleep)
    [message] = await popped(caller, queue)
    recorder.lose = first_of(ACK)
    recorder.refuse = lambda request: request.path == ACK and recorder.count(ACK) > 1
    with pytest.raises(ConnectionFailed) as failed:
        await settler_of(caller).settle(SettleDecision(message))
    assert failed.value.sent


async def test_what_the_server_can_not_read_fails_its_own_caller_only(lossy: Caller, queue: str) -> None:
    bad, fine = await popped(lossy, queue, 2)
    bad.partition_id = bad.id = ""
    settler = settler_of(lossy)
    answers = await asyncio.gather(
        settler.settle(SettleDecision(bad)), settler.settle(SettleDecision(fine)), return_exceptions=True
    )
    assert isinstance(answers[0], InvalidInput) and "transactionId" in answers[0].text
    assert answers[1] == Settled(True)


class _Socket:
    """Another road, which fails as it is told to."""

    def __init__(self, sent: bool | None) -> None:
        self.sent = sent
        self.count: list[tuple[str, int]] = []

    async def settle(self, group: str, items: Sequence[AckBody]) -> list[AckAnswer]:
        """Answer, or fail: before it was sent, or after."""
        self.count.append((group, len(items)))
        if self.sent is not None:
            raise ConnectionFailed("no road", sent=self.sent)
        return [AckAnswer(0, "", True, None, None, None, False, False) for _ in items]


@pytest.mark.parametrize(("sent", "requests"), [(None, 0), (False, 1), (True, 1)])
async def test_another_road_comes_first_and_requests_are_behind_it(
    recorder: Recorder, lossy: Caller, queue: str, sent: bool | None, requests: int
) -> None:
    messages = await popped(lossy, queue, 2)
    road = _Socket(sent)
    settler = Settler(lossy, road=road, sleep=no_sleep)
    assert await settler.settle_many([SettleDecision(message) for message in messages]) == [Settled(True)] * 2
    assert (road.count, recorder.count(ACK)) == ([("g", 2)], requests)
