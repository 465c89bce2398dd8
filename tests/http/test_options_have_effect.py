"""Every option of a queue and of a message does what its name says.

Where time has to pass, the test waits for what time brings (a long poll that ends with the message), never for time.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from time import monotonic

import pytest

from tests.http.api import WAIT, Api, Json, data, read, refusal


class TestLeases:
    """leaseTime."""

    def test_lease_time_is_how_long_a_lease_lasts(self, api: Api, queue: str) -> None:
        ends = []
        for seconds in (100, 1000):
            api.configure(queue, leaseTime=seconds)
            api.push(queue, 1)
            message = api.pop_one(queue)
            ends.append(datetime.fromisoformat(api.show(message)["leaseExpiresAt"]))
            api.ack(message)
        assert timedelta(seconds=899) < ends[1] - ends[0] < timedelta(seconds=960)

    def test_a_message_comes_again_when_its_lease_is_over(self, api: Api, queue: str) -> None:
        api.configure(queue, leaseTime=1)
        api.push(queue, 1)
        first = api.pop_one(queue)
        again = api.pop_one(queue, **WAIT)
        assert (again["id"], again["deliveryAttempt"]) == (first["id"], 2)
        assert api.ack(first)["success"] is False
        assert api.ack(again)["success"] is True


class TestRetries:
    """retryLimit, retryDelay, retryMultiplier, retryMaxDelay, and a message's own backoffSchedule."""

    @pytest.mark.parametrize("limit", [0, 2])
    def test_retry_limit_is_the_number_of_retries(self, api: Api, queue: str, limit: int) -> None:
        api.configure(queue, retryLimit=limit)
        api.push(queue, 1)
        died = [api.ack(api.pop_one(queue), "failed")["dlq"] for _ in range(limit + 1)]
        assert died == [False] * limit + [True]
        [letter] = api.dead_letters(queue)
        assert (letter["attempts"], letter["retryCount"]) == (limit + 1, limit)

    def fail_and_wait(self, api: Api, queue: str, message: Json) -> tuple[Json, float]:
        """Fail a message; its next delivery, and how many seconds later that came."""
        start = monotonic()
        assert api.ack(message, "failed")["success"]
        return api.pop_one(queue, **WAIT), monotonic() - start

    def test_retry_delay_is_waited_for(self, api: Api, queue: str) -> None:
        api.configure(queue, retryDelay=300)
        api.push(queue, 1)
        message = api.pop_one(queue)
        start = monotonic()
        api.ack(message, "failed")
        assert api.pop(queue) == []
        assert api.pop_one(queue, **WAIT)["id"] == message["id"]
        assert monotonic() - start >= 0.3

    def test_retry_multiplier_makes_each_delay_longer(self, api: Api, queue: str) -> None:
        api.configure(queue, retryDelay=100, retryMultiplier=4)
        api.push(queue, 1)
        message, first = self.fail_and_wait(api, queue, api.pop_one(queue))
        _, second = self.fail_and_wait(api, queue, message)
        assert first >= 0.1
        assert second >= 0.4

    def test_retry_max_delay_bounds_it(self, api: Api, queue: str) -> None:
        api.configure(queue, retryDelay=1, retryMultiplier=1000, retryMaxDelay=200)
        api.push(queue, 1)
        message = api.pop_one(queue)
        for _ in range(3):
            message, seconds = self.fail_and_wait(api, queue, message)
        assert 0.2 <= seconds < 15, "without the bound it would be 1000 s"

    def test_a_message_brings_its_own_schedule(self, api: Api, queue: str) -> None:
        api.configure(queue, retryLimit=0)
        api.push(queue, 1, backoffSchedule=[0, 200])
        message, _ = self.fail_and_wait(api, queue, api.pop_one(queue))
        message, seconds = self.fail_and_wait(api, queue, message)
        assert seconds >= 0.2
        assert api.ack(message, "failed")["dlq"] is True


class TestDeadLetters:
    """deadLetterQueue, dlqAfterMaxRetries, and a message's own keysIfUndelivered."""

    def test_without_a_dead_letter_queue_nothing_is_kept(self, api: Api, queue: str) -> None:
        api.configure(queue, deadLetterQueue=False)
        api.push(queue, 1)
        result = api.ack(api.pop_one(queue), "dlq")
        assert (result["success"], result["dlq"]) == (True, False)
        assert api.dead_letters(queue) == []
        assert read(api.get(f"/resources/queues/{queue}"))["discarded"] == 1
        assert api.pop(queue) == []

    def test_exhausted_messages_can_be_discarded_while_dlq_is_kept(self, api: Api, queue: str) -> None:
        api.configure(queue, dlqAfterMaxRetries=False, retryLimit=0)
        api.push(queue, "exhausted", "sent")
        assert api.ack(api.pop_one(queue), "failed")["dlq"] is False
        assert api.ack(api.pop_one(queue), "dlq")["dlq"] is True
        assert data(api.dead_letters(queue)) == ["sent"]
        assert read(api.get(f"/resources/queues/{queue}"))["discarded"] == 1

    def test_keys_if_undelivered_get_the_payload(self, api: Api, queue: str) -> None:
        api.push(queue, {"n": 1}, keysIfUndelivered=[[queue, "one"], [queue, "other"]])
        keys = [f"/keyval/api/keys/{queue}/{name}" for name in ("one", "other")]
        assert [api.client.get(key).status_code for key in keys] == [404, 404]
        api.ack(api.pop_one(queue), "dlq")
        assert [read(api.client.get(key))["value"] for key in keys] == [{"n": 1}, {"n": 1}]


