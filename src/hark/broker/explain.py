"""Explains why a message was not delivered to a consumer group, or not settled by it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from hark.clock import EARLIEST, LATEST, MILLISECOND, SECOND
from hark.model import QUEUE_MODE, Ahead, CurrentLease, Explanation, Facts, GroupFacts, Reason, Retrying

_LONGEST_ERROR = 200
_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def moment(us: int) -> str:
    """A time as ISO text in UTC, with milliseconds."""
    seconds, rest = divmod(min(max(us, EARLIEST), LATEST), SECOND)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest // MILLISECOND:03d}Z"


def due_text(due: int, at: int) -> str:
    """A future moment, with the time until it."""
    return f"{moment(due)} (in {_span(due - at)})"


def ago(us: int) -> str:
    """The time since a past moment."""
    return f"{_span(us)} ago"


def _span(us: int) -> str:
    us = max(us, 0)
    if us < SECOND:
        return f"{-(-us // MILLISECOND)} ms"
    seconds = us // SECOND
    for size, unit in _UNITS:
        if seconds >= 2 * size or size == 1:
            return f"{seconds // size} {unit}"
    raise AssertionError("the last unit fits all")


def the_group(name: str, *, start: bool = False) -> str:
    """A group by its name. The group of consumers without a group is the default group."""
    text = "the default group" if name == QUEUE_MODE else f"group {quoted(name)}"
    return f"{text[0].upper()}{text[1:]}" if start else text


def who(consumer: str) -> str:
    """A consumer by its own name."""
    return quoted(consumer) if consumer else "a consumer without a name"


def quoted(text: str) -> str:
    """A text from a client in one line, shortened if it is long."""
    line = " ".join(text.split())
    if len(line) > _LONGEST_ERROR:
        line = f"{line[: _LONGEST_ERROR - 1]}…"
    return f'"{line}"'


# The answer is the first reason that applies, in this order:
#
# 1. The message is for another group only: `other_group`.
# 2. The group has settled it: `dead_lettered`, `discarded`, `expired`, `before_start`, `done`; or the message is no
# longer stored: `removed`; or the group does not exist: `no_group`.
# 3. A consumer holds it: `leased`. It expired before a delivery: `expired`.
# 4. An operator has to act: `pop_maintenance`, `queue_paused`, `key_missing`, `group_paused`.
# 5. It is not due yet: `delayed`, `delayed_processing`, `retry`, `behind` (an earlier message waits for one of these,
# or is leased). If several apply, the reason that lasts longest wins.
# 6. A limit applies: `window_buffer`, `max_in_flight`, `rate_limited`.
# 7. Nothing prevents the delivery: `not_asked`, `ready`.


SEEN_INTERVAL = 3600 * SECOND
"""Minimum time between two updates of a group's `last_seen` in the store."""
RECENTLY = 5 * SECOND
"""A consumer that popped this recently is expected to pop again soon."""

Finding = tuple[Reason, str, dict[str, object]]


class Circumstances(NamedTuple):
    """Facts about one group that the server knows and the store does not."""

    pop_maintenance: bool = False
    waiting: int = 0
    """Number of consumers that wait on this server and could receive the message."""
    last_polled: int | None = None
    """Time of the group's last pop on this server; None: no pop since `known_since`."""
    known_since: int = 0
    missing_key: str | None = None
    """The id of the key that the message is encrypted with, if this server does not have it."""
    alone: bool = True
    """Whether no other server uses the store."""


def explain(facts: Facts, group: GroupFacts, here: Circumstances) -> Explanation:
    """Explain the state of a message for one group."""
    rules = (_for_others, _settled, _no_consumer, _taken, _stopped, _waiting, _bounded)
    finding = next((found for rule in rules if (found := rule(facts, group, here)) is not None), None)
    reason, text, data = finding or _nothing_in_the_way(facts, group, here)
    return Explanation(group.group, reason, text, data)


def explain_without_groups(facts: Facts) -> Explanation:
    """Explain the state of a message in a queue that has no consumer groups."""
    if not facts.message.stored:
        return Explanation(None, "removed", _removed_text(facts), {})
    return Explanation(None, "no_group", "No consumer has ever popped from this queue. Start a consumer.", {})


def _for_others(facts: Facts, group: GroupFacts, _here: Circumstances) -> Finding | None:
    owner = facts.message.owner
    if owner is None or owner == group.group:
        return None
    name = the_group(owner) if owner else "a deleted group"
    return "other_group", f"Requeued from the dead letters of {name}, for that group only.", {"owner": owner or None}


def _no_consumer(_facts: Facts, group: GroupFacts, _here: Circumstances) -> Finding | None:
    if group.mode is not None:
        return None
    return "no_group", f"No consumer of {the_group(group.group)} has ever popped from this queue.", {}


