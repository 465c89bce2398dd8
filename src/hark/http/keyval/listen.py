"""Messages of a work queue as server-sent events: GET /keyval/api/queue/listen"""

from __future__ import annotations

from hark.broker import Broker
from hark.broker.delivery.stream import Arrival, Stream
from hark.http.callers import CONSUMER, named
from hark.http.checks import query_params
from hark.http.exchange import exchange_of
from hark.http.keyval.manner import manner_of
from hark.http.keyval.messages import wire_messages
from hark.http.keyval.params import BASE, QUEUE, queue_param
from hark.http.params import IntParam
from hark.http.responses import Receive, Scope, Send, encode, send_failure
from hark.http.routes.requests import ANOTHER_MODE
from hark.http.routes.table import EVENTS, Reach, Table, write
from hark.http.stream.events import event, send_events, take
from hark.settings import Settings

MAX_PREFETCH = 10_000


class QueueListeners:
    """The route, bound to a broker."""

    def __init__(self, broker: Broker, settings: Settings) -> None:
        self._broker = broker
        self._prefetch = IntParam(
            "prefetch",
            "Maximum number of unacknowledged messages that the client holds.",
            settings.queue.prefetch,
            1,
            MAX_PREFETCH,
        )
        self._manner = manner_of(settings)

    def table(self) -> Table:
        """Return the table of this route."""
        return {
            f"{BASE}/queue/listen": {
                "GET": write(
                    self.listen,
                    Reach.QUERY,
                    query=(QUEUE, self._prefetch, CONSUMER),
                    answer=str,
                    media=EVENTS,
                    errors=(ANOTHER_MODE,),
                    raw=True,
                )
            }
        }

    async def listen(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream messages of a work queue.

        Sends each message as a server-sent event `message` as soon as it is available, and an event `ping` while there
        is none. Acknowledge each message with POST /keyval/api/queue/ack and its receipt.
        """
        try:
            stream = await self._open(scope)
        except Exception as error:
            await send_failure(send, error)
            return
        await send_events(scope, receive, send, stream, lambda line: take(stream, line, self._events), self._manner)

    async def _open(self, scope: Scope) -> Stream:
        query = query_params(scope["query_string"])
        queue = queue_param(query)
        prefetch = self._prefetch.of(query)
        work = self._broker.work_queues
        await work.prepare(queue)
        stream = self._broker.delivery.open_stream(prefetch)
        # One message at a time, so that several listeners share the messages evenly.
        stream.subscribe("", named(work.wish(queue, CONSUMER.of(query) or ""), exchange_of(scope)))
        return stream

    def _events(self, arrival: Arrival) -> bytes:
        with self._broker.operations.measure("queue_dequeue"):
            messages = wire_messages(arrival.result)
            return b"".join(event(b"message", encode(message), message.id.encode()) for message in messages)
