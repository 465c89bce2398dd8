"""Which queue an id belongs to, for those who may use only some queues."""

from __future__ import annotations

from collections.abc import Sequence

from hark.engine.api import Engine
from hark.ids import partition_id_of

_KEPT = 10_000


class Places:
    """Finds queues by the ids of partitions and messages, and remembers those of partitions.

    What is remembered stays true: a partition never changes its queue, and an id is never given again.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[str, str] = {}

    async def queues_of(self, ids: Sequence[str]) -> list[str | None]:
        """The queue that each id leads to; None: no queue that there is."""
        partitions = [partition_id_of(id) for id in ids]
        unknown = list({one for one in partitions if one is not None and one not in self._known})
        if unknown:
            if len(self._known) + len(unknown) > _KEPT:
                self._known.clear()
            found = zip(unknown, await self._engine.queues_of(unknown), strict=True)
            self._known |= {partition: queue for partition, queue in found if queue is not None}
        return [None if one is None else self._known.get(one) for one in partitions]
