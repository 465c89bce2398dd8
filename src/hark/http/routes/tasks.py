"""Tasks and flows: push, show, wait for, report, cancel."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from hark.access.tokens import Identity
from hark.api import operations, types
from hark.api.types.delivery import PushItem
from hark.api.types.tasks import FlowStatus, FlowStep
from hark.broker import Broker
from hark.broker.flow_plans import Plan, PlanNode, steps_of
from hark.errors import InvalidInput
from hark.http import routing
from hark.http.admission import reached, stamp
from hark.http.checks import check_int, check_name, check_text, decode_json, query_params
from hark.http.exchange import exchange_of
from hark.http.items import MAX_SECONDS, to_new_message, too_many
from hark.http.keyval.paths import answered
from hark.http.pops import timeout_param, wait_seconds
from hark.http.responses import UNCACHED_JSON, Receive, Scope, unless_left
from hark.http.routing import Call, Table, bind, table
from hark.model import NewMessage
from hark.settings import Settings

MAX_NOTE_CHARACTERS = 1000
DEFAULT_SECONDS = 3600
MAX_ID = 200
_NO_FLOW = routing.Failure(404, "flow_not_found")
_WAIT = routing.BoolParam("wait", "Wait until the task has ended, for at most `timeout` milliseconds.")
_WAIT_FOR_FLOW = routing.BoolParam("wait", "Wait until the flow has ended, for at most `timeout` milliseconds.")
_GROUP = routing.NameParam(
    "consumerGroup", "The group of the workers. The default is all groups: the most urgent state."
)
_MESSAGE = routing.NameParam("id", "Id of the message. Excludes an earlier task with the same transaction id.")


class TaskRoutes:
    """The routes of tasks and flows, bound to a broker."""

    def __init__(self, broker: Broker, settings: Settings) -> None:
        self.broker = broker
        self._timeout = timeout_param(settings)

    def table(self) -> Table:
        """Return the table of these routes."""
        show_task = (_WAIT, self._timeout, _GROUP, _MESSAGE)
        show_flow = (_WAIT_FOR_FLOW, self._timeout)
        return table(
            bind(operations.SHOW_TASK, self.show_task, query=show_task, errors=(routing.NO_MESSAGE,), raw=True),
            bind(
                operations.REPORT_PROGRESS,
                report_progress,
                body=types.tasks.ProgressBody,
                errors=(routing.Failure(409, "lease_lost"),),
            ),
            bind(
                operations.PUSH_FLOW,
                push_flow,
                body=types.tasks.FlowBody,
                body_bytes=routing.LARGE_BODY,
                answer={201: types.tasks.PushedFlow},
                errors=(routing.TOO_MANY, routing.MAINTENANCE, routing.QUEUE_FULL),
            ),
            bind(operations.SHOW_FLOW, self.show_flow, query=show_flow, errors=(_NO_FLOW,), raw=True),
            bind(operations.CANCEL_FLOW, cancel_flow, errors=(_NO_FLOW,)),
        )

    @answered(None, UNCACHED_JSON)
    async def show_task(self, scope: Scope, receive: Receive) -> types.tasks.TaskStatus:
        """Get the state of a task.

        Returns the progress of a running task, the result of one that is done, and the error of a failed one. With
        `wait=true` the request waits until the task has ended.
        """
        exchange = exchange_of(scope)
        query = query_params(exchange.query)
        seconds = wait_seconds(query, _WAIT, self._timeout)
        partition_id = check_text(str(exchange.params["partition_id"]), "partition_id")
        transaction_id = check_text(str(exchange.params["transaction_id"]), "transaction_id")
        partition_id = await reached(exchange.identity, self.broker, partition_id)
        group, message_id = _GROUP.of(query), _MESSAGE.of(query) or ""
        waiting = self.broker.tasks.status(partition_id, transaction_id, seconds, group=group, message_id=message_id)
        return await unless_left(receive, waiting)

    @answered(None, UNCACHED_JSON)
    async def show_flow(self, scope: Scope, receive: Receive) -> FlowStatus:
        """Get the state of a flow.

        Returns the state of each step, and the result of a flow that is done. With `wait=true` the request waits until
        the flow has ended. Errors, progress and ids of steps in queues that the token may not use are left out.
        """
        exchange = exchange_of(scope)
        seconds = wait_seconds(query_params(exchange.query), _WAIT_FOR_FLOW, self._timeout)
        queue, flow_id = str(exchange.params["queue"]), str(exchange.params["flow_id"])
        names = (check_name(queue, "queue"), check_text(flow_id, "flow_id"))
        status = await unless_left(receive, self.broker.tasks.flows.status(*names, seconds))
        return _shown(status, exchange.identity)


async def report_progress(call: Call) -> types.Success:
    """Report the progress of a running task.

    The consumer that holds the lease of the message reports it, as a number from 0 to 1 and a note.
    """
    body = await call.json(types.tasks.ProgressBody, "progress")
    if body.progress is not None and not 0 <= body.progress <= 1:
        raise InvalidInput(f"progress: expected a number from 0 to 1, got {body.progress}")
    if body.note is not None and "\0" in body.note:
        raise InvalidInput("note: must not contain NUL characters")
    note = None if body.note is None else body.note[:MAX_NOTE_CHARACTERS]
    partition_id = await reached(call.identity, call.broker, call.id("partition_id"))
    transaction_id = call.id("transaction_id")
    await call.broker.tasks.progress(partition_id, transaction_id, body.lease_id, body.progress, note)
    return types.Success(True)


async def push_flow(call: Call) -> types.tasks.PushedFlow:
    """Push a flow.

    Stores the steps of a flow, and pushes the first one. Each further step is pushed when the one before it is
    acknowledged, in one transaction, with its result. The members of a group run side by side, and the next step gets
    the list of their results. The token must be allowed to use the queues of all steps.
    """
    body = await call.json(types.tasks.FlowBody, "flow")
    ttl = DEFAULT_SECONDS if body.result_ttl is None else check_int(body.result_ttl, "resultTtl", 1, MAX_SECONDS)
    id = None if body.id is None else check_name(body.id, "id")
    if id is not None and len(id.encode()) > MAX_ID:  # The transaction ids of the steps are names, too.
        raise InvalidInput(f"id: expected at most {MAX_ID} bytes of UTF-8, got {len(id.encode())}")
    await asyncio.sleep(0)
    most, number = call.settings.limits.max_batch, _count(body.steps)
    if number > most:
        raise too_many("steps", most, number, "flow")
    plan = Plan(_nodes(body.steps, "steps"), ttl * 1000)
    await asyncio.sleep(0)
    stamp(call.identity, list(steps_of(plan.nodes)))
    pushed = await call.broker.tasks.flows.push(plan, id)
    call.status = 201
    return pushed


async def cancel_flow(call: Call) -> types.Success:
    """Cancel a flow.

    No further step is pushed. Pending steps are removed, and the consumers of running ones are notified when they renew
    their leases. `success` is false if the flow has ended before.
    """
    return types.Success(await call.broker.tasks.flows.cancel(call.name("queue"), call.id("flow_id")))


def _count(nodes: Sequence[types.tasks.FlowNode]) -> int:
    """Return the number of steps and groups."""
    return sum(1 + sum(map(_count, node.group or ())) for node in nodes)


def _nodes(given: Sequence[types.tasks.FlowNode], where: str) -> list[PlanNode]:
    """Return checked nodes. Errors name a field as `where[index].field`."""
    if not given:
        raise InvalidInput(f"{where}: expected at least one step")
    return [_node(one, index, where) for index, one in enumerate(given)]


def _node(given: types.tasks.FlowNode, index: int, where: str) -> PlanNode:
    own = f"{where}[{index}]"
    if given.group is not None:
        if not given.group:
            raise InvalidInput(f"{own}.group: expected at least one member")
        if given != types.tasks.FlowNode(group=given.group):
            raise InvalidInput(f"{own}: expected either a group or the fields of a step, got both")
        return PlanNode(group=[_nodes(one, f"{own}.group[{number}]") for number, one in enumerate(given.group)])
    payload = b"null" if given.payload is msgspec.UNSET else bytes(given.payload)
    fields = decode_json(payload, dict[str, msgspec.Raw], f"{own}.payload")
    task = fields.get("task")
    if task is None or not bytes(task).startswith(b'"'):
        raise InvalidInput(f'{own}.payload: expected a task, {{"task": "name", "arguments": {{...}}}}')
    for name in ("input", "flow", "transactionId"):  # The server sets them.
        fields.pop(name, None)
    fields.setdefault("resultTtl", msgspec.Raw(b"%d" % DEFAULT_SECONDS))  # So that a requeue is noted.
    item = PushItem(
        queue=given.queue,
        partition=given.partition,
        payload=msgspec.Raw(msgspec.json.encode(fields)),
        priority=given.priority,
        delay=given.delay,
        backoff_schedule=given.backoff_schedule,
        ttl=given.ttl,
    )
    message: NewMessage = to_new_message(item, index, where)
    return PlanNode(message, given.takes_result)


def _shown(status: FlowStatus, identity: Identity) -> FlowStatus:
    steps = tuple(
        step
        if identity.may_use(step.queue)
        else FlowStep(path=step.path, task=step.task, queue=step.queue, state=step.state)
        for step in status.steps
    )
    # It has the error text of a step.
    error = status.error if all(identity.may_use(step.queue) for step in status.steps) else None
    return msgspec.structs.replace(status, steps=steps, error=error)
