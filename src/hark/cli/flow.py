"""`hark flow`: the state of a flow and of its steps, and its cancellation."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from hark.api import operations
from hark.cli import params
from hark.cli.command import command, make_app
from hark.cli.output import Failure, details, say, table
from hark.cli.remote import Server

app = make_app(
    "Show and cancel flows: chains and groups of tasks.",
    "hark flow show images FLOW_ID",
    "hark flow cancel images FLOW_ID",
)
FlowId = Annotated[
    str, typer.Argument(metavar="FLOW_ID", callback=params.not_empty, help="ID of the flow.", show_default=False)
]


@command(app, "show", "hark flow show images FLOW_ID", "hark flow show images FLOW_ID --json | jq '.steps[].state'")
def show(server: Server, queue: params.QueueName, flow_id: FlowId) -> None:
    """Show the state of a flow and of each of its steps.

    QUEUE is the queue of the first step.
    """
    flow = server.ask(operations.SHOW_FLOW, queue, flow_id)
    result = None if flow.result is msgspec.UNSET else bytes(flow.result)
    error = None if flow.error is None else flow.error.partition("\n")[0]
    details([("State", flow.state), ("Error", error), ("Result", result)])
    table(
        flow.steps,
        {
            "Step": lambda step: step.path,
            "Task": lambda step: step.task,
            "Queue": lambda step: step.queue,
            "State": lambda step: step.state,
            "Attempts": lambda step: step.attempts or None,
            "Progress": lambda step: None if step.progress is None else f"{step.progress:.0%}",
            "Note": lambda step: step.note,
            "Message ID": lambda step: step.message_id,
        },
        empty="no steps are known any more",
        spare=("Note", "Progress", "Attempts", "Queue"),
    )


@command(app, "cancel", "hark flow cancel images FLOW_ID")
def cancel(server: Server, queue: params.QueueName, flow_id: FlowId) -> None:
    """Cancel a flow: no further step runs.

    Steps that no worker has received are removed, and running ones are cancelled.
    """
    server.ask(
        operations.CANCEL_FLOW,
        queue,
        flow_id,
        failure=lambda answer: None if answer.success else Failure("the flow has ended before", code="flow_ended"),
    )
    say(f"cancelled flow {flow_id}")
