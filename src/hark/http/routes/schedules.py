"""Schedules: create, list, get, pause, resume, run and delete."""

from __future__ import annotations

import math
import re
from bisect import bisect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, get_args

import msgspec

from hark.api import operations, types
from hark.api.types.delivery import PushItem
from hark.api.types.tasks import ScheduleBody
from hark.broker import schedule_state
from hark.broker.schedule_state import Run, Schedule, Spec
from hark.broker.schedules import MayUse, not_found
from hark.clock import SECOND
from hark.errors import Forbidden, InvalidInput, NotFound, did_you_mean
from hark.http import routing
from hark.http.admission import stamp
from hark.http.checks import parse_time, raw_parts, short, time_of
from hark.http.items import to_new_message
from hark.http.responses import answer_of
from hark.http.routing import Call, bind, table

T = TypeVar("T")
_PAGE = routing.paging(100, routing.MAX_LIST)
_QUEUE = routing.NameParam("queue", "Return only schedules of this queue.")
_SEARCH = routing.Param("search", "Return only schedules whose name contains this text.")
_NO_SCHEDULE = routing.Failure(404, "schedule_not_found")
_BUSY = routing.Failure(409, "schedule_busy")

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_PART = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)(ms|[smhdw])", re.ASCII)
_YEARS = 10
_MAX_SECONDS = _YEARS * 366 * 86_400
_MAX_JITTER = 86_400
_NEIGHBOURS = 10
"""How many names before and after a missing one are compared with it: 10,000 long ones would take ten seconds."""
_LONGEST_NEIGHBOUR = 64


def read_seconds(value: str | float, field: str, least: float, most: float, example: str) -> int:
    """Return a length of time in microseconds: a number of seconds, or a text such as `1h30m`."""
    seconds = math.nan
    if not isinstance(value, str):
        seconds = value
    elif len(value) <= 64:
        text = value.strip().lower()
        if text and not _PART.sub("", text):
            seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
        elif re.fullmatch(r"\d{1,12}(\.\d{1,6})?", text, re.ASCII):
            seconds = float(text)
    if least <= seconds <= most:
        return round(seconds * SECOND)
    raise InvalidInput(
        f"{field}: expected {least:g} to {most:.0f} seconds as a number, or as a text with the units s, m, h, d or w "
        f"such as {example!r}, got {short(value)}"
    )


def _timing(body: ScheduleBody) -> schedule_state.Timing:
    if (body.cron is None) == (body.every is None):
        given = "both" if body.cron is not None else "neither"
        raise InvalidInput(f"cron, every: expected exactly one of them, such as every: '5m', got {given}")
    if body.timezone is not None and body.cron is None:
        raise InvalidInput("timezone: allowed only with cron; leave it out, or use cron instead of every")
    start_at = None if body.start_at is None else parse_time(body.start_at, "startAt")
    if body.cron is None:
        assert body.every is not None
        return schedule_state.Timing(every=read_seconds(body.every, "every", 1, _MAX_SECONDS, "90s"), start_at=start_at)
    return schedule_state.Timing(
        cron=schedule_state.check_cron(body.cron),
        timezone=schedule_state.check_zone(body.timezone or "UTC"),
        start_at=start_at,
    )


def _spec(call: Call, body: ScheduleBody) -> Spec:
    """Return the checked specification. Its message has the producer and the labels that the token permits."""
    timing = _timing(body)
    item = PushItem(
        queue=body.queue,
        payload=body.payload,
        priority=body.priority,
        ttl=body.ttl,
        backoff_schedule=None if body.backoff_schedule is None else list(body.backoff_schedule),
    )
    if body.partition is not None:
        item.partition = body.partition
    try:
        message = to_new_message(item, 0, "body")
    except InvalidInput as error:
        raise InvalidInput(error.text.removeprefix("body[0]."), code=error.code) from None
    stamp(call.identity, [message])
    return Spec(
        timing=timing,
        message=message,
        jitter=0 if body.jitter is None else read_seconds(body.jitter, "jitter", 0, _MAX_JITTER, "30s"),
        overlap=_choice(body.overlap or "allow", schedule_state.Overlap, "overlap"),
        catch_up=_choice(body.catch_up or "latest", schedule_state.CatchUp, "catchUp"),
    )


