"""Tasks: their results and progress."""

from __future__ import annotations

import asyncio

from hark.api import operations, types
from hark.broker import Broker
from hark.errors import InvalidInput
from hark.http.admission import reached
from hark.http.checks import check_text, query_params
from hark.http.exchange import exchange_of
from hark.http.params import BoolParam, NameParam
from hark.http.pops import timeout_param
from hark.http.responses import (
    UNCACHED_JSON,
    Receive,
    Scope,
    Send,
    encode,
    send_failure,
    send_response,
    wait_until_left,
)
from hark.http.routing import NO_MESSAGE, Call, Failure, Table, bind, table
from hark.settings import Settings

MAX_NOTE_CHARACTERS = 1000
_WAIT = BoolParam("wait", "Wait until the task has ended, for at most `timeout` milliseconds.")
_GROUP = NameParam("consumerGroup", "The group of the workers. The default is all groups: the most urgent state.")
_MESSAGE = NameParam("id", "Id of the message. Excludes an earlier task with the same transaction id.")


class TaskRoutes:
    """The routes of tasks, bound to a broker."""

    def __init__(self, broker: Broker, settings: Settings) -> None:
        self._broker = broker
        self._timeout = timeout_param(settings)

    def table(self) -> Table:
        """Return the table of these routes."""
        return table(
            bind(
                operations.SHOW_TASK,
                self.show_task,
                query=(_WAIT, self._timeout, _GROUP, _MESSAGE),
                errors=(NO_MESSAGE,),
                raw=True,
            ),
            bind(
                operations.REPORT_PROGRESS,
                report_progress,
                body=types.messages.ProgressBody,
                errors=(Failure(409, "lease_lost"),),
            ),
        )

    async def show_task(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Get the state of a task.

        Returns the progress of a running task, the result of one that is done, and the error of a failed one. With
        `wait=true` the request waits until the task has ended.
        """
        try:
            exchange = exchange_of(scope)
            query = query_params(scope["query_string"])
            timeout = self._timeout.of(query)
            seconds = timeout / 1000 if _WAIT.of(query) else 0
            partition_id = check_text(str(exchange.params["partition_id"]), "partition_id")
            transaction_id = check_text(str(exchange.params["transaction_id"]), "transaction_id")
            partition_id = await reached(exchange.identity, self._broker, partition_id)
            group, message_id = _GROUP.of(query), _MESSAGE.of(query) or ""
            waiting = asyncio.ensure_future(
                self._broker.tasks.status(partition_id, transaction_id, seconds, group=group, message_id=message_id)
            )
            left = asyncio.ensure_future(wait_until_left(receive))
            try:
                await asyncio.wait((waiting, left), return_when=asyncio.FIRST_COMPLETED)
            finally:
                left.cancel()
                if not waiting.done():  # The client has disconnected.
                    waiting.cancel()
            answer = encode(await waiting)
        except Exception as error:
            await send_failure(send, error)
        else:
            await send_response(send, (200, UNCACHED_JSON, answer))


async def report_progress(call: Call) -> types.Success:
    """Report the progress of a running task.

    The consumer that holds the lease of the message reports it, as a number from 0 to 1 and a note.
    """
    body = await call.json(types.messages.ProgressBody, "progress")
    if body.progress is not None and not 0 <= body.progress <= 1:
        raise InvalidInput(f"progress: expected a number from 0 to 1, got {body.progress}")
    if body.note is not None and "\0" in body.note:
        raise InvalidInput("note: must not contain NUL characters")
    note = None if body.note is None else body.note[:MAX_NOTE_CHARACTERS]
    partition_id = await reached(call.identity, call.broker, call.id("partition_id"))
    transaction_id = call.id("transaction_id")
    await call.broker.tasks.progress(partition_id, transaction_id, body.lease_id, body.progress, note)
    return types.Success(True)