def _settled(facts: Facts, group: GroupFacts, _here: Circumstances) -> Finding | None:
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
            f"Discarded at {moment(end.at)} after {_attempts(end.attempts)}, because the queue does not dead-letter"
            f" it: {quoted(end.error or '')}."
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
        text = f"Older than {the_group(group.group)}, which starts with messages after {moment(group.begins_after)}."
        return "before_start", text, {"startsAfter": moment(group.begins_after)}
    if untouched:  # Nothing of the partition was settled after the push.
        return "done", f"Skipped: a seek or a purge moved {the_group(group.group)} past it.", {"moved": True}
    return _done(facts, group, over)


def _done(facts: Facts, group: GroupFacts, over: bool) -> Finding:
    # A message can be created slightly later than now, so that it is after the start of a group.
    settled_at = max(group.settled_at or 0, facts.message.created_at or 0)
    options = facts.options
    doubts = ["it expired first"] if over else []
    if not (options.dead_letter_queue and options.dlq_after_max_retries):
        doubts.append("it was discarded after its last attempt")
    doubt = f", unless {' or '.join(doubts)}" if doubts else ""
    text = (
        f"Settled by {the_group(group.group)} at {moment(settled_at)} ({ago(facts.at - settled_at)})"
        f" at the latest{doubt}."
    )
    return "done", text, {"settledAtLatest": moment(settled_at), "certain": not doubts}


def _failure(attempts: int, error: str | None, failed_at: int) -> dict[str, object]:
    return {"attempts": attempts, "error": error, "failedAt": moment(failed_at)}


def _expired(expired_at: int) -> Finding:
    text = f"Expired at {moment(expired_at)}: its time to live ended before a delivery."
    return "expired", text, {"expiredAt": moment(expired_at)}


def _removed_text(facts: Facts) -> str:
    if facts.options.drop_settled:
        return "No longer stored: this queue removes settled messages, or the message was deleted."
    return "No longer stored: retention, a purge or a delete removed it."


def _taken(facts: Facts, group: GroupFacts, _here: Circumstances) -> Finding | None:
    if group.lease is not None:
        lease = group.lease
        since = "" if lease.since is None else f" since {moment(lease.since)}"
        attempt = 1 if group.retry is None else group.retry.attempts + 1
        data = _lease_data(lease) | {"attempt": attempt}
        return "leased", f"Leased to {who(lease.consumer)}{since} until {due_text(lease.until, facts.at)}.", data
    expires_at = facts.message.expires_at
    return _expired(expires_at) if expires_at is not None and expires_at <= facts.at else None


def _lease_data(lease: CurrentLease) -> dict[str, object]:
    return {
        "consumer": lease.consumer or None,
        "since": None if lease.since is None else moment(lease.since),
        "until": moment(lease.until),
    }


def _stopped(facts: Facts, group: GroupFacts, here: Circumstances) -> Finding | None:
    if here.pop_maintenance:
        return "pop_maintenance", "All deliveries are stopped for maintenance. Turn pop maintenance off.", {}
    if facts.queue_paused:
        return "queue_paused", "The queue is paused. Resume it.", {}
    if here.missing_key is not None:
        text = f"Encrypted with key {here.missing_key}, which this server does not have. Add it to encryption.old_keys."
        return "key_missing", text, {"key": here.missing_key}
    return ("group_paused", f"{the_group(group.group, start=True)} is paused. Resume it.", {}) if group.paused else None


def _waiting(facts: Facts, group: GroupFacts, _here: Circumstances) -> Finding | None:
    causes = [_delayed(facts), _too_young(facts), _retry(facts, group), _behind(facts, group)]
    found = [cause for cause in causes if cause is not None]
    # If several end at the same time, the first one wins.
    return max(found, key=lambda cause: cause[0])[1] if found else None


Waits = tuple[int, Finding]
"""The end of the wait, and its explanation."""


def _delayed(facts: Facts) -> Waits | None:
    due = facts.message.deliver_at
    if due is None or due <= facts.at:
        return None
    text = f"Delayed until {due_text(due, facts.at)}."
    return due, ("delayed", text, {"deliverAt": moment(due)})


def _too_young(facts: Facts) -> Waits | None:
    seconds, created_at = facts.options.delayed_processing, facts.message.created_at
    if not seconds or created_at is None:
        return None
    due = created_at + seconds * SECOND
    if due <= facts.at:
        return None
    text = (
        f"Delayed until {due_text(due, facts.at)}: the queue delivers every message"
        f" {seconds} s after its push (delayedProcessing)."
    )
    return due, ("delayed_processing", text, {"deliverAt": moment(due), "delayedProcessing": seconds})


