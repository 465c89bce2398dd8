"""`hark queue limits` and `hark group limits`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from hark.cli import answers
from hark.cli.command import DEFAULT_URL, GroupName, Json, QueueName, Url, command
from hark.cli.output import details, raw
from hark.cli.remote import call, path

MaxInFlight = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="Messages held unsettled at most.", show_default=False)
]
RateLimit = Annotated[
    float | None, typer.Option(min=0, metavar="N", help="Messages per second at most.", show_default=False)
]
RateBurst = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="Messages at once after a pause; else a second's.", show_default=False),
]


def register_limits(queues: typer.Typer, groups: typer.Typer) -> None:
    """Add the commands to those of queues and of groups."""
    command(
        queues,
        "limits",
        "hark queue limits orders",
        "hark queue limits orders --max-in-flight 100 --rate-limit 20",
        "hark queue limits orders --rate-limit 0",
    )(limit_queue)
    command(
        groups,
        "limits",
        "hark group limits billing orders",
        "hark group limits billing orders --rate-limit 0.5 --rate-burst 10",
    )(limit_group)


def limit_queue(
    *,
    queue: QueueName,
    max_in_flight: MaxInFlight = None,
    rate_limit: RateLimit = None,
    rate_burst: RateBurst = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Show how much all groups of a queue together may take, or change what is given; 0 is no bound."""
    answer = call(url, "GET", path("resources", "queues", queue), query={"limit": 1})
    shown = answer.read(answers.QueueDetails)
    options = shown.options
    if given := _given(max_in_flight, rate_limit, rate_burst):
        body = {"queue": queue, "namespace": shown.namespace, "task": shown.task, "options": options | given}
        answer = call(url, "POST", path("configure"), body=body)
        options = answer.read(answers.Configured).options
    if as_json:
        raw(answer.body)
    else:
        _show(msgspec.convert(options, answers.Limits))


def limit_group(
    *,
    group: GroupName,
    queue: QueueName,
    max_in_flight: MaxInFlight = None,
    rate_limit: RateLimit = None,
    rate_burst: RateBurst = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Show how much one group of a queue may take, or change what is given; 0 is no bound."""
    route = path("consumer-groups", group, "queues", queue, "limits")
    answer = call(url, "GET", route)
    limits = answer.read(answers.Limited).limits
    if given := _given(max_in_flight, rate_limit, rate_burst):
        answer = call(url, "PUT", route, body=msgspec.to_builtins(limits) | given)
        limits = answer.read(answers.Limited).limits
    if as_json:
        raw(answer.body)
    else:
        _show(limits)


def _given(max_in_flight: int | None, rate_limit: float | None, rate_burst: int | None) -> dict[str, Any]:
    """The limits that were given, by the names of the API."""
    if rate_limit == 0 and rate_burst is None:
        rate_burst = 0  # One that was set before has no meaning any more, and the server refuses it.
    named = {"maxInFlight": max_in_flight, "rateLimit": rate_limit, "rateBurst": rate_burst}
    return {name: value for name, value in named.items() if value is not None}


def _show(limits: answers.Limits) -> None:
    """Print limits for people."""
    burst = limits.rate_burst or ("a second's" if limits.rate_limit else None)
    details(
        (
            ("maxInFlight", limits.max_in_flight or "no bound"),
            ("rateLimit", f"{limits.rate_limit:g} per second" if limits.rate_limit else "no bound"),
            ("rateBurst", burst),
        )
    )
