"""Rules 18 and 19: dead letters and what brings them back."""

from __future__ import annotations

import asyncio

import pytest

from hark.broker import upkeep
from hark.broker.upkeep import remove_dead_letters
from hark.clock import FakeClock
from hark.engine import hints
from hark.engine.api import Engine
from hark.errors import HarkError, InvalidInput, NotFound
from hark.model import DeadLetterFilter, GroupMode, NewDeadLetter, NewMessage

from .driver import NEVER_GIVEN, Driver, message, offsets, payloads, settlement
from .workers import Workers, attempts


async def test_rule_18_a_dead_letter_is_a_copy_of_everything(q: Driver, either: Workers) -> None:
    created = q.clock.now()
    await q.push("orders", "p1", {"n": 1}, transaction_id="t1", trace_id="trace-1", producer="me", backoff_ms=(5000,))
    await q.fail((await either.take())[0], "first")
    q.clock.advance(5)
    [leased] = await either.take()
    await q.fail(leased, "second")
    [letter] = await q.dead_letters()
    assert (letter.message_id, letter.partition_id) == (leased.message.id, leased.message.partition_id)
    assert letter.transaction_id == "t1"
    assert (letter.queue, letter.partition, letter.group) == ("orders", "p1", "workers")
    assert (bytes(letter.payload), letter.producer, letter.trace_id) == (b'{"n":1}', "me", "trace-1")
    assert (letter.attempts, letter.error) == (2, "second")
    assert (letter.created_at, letter.failed_at) == (created, q.clock.now())
    [listed] = (await q.engine.dead_letters(DeadLetterFilter(payloads=False))).items
    assert bytes(listed.payload) == b"null", "without payloads where they are not wanted"
    assert (listed.id, listed.message_id, listed.trace_id) == (letter.id, letter.message_id, "trace-1")


async def test_rule_18_a_dead_letter_settles_the_message_for_its_group_only(q: Driver, either: Workers) -> None:
    await q.push("orders", "p1", 1, 2)
    others = Workers(q, group="others", mode=either.mode)
    dead = ["workers"]
    for group in (either, others):
        await group.take_and_kill()
        assert (await group.stats()).lag == 1
        assert await group.drain() == [2]
        assert sorted(one.group for one in await q.dead_letters()) == sorted(dead)
        dead.append("others")
    assert [one.group for one in await q.dead_letters(group="workers")] == ["workers"]


