"""What other servers on the same database say that they did, and the secret by which they know each other.

What is heard is belief, like all that is in `Ready`: the database verifies it when somebody wants to take.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from itertools import groupby

from hark.engine.postgres.deliveries import Deliveries
from hark.engine.postgres.directory import Directory, Group, Place
from hark.engine.postgres.pool import Pool
from hark.engine.postgres.push import Arrival
from hark.engine.postgres.telling import Telling
from hark.model import Hint

_SECRET = "peer_secret:"
_SECRET_NUMBERS = 4
_NUMBER_BYTES = 8

# Of servers that start together one makes it, and all read what that one made.
_MAKE_SECRET = """
insert into hark.meta as known (key, value) select * from unnest($1::text[], $2::bigint[])
on conflict (key) do update set value = known.value
returning key, value
"""


async def peer_secret(pool: Pool) -> bytes:
    """32 random bytes in the database, made where there are none; as numbers, which is what `meta` has."""
    keys = [f"{_SECRET}{number}" for number in range(_SECRET_NUMBERS)]
    rows = await pool.fetch("select key, value from hark.meta where key = any ($1::text[])", keys)
    if len(rows) < len(keys):
        numbers = [int.from_bytes(secrets.token_bytes(_NUMBER_BYTES), signed=True) for _ in keys]
        rows = await pool.fetch(_MAKE_SECRET, keys, numbers)
    values = {row["key"]: row["value"] for row in rows}
    return b"".join(values[key].to_bytes(_NUMBER_BYTES, signed=True) for key in keys)


class Hearing:
    """Turns what other servers say into beliefs of this one, and into hints for those who wait here."""

    def __init__(self, directory: Directory, deliveries: Deliveries) -> None:
        self._directory = directory
        self._deliveries = deliveries

    def hear(self, hints: Sequence[Hint]) -> list[Hint]:
        """Believe hints; whom to tell of them."""
        telling = Telling(self._directory)
        for news, same in groupby(hints, lambda hint: hint.news):
            if news == "message":
                self._arrived(list(same), telling)
            else:
                for hint in same:
                    self._free(hint, telling)
        # At the end: a lease over several queues is in several hints.
        for lease in (lease for hint in hints for lease in hint.ended):
            self._deliveries.end(lease)
        return telling.hints()

    def _arrived(self, hints: Sequence[Hint], telling: Telling) -> None:
        """Messages came: they are for every group here, whomever the other server has told, and each of them once."""
        came: dict[Place, int] = {}
        for hint in hints:
            counts = dict(zip(hint.partitions or (), hint.counts, strict=False))
            for place in self._known(hint):
                came[place] = max(came.get(place, 1), counts.get(place.name, 1))
        telling.arrived([Arrival(place, number) for place, number in came.items()])
        for hint in hints:
            self._unknown(hint, telling)

    def _unknown(self, hint: Hint, telling: Telling) -> None:
        """Of some partitions nobody here can take by belief: whoever looks discovers them."""
        names = {place.name for place in self._known(hint)}
        unknown = None if hint.partitions is None else [name for name in hint.partitions if name not in names]
        if unknown == []:
            return
        groups = list(self._directory.groups_of(hint.queue))
        for group in groups if unknown is None else ():
            group.ready.forget()
        told = [group.name for group in groups]
        telling.book.arrived(hint.queue, (), told)
        for name in (None, *told):
            telling.book.add(hint.queue, name, unknown, "message")

    def _free(self, hint: Hint, telling: Telling) -> None:
        for group in self._directory.groups_of(hint.queue):
            if hint.group in (None, group.name):
                self._believe(group, hint, telling)
        if hint.partitions is None or hint.partitions:
            counts = dict(zip(hint.partitions or (), hint.counts, strict=False))
            telling.book.add(hint.queue, hint.group, hint.partitions, counts=counts or None)
        if hint.group is not None:
            for lease in hint.ended:
                telling.book.ended(hint.queue, hint.group, lease)

    def _believe(self, group: Group, hint: Hint, telling: Telling) -> None:
        if hint.partitions is None:
            group.ready.forget()
        for place in self._known(hint):
            group.ready.add(place.id)
        if hint.ended:
            telling.has_room(group)
        if group.shared is not None:
            return  # A lease on messages keeps nobody else from a partition.
        if hint.ended:
            telling.free(group, group.ready.doubt_leases())
        for lease in hint.ended:
            for partition in self._deliveries.partitions_of(lease):
                telling.drained(group, partition)

    def _known(self, hint: Hint) -> list[Place]:
        places = self._directory.places
        return [places[hint.queue, name] for name in hint.partitions or () if (hint.queue, name) in places]
