"""Queues: configure, list, get, delete, pause, resume, purge, export; positions of groups in them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated

import msgspec
from starlette.responses import StreamingResponse

from hark.api import operations, types
from hark.api.options import LIMITS, OPTIONS, Limits, Option, QueueOptions
from hark.broker.survey import list_queues as list_queues_of
from hark.clock import SECOND
from hark.errors import InvalidInput, NotFound
from hark.http import routing
from hark.http.admission import permitted_labels, shown_lease
from hark.http.checks import MAX_NUMBER, check_int, check_name, check_text, decode_json, short, time_of
from hark.http.responses import answer_of, known_error
from hark.http.routing import Call, bind, table
from hark.model import Counts, GroupStats, QueueFilter, QueueSpec, QueueStats
from hark.model.export import ErrorLine

log = logging.getLogger(__name__)

_MAX_OPTIONS = 1000
_LOGGED = 10
"""Number of unknown options that the log names."""


def _schema(options: Mapping[str, Option]) -> dict[str, object]:
    return {"properties": {name: option.schema for name, option in options.items()}}


OptionsBody = Annotated[dict[str, msgspec.Raw], msgspec.Meta(extra_json_schema=_schema(OPTIONS))]
LimitsBody = Annotated[
    dict[str, msgspec.Raw], msgspec.Meta(extra_json_schema=_schema(LIMITS) | {"additionalProperties": False})
]


def read_options(given: Mapping[str, msgspec.Raw], queue: str) -> tuple[QueueOptions, list[str]]:
    """Return the checked options, and the names of unknown options. Null means the default."""
    if len(given) > _MAX_OPTIONS:
        raise InvalidInput(f"options: at most {_MAX_OPTIONS}, got {len(given)}")
    ignored = [name for name in given if name not in OPTIONS]
    values = _read(given, OPTIONS, "options.")
    if ignored:
        names = ", ".join([*map(short, ignored[:_LOGGED]), *(["..."] if len(ignored) > _LOGGED else [])])
        log.warning("queue %s: ignored unknown options %s; check their spelling", short(queue), names)
    return msgspec.convert(values, QueueOptions), ignored


def read_limits(given: Mapping[str, msgspec.Raw]) -> Limits:
    """Return the checked limits of a group. Unknown names are rejected: to ignore them would remove a limit."""
    for name in given:
        if name not in LIMITS:
            raise InvalidInput(f"{short(name)}: unknown limit; expected {', '.join(LIMITS)}")
    return msgspec.convert(_read(given, LIMITS, ""), Limits)


def _read(given: Mapping[str, msgspec.Raw], known: Mapping[str, Option], where: str) -> dict[str, int | float | bool]:
    values = {
        name: _read_option(known[name], bytes(raw), f"{where}{name}")
        for name, raw in given.items()
        if name in known and bytes(raw) != b"null"
    }
    for burst, rate in (("rateBurst", "rateLimit"), ("rateBurstPerPartition", "rateLimitPerPartition")):
        if values.get(burst) and not values.get(rate):
            raise InvalidInput(f"{where}{burst}: allowed only together with {rate}; set both")
    return values


def _read_option(option: Option, value: bytes, where: str) -> int | float | bool:
    least, most = option.least, option.most
    if least is None or most is None:
        return decode_json(value, bool, where)
    if option.type == "integer":
        return check_int(decode_json(value, int, where), where, int(least), int(most))
    number = decode_json(value, float, where)
    if number != option.default and not least <= number <= most:
        other = "" if option.default >= least else f"{option.default} (no limit) or "
        raise InvalidInput(f"{where}: expected {other}a number from {least} to {most}, got {short(number)}")
    return number


async def export_queue(call: Call) -> StreamingResponse:
    """Export a queue.

    Returns the options, consumer groups, messages and dead letters of a queue as lines of JSON, for the command
    `hark import`. The last line has the type `end`; without it the export is incomplete.
    """
    lines = call.broker.export_queue(call.name("queue"))
    # An export that cannot start returns an ordinary error.
    first = await anext(lines)
    return StreamingResponse(_streamed(first, lines), media_type=routing.LINES)


async def _streamed(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    try:
        async for lines in rest:
            yield lines
    except Exception as error:
        # The status is sent already. The file lacks its last line, and this line gives the reason.
        known = known_error(error)
        yield msgspec.json.encode(ErrorLine(error=known.text, code=known.code)) + b"\n"


_PAGE = routing.paging(routing.MAX_LIST, routing.MAX_LIST)
_SEARCH = routing.Param("search", "Return only entries whose name contains this text.")
NAMESPACE = routing.NameParam("namespace", "Return only queues in this namespace.")
TASK = routing.NameParam("task", "Return only queues with this task.")
_PAUSED = routing.BoolParam("paused", "Return only paused queues.")
_PARTITIONS = routing.paging(routing.MAX_PAGE, routing.MAX_LIST)
_POSITIONS = routing.BoolParam("positions", "Include the position of each consumer group in each partition.")
_GROUP = routing.NameParam("group", "Consumer group. The default is the group that is furthest behind.")
_SORT = routing.ChoiceParam(
    "sort",
    "Order of the queues. `newest`: newest queue first. `name`: by name. `backlog`: largest backlog first.",
    ("newest", "name", "backlog"),
    "newest",
)


class ConfigureBody(msgspec.Struct):
    """A queue to create or configure. Null means absent."""

    queue: str | None = None
    namespace: str | None = None
    task: str | None = None
    options: OptionsBody | None = None


async def configure(call: Call) -> types.queues.ConfiguredQueue:
    """Create or configure a queue.

    Creates the queue if it does not exist. Replaces its namespace, its task and all its options; an option that is
    absent gets its default. Unknown options are ignored and listed in `ignoredOptions`. With a token that is restricted
    to queues, the queue gets no namespace and no task unless its patterns cover the namespace whole (`NS.*`).
    """
    body = await call.json(ConfigureBody, "configure")
    if not body.queue:
        raise InvalidInput("queue is required")
    call.identity.check_queue(body.queue)
    options, ignored = read_options(body.options or {}, body.queue)
    given = check_text(body.namespace or "", "namespace"), check_text(body.task or "", "task")
    namespace, task = permitted_labels(call.identity, body.queue, given) or given
    spec = QueueSpec(name=check_name(body.queue, "queue"), namespace=namespace, task=task, options=options)
    call.exchange.note_target(queue=spec.name)
    info = await call.broker.configure(spec)
    return answer_of(
        types.queues.ConfiguredQueue,
        info,
        configured=True,
        queue_id=info.id,
        queue=info.name,
        ignored_options=tuple(ignored),
    )


async def list_queues(call: Call) -> types.Page[types.queues.ListedQueue]:
    """List queues. Returns queues with their message counts; by default the newest queue first."""
    query = call.query
    sort = _SORT.of(query)
    where = QueueFilter(
        search=_SEARCH.text(query),
        namespace=NAMESPACE.of(query),
        task=TASK.of(query),
        paused=_PAUSED.of(query) or None,
        sort="name" if sort == "name" else "newest",
    )
    return await queue_page(call, where, _PAGE.of(query), by_backlog=sort == "backlog")


async def queue_page(
    call: Call, where: QueueFilter, page: types.Pagination, *, by_backlog: bool = False
) -> types.Page[types.queues.ListedQueue]:
    """Return a page of the queues that the caller may use."""
    observed, identity = call.broker.observed, call.identity
    found = await list_queues_of(
        observed.counts,
        msgspec.structs.replace(where, limit=page.limit, offset=page.offset),
        visible=identity.may_use if identity.restricted else None,
        backlogs=observed.backlogs if by_backlog else None,
    )
    queues = (
        answer_of(
            types.queues.ListedQueue,
            stats.info,
            partitions=stats.partitions,
            messages=answer_of(types.queues.ListedCounts, stats.counts),
        )
        for stats in found.items
    )
    return types.queues.QueuePage(items=tuple(queues), total=found.total, pagination=page)


async def show_queue(call: Call) -> types.queues.ShownQueue:
    """Get a queue. Returns the queue with its options, its message counts and a page of its partitions."""
    name = call.name("queue")
    query = call.query
    page = _PARTITIONS.of(query)
    stats = await stats_of(call, name)
    found = await call.engine.partition_stats(name, _SEARCH.text(query), page.limit, page.offset)
    positions = await positions_of(call, name, [one.name for one in found]) if _POSITIONS.of(query) else {}
    partitions = (
        answer_of(
            types.queues.ShownPartition,
            one,
            stats=one.counts,
            oldest_message=time_of(one.oldest),
            newest_message=time_of(one.newest),
            positions=positions.get(one.name),
        )
        for one in found
    )
    return answer_of(
        types.queues.ShownQueue,
        stats.info,
        partition_count=stats.partitions,
        partitions=tuple(partitions),
        totals=stats.counts,
        expired=stats.expired,
        discarded=stats.discarded,
    )


async def show_depth(call: Call) -> types.queues.Depth:
    """Get the backlog of a queue.

    Returns the number of messages that wait for a consumer group, in total and by partition.
    """
    name = call.name("queue")
    group, limit = _GROUP.of(call.query), _PAGE.limit.of(call.query)
    stats = await stats_of(call, name)
    if group is not None and (known := await call.broker.observed.counts.group_stats(group, name)):
        pending, scheduled, partitions = known[0].lag, known[0].scheduled, known[0].partitions_with_lag
        positions = await call.engine.position_stats(group, name, limit=limit)
        depths = [(position.partition, position.lag) for position in positions]
    else:
        # An unknown group would start at the first message, unless its first pop chooses another position.
        depths = [
            (item.name, item.counts.total if group else item.counts.pending)
            for item in await call.engine.partition_stats(name, limit=limit)
        ]
        pending = stats.counts.total if group else stats.counts.pending
        scheduled = 0 if group else stats.counts.scheduled
        partitions = sum(1 for _, depth in depths if depth)
    return types.queues.Depth(
        queue=name,
        group=group,
        pending=pending,
        scheduled=scheduled,
        partitions_pending=partitions,
        conflation=False,
        effective_pending=pending,
        partitions=tuple(types.queues.PartitionDepth(partition, depth) for partition, depth in depths if depth),
    )


async def delete_queue(call: Call) -> types.queues.DeletedQueue:
    """Delete a queue.

    Deletes the queue with its messages, consumer groups and dead letters. Succeeds also if the queue does not exist.
    """
    name = call.name("queue")
    [existed] = await call.broker.delete_queues([name])
    return types.queues.DeletedQueue(deleted=True, queue=name, existed=existed)


async def pause_queue(call: Call) -> types.queues.OfQueue[bool]:
    """Pause a queue. The queue accepts messages, and delivers none until it is resumed."""
    return await set_paused(call, True)


async def resume_queue(call: Call) -> types.queues.OfQueue[bool]:
    """Resume a queue. Deliveries of the queue continue."""
    return await set_paused(call, False)


async def set_paused(call: Call, paused: bool) -> types.queues.OfQueue[bool]:
    """Pause or resume the queue in the path, or the group in the path."""
    queue, group = call.name("queue"), call.name("group") if "group" in call.exchange.params else None
    if not await call.engine.pause(queue, group, paused):
        raise no_queue() if group is None else no_group()
    return types.queues.Paused(True, queue, paused, group)


async def purge_queue(call: Call) -> types.queues.OfQueue[int]:
    """Purge a queue. Deletes all messages of the queue, including leased messages. Dead letters remain."""
    name = call.name("queue")
    if not await call.engine.queue_infos([name]):
        raise no_queue()
    return types.queues.Purged(True, name, await call.engine.purge(name))


def no_queue() -> NotFound:
    """Return the error for a queue that does not exist."""
    return NotFound("Queue not found", code="queue_not_found")


def no_group() -> NotFound:
    """Return the error for a consumer group that does not exist."""
    return NotFound("Consumer group not found", code="group_not_found")


async def queues_of(call: Call) -> list[str] | None:
    """Return the names of the queues that a restricted token permits; None: all queues."""
    identity = call.identity
    if not identity.restricted:
        return None
    return [info.name for info in await call.engine.queue_infos() if identity.may_use(info.name)]


async def groups_of(call: Call, queue: str | None = None) -> list[GroupStats]:
    """Return the consumer groups of the queues that the caller may use, or of one of them."""
    return await call.broker.observed.counts.group_stats(queue=queue, queues=await queues_of(call))


async def stats_of(call: Call, name: str) -> QueueStats:
    """Return the counts of a queue; raises `NotFound` if it does not exist."""
    found = (await call.broker.observed.counts.queue_stats(QueueFilter(names=[name]))).items
    if not found:
        raise no_queue()
    return found[0]


def total_of(counts: Sequence[Counts]) -> Counts:
    """Return the sum of message counts."""
    names = Counts.__struct_fields__
    return Counts(**{name: sum(getattr(one, name) for one in counts) for name in names})


async def positions_of(
    call: Call, queue: str, partitions: Sequence[str]
) -> dict[str, tuple[types.queues.GroupPosition, ...]]:
    """Return the positions of all groups in partitions of a queue, by partition."""
    positions: dict[str, list[types.queues.GroupPosition]] = {name: [] for name in partitions}
    moment = call.now()
    for position in await call.engine.position_stats(queue=queue, limit=MAX_NUMBER, partitions=list(positions)):
        shown = answer_of(
            types.queues.GroupPosition,
            position,
            consumer_group=position.group,
            time_lag_seconds=int(age_seconds(position.oldest_waiting, moment)),
            lease_id=shown_lease(call.identity, position.lease_id),
            lease_until=time_of(position.lease_expires_at),
        )
        positions[position.partition].append(shown)
    return {name: tuple(found) for name, found in positions.items()}


def age_seconds(since: int | None, moment: int) -> float:
    """Return the time since a moment; 0 without one."""
    return 0 if since is None else max(0, moment - since) / SECOND


_LIST = (*_PAGE, _SEARCH, NAMESPACE, TASK, _PAUSED, _SORT)

TABLE = table(
    bind(operations.CONFIGURE, configure, body=ConfigureBody),
    bind(operations.LIST_QUEUES, list_queues, query=_LIST),
    bind(operations.SHOW_QUEUE, show_queue, query=(*_PARTITIONS, _SEARCH, _POSITIONS), errors=(routing.NO_QUEUE,)),
    bind(operations.DELETE_QUEUE, delete_queue),
    bind(operations.SHOW_DEPTH, show_depth, query=(_PAGE.limit, _GROUP), errors=(routing.NO_QUEUE,)),
    bind(operations.PAUSE_QUEUE, pause_queue, errors=(routing.NO_QUEUE,)),
    bind(operations.RESUME_QUEUE, resume_queue, errors=(routing.NO_QUEUE,)),
    bind(operations.PURGE_QUEUE, purge_queue, errors=(routing.NO_QUEUE,)),
    bind(operations.EXPORT_QUEUE, export_queue, media=routing.LINES, errors=(routing.NO_QUEUE,)),
)