async def test_rule_18_exactly_once(q: Driver, either: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await either.take(3)
    await q.settle(settlement(got[0], "dlq"), settlement(got[0], "dlq"))
    await q.settle(settlement(got[0], "dlq"))
    await q.fail(got[0])
    assert len(await q.dead_letters()) == 1
    await asyncio.gather(*(q.kill(got[1]) for _ in range(10)))
    assert len(await q.dead_letters()) == 2


async def test_rule_18_deleting_or_purging_messages_never_removes_dead_letters(
    q: Driver, either: Workers, engine: Engine
) -> None:
    await q.push("orders", "p1", 1, 2)
    letter = await either.take_and_kill()
    await engine.delete_messages([letter.message_id])
    await engine.purge("orders")
    [kept] = await q.dead_letters("orders")
    assert bytes(kept.payload) == b"1"
    await q.requeue(kept)
    assert await either.drain() == [1]


async def test_rule_18_what_is_deleted_as_it_dies_is_a_dead_letter(q: Driver, engine: Engine, clock: FakeClock) -> None:
    """The lease ended first: whoever deletes the message is the one who notices."""
    await q.configure("orders", lease_time=10, retry_limit=0)
    await q.push("orders", "p1", 1)
    [leased] = await q.pop("orders")
    clock.advance(10)
    assert await engine.delete_messages([leased.message.id]) == [True]
    assert [bytes(one.payload) for one in await q.dead_letters("orders")] == [b"1"]


async def test_rule_18_a_death_and_a_deletion_in_one_commit_leave_the_dead_letter(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1)
    [leased] = await q.pop("orders")
    dead, deleted = await asyncio.gather(q.kill(leased), engine.delete_messages([leased.message.id]))
    assert deleted == [True]
    assert len(await q.dead_letters("orders")) == int(dead.success)


async def test_rule_23_dead_letters_are_removed_when_their_own_retention_is_over(
    q: Driver, engine: Engine, clock: FakeClock
) -> None:
    for queue, kept in (("orders", 10), ("bills", 0)):
        await q.configure(queue, retry_limit=0, dead_letter_retention_seconds=kept)
        await q.push(queue, "p", 1)
        [leased] = await q.pop(queue)
        await q.kill(leased)
    clock.advance(9)
    assert await remove_dead_letters(engine, clock.now()) == 0
    clock.advance(1)
    assert await remove_dead_letters(engine, clock.now()) == 1
    assert [one.queue for one in await q.dead_letters()] == ["bills"]


async def test_rule_23_dead_letters_are_removed_in_bounded_steps(
    q: Driver, engine: Engine, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await q.configure("orders", dead_letter_retention_seconds=10)
    await q.push("orders", "p", *range(5))
    await q.settle(*(settlement(one, "dlq") for one in await q.pop("orders", batch=5)))
    clock.advance(10)
    steps: list[int] = []
    delete = engine.delete_dead_letters

    async def noted(where: DeadLetterFilter, limit: int | None = None) -> int:
        steps.append(await delete(where, limit))
        return steps[-1]

    monkeypatch.setattr(engine, "delete_dead_letters", noted)
    monkeypatch.setattr(upkeep, "DEAD_LETTERS_AT_ONCE", 2)
    assert await remove_dead_letters(engine, clock.now()) == 5
    assert steps == [2, 2, 1, 0]


async def test_rule_18_retention_never_removes_dead_letters(q: Driver, either: Workers, clock: FakeClock) -> None:
    await q.configure("orders", retention_enabled=True, retention_seconds=60)
    await q.push("orders", "p1", 1)
    await either.take_and_kill()
    clock.advance(100 * 86400)
    assert await q.collect() == 1
    assert [bytes(one.payload) for one in await q.dead_letters("orders")] == [b"1"]


@pytest.mark.parametrize("kept", [False, True])
async def test_rule_18_an_exhausted_message_may_be_discarded_and_is_counted(
    q: Driver, either: Workers, kept: bool
) -> None:
    """One that its consumer sends to the dead letters is kept where only exhausted ones are discarded."""
    await q.configure("orders", retry_limit=0, dead_letter_queue=kept, dlq_after_max_retries=not kept)
    await q.push("orders", "p1", 1, 2, 3)
    [leased] = await either.take()
    outcome = await q.fail(leased)
    assert (outcome.success, outcome.dead_lettered) == (True, False)
    assert await q.dead_letters("orders") == []
    assert (await q.stats("orders")).discarded == 1
    [leased] = await either.take()
    outcome = await q.kill(leased)
    assert (leased.payload, outcome.success, outcome.dead_lettered) == (2, True, kept)
    assert len(await q.dead_letters("orders")) == int(kept)
    assert payloads(await either.take()) == [3]


async def test_rule_26_a_message_whose_payload_can_not_be_read_is_kept_where_others_are_discarded(
    q: Driver, either: Workers
) -> None:
    await q.configure("orders", dead_letter_queue=False, dlq_after_max_retries=False)
    await q.push("orders", "p1", 1, 2)
    [leased] = await either.take()
    item = settlement(leased, "dlq", "payload_corrupt: its bytes changed")
    item.damaged = True
    [outcome] = await q.settle(item)
    assert (outcome.success, outcome.dead_lettered) == (True, True)
    [letter] = await q.dead_letters("orders")
    assert (letter.error, letter.attempts, bytes(letter.payload)) == (item.error, 1, b"1")
    assert (await q.stats("orders")).discarded == 0
    assert payloads(await either.take()) == [2]


async def test_rule_18_a_discarding_queue_counts_expired_leases_too(q: Driver, either: Workers) -> None:
    await q.configure("orders", retry_limit=0, lease_time=10, dead_letter_queue=False)
    await q.push_messages(*(message("orders", name, 1) for name in ("p1", "p2")))
    await either.take(2, partitions=2)
    q.clock.advance(10)
    assert await either.take() == []
    assert await q.dead_letters() == []
    assert (await q.stats("orders")).discarded == 2


# Looking at them and removing them -------------------------------------------------------------------------


async def test_dead_letters_are_listed_newest_first_and_filtered(q: Driver, engine: Engine, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, 2)
    await q.push("bills", "p9", 3)
    start = clock.now()
    for name in ("orders", "bills", "orders"):
        await Workers(q, name).take_and_kill()
        clock.advance(10)

    async def found(where: DeadLetterFilter) -> tuple[list[bytes], int]:
        page = await engine.dead_letters(where)
        return [bytes(one.payload) for one in page.items], page.total

    assert await found(DeadLetterFilter()) == ([b"2", b"3", b"1"], 3)
    assert await found(DeadLetterFilter(limit=1)) == ([b"2"], 3)
    assert await found(DeadLetterFilter(limit=2, offset=1)) == ([b"3", b"1"], 3)
    assert await found(DeadLetterFilter(queue="orders")) == ([b"2", b"1"], 2)
    assert await found(DeadLetterFilter(partition="p9")) == ([b"3"], 1)
    assert await found(DeadLetterFilter(group="other")) == ([], 0)
    assert await found(DeadLetterFilter(since=start + 5_000_000, until=start + 15_000_000)) == ([b"3"], 1)
    [newest] = (await engine.dead_letters(DeadLetterFilter(limit=1))).items
    assert await found(DeadLetterFilter(ids=[newest.id])) == ([b"2"], 1)
    assert await found(DeadLetterFilter(ids=[newest.message_id])) == ([b"2"], 1)
    assert await found(DeadLetterFilter(ids=[NEVER_GIVEN])) == ([], 0)


async def test_dead_letters_that_are_too_large_together_are_not_read(
    q: Driver, workers: Workers, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await q.push("orders", "p1", *["x" * 998] * 3)
    for leased in await workers.take(3):
        await q.kill(leased)
    monkeypatch.setattr(hints, "CALL_BYTES", 2000)
    with pytest.raises(
        InvalidInput, match="the values of this page have 3000 bytes, over the limit of 2000;"
    ) as caught:
        await engine.dead_letters(DeadLetterFilter())
    assert caught.value.code == "batch_too_large"
    assert len((await engine.dead_letters(DeadLetterFilter(payloads=False))).items) == 3
    assert len((await engine.dead_letters(DeadLetterFilter(limit=2))).items) == 2
    monkeypatch.setattr(hints, "CALL_BYTES", 1)
    assert len((await engine.dead_letters(DeadLetterFilter(limit=1))).items) == 1, "one is never too large"


async def test_dead_letters_are_found_by_what_their_error_says(q: Driver, workers: Workers, engine: Engine) -> None:
    errors = ["Timeout of the bank", "timeout: 5 s", "100% wrong_", "ÄRGER", "100 wrong"]
    await q.push("orders", "p1", *range(len(errors)))
    for error in errors:
        await workers.take_and_kill(error)

    async def found(search: str) -> list[str]:
        return [one.error for one in (await engine.dead_letters(DeadLetterFilter(search=search))).items]

    assert await found("timeout") == ["timeout: 5 s", "Timeout of the bank"]
    assert await found("TIMEOUT: ") == ["timeout: 5 s"]
    assert await found("0% wrong_") == ["100% wrong_"], "no character means another"
    assert await found("ärger") == [], "only letters of ASCII are the same in both sizes"
    assert await found("Ärger") == ["ÄRGER"]
    assert await found("nothing like it") == []
    assert await engine.delete_dead_letters(DeadLetterFilter(search="TimeOut")) == 2
    assert len(await q.dead_letters()) == 3


async def test_dead_letters_are_found_and_removed_by_ids_of_both_kinds_or_by_queue(
    q: Driver, workers: Workers, engine: Engine
) -> None:
    await q.push("orders", "p1", 1, 2, 3, 4)
    await q.push("bills", "p1", 5)
    one, _, three, _ = [await workers.take_and_kill() for _ in range(4)]
    await Workers(q, "bills").take_and_kill()
    ids = [three.id, one.message_id, NEVER_GIVEN, "no id", ""]
    page = await engine.dead_letters(DeadLetterFilter(ids=ids))
    assert ([letter.id for letter in page.items], page.total) == ([three.id, one.id], 2)
    for where in (DeadLetterFilter(ids=[]), DeadLetterFilter(ids=ids, queue="bills")):
        assert (await engine.dead_letters(where)).total == 0
    assert await engine.delete_dead_letters(DeadLetterFilter(ids=[one.id])) == 1
    assert await engine.delete_dead_letters(DeadLetterFilter(ids=ids)) == 1
    assert await engine.delete_dead_letters(DeadLetterFilter(queue="orders", limit=1)) == 2, "limit does not apply"
    assert [letter.queue for letter in await q.dead_letters()] == ["bills"]


async def test_rule_19_requeue_puts_it_in_front_for_its_group_only(q: Driver, either: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    letter = await either.take_and_kill()
    modes: list[GroupMode] = ["ordered", "shared"]
    before, late = [[Workers(q, group=f"{name} {mode}", mode=mode) for mode in modes] for name in ("before", "late")]
    for group in before:
        assert payloads(await group.take(auto_ack=True)) == [1]
    new_id = await q.requeue(letter)
    assert new_id != letter.message_id
    got = await either.take(10)
    assert payloads(got) == [1, 2, 3]
    assert (got[0].message.id, got[0].message.attempt) == (new_id, 1)
    for group in before:
        assert (await group.drain(), (await group.stats()).lag) == ([2, 3], 0)
    for group in late:
        assert await group.drain() == [1, 2, 3], "a later group does not see it either"


async def test_rule_19_the_dead_letter_is_gone_and_a_second_requeue_finds_nothing(
    q: Driver, either: Workers, engine: Engine
) -> None:
    await q.push("orders", "p1", 1, 2)
    letter = await either.take_and_kill()
    first, *others = await engine.requeue([letter.id, letter.id, NEVER_GIVEN, "no id"])
    others += await engine.requeue([letter.id])
    assert isinstance(first, str)
    assert [type(one) for one in others] == [NotFound] * 4
    assert await q.dead_letters() == []
    assert payloads(await either.take(auto_ack=True)) == [1]
    letter = await either.take_and_kill()
    answers = [one for [one] in await asyncio.gather(*(engine.requeue([letter.id]) for _ in range(10)))]
    assert sorted(type(one).__name__ for one in answers) == ["NotFound"] * 9 + ["str"], "of racing requeues one wins"
    assert await either.drain() == [2]
    assert await q.dead_letters() == []


async def test_rule_19_attempts_start_again_and_options_are_kept(q: Driver, either: Workers) -> None:
    """But a delay is over."""
    await q.push(
        "orders", "p1", {"n": 1}, backoff_ms=(1000,), priority=7, trace_id="trace-1", producer="me", delay_ms=5000
    )
    for seconds in (5, 1):
        q.clock.advance(seconds)
        await q.fail((await either.take())[0])
    [letter] = await q.dead_letters()
    await q.requeue(letter)
    [leased] = await either.take()
    assert (leased.payload, leased.message.attempt, leased.message.priority) == ({"n": 1}, 1, 7)
    assert (leased.message.trace_id, leased.message.producer) == ("trace-1", "me")
    assert not (await q.fail(leased)).dead_lettered
    assert await either.take() == [], "its own backoff again"
    q.clock.advance(1)
    [leased] = await either.take()
    assert (leased.message.attempt, (await q.fail(leased)).dead_lettered) == (2, True)
    assert [letter.attempts for letter in await q.dead_letters()] == [2]


async def test_rule_19_a_requeued_message_with_a_transaction_id_can_be_settled(q: Driver, either: Workers) -> None:
    await q.push("orders", "p1", 1, 2)
    await q.push("orders", "p1", 3, transaction_id="t3")
    await q.ack_all(await either.take(2))
    new_id = await q.requeue(await either.take_and_kill())
    [leased] = await either.take()
    assert (leased.payload, leased.message.id) == (3, new_id)
    assert (await q.ack(leased)).success
    assert await either.take() == []
    assert (await either.position()).lag == 0


async def test_rule_19_a_requeued_message_waits_for_the_open_lease_but_for_no_retry(q: Driver) -> None:
    await q.configure("orders", retry_delay=60_000)
    await q.push("orders", "p1", 1, 2, 3)
    ordered = Workers(q, mode="ordered")
    letter = await ordered.take_and_kill()
    [leased] = await ordered.take()
    await q.requeue(letter)
    assert await ordered.take() == []
    await q.fail(leased)
    assert payloads(await ordered.take(10)) == [1]


async def test_rule_19_several_come_back_in_order_with_what_follows(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1, 2, 3, 4)
    ordered = Workers(q, mode="ordered")
    letters = [await ordered.take_and_kill() for _ in range(2)]
    await engine.requeue([one.id for one in letters])
    got = await ordered.take(3)
    assert payloads(got) == [1, 2, 3]
    await q.ack_all(got[:2])
    await q.fail(got[2])
    assert attempts(await ordered.take(10)) == [(3, 2), (4, 1)]


async def test_rule_19_a_requeued_message_that_dies_again_is_a_dead_letter_again(q: Driver, either: Workers) -> None:
    await q.push("orders", "p1", 1, 2)
    letter = await either.take_and_kill()
    await q.requeue(letter)
    again = await either.take_and_kill()
    assert bytes(again.payload) == b"1"
    assert again.message_id != letter.message_id
    await q.requeue(again)
    assert await either.drain() == [1, 2]


async def test_rule_19_pushes_after_a_requeue_keep_their_order(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2)
    await q.requeue(await Workers(q, group="g", mode="ordered").take_and_kill())
    await q.push("orders", "p1", 3, 4)
    for group in ("g", "h"):
        got = await q.pop("orders", group=group, batch=10)
        assert payloads(got) == [1, 2, 3, 4]
        ordinary = [one for one in got if not (group == "g" and one.payload == 1)]
        assert offsets(ordinary) == sorted(offsets(ordinary))
        await q.ack_all(got)
        assert (await q.position("orders", "p1", group)).lag == 0


async def test_rule_19_a_death_after_a_seek_back_is_a_new_dead_letter(q: Driver, either: Workers) -> None:
    await q.push("orders", "p1", 1)
    await either.take_and_kill("once")
    await q.seek("orders", group="workers", offset=1)
    await either.take_and_kill("twice")
    assert "twice" in [one.error for one in await q.dead_letters("orders")]


async def test_rule_19_a_requeued_message_that_kills_its_consumers_dies_alone(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", retry_limit=1, lease_time=10)
    await q.push("orders", "p1", 1, 2)
    for _ in range(2):
        [leased] = await q.pop("orders")
        await q.kill(leased)
    for letter in reversed(await q.dead_letters()):
        await q.requeue(letter)
    assert payloads(await q.pop("orders", batch=2)) == [1, 2]
    clock.advance(10)
    for _ in range(2):  # The batch cost no attempt; each delivery of one does.
        assert payloads(await q.pop("orders", batch=2)) == [1]
        clock.advance(10)
    assert payloads(await q.pop("orders", batch=2)) == [2]
    assert [letter.attempts for letter in await q.dead_letters()] == [2]


# Shared groups: in front of everything, by priority --------------------------------------------------------


async def test_rule_19_a_requeued_message_goes_before_everything(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", "dead")
    letter = await workers.take_and_kill()
    await q.push("orders", "p1", "retried")
    [leased] = await workers.take()
    await q.retry(leased)
    await q.push("orders", "p1", "high", priority=9)
    q.clock.advance(1)
    new_id = await q.requeue(letter)
    got = await workers.take(10)
    assert payloads(got) == ["dead", "high", "retried"]
    assert (got[0].message.id, got[0].message.attempt) == (new_id, 1)
    await q.fail(got[0], delay_ms=1000)
    await q.engine.release([got.lease])
    got = await workers.take(10)
    assert payloads(got) == ["high", "retried"]
    await q.engine.release([got.lease])
    q.clock.advance(1)
    assert attempts(await workers.take(10)) == [("dead", 2), ("high", 1), ("retried", 1)], "in front also after a wait"


async def test_rule_19_several_requeued_ones_by_priority_then_in_the_order_of_their_requeue(
    q: Driver, workers: Workers, engine: Engine
) -> None:
    await q.push_messages(*(message("orders", "p1", n, priority=int(n == 3)) for n in (1, 2, 3, 4)))
    letters = [await workers.take_and_kill() for _ in range(3)]
    await engine.requeue([one.id for one in letters if bytes(one.payload) != b"3"])
    await engine.requeue([one.id for one in letters if bytes(one.payload) == b"3"])
    assert payloads(await workers.take(10)) == [3, 1, 2, 4]


async def test_rule_19_a_requeued_message_can_be_settled_like_any_other(q: Driver, workers: Workers) -> None:
    await q.configure("orders", lease_time=10)
    await q.push("orders", "p1", 1, 2, 3)
    for letter in [await workers.take_and_kill() for _ in range(3)]:
        await q.requeue(letter)
    assert attempts(await workers.take(10)) == [(1, 1), (2, 1), (3, 1)]
    q.clock.advance(10)
    got = await workers.take(10)
    assert attempts(got) == [(1, 2), (2, 2), (3, 2)]
    await q.engine.release([got.lease])
    got = await workers.take(10)
    await q.ack(got[1])
    await q.retry(got[0])
    assert (await q.kill(got[2])).dead_lettered
    assert await workers.drain() == [1]
    assert ((await workers.stats()).lag, len(await q.dead_letters())) == (0, 1)


# Dead letters of other stores -------------------------------------------------------------------------------


def imported(number: int, partition: str = "p1", queue: str = "orders", **fields: object) -> NewDeadLetter:
    """A dead letter of another store."""
    options = NewMessage(
        queue,
        partition,
        b'{"n":%d}' % number,
        f"t{number}",
        trace_id="trace-1",
        producer="me",
        priority=3,
        backoff_ms=(5000,),
        undelivered_keys=(("lost", number),),
        trace_context="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )
    values = {"message": options, "id": f"0189abcd-0000-7000-8000-{number:012}", "group": "workers"} | fields
    times = {"created_at": number, "failed_at": 1000 + number}
    return NewDeadLetter(attempts=4, error="boom", **times | values)  # type: ignore[arg-type]  # of any kind


async def test_rule_18_an_imported_dead_letter_is_listed_with_everything_and_a_second_import_changes_nothing(
    q: Driver, engine: Engine
) -> None:
    await q.configure("orders")
    assert await engine.import_dead_letters([imported(1), imported(2, "p2")]) == [True, True]
    large = NewMessage("orders", "p1", b'"%s"' % (b"x" * 5000), "t3")
    again = [imported(2, "p2"), imported(3, message=large), imported(3)]
    assert await engine.import_dead_letters(again) == [False, True, False]
    await q.reopen()
    page = await q.engine.dead_letters(DeadLetterFilter(queue="orders", oldest_first=True))
    assert (page.total, [one.transaction_id for one in page.items]) == (3, ["t1", "t2", "t3"])
    letter, wanted = page.items[0], imported(1)
    for name in ("id", "group", "attempts", "error", "created_at", "failed_at"):
        assert getattr(letter, name) == getattr(wanted, name)
    for name in ("queue", "partition", "transaction_id", "trace_id", "producer", "priority", "backoff_ms"):
        assert getattr(letter, name) == getattr(wanted.message, name)
    assert (letter.undelivered_keys, letter.trace_context) == ((("lost", 1),), wanted.message.trace_context)
    assert [bytes(one.payload) for one in page.items] == [b'{"n":1}', b'{"n":2}', large.payload]
    assert (await q.stats("orders")).counts.total == 0, "it is no message"


async def test_rule_19_an_imported_dead_letter_is_requeued_or_deleted_as_any_other(
    q: Driver, either: Workers, engine: Engine
) -> None:
    await q.push("orders", "p1", "before")
    assert payloads(await either.take()) == ["before"]
    await engine.import_dead_letters([imported(1), imported(2), imported(3, group="others")])
    await q.push("orders", "p1", "behind")
    assert await q.drain("orders", group="third") == ["before", "behind"], "groups step over it"
    letter = (await engine.dead_letters(DeadLetterFilter(oldest_first=True))).items[0]
    await q.requeue(letter)
    assert await engine.delete_dead_letters(DeadLetterFilter(ids=[imported(2).id])) == 1
    assert [one.group for one in await q.dead_letters()] == ["others"]
    await q.configure("orders", lease_time=1)
    q.clock.advance(1000)
    got = await either.drain()
    assert {"n": 1} in got and "behind" in got and {"n": 2} not in got
    assert await q.drain("orders", group="others") == ["before", "behind"]


async def test_rule_18_an_imported_dead_letter_belongs_to_the_stored_message_that_it_was(
    q: Driver, engine: Engine
) -> None:
    message_id = await q.push_id("orders", "p1", 1, transaction_id="t1")
    await q.drain("orders", group="workers")
    by_id = NewMessage("orders", "p1", b"1", message_id)
    letters = [imported(1), imported(2, message=by_id, group="others"), imported(3, message=by_id)]
    assert await engine.import_dead_letters(letters) == [True, True, False]
    found = {one.group: (one.message_id, one.transaction_id) for one in await q.dead_letters()}
    assert found["workers"] == (message_id, "t1")
    assert found["others"][0] == message_id
    view = await engine.message(message_id, message_id)
    assert view is not None and view.state == "dead_letter"


async def test_a_dead_letter_is_not_imported_without_its_queue_or_against_its_encryption(
    q: Driver, engine: Engine
) -> None:
    await q.configure("orders")
    sealed = imported(1)
    sealed.message.sealed = True
    refused = await engine.import_dead_letters([imported(1, queue="nowhere"), sealed, imported(2)])
    assert [one.code if isinstance(one, HarkError) else one for one in refused] == [
        "queue_not_found",
        "sealing_mismatch",
        True,
    ]
    assert [one.name for one in await engine.queue_infos()] == ["orders"]
