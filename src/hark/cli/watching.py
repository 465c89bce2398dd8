"""`hark top` and `hark settings`: the current activity and the settings of a server."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import typer

from hark.cli.command import DEFAULT_URL, Failure, Json, Url, command
from hark.cli.output import raw, say, table
from hark.cli.remote import Problem, call, decode, ended, events, path, stream

_CLEAR = "\x1b[H\x1b[J"


def register_watching(main: typer.Typer) -> None:
    """Add the commands at the top level."""
    command(main, "top", "hark top", "hark top --once", "hark top --json | jq .backlog")(top)
    command(main, "settings", "hark settings", "hark settings --json | jq '.settings[].name'")(settings)


class _Part(msgspec.Struct, rename="camel"):
    """A part of a response."""


class _BusyQueue(_Part):
    queue: str
    pushed_per_second: float
    delivered_per_second: float
    settled_per_second: float


class _Latency(_Part):
    p50: float | None = None
    p99: float | None = None


class _Waiting(_Part):
    pops: int
    streams: int
    browsers: int


class _Stopped(_Part):
    push: bool = False
    pop: bool = False


class _Sample(_Part, kw_only=True):
    at: str
    pushed_per_second: float | None = None
    delivered_per_second: float | None = None
    settled_per_second: float | None = None
    failed_per_second: float | None = None
    backlog: int | None = None
    in_flight: int | None = None
    oldest_waiting_seconds: float | None = None
    latency_ms: _Latency
    queues: int | None = None
    partitions: int | None = None
    dead_letters: int | None = None
    waiting: _Waiting | None = None
    maintenance: _Stopped = msgspec.field(default_factory=_Stopped)
    busiest: list[_BusyQueue]


def top(
    *,
    once: Annotated[bool, typer.Option("--once", help="Print one sample and exit.")] = False,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Show the activity of a server, until Ctrl-C.

    Every second, the command shows rates, backlog, latency and the busiest queues.
    """
    try:
        for name, body in events(stream(url, path("events"), query={})):
            if name == "error":
                problem = decode(body, Problem)
                raise Failure(problem.error, code=problem.code)
            if name != "sample":
                continue
            if as_json:
                raw(body)
            else:
                _show(decode(body, _Sample), clear=not once and sys.stdout.isatty())
            if once:
                return
    except KeyboardInterrupt:
        return
    raise ended()


def _show(sample: _Sample, *, clear: bool) -> None:
    if clear:
        typer.echo(_CLEAR, nl=False)
    waiting = sample.waiting
    rows = (
        ("Messages/s", "pushed", sample.pushed_per_second),
        ("", "delivered", sample.delivered_per_second),
        ("", "settled", sample.settled_per_second),
        ("", "failed", sample.failed_per_second),
        ("Messages", "backlog", sample.backlog),
        ("", "in flight", sample.in_flight),
        ("", "dead letters", sample.dead_letters),
        ("", "oldest waiting (s)", sample.oldest_waiting_seconds),
        ("Latency", "p50 (ms)", sample.latency_ms.p50),
        ("", "p99 (ms)", sample.latency_ms.p99),
        ("Store", "queues", sample.queues),
        ("", "partitions", sample.partitions),
        ("Waiting", "pops", None if waiting is None else waiting.pops),
        ("", "streams", None if waiting is None else waiting.streams),
        ("", "queue browsers", None if waiting is None else waiting.browsers),
    )
    for verb, stopped in (("pushes", sample.maintenance.push), ("pops", sample.maintenance.pop)):
        if stopped:
            say(f"MAINTENANCE: all {verb} are stopped; resume with: hark maintenance {verb[:-1]} off")
    for kind, what, value in rows:
        say(f"{kind:<11} {what:<18} {'-' if value is None else value:>12}")
    say("")
    table(
        ("Busiest queues", "Pushed/s", "Delivered/s", "Settled/s"),
        (
            (queue.queue, queue.pushed_per_second, queue.delivered_per_second, queue.settled_per_second)
            for queue in sample.busiest
        ),
        empty="no queue was active in the last 10 seconds",
    )


class _Setting(_Part):
    name: str
    value: object


class _Settings(_Part):
    version: str
    engine: str
    settings: list[_Setting]


def settings(url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Show the settings of a running server, without secrets."""
    answer = call(url, "GET", path("system", "settings"))
    if as_json:
        raw(answer.body)
        return
    shown = answer.read(_Settings)
    say(f"Hark {shown.version}, store {shown.engine}\n")
    table(("Setting", "Value"), ((one.name, _text(one.value)) for one in shown.settings), long=("Value",))


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