def _choice(value: str, choices: Any, field: str) -> Any:
    known = get_args(choices)
    if value not in known:
        raise InvalidInput(f"{field}: expected {', '.join(known[:-1])} or {known[-1]}, got {short(value)}")
    return value


def _may_use(call: Call) -> MayUse:
    """Return a check that treats schedules of other queues as missing, so that their existence is not revealed."""

    def check(schedule: Schedule | None) -> None:
        queue = None if schedule is None else schedule.spec.message.queue
        if call.identity.restricted and (queue is None or not call.identity.may_use(queue)):
            raise not_found()
        if queue is not None:
            call.exchange.note_target(queue=queue)

    return check


def _may_replace(call: Call) -> MayUse:
    """Return a check of the queue that a schedule had. Its name cannot be used again, so it is not hidden."""

    def check(schedule: Schedule | None) -> None:
        if call.identity.restricted and (schedule is None or not call.identity.may_use(schedule.spec.message.queue)):
            raise Forbidden(
                "a schedule of another queue, which this token may not use, has this name; choose another name",
                code="queue_not_allowed",
            )

    return check


async def put_schedule(call: Call) -> types.tasks.ShownSchedule:
    """Create or change a schedule.

    Replaces all its settings. If they are equal to the stored ones, nothing changes, so that a program can declare its
    schedules at every start. The due times change only if `cron`, `every`, `timezone` or `startAt` change. A schedule
    that is paused stays paused.
    """
    name = _name(call)
    body = await call.json(ScheduleBody, "schedule", payloads=raw_parts("payload", what="schedule"))
    spec = _spec(call, body)
    call.exchange.note_target(queue=body.queue)
    schedule, is_new = await call.broker.schedules.put(name, spec, _may_replace(call))
    call.status = 201 if is_new else 200
    return _shown(schedule)


async def list_schedules(call: Call) -> types.Page[types.tasks.ListedSchedule]:
    """List schedules. Returns schedules by name, without payloads."""
    page, queue, search = _PAGE.of(call.query), _QUEUE.of(call.query), _SEARCH.text(call.query)

    def wanted(schedule: Schedule) -> bool:
        own = schedule.spec.message.queue
        return queue in (None, own) and (search is None or search in schedule.name) and _is_visible(call, schedule)

    found, total = await call.broker.schedules.list(page.limit, page.offset, wanted)
    schedules = tuple(types.tasks.ListedSchedule(**_listed(one)) for one in found)
    return types.tasks.SchedulePage(items=schedules, total=total, pagination=page)


async def show_schedule(call: Call) -> types.tasks.ShownSchedule:
    """Get a schedule. Returns the schedule with its payload and its last runs."""
    return _shown(await _existing(call, call.broker.schedules.get))


async def pause_schedule(call: Call) -> types.tasks.ShownSchedule:
    """Pause a schedule. It pushes nothing until it is resumed; due times in between are not caught up."""
    return _shown(await _existing(call, call.broker.schedules.pause))


async def resume_schedule(call: Call) -> types.tasks.ShownSchedule:
    """Resume a schedule. Its next due time is the first one after now."""
    return _shown(await _existing(call, call.broker.schedules.resume))


async def run_schedule(call: Call) -> types.tasks.ScheduleRun:
    """Run a schedule now. Pushes one message, also if the schedule is paused. Its due times do not change."""
    run = await _existing(call, call.broker.schedules.run_now)
    call.status = 201
    return _run(run)


async def delete_schedule(call: Call) -> types.SuccessWith[str]:
    """Delete a schedule. Messages that it pushed stay."""
    await _existing(call, call.broker.schedules.delete)
    return types.tasks.DeletedSchedule(True, _name(call))


