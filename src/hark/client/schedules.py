"""Schedules: messages that are pushed at due times."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from hark.api import operations
from hark.api.types.schedules import CatchUp, ListedSchedule, Overlap, ScheduleBody, ScheduleRun, ShownSchedule
from hark.client.arguments import (
    MAX_PRIORITY,
    a_name,
    an_integer,
    json_value,
    optional_moment,
    retry_schedule,
    time_to_live,
)
from hark.client.calling import Caller
from hark.errors import InvalidInput

Interval = float | str | timedelta
"""Seconds, a `timedelta`, or a text such as `"90s"` or `"1h30m"`."""


def seconds_or_text(value: Interval | None) -> float | str | None:
    """An interval as the API takes it. The server checks it."""
    return value.total_seconds() if isinstance(value, timedelta) else value


class Schedules:
    """Schedules of the server, `client.schedules`."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def put(
        self,
        name: str,
        queue: str,
        data: object = None,
        *,
        cron: str | None = None,
        every: Interval | None = None,
        timezone: str | None = None,
        start_at: datetime | None = None,
        jitter: Interval | None = None,
        overlap: Overlap = "allow",
        catch_up: CatchUp = "latest",
        partition: str | None = None,
        priority: int | None = None,
        ttl: float | timedelta | None = None,
        retry_delays: Sequence[float | timedelta] | None = None,
    ) -> ShownSchedule:
        """Create a schedule, or replace its settings: at its due times the server pushes `data` to the queue.

        Give exactly one of `cron` (such as `"30 8 * * MON-FRI"`, in `timezone`) and `every` (seconds, a `timedelta`, or
        a text such as `"90s"`). An equal schedule is not changed, so a program can call this at every start.

        - `start_at`: no due time is before this time, and intervals count from it.
        - `jitter`: delay each due time by a part of this time.
        - `overlap`: `skip` skips a due time while the message of the run before is not settled.
        - `catch_up`: what happens with due times at which no server ran: `none` of them is pushed, the `latest`
          (default), or `all`.
        - `partition`, `priority`, `ttl`, `retry_delays`: of the messages, as for `push`.

        Raises `InvalidInput` if an argument is invalid.
        """
        if (cron is None) == (every is None):
            raise InvalidInput("cron, every: expected exactly one of them, such as every='5m'")
        body = ScheduleBody(
            queue=a_name(queue, "queue"),
            partition=None if partition is None else a_name(partition, "partition"),
            payload=json_value(data, "data"),
            cron=cron,
            every=seconds_or_text(every),
            timezone=timezone,
            start_at=optional_moment(start_at, "start_at"),
            jitter=seconds_or_text(jitter),
            overlap=overlap,
            catch_up=catch_up,
            priority=None if priority is None else an_integer(priority, "priority", 0, MAX_PRIORITY),
            ttl=time_to_live(ttl, "ttl"),
            backoff_schedule=None if retry_delays is None else retry_schedule(retry_delays),
        )
        return await self._caller.ask(operations.PUT_SCHEDULE, name, body=body)

    async def list(
        self, queue: str | None = None, *, search: str | None = None, limit: int = 10_000, offset: int = 0
    ) -> tuple[ListedSchedule, ...]:
        """List schedules by name. `search` matches a part of the name."""
        query = {"queue": queue, "search": search, "limit": limit, "offset": offset}
        return (await self._caller.ask(operations.LIST_SCHEDULES, query=query)).items

    async def get(self, name: str) -> ShownSchedule:
        """A schedule with its next and last runs. Raises `NotFound` if it does not exist."""
        return await self._caller.ask(operations.SHOW_SCHEDULE, name)

    async def pause(self, name: str) -> ShownSchedule:
        """Pause a schedule. Due times until it is resumed are not caught up."""
        return await self._caller.ask(operations.PAUSE_SCHEDULE, name, safe=True)

    async def resume(self, name: str) -> ShownSchedule:
        """Resume a schedule. Its next due time is the first one after now."""
        return await self._caller.ask(operations.RESUME_SCHEDULE, name, safe=True)

    async def run(self, name: str) -> ScheduleRun:
        """Push one message of a schedule now. Its due times do not change."""
        return await self._caller.ask(operations.RUN_SCHEDULE, name)

    async def delete(self, name: str) -> bool:
        """Delete a schedule. Returns whether it existed. Messages that it pushed stay."""
        return await self._caller.find("schedule_not_found", operations.DELETE_SCHEDULE, name) is not None
