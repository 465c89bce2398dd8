"""Lists of queues in orders that the store does not know, or with some left out that the asker may not see."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hark.engine.api import Engine
from hark.model import QueueFilter, QueueInfo, QueuePage


async def list_queues(
    engine: Engine,
    where: QueueFilter,
    *,
    visible: Callable[[str], bool] | None = None,
    backlogs: Mapping[str, int] | None = None,
) -> QueuePage:
    """A page of queues; with `backlogs` the longest first, and only those that are `visible`."""
    if visible is None and backlogs is None:
        return await engine.queue_stats(where)
    names = [
        info.name
        for info in await engine.queue_infos(where.names)
        if _matches(info, where) and (visible is None or visible(info.name))
    ]
    if backlogs is not None:
        names.sort(key=lambda name: (-backlogs.get(name, 0), name))
    elif where.sort == "name":
        names.sort()
    else:
        names.reverse()
    end = None if where.limit is None else where.offset + where.limit
    page = names[where.offset : end]
    found = await engine.queue_stats(QueueFilter(names=page))
    order = {name: number for number, name in enumerate(page)}
    items = sorted(found.items, key=lambda stats: order[stats.info.name])
    return QueuePage(items, len(names))


def _matches(info: QueueInfo, where: QueueFilter) -> bool:
    return (
        (where.search is None or where.search in info.name)
        and (where.namespace is None or info.namespace == where.namespace)
        and (where.task is None or info.task == where.task)
        and (where.paused is None or info.paused == where.paused)
    )
