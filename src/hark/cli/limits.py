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
    int | None,
    typer.Option(
        min=0, metavar="N", help="Maximum number of messages in flight; 0 for no limit.", show_default="unchanged"
    ),
]
RateLimit = Annotated[
    float | None,
    typer.Option(
        min=0, metavar="N", help="Maximum number of messages per second; 0 for no limit.", show_default="unchanged"
    ),
]
RateBurst = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="Messages that can be delivered immediately after a pause; 0 for one second's worth.",
        show_default="unchanged",
    ),
]


def register_limits(queues: typer.Typer, groups: typer.Typer) -> None:
    """Add the commands to `hark queue` and `hark group`."""
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
    """Show or change the delivery limits of a queue.

    The limits apply to all consumer groups of the queue together.
    """
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
    """Show or change the delivery limits of a consumer group."""
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
    """Return the limits to change, by their names in the API."""
    if rate_limit == 0 and rate_burst is None:
        rate_burst = 0  # The server rejects a burst without a rate.
    named = {"maxInFlight": max_in_flight, "rateLimit": rate_limit, "rateBurst": rate_burst}
    return {name: value for name, value in named.items() if value is not None}


def _show(limits: answers.Limits) -> None:
    """Print limits for people."""
    burst = f"{limits.rate_burst} messages" if limits.rate_burst else "one second's worth"
    details(
        (
            ("maxInFlight", f"{limits.max_in_flight} messages" if limits.max_in_flight else "no limit"),
            ("rateLimit", f"{limits.rate_limit:g} messages per second" if limits.rate_limit else "no limit"),
            ("rateBurst", burst if limits.rate_limit or limits.rate_burst else None),
        )
    )
