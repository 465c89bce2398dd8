"""The command line: `hark serve`, and the commands that use a server over HTTP. Here is the list of commands."""

from __future__ import annotations

import platform
from typing import Annotated

import msgspec
import typer

from hark._version import __version__
from hark.cli import (  # noqa: F401  # They register their commands.
    dlq,
    doctor,
    export,
    kv,
    message,
    observe,
    params,
    pop,
    push,
    queue,
    schedule,
    serve,
    token,
    work,
)
from hark.cli.command import command, make_app
from hark.cli.command import main as root
from hark.cli.output import raw, say

app = root
for group, name in (
    (queue.app, "queue"),
    (queue.groups, "group"),
    (schedule.app, "schedule"),
    (dlq.app, "dlq"),
    (message.app, "message"),
    (message.flows, "flow"),
    (kv.app, "kv"),
    (message.trace_app, "trace"),
    (serve.app, "maintenance"),
    (token.app, "token"),
):
    app.add_typer(group, name=name)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"hark {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Hold the options of `hark` itself; the help text is the app's."""


@app.command(
    "bench",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    help="Measure the throughput and latency of a running server.",
)
def bench(context: typer.Context) -> None:
    """Pass all arguments on; the benchmark has too many imports to load for every command."""
    from hark.cli.bench import bench as run

    inner = make_app("", complete=False)
    command(inner, "bench", "hark bench", "hark bench --mode both --batch 10 --seconds 10")(run)
    inner(context.args, prog_name="hark bench")


@command(app, "version", "hark version", "hark version --json")
def version(as_json: params.Json = False) -> None:
    """Print the version of the command line."""
    if as_json:
        raw(msgspec.json.encode({"version": __version__, "python": platform.python_version()}))
    else:
        say(f"hark {__version__}")


_ORDER = """
    serve migrate backup restore work push pop ack cancel tail top settings explain leases consumers export import audit
    doctor polling bench version
"""
"""The order of the commands in the help; the groups of commands follow."""
app.registered_commands.sort(key=lambda registered: _ORDER.split().index(registered.name or ""))


def main() -> None:
    """Run the command line."""
    app(prog_name="hark")


__all__ = ["app", "main"]
