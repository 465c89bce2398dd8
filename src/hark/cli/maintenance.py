"""`hark maintenance`: stops and resumes all pushes or all pops of a store."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from hark.cli import observed
from hark.cli.command import DEFAULT_URL, Json, Url, command, make_app
from hark.cli.output import raw, say
from hark.cli.remote import call, path

app = make_app(
    "Stop or resume all pushes or all pops of a store.",
    "hark maintenance show",
    "hark maintenance push on",
    "hark maintenance pop off",
    "",
    "Maintenance applies to all servers on the same store, and survives restarts.",
)


class Switch(enum.StrEnum):
    """Whether maintenance is on."""

    on = "on"
    off = "off"


State = Annotated[
    Switch, typer.Argument(metavar="on|off", help="on to stop the requests, off to resume them.", show_default=False)
]


@command(app, "show", "hark maintenance show", "hark maintenance show --json | jq .maintenanceMode")
def show(url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Show whether maintenance is on for pushes and pops."""
    answer = call(url, "GET", path("system", "maintenance"))
    if as_json:
        raw(answer.body)
        return
    now = answer.read(observed.Maintenance)
    say(_push_text(now.maintenance_mode))
    say(_pop_text(now.pop_maintenance_mode))


@command(app, "push", "hark maintenance push on", "hark maintenance push off")
def push(state: State, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Stop or resume all pushes.

    While maintenance is on, pushes return status 503 with a Retry-After header.
    """
    answer = call(url, "POST", path("system", "maintenance"), body={"enabled": state is Switch.on})
    if as_json:
        raw(answer.body)
    else:
        say(_push_text(answer.read(observed.PushMaintenance).maintenance_mode))


@command(app, "pop", "hark maintenance pop on", "hark maintenance pop off")
def pop(state: State, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Stop or resume all deliveries.

    While maintenance is on, pops return no messages.
    """
    answer = call(url, "POST", path("system", "maintenance", "pop"), body={"enabled": state is Switch.on})
    if as_json:
        raw(answer.body)
    else:
        say(_pop_text(answer.read(observed.PopMaintenance).pop_maintenance_mode))


def _push_text(stopped: bool) -> str:
    return "pushes  stopped: they return status 503" if stopped else "pushes  accepted"


def _pop_text(stopped: bool) -> str:
    return "pops    stopped: they return no messages" if stopped else "pops    accepted"
