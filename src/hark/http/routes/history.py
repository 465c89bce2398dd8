"""Throughput and depths: the last hour, and a live sample every second."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from hark.access.identity import Identity
from hark.broker import Broker
from hark.broker.observing.history import HISTORY_SECONDS, INTERVAL_SECONDS
from hark.broker.observing.samples import Point, Sample
from hark.broker.observing.watchers import Watcher
from hark.http.answers import status as answers
from hark.http.checks import format_time_ms
from hark.http.edge.identities import identity_of
from hark.http.params import IntParam
from hark.http.responses import Receive, Scope, Send, encode, send_failure
from hark.http.routes.requests import broker_of, query_of, reply
from hark.http.routes.table import EVENTS, Reach, Table, read
from hark.http.stream.events import Manner, event, send_events
from hark.http.stream.line import PING_SECONDS, Line
from hark.settings import Settings

_SECONDS = IntParam("seconds", "Length of the period, in seconds.", HISTORY_SECONDS, INTERVAL_SECONDS, HISTORY_SECONDS)
_PING = event(b"ping", b"{}")


async def show_history(request: Request) -> Response:
    """Get the history of the last hour.

    Returns one sample for every ten seconds: the throughput of this server process, and the depths of the store.
    """
    points = broker_of(request).observed.history(_SECONDS.of(query_of(request)))
    answer: answers.History = {"intervalSeconds": INTERVAL_SECONDS, "samples": [point_of(point) for point in points]}
    return reply(answer)


def point_of(point: Point) -> answers.HistorySample:
    """Return a point in the form of the HTTP API."""
    rates, latency, depths, oldest = point.rates, point.latency, point.depths, point.oldest_waiting_seconds
    return {
        "at": format_time_ms(point.at),
        "pushedPerSecond": round(rates.pushed, 2),
        "deliveredPerSecond": round(rates.delivered, 2),
        "settledPerSecond": round(rates.settled, 2),
        "failedPerSecond": round(rates.failed, 2),
        "deadLetteredPerSecond": round(rates.dead_lettered, 2),
        "backlog": None if depths is None else depths.backlog,
        "inFlight": None if depths is None else depths.in_flight,
        "oldestWaitingSeconds": None if oldest is None else round(oldest, 1),
        "latencyMs": {
            "p50": None if latency is None else round(latency.p50, 2),
            "p99": None if latency is None else round(latency.p99, 2),
        },
    }


def sample_of(sample: Sample) -> answers.LiveSample:
    """Return a sample in the form of the HTTP API."""
    depths, standing = sample.point.depths, sample.standing
    return {
        **point_of(sample.point),
        "queues": None if depths is None else depths.queues,
        "partitions": None if depths is None else depths.partitions,
        "deadLetters": None if depths is None else depths.dead_letters,
        "waiting": {"pops": standing.pops, "streams": standing.streams, "browsers": standing.browsers},
        "maintenance": {"push": standing.push_maintenance, "pop": standing.pop_maintenance},
        "busiest": [
            {
                "queue": one.queue,
                "pushedPerSecond": round(one.pushed, 2),
                "deliveredPerSecond": round(one.delivered, 2),
                "settledPerSecond": round(one.settled, 2),
            }
            for one in sample.busiest
        ],
        "changed": list(sample.changed),
        "more": sample.more,
    }


def restricted_sample_of(sample: Sample, identity: Identity) -> answers.LiveSample:
    """Return a sample for a restricted token, without other queues and without totals."""
    shown = sample_of(sample)
    return {
        "at": shown["at"],
        "pushedPerSecond": None,
        "deliveredPerSecond": None,
        "settledPerSecond": None,
        "failedPerSecond": None,
        "deadLetteredPerSecond": None,
        "backlog": None,
        "inFlight": None,
        "oldestWaitingSeconds": None,
        "latencyMs": {"p50": None, "p99": None},
        "queues": None,
        "partitions": None,
        "deadLetters": None,
        "waiting": None,
        "maintenance": shown["maintenance"],
        "busiest": [one for one in shown["busiest"] if identity.may_use(one["queue"])],
        "changed": [name for name in shown["changed"] if identity.may_use(name)],
        "more": shown["more"],
    }


class SampleEvents:
    """The route of live samples, bound to a broker. Each sample is encoded once for all clients."""

    def __init__(self, broker: Broker, settings: Settings, ping_seconds: float = PING_SECONDS) -> None:
        self._broker = broker
        self._manner = Manner(
            opening=_PING, ping=_PING, ping_seconds=ping_seconds, patience=settings.limits.stalled_seconds
        )
        self._sample: Sample | None = None
        self._encoded = b""

    def table(self) -> Table:
        """Return the table of this route."""
        return {
            "/api/v1/events": {"GET": read(self.watch, Reach.LISTED, answer=str, media=EVENTS, raw=True)},
        }

    async def watch(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream live samples.

        Sends a server-sent event `sample` every second, with rates, depths and the names of the queues that changed.
        """
        try:
            watcher = self._broker.observed.watch()
        except Exception as error:
            await send_failure(send, error)
            return
        identity = identity_of(scope)
        await send_events(scope, receive, send, watcher, lambda line: self._feed(watcher, line, identity), self._manner)

    async def _feed(self, watcher: Watcher, line: Line, identity: Identity) -> None:
        while (sample := await watcher.next()) is not None:
            if identity.restricted:
                await line.write(event(b"sample", encode(restricted_sample_of(sample, identity))))
            else:
                await line.write(self._event(sample))

    def _event(self, sample: Sample) -> bytes:
        if sample is not self._sample:
            self._sample, self._encoded = sample, event(b"sample", encode(sample_of(sample)))
        return self._encoded


TABLE: Table = {
    "/api/v1/status/history": {
        "GET": read(show_history, Reach.SERVER, query=(_SECONDS,), answer=answers.History),
    },
}
