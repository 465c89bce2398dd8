"""`hark polling`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from hark.cli.command import Config, Json, command
from hark.cli.output import raw, say, table
from hark.settings import SETTINGS, Loaded, load, shown

if TYPE_CHECKING:  # the package imports asyncio, which `hark --help` does without
    from hark.polling.strategy import Estimate, PollingStrategy

_FIELDS = tuple(name for name in SETTINGS if name.startswith("worker.polling."))
_WITHOUT_EFFECT = {
    "adaptive": ("worker.polling.interval_ms",),
    "fixed": tuple(name for name in _FIELDS if name.rpartition(".")[2] not in ("strategy", "interval_ms")),
}

Row = tuple[str, "Estimate"]
"""The state of a worker, and the cost of its polls in that state."""


def register_polling(main: typer.Typer) -> None:
    """Add the command at the top level."""
    command(
        main,
        "polling",
        "hark polling",
        "hark polling --batch-ms 20",
        "hark polling --compare --json",
    )(polling)


def polling(
    *,
    batch_ms: Annotated[
        float | None,
        typer.Option(
            "--batch-ms",
            metavar="MS",
            help="Time that a worker needs for a batch, in milliseconds.",
            show_default="the shortest polling interval",
        ),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Compare five example strategies instead of your settings.")
    ] = False,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show the polling settings of workers and their cost.

    An idle worker polls at intervals. A busy worker polls once for each batch, without a pause.
    """
    if batch_ms is not None and not 0 < batch_ms <= 86_400_000:
        raise typer.BadParameter(f"--batch-ms {batch_ms:g}: use a number of milliseconds above 0, at most 86400000")
    from hark.polling.strategy import SEED_CASES, estimate, strategy_from

    batch_seconds = None if batch_ms is None else batch_ms / 1000
    if compare:
        rows = [
            (case.name, estimate(case.strategy, case.busy_share, batch_seconds=batch_seconds)) for case in SEED_CASES
        ]
        _print_comparison(rows, as_json)
        return
    loaded = load({}, os.environ, config)
    strategy = strategy_from(loaded.settings)
    rows = _rows(strategy, batch_seconds, loaded.settings.pop.default_timeout_ms / 1000)
    if as_json:
        _print_json(loaded, rows)
    else:
        _print_tables(loaded, strategy, batch_seconds, rows)


def _rows(strategy: PollingStrategy, batch_seconds: float | None, wait_seconds: float) -> list[Row]:
    from hark.polling.strategy import AT_A_SERVER, estimate

    def of(busy_share: float) -> Estimate:
        return estimate(strategy, busy_share, batch_seconds=batch_seconds)

    waiting = estimate(strategy, wait_seconds=wait_seconds, price=AT_A_SERVER)
    return [("idle", of(0)), ("half busy", of(0.5)), ("always busy", of(1)), ("idle at a server", waiting)]


def _print_json(loaded: Loaded, rows: list[Row]) -> None:
    fields = {
        name.rpartition(".")[2]: {"value": shown(loaded.settings, name), "source": loaded.sources[name]}
        for name in _FIELDS
    }
    raw(msgspec.json.encode({"polling": fields, "perMonth": _estimates(rows)}))


def _estimates(rows: list[Row]) -> list[dict[str, object]]:
    return [{"case": name, "polls": cost.polls_per_month, "dollars": cost.dollars_per_month} for name, cost in rows]


def _print_tables(loaded: Loaded, strategy: PollingStrategy, batch_seconds: float | None, rows: list[Row]) -> None:
    from hark.polling.strategy import AWS_S3

    idle = _WITHOUT_EFFECT[strategy.strategy]
    table(
        ("Setting", "Value", "Source"),
        ((name, f"{shown(loaded.settings, name)}", loaded.sources[name]) for name in _FIELDS if name not in idle),
    )
    say("")
    _print_costs("Worker", rows)
    batch = batch_seconds or strategy.initial_interval()
    longest_wait = loaded.settings.pop.default_timeout_ms / 1000
    say("")
    say(f"Cost: ${AWS_S3.get_per_thousand:g} per 1,000 polls of a bucket ({AWS_S3.name}, GET requests).")
    say("      Polls of a Hark server are free.")
    say(
        f"Idle: one poll every {strategy.longest_interval():g} s; a server holds an empty poll for up to {longest_wait:g} s."
    )
    say(f"Busy: one poll for each batch, which takes {batch * 1000:g} ms here (--batch-ms).")


def _print_comparison(rows: list[Row], as_json: bool) -> None:
    if as_json:
        raw(msgspec.json.encode({"perMonth": _estimates(rows)}))
    else:
        _print_costs("Strategy", rows)


def _print_costs(title: str, rows: list[Row]) -> None:
    table(
        (title, "Polls per month", "Dollars per month"),
        ((name, f"{cost.polls_per_month:,}", f"{cost.dollars_per_month:.2f}") for name, cost in rows),
        right=("Polls per month", "Dollars per month"),
    )
