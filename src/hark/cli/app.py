"""The list of commands."""

from __future__ import annotations

import platform
from typing import Annotated

import msgspec
import typer

from hark._version import __version__
from hark.cli import dlq, group, kv, message, queue, store, token
from hark.cli.command import Json, command, make_app
from hark.cli.doctor import register_doctor
from hark.cli.export import register_export
from hark.cli.message import register_explain
from hark.cli.observe import register_audit, register_consumers, register_watching
from hark.cli.output import raw, say
from hark.cli.polling import register_polling
from hark.cli.pop import register_pop_ack_and_cancel, register_tail
from hark.cli.push import register_push
from hark.cli.serve import register_serve
from hark.cli.store import register_backup, register_migrate
from hark.cli.work import register_work

app = make_app(
    "Hark is a durable message queue. Start a server with `hark serve`.",
    "hark serve",
    """hark push orders '{"id": 17}'""",
    "hark pop orders --wait",
    "hark queue list --json",
    "",
    "Commands use the server at --url or HARK_URL (http://127.0.0.1:6632).",
    "They send the API token in --token or HARK_TOKEN.",
    "Exit codes: 0 success, 1 rejected or failed, 2 invalid usage or settings,",
    "3 no message to pop.",
)


def _print_version(wanted: bool) -> None:
    """Print the version and exit."""
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


register_serve(app)
register_migrate(app)
register_backup(app)
register_work(app)
register_push(app)
register_pop_ack_and_cancel(app)
register_tail(app)
register_watching(app)
register_explain(app)
register_consumers(app)
register_export(app)
group.register_limits(queue.app, group.app)
app.add_typer(queue.app, name="queue")
app.add_typer(group.app, name="group")
app.add_typer(dlq.app, name="dlq")
app.add_typer(message.app, name="message")
app.add_typer(kv.app, name="kv")
app.add_typer(message.trace_app, name="trace")
app.add_typer(store.app, name="maintenance")
register_audit(app)
app.add_typer(token.app, name="token")
register_doctor(app)
register_polling(app)


@app.command(
    "bench",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    help="Measure the throughput and latency of a running server.",
)
def bench(context: typer.Context) -> None:
    """Pass all arguments on; the benchmark has too many imports to load for every command."""
    make_bench()(context.args, prog_name="hark bench")


def make_bench() -> typer.Typer:
    """Make the app that parses the arguments of `hark bench`."""
    from hark.cli.bench import bench as run

    inner = make_app("", complete=False)
    command(inner, "bench", "hark bench", "hark bench --mode both --batch 10 --seconds 10")(run)
    return inner


@command(app, "version", "hark version", "hark version --json")
def version(as_json: Json = False) -> None:
    """Print the version of the command line."""
    if as_json:
        raw(msgspec.json.encode({"version": __version__, "python": platform.python_version()}))
    else:
        say(f"hark {__version__}")
