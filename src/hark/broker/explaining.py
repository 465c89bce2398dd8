"""Why a message has not been delivered to a group, or settled by it: a pure function of what the store knows.

The first reason that holds is the answer, in this order:

1. It is for one group only, and not for this one: `other_group`.
2. The group is done with it: `dead_lettered`, `discarded`, `expired`, `before_start`, `done`; or the message is no
   longer stored: `removed`. Or there is no such group: `no_group`.
3. Somebody has it: `leased`. Nobody will: `expired`.
4. Somebody has to act: `pop_maintenance`, `queue_paused`, `group_paused`.
5. Time has to pass: `delayed`, `delayed_processing`, `retry`, `behind` (what is ahead of it waits for one of these, or
   is leased). Of several the one that lasts longest.
6. `window_buffer`, `max_in_flight`, `rate_limited`.
7. Nothing is in its way: `not_asked`, `ready`.
"""

from __future__ import annotations

from typing import NamedTuple

from hark.broker.explaining_words import ago, in_time, moment, quoted, seconds_text, the_group, who
from hark.clock import MILLISECOND, SECOND
from hark.model import Ahead, Explanation, Facts, GroupFacts, Held, Reason, Retrying

SEEN_INTERVAL = 3600 * SECOND
"""How often stores note at most that a group was seen."""
RECENTLY = 5 * SECOND
"""Who asked this short a time ago is about to ask again."""

Said = tuple[Reason, str, dict[str, object]]


class Circumstances(NamedTuple):
    """What the server knows beside the store, of one group."""

    pop_maintenance: bool = False
    waiting: int = 0
    """Consumers that wait on this server and could get the message."""
    asked_at: int | None = None
    """When somebody last asked this server; None: not since `known_since`."""
    known_since: int = 0
    alone: bool = True
    """No other server works on the store."""


def explain(facts: Facts, group: GroupFacts, here: Circumstances) -> Explanation:
    """Why the message is where it is for a group."""
    rules = (_for_others, _settled, _nobody, _taken, _stopped, _waiting, _bounded)
    said = next((found for rule in rules if (found := rule(facts, group, here)) is not None), None)
    reason, text, data = said or _nothing_in_the_way(facts, group, here)
    return Explanation(group.group, reason, text, data)


def explain_without_groups(facts: Facts) -> Explanation:
    """Why nobody gets a message of a queue that nobody ever asked."""
    if not facts.message.stored:
        return Explanation(None, "removed", _removed_text(facts), {})
    return Explanation(None, "no_group", "No consumer has ever asked for messages of this queue.", {})


# 1. and 2. Done, or not for it -----------------------------------------------------------------------------


def _for_others(facts: Facts, group: GroupFacts, _here: Circumstances) -> Said | None:
    owner = facts.message.owner
    if owner is None or owner == group.group:
        return None
    name = the_group(owner) if owner else "a group that was deleted since"
    return "other_group", f"Requeued from the dead letters of {name}, and for it only.", {"owner": owner or None}


def _nobody(_facts: Facts, group: GroupFacts, _here: Circumstances) -> Said | None:
    if group.mode is not None:
        return None
    return "no_group", f"No consumer of {the_group(group.group)} has ever asked for messages of this queue.", {}


def _settled(facts: Facts, group: GroupFacts, _here: Circumstances) -> Said | None:
    message, at = facts.message, facts.at
    if message.stored and not group.settled and (group.mode is not None or group.dead is None):
        return None
    if group.dead is not None:
        dead = group.dead
        text = f"Dead-lettered at {moment(dead.failed_at)} after {_attempts(dead.attempts)}: {quoted(dead.error)}."
        return "dead_lettered", text, _failure(dead.attempts, dead.error, dead.failed_at) | {"deadLetterId": dead.id}
    if group.ending is not None and group.ending.kind == "discarded":
        end = group.ending
        text = (
            f"Discarded at {moment(end.at)} after {_attempts(end.attempts)}, as the queue keeps no dead letters of"
            f" them: {quoted(end.error or '')}."
        )
        return "discarded", text, _failure(end.attempts, end.error, end.at)
    untouched = group.settled_at is None or group.settled_at < (message.created_at or 0) - MILLISECOND
    over = message.expires_at is not None and message.expires_at <= at
    if group.ending is not None or (message.stored and over and untouched):
        expired_at = message.expires_at if group.ending is None else group.ending.at
        return _expired(at if expired_at is None else expired_at)
    if not message.stored:
        return "removed", _removed_text(facts), {}
    if group.begins_after is not None:
        text = f"Not for {the_group(group.group)}, which began with what came after {moment(group.begins_after)}."
        return "before_start", text, {"startsAfter": moment(group.begins_after)}
    if untouched:  # Nothing of the partition was settled since the message came.
        return "done", f"Done: {the_group(group.group)} was moved past it, by a seek or a purge.", {"moved": True}
    return _done(facts, group, over)


