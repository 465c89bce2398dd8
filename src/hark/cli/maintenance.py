"""`hark maintenance`: stop and resume all pushes or all pops of a store."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from hark.cli import observed
from hark.cli.command import DEFAULT_URL, Json, Url, command, make_app
from hark.cli.output import raw, say
from hark.cli.remote import call, path

app = make_app(
    "Stop all pushes or all pops, over restarts and on all servers of a store.",
    "hark maintenance show",
    "hark maintenance push on",
    "hark maintenance pop off",
)


class Switch(enum.StrEnum):
    """Whether it is stopped."""

    on = "on"
    off = "off"


State = Annotated[Switch, typer.Argument(metavar="on|off", show_default=False)]


@command(app, "show", "hark maintenance show", "hark maintenance show --json | jq .maintenanceMode")
def show(url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Say whether pushes and pops are stopped."""
    answer = call(url, "GET", path("system", "maintenance"))
    if as_json:
        raw(answer.body)
        return
    now = answer.read(observed.Maintenance)
    say(_push_text(now.maintenance_mode))
    say(_pop_text(now.pop_maintenance_mode))


@command(app, "push", "hark maintenance push on", "hark maintenance push off")
def push(state: State, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Stop all pushes, which then get 503 with Retry-After, or let them go on."""
    answer = call(url, "POST", path("system", "maintenance"), body={"enabled": state is Switch.on})
    if as_json:
        raw(answer.body)
    else:
        say(_push_text(answer.read(observed.PushMaintenance).maintenance_mode))


@command(app, "pop", "hark maintenance pop on", "hark maintenance pop off")
def pop(state: State, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Stop all deliveries, so that pops answer empty, or let them go on."""
    answer = call(url, "POST", path("system", "maintenance", "pop"), body={"enabled": state is Switch.on})
    if as_json:
        raw(answer.body)
    else:
        say(_pop_text(answer.read(observed.PopMaintenance).pop_maintenance_mode))


def _push_text(stopped: bool) -> str:
    return "pushes  stopped: 503 maintenance" if stopped else "pushes  accepted"


def _pop_text(stopped: bool) -> str:
    return "pops    stopped: they answer empty" if stopped else "pops    served"
