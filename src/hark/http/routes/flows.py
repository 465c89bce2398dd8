"""Flows: push, show, wait for, cancel."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from hark.access.identity import Identity
from hark.api import operations, types
from hark.api.types.delivery import PushItem
from hark.api.types.flows import FlowStatus, FlowStep
from hark.broker import Broker
from hark.broker.flow_plans import Plan, PlanNode, steps_of
from hark.errors import InvalidInput
from hark.http.admission import stamp
from hark.http.checks import check_int, check_name, check_text, decode_json, query_params
from hark.http.exchange import exchange_of
from hark.http.items import MAX_SECONDS, to_new_message, too_many
from hark.http.params import BoolParam
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
from hark.http.routing import LARGE_BODY, MAINTENANCE, QUEUE_FULL, TOO_MANY, Call, Failure, Table, bind, table
from hark.model import NewMessage
from hark.settings import Settings

DEFAULT_SECONDS = 3600
MAX_ID = 200
_NO_FLOW = Failure(404, "flow_not_found")
_WAIT = BoolParam("wait", "Wait until the flow has ended, for at most `timeout` milliseconds.")


class FlowRoutes:
    """The routes of flows, bound to a broker."""

    def __init__(self, broker: Broker, settings: Settings) -> None:
        self._broker = broker
        self._timeout = timeout_param(settings)

    def table(self) -> Table:
        """Return the table of these routes."""
        return table(
            bind(
                operations.PUSH_FLOW,
                push_flow,
                body=types.flows.FlowBody,
                body_bytes=LARGE_BODY,
                answer={201: types.flows.PushedFlow},
                errors=(TOO_MANY, MAINTENANCE, QUEUE_FULL),
            ),
            bind(operations.SHOW_FLOW, self.show_flow, query=(_WAIT, self._timeout), errors=(_NO_FLOW,), raw=True),
            bind(operations.CANCEL_FLOW, cancel_flow, errors=(_NO_FLOW,)),
        )

    async def show_flow(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Get the state of a flow.

        Returns the state of each step, and the result of a flow that is done. With `wait=true` the request waits until
        the flow has ended. Errors, progress and ids of steps in queues that the token may not use are left out.
        """
        try:
            exchange = exchange_of(scope)
            query = query_params(scope["query_string"])
            timeout = self._timeout.of(query)
            seconds = timeout / 1000 if _WAIT.of(query) else 0
            queue, flow_id = str(exchange.params["queue"]), str(exchange.params["flow_id"])
            names = (check_name(queue, "queue"), check_text(flow_id, "flow_id"))
            waiting = asyncio.ensure_future(self._broker.tasks.flows.status(*names, seconds))
            left = asyncio.ensure_future(wait_until_left(receive))
            try:
                await asyncio.wait((waiting, left), return_when=asyncio.FIRST_COMPLETED)
            finally:
                left.cancel()
                if not waiting.done():  # The client has disconnected.
                    waiting.cancel()
            answer = encode(_shown(await waiting, exchange.identity))
        except Exception as error:
            await send_failure(send, error)
        else:
            await send_response(send, (200, UNCACHED_JSON, answer))


async def push_flow(call: Call) -> types.flows.PushedFlow:
    """Push a flow.

    Stores the steps of a flow, and pushes the first one. Each further step is pushed when the one before it is
    acknowledged, in one transaction, with its result. The members of a group run side by side, and the next step gets
    the list of their results. The token must be allowed to use the queues of all steps.
    """
    body = await call.json(types.flows.FlowBody, "flow")
    ttl = DEFAULT_SECONDS if body.result_ttl is None else check_int(body.result_ttl, "resultTtl", 1, MAX_SECONDS)
    id = None if body.id is None else check_name(body.id, "id")
    if id is not None and len(id) > MAX_ID:
        raise InvalidInput(f"id: expected at most {MAX_ID} characters, got {len(id)}")
    plan = Plan(_nodes(body.steps, "steps"), ttl * 1000)
    messages = list(steps_of(plan.nodes))
    most = call.settings.limits.max_batch
    if len(messages) > most:
        raise too_many("steps", most, len(messages), "flow")
    stamp(call.identity, messages)
    pushed = await call.broker.tasks.flows.push(plan, id)
    call.status = 201
    return pushed


async def cancel_flow(call: Call) -> types.Success:
    """Cancel a flow.

    No further step is pushed. Pending steps are removed, and the consumers of running ones are notified when they renew
    their leases. `success` is false if the flow has ended before.
    """
    return types.Success(await call.broker.tasks.flows.cancel(call.name("queue"), call.id("flow_id")))


def _nodes(given: Sequence[types.flows.FlowNode], where: str) -> list[PlanNode]:
    """Return checked nodes. Errors name a field as `where[index].field`."""
    if not given:
        raise InvalidInput(f"{where}: expected at least one step")
    return [_node(one, index, where) for index, one in enumerate(given)]


def _node(given: types.flows.FlowNode, index: int, where: str) -> PlanNode:
    own = f"{where}[{index}]"
    if given.group is not None:
        if not given.group:
            raise InvalidInput(f"{own}.group: expected at least one member")
        if given != types.flows.FlowNode(group=given.group):
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