def _done(facts: Facts, group: GroupFacts, over: bool) -> Said:
    # A message may be created a moment later than now, so that it is after the start of a group.
    settled_at = max(group.settled_at or 0, facts.message.created_at or 0)
    options = facts.options
    doubts = ["its time to live was over first"] if over else []
    if not (options.dead_letter_queue and options.dlq_after_max_retries):
        doubts.append("it was discarded without attempts left")
    doubt = f", unless {' or '.join(doubts)}" if doubts else ""
    text = (
        f"Done: {the_group(group.group)} settled it at {moment(settled_at)} ({ago(facts.at - settled_at)})"
        f" at the latest{doubt}."
    )
    return "done", text, {"settledAtLatest": moment(settled_at), "certain": not doubts}


def _failure(attempts: int, error: str | None, failed_at: int) -> dict[str, object]:
    return {"attempts": attempts, "error": error, "failedAt": moment(failed_at)}


def _expired(expired_at: int) -> Said:
    text = f"Expired at {moment(expired_at)}: its time to live was over before it was delivered."
    return "expired", text, {"expiredAt": moment(expired_at)}


def _removed_text(facts: Facts) -> str:
    if facts.options.drop_settled:
        return "No longer stored: this queue keeps nothing that is settled; or it was removed by hand."
    return "No longer stored: it was removed by retention, by a purge or by hand."


# 3. Taken or lost ------------------------------------------------------------------------------------------


def _taken(facts: Facts, group: GroupFacts, _here: Circumstances) -> Said | None:
    if group.held is not None:
        held = group.held
        since = "" if held.since is None else f" since {moment(held.since)}"
        until = f"{moment(held.until)} ({in_time(held.until - facts.at)})"
        attempt = 1 if group.retry is None else group.retry.attempts + 1
        data = _held_data(held) | {"attempt": attempt}
        return "leased", f"Leased to {who(held.consumer)}{since} until {until}.", data
    expires_at = facts.message.expires_at
    return _expired(expires_at) if expires_at is not None and expires_at <= facts.at else None


def _held_data(held: Held) -> dict[str, object]:
    return {
        "consumer": held.consumer or None,
        "since": None if held.since is None else moment(held.since),
        "until": moment(held.until),
    }


# 4. Stopped ------------------------------------------------------------------------------------------------


def _stopped(facts: Facts, group: GroupFacts, here: Circumstances) -> Said | None:
    if here.pop_maintenance:
        return "pop_maintenance", "All deliveries are stopped for maintenance.", {}
    if facts.queue_paused:
        return "queue_paused", "The queue is paused.", {}
    return ("group_paused", f"{the_group(group.group, start=True)} is paused.", {}) if group.paused else None


# 5. Waiting ------------------------------------------------------------------------------------------------


def _waiting(facts: Facts, group: GroupFacts, _here: Circumstances) -> Said | None:
    causes = [_delayed(facts), _too_young(facts), _retry(facts, group), _behind(facts, group)]
    found = [cause for cause in causes if cause is not None]
    # Of those that end at the same time the first one counts.
    return max(found, key=lambda cause: cause[0])[1] if found else None


Waits = tuple[int, Said]
"""Until when, and what is said of it."""


def _delayed(facts: Facts) -> Waits | None:
    due = facts.message.deliver_at
    if due is None or due <= facts.at:
        return None
    text = f"Delayed until {moment(due)} ({in_time(due - facts.at)})."
    return due, ("delayed", text, {"deliverAt": moment(due)})


def _too_young(facts: Facts) -> Waits | None:
    seconds, created_at = facts.options.delayed_processing, facts.message.created_at
    if not seconds or created_at is None:
        return None
    due = created_at + seconds * SECOND
    if due <= facts.at:
        return None
    text = (
        f"Not old enough until {moment(due)} ({in_time(due - facts.at)}): the queue delivers messages when they are"
        f" {seconds_text(seconds)} old (delayedProcessing)."
    )
    return due, ("delayed_processing", text, {"deliverAt": moment(due), "delayedProcessing": seconds})


def _retry(facts: Facts, group: GroupFacts) -> Waits | None:
    retry = group.retry
    if retry is None or retry.due <= facts.at:
        return None
    number = _retry_text(retry, facts.message.retries_allowed)
    text = f"{number[0].upper()}{number[1:]} is due at {moment(retry.due)} ({in_time(retry.due - facts.at)})"
    after = "" if retry.error is None else f" after the error {quoted(retry.error)}"
    return retry.due, ("retry", f"{text}{after}.", _retry_data(retry, facts.message.retries_allowed))


def _retry_text(retry: Retrying, allowed: int) -> str:
    return f"retry {retry.attempts} of {allowed}" if retry.attempts else "the next delivery, as its consumer wished,"