async def _existing(call: Call, verb: Callable[[str, MayUse], Awaitable[T]]) -> T:
    """Call a verb with the schedule of the path. The error for a missing one names a similar one that is visible."""
    name = _name(call)
    try:
        return await verb(name, _may_use(call))
    except NotFound as error:
        found, _ = await call.broker.schedules.list(routing.MAX_LIST, 0, lambda one: _is_visible(call, one))
        names = [one.name for one in found if len(one.name) <= _LONGEST_NEIGHBOUR]
        at = bisect(names, name)
        near = names[max(0, at - _NEIGHBOURS) : at + _NEIGHBOURS]
        raise NotFound(error.text + did_you_mean(name, near), code=error.code) from None


def _is_visible(call: Call, schedule: Schedule) -> bool:
    return not call.identity.restricted or call.identity.may_use(schedule.spec.message.queue)


def _name(call: Call) -> str:
    name = call.name("schedule")
    if len(name.encode()) > schedule_state.MAX_NAME_BYTES:
        raise InvalidInput(f"schedule: the name must be at most {schedule_state.MAX_NAME_BYTES} bytes of UTF-8")
    return name


def _shown(schedule: Schedule) -> types.tasks.ShownSchedule:
    return types.tasks.ShownSchedule(
        **_listed(schedule),
        payload=msgspec.Raw(schedule.spec.message.payload),
        unreadable=schedule.unreadable,
        last_runs=tuple(map(_run, schedule.recent)),
    )


def _run(run: Run) -> types.tasks.ScheduleRun:
    return answer_of(types.tasks.ScheduleRun, run)


def _listed(schedule: Schedule) -> dict[str, Any]:
    spec = schedule.spec
    message, timing, skip, error = spec.message, spec.timing, schedule.last_skip, schedule.last_error
    state = "failing" if schedule.failures else "active" if schedule.next_at is not None else "ended"
    return {
        "name": schedule.name,
        "queue": message.queue,
        "partition": message.partition,
        "cron": timing.cron,
        "every": None if timing.every is None else timing.every / SECOND,
        "timezone": timing.timezone,
        "start_at": time_of(timing.start_at),
        "jitter": spec.jitter / SECOND,
        "overlap": spec.overlap,
        "catch_up": spec.catch_up,
        "priority": message.priority,
        "ttl": message.ttl_ms,
        "backoff_schedule": message.backoff_ms,
        "state": "paused" if schedule.paused else state,
        "next_run_at": time_of(schedule.next_at),
        "last_run_at": time_of(schedule.recent[0].at if schedule.recent else None),
        "runs": schedule.runs,
        "skipped": schedule.skipped,
        "last_skip": None if skip is None else answer_of(types.tasks.ScheduleSkip, skip),
        "last_error": None if error is None else answer_of(types.tasks.ScheduleError, error),
        "created_at": time_of(schedule.created_at),
        "updated_at": time_of(schedule.changed_at),
    }


_SHOWN = types.tasks.ShownSchedule

TABLE = table(
    bind(operations.LIST_SCHEDULES, list_schedules, query=(*_PAGE, _QUEUE, _SEARCH)),
    bind(
        operations.PUT_SCHEDULE,
        put_schedule,
        body=ScheduleBody,
        body_bytes=routing.LARGE_BODY,
        answer={200: _SHOWN, 201: _SHOWN},
        errors=(_BUSY, _NO_SCHEDULE),
    ),
    bind(operations.SHOW_SCHEDULE, show_schedule, errors=(_NO_SCHEDULE,)),
    bind(operations.PAUSE_SCHEDULE, pause_schedule, errors=(_NO_SCHEDULE, _BUSY)),
    bind(operations.RESUME_SCHEDULE, resume_schedule, errors=(_NO_SCHEDULE, _BUSY)),
    bind(
        operations.RUN_SCHEDULE,
        run_schedule,
        answer={201: types.tasks.ScheduleRun},
        errors=(_NO_SCHEDULE, _BUSY, routing.QUEUE_FULL, routing.MAINTENANCE),
    ),
    bind(operations.DELETE_SCHEDULE, delete_schedule, errors=(_NO_SCHEDULE, _BUSY)),
)
