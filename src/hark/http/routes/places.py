"""Positions of consumer groups in the partitions of a queue."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request

from hark.access.identity import Identity
from hark.clock import SECOND
from hark.http.answers.queues import Place, ShownPartition
from hark.http.checks import MAX_NUMBER, format_time_ms
from hark.http.edge.identities import identity_of, shown_lease
from hark.http.routes.requests import broker_of, now
from hark.model import TrackStats


async def add_places(request: Request, queue: str, partitions: Sequence[ShownPartition]) -> None:
    """Add the positions of all groups to the partitions of a queue."""
    places: dict[str, list[Place]] = {}
    for partition in partitions:
        partition["places"] = places.setdefault(partition["name"], [])
    moment = now()
    for track in await broker_of(request).engine.track_stats(queue=queue, limit=MAX_NUMBER, partitions=list(places)):
        places[track.partition].append(_place(track, moment, identity_of(request)))


def _place(track: TrackStats, moment: int, identity: Identity) -> Place:
    waited = 0 if track.oldest_waiting is None else max(0, moment - track.oldest_waiting)
    return {
        "consumerGroup": track.group,
        "cursor": track.cursor,
        "lag": track.lag,
        "timeLagSeconds": waited // SECOND,
        "leaseId": shown_lease(identity, track.lease_id),
        "leaseUntil": None if track.lease_expires_at is None else format_time_ms(track.lease_expires_at),
    }