def _retry_data(retry: Retrying, allowed: int | None = None) -> dict[str, object]:
    data: dict[str, object] = {"attempts": retry.attempts, "due": moment(retry.due), "error": retry.error}
    return data if allowed is None else data | {"retriesAllowed": allowed}


def _behind(facts: Facts, group: GroupFacts) -> Waits | None:
    ahead = group.ahead
    if ahead is None:
        return None
    found = _cause_ahead(ahead, facts.at)
    if found is None:
        return None
    until, reason, text, data = found
    place: dict[str, object] = {"messageId": ahead.message_id, "offset": ahead.offset, "reason": reason}
    sentence = f"Behind message {ahead.message_id} of its partition, which {text}."
    return until, ("behind", sentence, {"ahead": place | data, "aheadMessages": group.ahead_messages})


def _cause_ahead(ahead: Ahead, at: int) -> tuple[int, Reason, str, dict[str, object]] | None:
    """Until when a message that is ahead keeps others waiting, and why; None: it does not."""
    held, retry, deliver_at = ahead.held, ahead.retry, ahead.deliver_at
    if held is not None:
        until = f"{moment(held.until)} ({in_time(held.until - at)})"
        return held.until, "leased", f"is leased to {who(held.consumer)} until {until}", _held_data(held)
    if retry is not None and retry.due > max(at, deliver_at or 0):
        after = "" if retry.error is None else f" after the error {quoted(retry.error)}"
        text = f"comes again at {moment(retry.due)} ({in_time(retry.due - at)}){after}"
        return retry.due, "retry", text, _retry_data(retry)
    if deliver_at is not None and deliver_at > at:
        text = f"is delayed until {moment(deliver_at)} ({in_time(deliver_at - at)})"
        return deliver_at, "delayed", text, {"deliverAt": moment(deliver_at)}
    return None


# 6. Bounds -------------------------------------------------------------------------------------------------


def _bounded(facts: Facts, group: GroupFacts, _here: Circumstances) -> Said | None:
    if group.window_until is not None:
        until = group.window_until
        text = (
            f"In the window buffer until {moment(until)} ({in_time(until - facts.at)}), or longer if more messages"
            f" come: the queue delivers a partition when none came for {seconds_text(facts.options.window_buffer)}."
        )
        return "window_buffer", text, {"until": moment(until), "windowBuffer": facts.options.window_buffer}
    limited = group.limited
    if limited is None:
        return None
    owner = "The queue" if limited.scope == "queue" else the_group(group.group, start=True)
    if limited.reason == "max_in_flight":
        text = f"{owner} has {limited.in_flight} messages on leases, and may have {limited.limit:g} (maxInFlight)."
        return "max_in_flight", text, _limit_data(limited.scope, limited.limit) | {"inFlight": limited.in_flight}
    until = facts.at if limited.until is None else limited.until
    text = (
        f"{owner} may deliver {limited.limit:g} messages per second (rateLimit): the next one at {moment(until)}"
        f" ({in_time(until - facts.at)})."
    )
    return "rate_limited", text, _limit_data(limited.scope, limited.limit) | {"until": moment(until)}


def _limit_data(scope: str, limit: float) -> dict[str, object]:
    return {"scope": scope, "limit": limit}


# 7. Ready --------------------------------------------------------------------------------------------------


def _nothing_in_the_way(facts: Facts, group: GroupFacts, here: Circumstances) -> Said:
    before = group.ahead_messages
    data: dict[str, object] = {"waiting": here.waiting, "aheadMessages": before}
    if group.retry is not None:
        data |= {"attempts": group.retry.attempts, "error": group.retry.error}
    after = f" after {before} before it" if before else ""
    asked_at, everywhere = _last_ask(facts, group, here)
    if here.waiting or facts.at - asked_at <= RECENTLY:
        waiting = "1 waits" if here.waiting == 1 else f"{here.waiting} wait"
        text = f"Ready{after}: it goes to the next consumer of {the_group(group.group)} that asks; {waiting} here now."
        return "ready", text, data
    where = "" if everywhere else " this server"
    text = (
        f"Ready{after}, but no consumer of {the_group(group.group)} has asked{where} since {moment(asked_at)}"
        f" ({ago(facts.at - asked_at)})."
    )
    return "not_asked", text, data | {"askedAt": moment(asked_at), "askedHereOnly": not everywhere}


def _last_ask(facts: Facts, group: GroupFacts, here: Circumstances) -> tuple[int, bool]:
    """A time after which nobody asked, and whether that is so of all servers."""
    elsewhere = group.last_seen + SEEN_INTERVAL
    mine = here.known_since if here.asked_at is None else here.asked_at
    if here.alone:
        return (min(mine, elsewhere) if here.asked_at is None else mine), True
    return (max(mine, elsewhere), True) if elsewhere <= facts.at else (mine, False)


def _attempts(number: int) -> str:
    return "1 attempt" if number == 1 else f"{number} attempts"
