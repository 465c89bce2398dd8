"""Why a message is where it is: the sentence and the data of each reason, and which of several counts."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from hark.broker.explaining import RECENTLY, SEEN_INTERVAL, Circumstances, explain, explain_without_groups
from hark.broker.explaining_words import ago, in_time, moment, quoted, the_group
from hark.clock import MILLISECOND, SECOND
from hark.model import (
    QUEUE_MODE,
    Ahead,
    DeadFacts,
    Ending,
    Explanation,
    Facts,
    GroupFacts,
    Held,
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
HELD = Held("l-1", "worker 7", NOW - 5 * SECOND, NOW + 25 * SECOND)


def told(facts: Facts = FACTS, here: Circumstances = WAITED_FOR, **known: Any) -> Explanation:
    """What is said of a message of which so much is known."""
    return explain(facts, replace(GROUP, **known), here)


def message(**known: Any) -> Facts:
    """A message of which more is known."""
    return replace(FACTS, message=replace(MESSAGE, **known))


def options(**changed: Any) -> Facts:
    """A queue with other options."""
    return replace(FACTS, options=replace(QueueOptions(), **changed))


SAID: dict[str, tuple[Explanation, str, str, dict[str, object]]] = {
    "delayed": (
        told(message(deliver_at=NOW + 12 * SECOND)),
        "delayed",
        "Delayed until 2027-01-15T08:00:12.000Z (in 12 s).",
        {"deliverAt": "2027-01-15T08:00:12.000Z"},
    ),
    "delayed processing": (
        told(options(delayed_processing=100)),
        "delayed_processing",
        "Not old enough until 2027-01-15T08:00:40.000Z (in 40 s): the queue delivers messages when they are 100 s old"
        " (delayedProcessing).",
        {"deliverAt": "2027-01-15T08:00:40.000Z", "delayedProcessing": 100},
    ),
    "leased": (
        told(held=HELD),
        "leased",
        'Leased to "worker 7" since 2027-01-15T07:59:55.000Z until 2027-01-15T08:00:25.000Z (in 25 s).',
        {
            "consumer": "worker 7",
            "since": "2027-01-15T07:59:55.000Z",
            "until": "2027-01-15T08:00:25.000Z",
            "attempt": 1,
        },
    ),
    "leased to somebody without a name, again": (
        told(held=Held("l-1", "", None, NOW + 25 * SECOND), retry=Retrying(2, NOW - SECOND, "boom")),
        "leased",
        "Leased to a consumer without a name until 2027-01-15T08:00:25.000Z (in 25 s).",
        {"consumer": None, "since": None, "until": "2027-01-15T08:00:25.000Z", "attempt": 3},
    ),
    "behind one that is leased": (
        told(ahead=Ahead(message_id="m-1", offset=1, held=HELD), ahead_messages=1),
        "behind",
        'Behind message m-1 of its partition, which is leased to "worker 7" until 2027-01-15T08:00:25.000Z (in 25 s).',
        {
            "ahead": {
                "messageId": "m-1",
                "offset": 1,
                "reason": "leased",
                "consumer": "worker 7",
                "since": "2027-01-15T07:59:55.000Z",
                "until": "2027-01-15T08:00:25.000Z",
            },
            "aheadMessages": 1,
        },
    ),
    "behind one that comes again": (
        told(ahead=Ahead(message_id="m-1", offset=1, retry=Retrying(1, NOW + 3 * SECOND, "boom")), ahead_messages=1),
        "behind",
        "Behind message m-1 of its partition, which comes again at 2027-01-15T08:00:03.000Z (in 3 s)"
        ' after the error "boom".',
        {
            "ahead": {
                "messageId": "m-1",
                "offset": 1,
                "reason": "retry",
                "attempts": 1,
                "due": "2027-01-15T08:00:03.000Z",
                "error": "boom",
            },
            "aheadMessages": 1,
        },
    ),
    "behind one that is delayed": (
        told(ahead=Ahead(message_id="m-1", offset=1, deliver_at=NOW + 3 * SECOND), ahead_messages=1),
        "behind",
        "Behind message m-1 of its partition, which is delayed until 2027-01-15T08:00:03.000Z (in 3 s).",
        {
            "ahead": {"messageId": "m-1", "offset": 1, "reason": "delayed", "deliverAt": "2027-01-15T08:00:03.000Z"},
            "aheadMessages": 1,
        },
    ),
    "retry": (
        told(retry=Retrying(2, NOW + 8 * SECOND, "no disk")),
        "retry",
        'Retry 2 of 4 is due at 2027-01-15T08:00:08.000Z (in 8 s) after the error "no disk".',
        {"attempts": 2, "due": "2027-01-15T08:00:08.000Z", "error": "no disk", "retriesAllowed": 4},
    ),
    "given back": (
        told(retry=Retrying(0, NOW + 8 * SECOND, None)),
        "retry",
        "The next delivery, as its consumer wished, is due at 2027-01-15T08:00:08.000Z (in 8 s).",
        {"attempts": 0, "due": "2027-01-15T08:00:08.000Z", "error": None, "retriesAllowed": 4},
    ),
    "window buffer": (
        told(options(window_buffer=30), window_until=NOW + 20 * SECOND),
        "window_buffer",
        "In the window buffer until 2027-01-15T08:00:20.000Z (in 20 s), or longer if more messages come: the queue"
        " delivers a partition when none came for 30 s.",
        {"until": "2027-01-15T08:00:20.000Z", "windowBuffer": 30},
    ),
    "pop maintenance": (
        told(here=Circumstances(pop_maintenance=True)),
        "pop_maintenance",
        "All deliveries are stopped for maintenance.",
        {},
    ),
    "queue paused": (told(replace(FACTS, queue_paused=True)), "queue_paused", "The queue is paused.", {}),
    "group paused": (told(paused=True), "group_paused", 'Group "g" is paused.', {}),
    "rate limited": (
        told(limited=Limited(reason="rate_limited", scope="queue", limit=2.5, until=NOW + 400 * MILLISECOND)),
        "rate_limited",
        "The queue may deliver 2.5 messages per second (rateLimit): the next one at 2027-01-15T08:00:00.400Z"
        " (in 400 ms).",
        {"scope": "queue", "limit": 2.5, "until": "2027-01-15T08:00:00.400Z"},
    ),
    "max in flight": (
        told(limited=Limited(reason="max_in_flight", scope="group", limit=5, in_flight=5)),
        "max_in_flight",
        'Group "g" has 5 messages on leases, and may have 5 (maxInFlight).',
        {"scope": "group", "limit": 5, "inFlight": 5},
    ),
    "not asked": (
        told(here=Circumstances(asked_at=NOW - 720 * SECOND)),
        "not_asked",
        'Ready, but no consumer of group "g" has asked since 2027-01-15T07:48:00.000Z (12 min ago).',
        {"waiting": 0, "aheadMessages": 0, "askedAt": "2027-01-15T07:48:00.000Z", "askedHereOnly": False},
    ),
    "ready": (
        told(ahead_messages=3),
        "ready",
        'Ready after 3 before it: it goes to the next consumer of group "g" that asks; 1 waits here now.',
        {"waiting": 1, "aheadMessages": 3},
    ),
    "ready again": (
        told(retry=Retrying(1, NOW, "boom"), here=Circumstances(waiting=2)),
        "ready",
        'Ready: it goes to the next consumer of group "g" that asks; 2 wait here now.',
        {"waiting": 2, "aheadMessages": 0, "attempts": 1, "error": "boom"},
    ),
    "done": (
        told(settled=True, settled_at=NOW - 30 * SECOND),
        "done",
        'Done: group "g" settled it at 2027-01-15T07:59:30.000Z (30 s ago) at the latest.',
        {"settledAtLatest": "2027-01-15T07:59:30.000Z", "certain": True},
    ),
    "done, or expired": (
        told(message(expires_at=NOW - SECOND), settled=True, settled_at=NOW - 30 * SECOND),
        "done",
        'Done: group "g" settled it at 2027-01-15T07:59:30.000Z (30 s ago) at the latest, unless its time to live was'
        " over first.",
        {"settledAtLatest": "2027-01-15T07:59:30.000Z", "certain": False},
    ),
    "done, or discarded": (
        told(options(dlq_after_max_retries=False), settled=True, settled_at=NOW - 30 * SECOND),
        "done",
        'Done: group "g" settled it at 2027-01-15T07:59:30.000Z (30 s ago) at the latest, unless it was discarded'
        " without attempts left.",
        {"settledAtLatest": "2027-01-15T07:59:30.000Z", "certain": False},
    ),
    "moved past it": (
        told(settled=True, settled_at=NOW - 90 * SECOND),
        "done",
        'Done: group "g" was moved past it, by a seek or a purge.',
        {"moved": True},
    ),
    "dead-lettered": (
        told(settled=True, dead=DeadFacts("d-1", 4, "no disk", NOW - SECOND)),
        "dead_lettered",
        'Dead-lettered at 2027-01-15T07:59:59.000Z after 4 attempts: "no disk".',
        {"attempts": 4, "error": "no disk", "failedAt": "2027-01-15T07:59:59.000Z", "deadLetterId": "d-1"},
    ),
    "discarded": (
        told(settled=True, ending=Ending("discarded", NOW - SECOND, 1, "no disk")),
        "discarded",
        'Discarded at 2027-01-15T07:59:59.000Z after 1 attempt, as the queue keeps no dead letters of them: "no disk".',
        {"attempts": 1, "error": "no disk", "failedAt": "2027-01-15T07:59:59.000Z"},
    ),
    "expired, not passed yet": (
        told(message(expires_at=NOW)),
        "expired",
        "Expired at 2027-01-15T08:00:00.000Z: its time to live was over before it was delivered.",
        {"expiredAt": "2027-01-15T08:00:00.000Z"},
    ),
    "expired and passed": (
        told(message(expires_at=NOW - SECOND), settled=True, settled_at=NOW, ending=Ending("expired", NOW - SECOND)),
        "expired",
        "Expired at 2027-01-15T07:59:59.000Z: its time to live was over before it was delivered.",
        {"expiredAt": "2027-01-15T07:59:59.000Z"},
    ),
    "expired, as nobody settled anything since": (
        told(message(expires_at=NOW - SECOND), settled=True),
        "expired",
        "Expired at 2027-01-15T07:59:59.000Z: its time to live was over before it was delivered.",
        {"expiredAt": "2027-01-15T07:59:59.000Z"},
    ),
    "removed": (
        told(message(stored=False), settled=True),
        "removed",
        "No longer stored: it was removed by retention, by a purge or by hand.",
        {},
    ),
    "dropped": (
        told(replace(message(stored=False), options=QueueOptions(drop_settled=True)), settled=True),
        "removed",
        "No longer stored: this queue keeps nothing that is settled; or it was removed by hand.",
        {},
    ),
    "before the start": (
        told(settled=True, begins_after=NOW - 10 * SECOND),
        "before_start",
        'Not for group "g", which began with what came after 2027-01-15T07:59:50.000Z.',
        {"startsAfter": "2027-01-15T07:59:50.000Z"},
    ),
    "for another group": (
        told(message(owner="h"), settled=True),
        "other_group",
        'Requeued from the dead letters of group "h", and for it only.',
        {"owner": "h"},
    ),
    "for a group that is gone": (
        told(message(owner=""), settled=True),
        "other_group",
        "Requeued from the dead letters of a group that was deleted since, and for it only.",
        {"owner": None},
    ),
    "no such group": (
        told(mode=None),
        "no_group",
        'No consumer of group "g" has ever asked for messages of this queue.',
        {},
    ),
    "no group at all": (
        explain_without_groups(FACTS),
        "no_group",
        "No consumer has ever asked for messages of this queue.",
        {},
    ),
}


@pytest.mark.parametrize("case", SAID)
def test_each_reason_is_a_sentence_and_data(case: str) -> None:
    found, reason, text, data = SAID[case]
    assert found.text == text
    assert (found.reason, found.data) == (reason, data)


# Which of several counts -----------------------------------------------------------------------------------

DELAYED = message(deliver_at=NOW + 12 * SECOND)
LEASED_AHEAD = Ahead(message_id="m-1", offset=1, held=HELD)


def test_what_lasts_longest_is_the_reason() -> None:
    retry = Retrying(1, NOW + 20 * SECOND, "boom")
    assert told(DELAYED).reason == "delayed"
    assert told(DELAYED, retry=retry).reason == "retry"
    assert told(DELAYED, retry=retry, ahead=LEASED_AHEAD).reason == "behind"
    late = message(deliver_at=NOW + 60 * SECOND)
    assert told(late, retry=retry, ahead=LEASED_AHEAD).reason == "delayed"


def test_of_a_delay_and_what_is_ahead_that_end_together_its_own_counts() -> None:
    assert told(message(deliver_at=HELD.until), ahead=LEASED_AHEAD).reason == "delayed"


def test_what_somebody_has_to_do_comes_before_what_time_does() -> None:
    paused = replace(DELAYED, queue_paused=True)
    assert told(paused, paused=True, here=Circumstances(pop_maintenance=True)).reason == "pop_maintenance"
    assert told(paused, paused=True).reason == "queue_paused"
    assert told(DELAYED, paused=True).reason == "group_paused"


def test_who_has_it_comes_before_all_that_keeps_it_from_others() -> None:
    assert told(replace(DELAYED, queue_paused=True), held=HELD, paused=True).reason == "leased"
    assert told(message(expires_at=NOW), held=HELD).reason == "leased"


def test_what_it_is_done_with_comes_first() -> None:
    assert told(replace(DELAYED, queue_paused=True), settled=True, settled_at=NOW).reason == "done"


def test_a_dead_letter_of_before_a_seek_says_nothing_of_now() -> None:
    assert told(dead=DeadFacts("d-1", 4, "no disk", NOW - SECOND)).reason == "ready"


def test_a_dead_letter_outlives_its_group() -> None:
    assert told(mode=None, dead=DeadFacts("d-1", 4, "no disk", NOW - SECOND)).reason == "dead_lettered"


def test_the_window_comes_before_limits_and_both_after_time() -> None:
    limited = Limited(reason="max_in_flight", scope="group", limit=5, in_flight=5)
    window = options(window_buffer=30)
    assert told(window, window_until=NOW + SECOND, limited=limited).reason == "window_buffer"
    assert told(limited=limited).reason == "max_in_flight"
    assert told(DELAYED, window_until=NOW + SECOND, limited=limited).reason == "delayed"


def test_what_is_ahead_and_due_is_in_nobodys_way() -> None:
    past = Ahead(message_id="m-1", offset=1, retry=Retrying(1, NOW, "boom"), deliver_at=NOW)
    assert told(ahead=past, ahead_messages=1).reason == "ready"


# Who asked -------------------------------------------------------------------------------------------------


def test_who_asked_a_moment_ago_is_about_to_ask_again() -> None:
    assert told(here=Circumstances(asked_at=NOW - RECENTLY)).reason == "ready"
    assert told(here=Circumstances(asked_at=NOW - RECENTLY - 1)).reason == "not_asked"


def asked_at(here: Circumstances, last_seen: int) -> tuple[object, object]:
    """Since when nobody asked, and whether that is so only of this server."""
    found = told(here=here, last_seen=last_seen)
    assert found.reason == "not_asked"
    return found.data["askedAt"], found.data["askedHereOnly"]


def test_nobody_asked_since_the_server_started() -> None:
    started = NOW - 600 * SECOND
    assert asked_at(Circumstances(known_since=started), NOW - 900 * SECOND) == (moment(started), False)


def test_nobody_asked_since_an_hour_after_it_was_last_noted() -> None:
    seen = NOW - 10 * SEEN_INTERVAL
    started = NOW - 600 * SECOND
    assert asked_at(Circumstances(known_since=started), seen) == (moment(seen + SEEN_INTERVAL), False)
    assert asked_at(Circumstances(known_since=started, alone=False), seen) == (moment(started), False)


def test_of_other_servers_it_is_not_known_who_asked_within_the_hour() -> None:
    here = Circumstances(asked_at=NOW - 600 * SECOND, alone=False)
    assert asked_at(here, NOW - 900 * SECOND) == (moment(NOW - 600 * SECOND), True)
    found = told(here=here, last_seen=NOW - 900 * SECOND)
    assert 'no consumer of group "g" has asked this server since 2027-01-15T07:50:00.000Z' in found.text


# Words -----------------------------------------------------------------------------------------------------


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
    assert (in_time(us), ago(us)) == (f"in {text}", f"{text} ago")


def test_times_beyond_the_year_9999_are_written_as_its_end() -> None:
    assert moment(1 << 62) == "9999-12-31T23:59:59.000Z"


def test_errors_are_one_line_and_not_too_long() -> None:
    assert quoted("a\n  b") == '"a b"'
    assert quoted("x" * 500) == f'"{"x" * 199}…"'


def test_the_group_of_those_who_name_none_has_a_name_for_people() -> None:
    assert the_group(QUEUE_MODE) == "the default group"
    assert the_group(QUEUE_MODE, start=True) == "The default group"
