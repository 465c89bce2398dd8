"""Queues: configure, list, get, delete, pause, resume, purge, export; positions of groups in them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from hark.access.identity import Identity
from hark.api import operations
from hark.api.options import LIMITS, OPTIONS, Limits, Option, QueueOptions
from hark.api.types.base import Pagination, extended
from hark.api.types.queues import (
    ConfiguredQueue,
    DeletedQueue,
    Depth,
    GroupPosition,
    ListedCounts,
    ListedQueue,
    PartitionDepth,
    Paused,
    Purged,
    QueueHead,
    QueuePage,
    ShownPartition,
    ShownQueue,
)
from hark.broker.observer import list_queues as list_queues_of
from hark.clock import SECOND
from hark.errors import InvalidInput, NotFound
from hark.http.admission import identity_of, permitted_labels, shown_lease
from hark.http.checks import MAX_NUMBER, check_int, check_name, check_text, decode_json, short, time_of
from hark.http.exchange import exchange_of
from hark.http.responses import known_error
from hark.http.routes.requests import NO_QUEUE, broker_of, name_in_path, now, query_of, read_json, reply
from hark.http.routes.table import (
    LINES,
    MAX_LIST,
    MAX_PAGE,
    BoolParam,
    ChoiceParam,
    NameParam,
    Param,
    Table,
    bind,
    paging,
    table,
)
from hark.model import Counts, GroupStats, PartitionStats, PositionStats, QueueFilter, QueueSpec, QueueStats
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
    values: dict[str, int | float | bool] = {}
    ignored: list[str] = []
    for name, raw in given.items():
        if name not in OPTIONS:
            ignored.append(name)
        elif (value := bytes(raw)) != b"null":
            values[name] = _read_option(OPTIONS[name], value, f"options.{name}")
    _check_burst(values, "options.rateBurst")
    if ignored:
        names = ", ".join([*map(short, ignored[:_LOGGED]), *(["..."] if len(ignored) > _LOGGED else [])])
        log.warning("queue %s: ignored unknown options %s; check their spelling", short(queue), names)
    return msgspec.convert(values, QueueOptions), ignored


def read_limits(given: Mapping[str, msgspec.Raw]) -> Limits:
    """Return the checked limits of a group. Unknown names are rejected: to ignore them would remove a limit."""
    values: dict[str, int | float | bool] = {}
    for name, raw in given.items():
        if name not in LIMITS:
            raise InvalidInput(f"{short(name)}: unknown limit; expected {', '.join(LIMITS)}")
        if (value := bytes(raw)) != b"null":
            values[name] = _read_option(LIMITS[name], value, name)
    _check_burst(values, "rateBurst")
    return msgspec.convert(values, Limits)


def _check_burst(values: Mapping[str, int | float | bool], where: str) -> None:
    if values.get("rateBurst") and not values.get("rateLimit"):
        raise InvalidInput(f"{where}: allowed only together with rateLimit; set both")


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


async def export_queue(request: Request) -> Response:
    """Export a queue.

    Returns the options, consumer groups, messages and dead letters of a queue as lines of JSON, for the command
    `hark import`. The last line has the type `end`; without it the export is incomplete.
    """
    lines = broker_of(request).export_queue(name_in_path(request, "queue"))
    # An export that cannot start returns an ordinary error.
    first = await anext(lines)
    return StreamingResponse(_streamed(first, lines), media_type=LINES)


async def _streamed(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    try:
        async for lines in rest:
            yield lines
    except Exception as error:
        # The status is sent already. The file lacks its last line, and this line gives the reason.
        known = known_error(error)
        yield msgspec.json.encode(ErrorLine(error=known.text, code=known.code)) + b"\n"


EXPORT_TABLE: Table = table(bind(operations.EXPORT_QUEUE, export_queue, media=LINES, errors=(NO_QUEUE,)))


_PAGE = paging(MAX_LIST, MAX_LIST)
_SEARCH = Param("search", "Return only entries whose name contains this text.")
NAMESPACE = NameParam("namespace", "Return only queues in this namespace.")
TASK = NameParam("task", "Return only queues with this task.")
_PAUSED = BoolParam("paused", "Return only paused queues.")
_PARTITIONS = paging(MAX_PAGE, MAX_LIST)
_POSITIONS = BoolParam("positions", "Include the position of each consumer group in each partition.")
_GROUP = NameParam("group", "Consumer group. The default is the group that is furthest behind.")
_SORT = ChoiceParam(
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


async def configure(request: Request) -> Response:
    """Create or configure a queue.

    Creates the queue if it does not exist. Replaces its namespace, its task and all its options; an option that is
    absent gets its default. Unknown options are ignored and listed in `ignoredOptions`. With a token that is restricted
    to queues, the queue gets no namespace and no task unless its patterns cover the namespace whole (`NS.*`).
    """
    body = await read_json(request, ConfigureBody, "configure")
    if not body.queue:
        raise InvalidInput("queue is required")
    identity = identity_of(request)
    identity.check_queue(body.queue)
    options, ignored = read_options(body.options or {}, body.queue)
    given = check_text(body.namespace or "", "namespace"), check_text(body.task or "", "task")
    namespace, task = permitted_labels(identity, body.queue, given) or given
    spec = QueueSpec(name=check_name(body.queue, "queue"), namespace=namespace, task=task, options=options)
    exchange_of(request).note_target(queue=spec.name)
    info = await broker_of(request).configure(spec)
    return reply(
        ConfiguredQueue(
            configured=True,
            queue_id=info.id,
            partition_id=info.partition_id,
            queue=info.name,
            namespace=info.namespace,
            task=info.task,
            options=info.options,
            ignored_options=tuple(ignored),
        )
    )


async def list_queues(request: Request) -> Response:
    """List queues. Returns queues with their message counts; by default the newest queue first."""
    query = query_of(request)
    limit, offset = _PAGE.of(query)
    sort = _SORT.of(query)
    where = QueueFilter(
        search=_SEARCH.text(query),
        namespace=NAMESPACE.of(query),
        task=TASK.of(query),
        paused=_PAUSED.of(query) or None,
        sort="name" if sort == "name" else "newest",
        limit=limit,
        offset=offset,
    )
    identity = identity_of(request)
    page = await list_queues_of(
        broker_of(request).observed.counts,
        where,
        visible=identity.may_use if identity.restricted else None,
        backlogs=broker_of(request).observed.backlogs if sort == "backlog" else None,
    )
    return reply(
        QueuePage(
            queues=tuple(listed_queue(stats) for stats in page.items),
            total=page.total,
            pagination=Pagination(limit=limit, offset=offset),
        )
    )


async def show_queue(request: Request) -> Response:
    """Get a queue. Returns the queue with its options, its message counts and a page of its partitions."""
    name = name_in_path(request, "queue")
    query = query_of(request)
    limit, offset = _PARTITIONS.of(query)
    engine = broker_of(request).engine
    stats = await stats_of(request, name)
    found = await engine.partition_stats(name, _SEARCH.text(query), limit, offset)
    positions = await positions_of(request, name, [one.name for one in found]) if _POSITIONS.of(query) else {}
    return reply(
        extended(
            ShownQueue,
            head_of(stats),
            partition_count=stats.partitions,
            partitions=tuple(_partition(one, positions.get(one.name)) for one in found),
            totals=stats.counts,
            expired=stats.expired,
            discarded=stats.discarded,
            options=stats.info.options,
        )
    )


async def show_depth(request: Request) -> Response:
    """Get the backlog of a queue.

    Returns the number of unsettled messages of a consumer group, in total and by partition.
    """
    name = name_in_path(request, "queue")
    query = query_of(request)
    group, limit = _GROUP.of(query), _PAGE.limit.of(query)
    engine = broker_of(request).engine
    stats = await stats_of(request, name)
    if group is not None and (known := await broker_of(request).observed.counts.group_stats(group, name)):
        pending, scheduled, partitions = known[0].lag, known[0].scheduled, known[0].partitions_with_lag
        positions = await engine.position_stats(group, name, limit=limit)
        depths = [(position.partition, position.lag) for position in positions]
    else:
        # An unknown group would start at the first message, unless its first pop chooses another position.
        seen = [
            (item.name, item.counts.total if group else item.counts.pending + item.counts.processing)
            for item in await engine.partition_stats(name, limit=limit)
        ]
        depths = seen
        pending = stats.counts.total if group else stats.counts.pending + stats.counts.processing
        scheduled = 0 if group else stats.counts.scheduled
        partitions = sum(1 for _, depth in seen if depth)
    return reply(
        Depth(
            queue=name,
            group=group,
            pending=pending,
            scheduled=scheduled,
            partitions_pending=partitions,
            conflation=False,
            effective_pending=pending,
            partitions=tuple(
                PartitionDepth(partition=partition, pending=depth) for partition, depth in depths if depth
            ),
        )
    )


async def delete_queue(request: Request) -> Response:
    """Delete a queue.

    Deletes the queue with its messages, consumer groups and dead letters. Succeeds also if the queue does not exist.
    """
    name = name_in_path(request, "queue")
    [existed] = await broker_of(request).delete_queues([name])
    return reply(DeletedQueue(deleted=True, queue=name, existed=existed))


async def pause_queue(request: Request) -> Response:
    """Pause a queue. The queue accepts messages, and delivers none until it is resumed."""
    return await _set_paused(request, True)


async def resume_queue(request: Request) -> Response:
    """Resume a queue. Deliveries of the queue continue."""
    return await _set_paused(request, False)


async def _set_paused(request: Request, paused: bool) -> Response:
    name = name_in_path(request, "queue")
    if not await broker_of(request).engine.pause(name, None, paused):
        raise NotFound("Queue not found", code="queue_not_found")
    return reply(Paused(success=True, queue=name, paused=paused))


async def purge_queue(request: Request) -> Response:
    """Purge a queue. Deletes all messages of the queue, including leased messages. Dead letters remain."""
    name = name_in_path(request, "queue")
    engine = broker_of(request).engine
    if not await engine.queue_infos([name]):
        raise NotFound("Queue not found", code="queue_not_found")
    return reply(Purged(success=True, queue=name, purged=await engine.purge(name)))


async def queues_of(request: Request) -> list[str] | None:
    """Return the names of the queues that a restricted token permits; None: all queues."""
    identity = identity_of(request)
    if not identity.restricted:
        return None
    return [info.name for info in await broker_of(request).engine.queue_infos() if identity.may_use(info.name)]


async def groups_of(request: Request, queue: str | None = None) -> list[GroupStats]:
    """Return the consumer groups of the queues that the caller may use, or of one of them."""
    return await broker_of(request).observed.counts.group_stats(queue=queue, queues=await queues_of(request))


async def stats_of(request: Request, name: str) -> QueueStats:
    """Return the counts of a queue; raises `NotFound` if it does not exist."""
    found = (await broker_of(request).observed.counts.queue_stats(QueueFilter(names=[name]))).items
    if not found:
        raise NotFound("Queue not found", code="queue_not_found")
    return found[0]


def total_of(counts: Sequence[Counts]) -> Counts:
    """Return the sum of message counts."""
    names = Counts.__struct_fields__
    return Counts(**{name: sum(getattr(one, name) for one in counts) for name in names})


def listed_queue(stats: QueueStats) -> ListedQueue:
    """Return a queue for a list."""
    counts = stats.counts
    return extended(
        ListedQueue,
        head_of(stats),
        partitions=stats.partitions,
        messages=ListedCounts(counts.total, counts.pending, counts.scheduled, counts.processing),
    )


def head_of(stats: QueueStats) -> QueueHead:
    """Return the id, the name and the labels of a queue."""
    info = stats.info
    return QueueHead(
        id=info.id,
        name=info.name,
        namespace=info.namespace,
        task=info.task,
        created_at=time_of(info.created_at),
        paused=info.paused,
    )


def _partition(partition: PartitionStats, positions: tuple[GroupPosition, ...] | None) -> ShownPartition:
    return ShownPartition(
        id=partition.id,
        name=partition.name,
        created_at=time_of(partition.created_at),
        stats=partition.counts,
        oldest_message=time_of(partition.oldest),
        newest_message=time_of(partition.newest),
        positions=positions,
    )


async def positions_of(request: Request, queue: str, partitions: Sequence[str]) -> dict[str, tuple[GroupPosition, ...]]:
    """Return the positions of all groups in partitions of a queue, by partition."""
    positions: dict[str, list[GroupPosition]] = {name: [] for name in partitions}
    moment = now(request)
    for position in await broker_of(request).engine.position_stats(
        queue=queue, limit=MAX_NUMBER, partitions=list(positions)
    ):
        positions[position.partition].append(_group_position(position, moment, identity_of(request)))
    return {name: tuple(found) for name, found in positions.items()}


def _group_position(position: PositionStats, moment: int, identity: Identity) -> GroupPosition:
    waited = 0 if position.oldest_waiting is None else max(0, moment - position.oldest_waiting)
    return GroupPosition(
        consumer_group=position.group,
        cursor=position.cursor,
        lag=position.lag,
        scheduled=position.scheduled,
        time_lag_seconds=waited // SECOND,
        lease_id=shown_lease(identity, position.lease_id),
        lease_until=time_of(position.lease_expires_at),
    )


_LIST = (*_PAGE, _SEARCH, NAMESPACE, TASK, _PAUSED, _SORT)

TABLE: Table = table(
    bind(operations.CONFIGURE, configure, body=ConfigureBody),
    bind(operations.LIST_QUEUES, list_queues, query=_LIST),
    bind(operations.SHOW_QUEUE, show_queue, query=(*_PARTITIONS, _SEARCH, _POSITIONS), errors=(NO_QUEUE,)),
    bind(operations.DELETE_QUEUE, delete_queue),
    bind(operations.SHOW_DEPTH, show_depth, query=(_PAGE.limit, _GROUP), errors=(NO_QUEUE,)),
    bind(operations.PAUSE_QUEUE, pause_queue, errors=(NO_QUEUE,)),
    bind(operations.RESUME_QUEUE, resume_queue, errors=(NO_QUEUE,)),
    bind(operations.PURGE_QUEUE, purge_queue, errors=(NO_QUEUE,)),
)
