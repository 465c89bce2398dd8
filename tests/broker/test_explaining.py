"""Why a message is where it is: the sentence and the data of each reason, and which of several counts."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from hark.broker.explain import (
    RECENTLY,
    SEEN_INTERVAL,
    Circumstances,
    ago,
    due_text,
    explain,
    explain_without_groups,
    moment,
    quoted,
    the_group,
)
from hark.clock import MILLISECOND, SECOND
from hark.model import (
    QUEUE_MODE,
    Ahead,
    CurrentLease,
    DeadFacts,
    Ending,
    Explanation,
    Facts,
    GroupFacts,
    Limited,
    MessageFacts,
    QueueOptions,
    Retrying,
)

NOW = 1_800_000_000 * SECOND
"""2027-01-15T08:00:00Z"""
MESSAGE = MessageFacts(
    id="m-2",
    queue="orders",
    partition="p",
    partition_id="p-id",
    offset=2,
    transaction_id="m-2",
    created_at=NOW - 60 * SECOND,
    retries_allowed=4,
)
FACTS = Facts(at=NOW, message=MESSAGE, options=QueueOptions(), queue_paused=False, groups=())
GROUP = GroupFacts(group="g", mode="ordered", last_seen=NOW - 10 * SECOND)
WAITED_FOR = Circumstances(waiting=1)
LEASED = CurrentLease("l-1", "worker 7", NOW - 5 * SECOND, NOW + 25 * SECOND)


def explained(facts: Facts = FACTS, here: Circumstances = WAITED_FOR, **known: Any) -> Explanation:
    """What is said of a message of which so much is known."""
    return explain(facts, replace(GROUP, **known), here)


def message(**known: Any) -> Facts:
    """A message of which more is known."""
    return replace(FACTS, message=replace(MESSAGE, **known))


def options(**changed: Any) -> Facts:
    """A queue with other options."""
    return replace(FACTS, options=replace(QueueOptions(), **changed))


def ahead(**known: Any) -> Ahead:
    """A message before it."""
    return Ahead(message_id="m-1", offset=1, **known)


def behind(first: dict[str, object]) -> dict[str, object]:
    """What is said of one behind that message."""
    return {"reason": "behind", "ahead": {"messageId": "m-1", "offset": 1, **first}, "aheadMessages": 1}


IN_0, IN_3, IN_8, IN_12, IN_20, IN_25, IN_40 = (f"2027-01-15T08:00:{s:02}.000Z" for s in (0, 3, 8, 12, 20, 25, 40))
AGO_1, AGO_5, AGO_10, AGO_30 = (f"2027-01-15T07:59:{60 - s}.000Z" for s in (1, 5, 10, 30))
EXPLAINED: dict[str, tuple[Explanation, str, dict[str, object]]] = {
    "delayed": (
        explained(message(deliver_at=NOW + 12 * SECOND)),
        f"Delayed until {IN_12} (in 12 s).",
        {"reason": "delayed", "deliverAt": IN_12},
    ),
    "delayed processing": (
        explained(options(delayed_processing=100)),
        f"Delayed until {IN_40} (in 40 s): the queue delivers every message 100 s after its push (delayedProcessing).",
        {"reason": "delayed_processing", "deliverAt": IN_40, "delayedProcessing": 100},
    ),
    "leased": (
        explained(lease=LEASED),
        f'Leased to "worker 7" since {AGO_5} until {IN_25} (in 25 s).',
        {"reason": "leased", "consumer": "worker 7", "since": AGO_5, "until": IN_25, "attempt": 1},
    ),
    "leased to somebody without a name, again": (
        explained(lease=CurrentLease("l-1", "", None, NOW + 25 * SECOND), retry=Retrying(2, NOW - SECOND, "boom")),
        f"Leased to a consumer without a name until {IN_25} (in 25 s).",
        {"reason": "leased", "consumer": None, "since": None, "until": IN_25, "attempt": 3},
    ),
    "behind one that is leased": (
        explained(ahead=ahead(lease=LEASED), ahead_messages=1),
        f'Waits for the earlier message m-1 of its partition, which is leased to "worker 7" until {IN_25} (in 25 s).',
        behind({"reason": "leased", "consumer": "worker 7", "since": AGO_5, "until": IN_25}),
    ),
    "behind one that comes again": (
        explained(ahead=ahead(retry=Retrying(1, NOW + 3 * SECOND, "boom")), ahead_messages=1),
        "Waits for the earlier message m-1 of its partition, which is retried at "
        f'{IN_3} (in 3 s) after the error "boom".',
        behind({"reason": "retry", "attempts": 1, "due": IN_3, "error": "boom"}),
    ),
    "behind one that is delayed": (
        explained(ahead=ahead(deliver_at=NOW + 3 * SECOND), ahead_messages=1),
        f"Waits for the earlier message m-1 of its partition, which is delayed until {IN_3} (in 3 s).",
        behind({"reason": "delayed", "deliverAt": IN_3}),
    ),
    "retry": (
        explained(retry=Retrying(2, NOW + 8 * SECOND, "no disk")),
        f'Retry 2 of 4 is due at {IN_8} (in 8 s) after the error "no disk".',
        {"reason": "retry", "attempts": 2, "due": IN_8, "error": "no disk", "retriesAllowed": 4},
    ),
    "given back": (
        explained(retry=Retrying(0, NOW + 8 * SECOND, None)),
        f"The redelivery that its consumer requested is due at {IN_8} (in 8 s).",
        {"reason": "retry", "attempts": 0, "due": IN_8, "error": None, "retriesAllowed": 4},
    ),
    "window buffer": (
        explained(options(window_buffer=30), window_until=NOW + 20 * SECOND),
        f"In the window buffer until {IN_20} (in 20 s), or longer if more messages arrive: the queue"
        " delivers from a partition 30 s after its last push (windowBuffer).",
        {"reason": "window_buffer", "until": IN_20, "windowBuffer": 30},
    ),
    "pop maintenance": (
        explained(here=Circumstances(pop_maintenance=True)),
        "All deliveries are stopped for maintenance. Turn pop maintenance off.",
        {"reason": "pop_maintenance"},
    ),
    "queue paused": (
        explained(replace(FACTS, queue_paused=True)),
        "The queue is paused. Resume it.",
        {"reason": "queue_paused"},
    ),
    "key missing": (
        explained(here=Circumstances(missing_key="ab12cd34")),
        "Encrypted with key ab12cd34, which this server does not have. Add it to encryption.old_keys.",
        {"reason": "key_missing", "key": "ab12cd34"},
    ),
    "group paused": (explained(paused=True), 'Group "g" is paused. Resume it.', {"reason": "group_paused"}),
    "rate limited": (
        explained(limited=Limited(reason="rate_limited", scope="queue", limit=2.5, until=NOW + 400 * MILLISECOND)),
        "The queue is limited to 2.5 messages per second (rateLimit). The next delivery is at"
        " 2027-01-15T08:00:00.400Z (in 400 ms).",
        {"reason": "rate_limited", "scope": "queue", "limit": 2.5, "until": "2027-01-15T08:00:00.400Z"},
    ),
    "max in flight": (
        explained(limited=Limited(reason="max_in_flight", scope="group", limit=5, in_flight=5)),
        'Group "g" has 5 messages in flight, and its limit is 5 (maxInFlight).',
        {"reason": "max_in_flight", "scope": "group", "limit": 5, "inFlight": 5},
    ),
    "max in flight of the partition": (
        explained(limited=Limited(reason="max_in_flight", scope="partition", limit=5, in_flight=5)),
        'Partition "p" of group "g" has 5 messages in flight, and its limit is 5 (maxInFlightPerPartition).',
        {"reason": "max_in_flight", "scope": "partition", "limit": 5, "inFlight": 5},
    ),
    "rate limited in the partition": (
        explained(limited=Limited(reason="rate_limited", scope="partition", limit=10, until=NOW + 100 * MILLISECOND)),
        'Partition "p" of group "g" is limited to 10 messages per second (rateLimitPerPartition). The next delivery'
        " is at 2027-01-15T08:00:00.100Z (in 100 ms).",
        {"reason": "rate_limited", "scope": "partition", "limit": 10, "until": "2027-01-15T08:00:00.100Z"},
    ),
    "not asked": (
        explained(here=Circumstances(last_polled=NOW - 720 * SECOND)),
        'Ready, but no consumer of group "g" has popped since 2027-01-15T07:48:00.000Z (12 min ago).'
        " Check that its consumers run.",
        {
            "reason": "not_asked",
            "waiting": 0,
            "aheadMessages": 0,
            "askedAt": "2027-01-15T07:48:00.000Z",
            "askedHereOnly": False,
        },
    ),
    "ready": (
        explained(ahead_messages=3),
        'Ready after 3 earlier messages: the next pop of group "g" receives it. 1 consumer waits on this server now.',
        {"reason": "ready", "waiting": 1, "aheadMessages": 3},
    ),
    "ready again": (
        explained(retry=Retrying(1, NOW, "boom"), here=Circumstances(waiting=2)),
        'Ready: the next pop of group "g" receives it. 2 consumers wait on this server now.',
        {"reason": "ready", "waiting": 2, "aheadMessages": 0, "attempts": 1, "error": "boom"},
    ),
    "done": (
        explained(settled=True, settled_at=NOW - 30 * SECOND),
        f'Settled by group "g" at {AGO_30} (30 s ago) at the latest.',
        {"reason": "done", "settledAtLatest": AGO_30, "certain": True},
    ),
    "done, or expired": (
        explained(message(expires_at=NOW - SECOND), settled=True, settled_at=NOW - 30 * SECOND),
        f'Settled by group "g" at {AGO_30} (30 s ago) at the latest, unless it expired first.',
        {"reason": "done", "settledAtLatest": AGO_30, "certain": False},
    ),
    "done, or discarded": (
        explained(options(dlq_after_max_retries=False), settled=True, settled_at=NOW - 30 * SECOND),
        f'Settled by group "g" at {AGO_30} (30 s ago) at the latest, unless it was discarded after its last attempt.',
        {"reason": "done", "settledAtLatest": AGO_30, "certain": False},
    ),
    "moved past it": (
        explained(settled=True, settled_at=NOW - 90 * SECOND),
        'Skipped: a seek or a purge moved group "g" past it.',
        {"reason": "done", "moved": True},
    ),
    "dead-lettered": (
        explained(settled=True, dead=DeadFacts("d-1", 4, "no disk", NOW - SECOND)),
        f'Dead-lettered at {AGO_1} after 4 attempts: "no disk".',
        {"reason": "dead_lettered", "attempts": 4, "error": "no disk", "failedAt": AGO_1, "deadLetterId": "d-1"},
    ),
    "discarded": (
        explained(settled=True, ending=Ending("discarded", NOW - SECOND, 1, "no disk")),
        f'Discarded at {AGO_1} after 1 attempt, because the queue does not dead-letter it: "no disk".',
        {"reason": "discarded", "attempts": 1, "error": "no disk", "failedAt": AGO_1},
    ),
    "expired, not passed yet": (
        explained(message(expires_at=NOW)),
        f"Expired at {IN_0}: its time to live ended before a delivery.",
        {"reason": "expired", "expiredAt": IN_0},
    ),
    "expired and passed": (
        explained(
            message(expires_at=NOW - SECOND), settled=True, settled_at=NOW, ending=Ending("expired", NOW - SECOND)
        ),
        f"Expired at {AGO_1}: its time to live ended before a delivery.",
        {"reason": "expired", "expiredAt": AGO_1},
    ),
    "expired, as nobody settled anything since": (
        explained(message(expires_at=NOW - SECOND), settled=True),
        f"Expired at {AGO_1}: its time to live ended before a delivery.",
        {"reason": "expired", "expiredAt": AGO_1},
    ),
    "removed": (
        explained(message(stored=False), settled=True),
        "No longer stored: retention, a purge or a delete removed it.",
        {"reason": "removed"},
    ),
    "dropped": (
        explained(replace(message(stored=False), options=QueueOptions(drop_settled=True)), settled=True),
        "No longer stored: this queue removes settled messages, or the message was deleted.",
        {"reason": "removed"},
    ),
    "before the start": (
        explained(settled=True, begins_after=NOW - 10 * SECOND),
        f'Older than group "g", which starts with messages after {AGO_10}.',
        {"reason": "before_start", "startsAfter": AGO_10},
    ),
    "for another group": (
        explained(message(owner="h"), settled=True),
        'Requeued from the dead letters of group "h", for that group only.',
        {"reason": "other_group", "owner": "h"},
    ),
    "for a group that is gone": (
        explained(message(owner=""), settled=True),
        "Requeued from the dead letters of a deleted group, for that group only.",
        {"reason": "other_group", "owner": None},
    ),
    "no such group": (
        explained(mode=None),
        'No consumer of group "g" has ever popped from this queue.',
        {"reason": "no_group"},
    ),
    "no group at all": (
        explain_without_groups(FACTS),
        "No consumer has ever popped from this queue. Start a consumer.",
        {"reason": "no_group"},
    ),
}


@pytest.mark.parametrize("case", EXPLAINED)
def test_each_reason_is_a_sentence_and_data(case: str) -> None:
    found, text, data = EXPLAINED[case]
    assert found.text == text
    assert {"reason": found.reason, **found.data} == data


DELAYED = message(deliver_at=NOW + 12 * SECOND)
LATE = message(deliver_at=NOW + 60 * SECOND)
PAUSED = replace(DELAYED, queue_paused=True)
RETRY = Retrying(1, NOW + 20 * SECOND, "boom")
LEASED_AHEAD = ahead(lease=LEASED)
DUE_AHEAD = ahead(retry=Retrying(1, NOW, "boom"), deliver_at=NOW)
LIMITED = Limited(reason="max_in_flight", scope="group", limit=5, in_flight=5)
DEAD = DeadFacts("d-1", 4, "no disk", NOW - SECOND)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        # What lasts longest is the reason; of a delay and what is ahead that end together its own counts.
        (explained(DELAYED), "delayed"),
        (explained(DELAYED, retry=RETRY), "retry"),
        (explained(DELAYED, retry=RETRY, ahead=LEASED_AHEAD), "behind"),
        (explained(LATE, retry=RETRY, ahead=LEASED_AHEAD), "delayed"),
        (explained(message(deliver_at=LEASED.until), ahead=LEASED_AHEAD), "delayed"),
        (explained(ahead=DUE_AHEAD, ahead_messages=1), "ready"),
        # What somebody has to do comes before what time does.
        (explained(PAUSED, paused=True, here=Circumstances(pop_maintenance=True)), "pop_maintenance"),
        (explained(PAUSED, paused=True), "queue_paused"),
        (explained(DELAYED, paused=True), "group_paused"),
        # Who has it comes before all that keeps it from others, and what it is done with first of all.
        (explained(PAUSED, lease=LEASED, paused=True), "leased"),
        (explained(message(expires_at=NOW), lease=LEASED), "leased"),
        (explained(PAUSED, settled=True, settled_at=NOW), "done"),
        # A dead letter of before a seek says nothing of now, but outlives its group.
        (explained(dead=DEAD), "ready"),
        (explained(mode=None, dead=DEAD), "dead_lettered"),
        # The window comes before limits, and both after time.
        (explained(options(window_buffer=30), window_until=NOW + SECOND, limited=LIMITED), "window_buffer"),
        (explained(limited=LIMITED), "max_in_flight"),
        (explained(DELAYED, window_until=NOW + SECOND, limited=LIMITED), "delayed"),
        # Who asked a moment ago is about to ask again.
        (explained(here=Circumstances(last_polled=NOW - RECENTLY)), "ready"),
        (explained(here=Circumstances(last_polled=NOW - RECENTLY - 1)), "not_asked"),
    ],
)
def test_which_of_several_counts(found: Explanation, reason: str) -> None:
    assert found.reason == reason


STARTED = NOW - 600 * SECOND
SEEN = NOW - 10 * SEEN_INTERVAL


@pytest.mark.parametrize(
    ("here", "last_seen", "since", "here_only"),
    [
        (Circumstances(known_since=STARTED), NOW - 900 * SECOND, STARTED, False),
        # Not since an hour after it was last noted, if no other server could have noted it.
        (Circumstances(known_since=STARTED), SEEN, SEEN + SEEN_INTERVAL, False),
        (Circumstances(known_since=STARTED, alone=False), SEEN, STARTED, False),
        # Of other servers it is not known who asked within the hour.
        (Circumstances(last_polled=STARTED, alone=False), NOW - 900 * SECOND, STARTED, True),
    ],
)
def test_since_when_no_consumer_requested(here: Circumstances, last_seen: int, since: int, here_only: bool) -> None:
    found = explained(here=here, last_seen=last_seen)
    assert found.reason == "not_asked"
    assert (found.data["askedAt"], found.data["askedHereOnly"]) == (moment(since), here_only)
    assert (f'no consumer of group "g" has popped on this server since {moment(since)}' in found.text) == here_only


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0 ms"),
        (1, "1 ms"),
        (999 * MILLISECOND, "999 ms"),
        (SECOND, "1 s"),
        (119 * SECOND, "119 s"),
        (120 * SECOND, "2 min"),
        (7199 * SECOND, "119 min"),
        (7200 * SECOND, "2 h"),
        (200_000 * SECOND, "2 d"),
    ],
)
def test_spans_have_one_number_and_one_unit(us: int, text: str) -> None:
    assert (due_text(us, 0), ago(us)) == (f"{moment(us)} (in {text})", f"{text} ago")


def test_times_errors_and_the_group_of_those_who_name_none_have_words_for_people() -> None:
    assert moment(1 << 62) == "9999-12-31T23:59:59.999Z"
    assert quoted("a\n  b") == '"a b"'
    assert quoted("x" * 500) == f'"{"x" * 199}…"'
    assert (the_group(QUEUE_MODE), the_group(QUEUE_MODE, start=True)) == ("the default group", "The default group")