def _retry(facts: Facts, group: GroupFacts) -> Waits | None:
    retry = group.retry
    if retry is None or retry.due <= facts.at:
        return None
    allowed = facts.message.retries_allowed
    what = f"Retry {retry.attempts} of {allowed}" if retry.attempts else "The redelivery that its consumer requested"
    after = "" if retry.error is None else f" after the error {quoted(retry.error)}"
    text = f"{what} is due at {due_text(retry.due, facts.at)}{after}."
    return retry.due, ("retry", text, _retry_data(retry, allowed))


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
    ahead_data: dict[str, object] = {"messageId": ahead.message_id, "offset": ahead.offset, "reason": reason}
    sentence = f"Waits for the earlier message {ahead.message_id} of its partition, which {text}."
    return until, ("behind", sentence, {"ahead": ahead_data | data, "aheadMessages": group.ahead_messages})


def _cause_ahead(ahead: Ahead, at: int) -> tuple[int, Reason, str, dict[str, object]] | None:
    """Until when and why an earlier message blocks later ones; None if it does not."""
    lease, retry, deliver_at = ahead.lease, ahead.retry, ahead.deliver_at
    if lease is not None:
        text = f"is leased to {who(lease.consumer)} until {due_text(lease.until, at)}"
        return lease.until, "leased", text, _lease_data(lease)
    if retry is not None and retry.due > max(at, deliver_at or 0):
        after = "" if retry.error is None else f" after the error {quoted(retry.error)}"
        text = f"is retried at {due_text(retry.due, at)}{after}"
        return retry.due, "retry", text, _retry_data(retry)
    if deliver_at is not None and deliver_at > at:
        text = f"is delayed until {due_text(deliver_at, at)}"
        return deliver_at, "delayed", text, {"deliverAt": moment(deliver_at)}
    return None


def _bounded(facts: Facts, group: GroupFacts, _here: Circumstances) -> Finding | None:
    if group.window_until is not None:
        until = group.window_until
        text = (
            f"In the window buffer until {due_text(until, facts.at)}, or longer if more messages"
            f" arrive: the queue delivers from a partition {facts.options.window_buffer} s after its last"
            " push (windowBuffer)."
        )
        return "window_buffer", text, {"until": moment(until), "windowBuffer": facts.options.window_buffer}
    limited = group.limited
    if limited is None:
        return None
    data: dict[str, object] = {"scope": limited.scope, "limit": limited.limit}
    owner = "The queue" if limited.scope == "queue" else the_group(group.group, start=True)
    suffix = ""
    if limited.scope == "partition":
        suffix = "PerPartition"
        owner = f"Partition {quoted(facts.message.partition)} of {the_group(group.group)}"
    if limited.reason == "max_in_flight":
        text = (
            f"{owner} has {limited.in_flight} messages in flight, and its limit is {limited.limit:g}"
            f" (maxInFlight{suffix})."
        )
        return "max_in_flight", text, data | {"inFlight": limited.in_flight}
    until = facts.at if limited.until is None else limited.until
    text = (
        f"{owner} is limited to {limited.limit:g} messages per second (rateLimit{suffix}). The next delivery is at"
        f" {due_text(until, facts.at)}."
    )
    return "rate_limited", text, data | {"until": moment(until)}


def _nothing_in_the_way(facts: Facts, group: GroupFacts, here: Circumstances) -> Finding:
    before = group.ahead_messages
    data: dict[str, object] = {"waiting": here.waiting, "aheadMessages": before}
    if group.retry is not None:
        data |= {"attempts": group.retry.attempts, "error": group.retry.error}
    after = f" after {before} earlier messages" if before > 1 else " after 1 earlier message" if before else ""
    last_polled, everywhere = _last_ask(facts, group, here)
    if here.waiting or facts.at - last_polled <= RECENTLY:
        waiting = "1 consumer waits" if here.waiting == 1 else f"{here.waiting} consumers wait"
        text = f"Ready{after}: the next pop of {the_group(group.group)} receives it. {waiting} on this server now."
        return "ready", text, data
    where = "" if everywhere else " on this server"
    text = (
        f"Ready{after}, but no consumer of {the_group(group.group)} has popped{where} since {moment(last_polled)}"
        f" ({ago(facts.at - last_polled)}). Check that its consumers run."
    )
    return "not_asked", text, data | {"askedAt": moment(last_polled), "askedHereOnly": not everywhere}


def _last_ask(facts: Facts, group: GroupFacts, here: Circumstances) -> tuple[int, bool]:
    """A time after which no consumer popped, and whether that is known for all servers."""
    elsewhere = group.last_seen + SEEN_INTERVAL
    mine = here.known_since if here.last_polled is None else here.last_polled
    if here.alone:
        return (min(mine, elsewhere) if here.last_polled is None else mine), True
    return (max(mine, elsewhere), True) if elsewhere <= facts.at else (mine, False)


def _attempts(number: int) -> str:
    return "1 attempt" if number == 1 else f"{number} attempts"