class TestDelays:
    """delayedProcessing, windowBuffer, and a message's own delay and deliverAt."""

    def test_delayed_processing_is_the_least_age(self, api: Api, queue: str) -> None:
        api.configure(queue, delayedProcessing=1)
        start = monotonic()
        api.push(queue, 1)
        assert api.pop(queue) == []
        assert api.pop_one(queue, **WAIT)["data"] == 1
        assert monotonic() - start >= 1

    def test_window_buffer_waits_for_a_pause_of_the_pushes(self, api: Api, queue: str) -> None:
        api.configure(queue, windowBuffer=1)
        api.push(queue, 1)
        start = monotonic()
        api.push(queue, 2)
        assert api.pop(queue, batch=10) == []
        messages = api.pop(queue, batch=10, **WAIT)
        assert data(messages) == [1, 2]
        assert monotonic() - start >= 1

    def test_delay_of_a_message(self, api: Api, queue: str) -> None:
        start = monotonic()
        api.push(queue, 1, delay=300)
        assert api.pop(queue) == []
        assert api.pop_one(queue, **WAIT)["data"] == 1
        assert monotonic() - start >= 0.3

    def test_deliver_at_of_a_message(self, api: Api, queue: str) -> None:
        api.push(queue, "look")
        created = datetime.fromisoformat(api.pop_one(queue, autoAck=True)["createdAt"])
        api.push(queue, "later", deliverAt=(created + timedelta(seconds=1)).isoformat())
        assert api.pop(queue) == []
        assert api.pop_one(queue, **WAIT)["data"] == "later"
        api.push(queue, "past", partition="p", deliverAt="2020-01-01T00:00:00Z")
        assert data(api.pop(queue, "p")) == ["past"]


class TestExpiry:
    """ttl of a queue and of a message."""

    def test_a_message_beyond_its_time_to_live_is_not_delivered_but_counted(self, api: Api, queue: str) -> None:
        api.push(queue, "short", ttl=100)
        api.push(queue, "long")
        api.let_pass(queue, 150)
        assert data(api.pop(queue, batch=10)) == ["long"]
        assert read(api.get(f"/resources/queues/{queue}"))["expired"] == 1

    def test_a_queue_has_a_time_to_live_for_all(self, api: Api, queue: str) -> None:
        api.configure(queue, ttl=1)
        api.push(queue, 1)
        api.let_pass(queue, 1100)
        assert api.pop(queue) == []
        assert read(api.get(f"/resources/queues/{queue}"))["expired"] == 1


def test_priority_decides_between_queues(api: Api, queue: str) -> None:
    for name, priority in (("low", 1), ("high", 9), ("mid", 5)):
        body = {"queue": f"{queue}-{name}", "namespace": queue, "options": {"priority": priority}}
        read(api.post("/configure", body))
        api.push(f"{queue}-{name}", name)
    taken = [read(api.get("/pop", namespace=queue))["messages"][0]["data"] for _ in range(3)]
    assert taken == ["high", "mid", "low"]


def test_max_size_counts_what_the_slowest_group_has_not_done(api: Api, queue: str) -> None:
    api.configure(queue, maxSize=2)
    api.push(queue, 1, 2)
    assert refusal(api.post("/push", {"items": [{"queue": queue}]}), 429, "queue_full")
    api.ack(api.pop_one(queue))
    api.push(queue, 3)
    assert refusal(api.post("/push", {"items": [{"queue": queue}]}), 429, "queue_full")
    operations = [{"type": "push", "queue": queue}]
    answer = api.transact(*operations)
    assert (answer["success"], answer["code"]) == (False, "queue_full")
    api.configure(queue, maxSize=0)
    api.push(queue, 4)


@pytest.mark.parametrize("mode", ["ordered", "shared"])
def test_drop_settled_removes_what_the_only_group_has_settled(api: Api, queue: str, mode: str) -> None:
    api.configure(queue, dropSettled=True)
    api.push(queue, 1, 2)
    first, second = api.pop(queue, batch=2, groupMode=mode)
    api.ack(first)
    left = read(api.get("/messages", queue=queue))["messages"]
    assert [message["id"] for message in left] == [second["id"]]
    assert read(api.get(f"/resources/queues/{queue}"))["totals"]["total"] == 1
    assert data(api.pop(queue, batch=10, consumerGroup="late")) == [2]


def test_drop_settled_keeps_what_another_group_has_not_settled(api: Api, queue: str) -> None:
    api.configure(queue, dropSettled=True)
    api.push(queue, 1, 2)
    api.pop(queue, consumerGroup="slow")
    for message in api.pop(queue, batch=2, consumerGroup="fast"):
        api.ack(message)
    assert len(read(api.get("/messages", queue=queue))["messages"]) == 2
