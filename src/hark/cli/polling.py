"""`hark polling`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from hark.cli.command import command
from hark.cli.output import raw, say, table
from hark.settings import SETTINGS, Loaded, load, shown

if TYPE_CHECKING:  # the package imports asyncio, which `hark --help` does without
    from hark.polling.cost import Estimate
    from hark.polling.strategy import PollingStrategy

_FIELDS = tuple(name for name in SETTINGS if name.startswith("worker.polling."))
_WITHOUT_EFFECT = {
    "adaptive": ("worker.polling.interval_ms",),
    "fixed": tuple(name for name in _FIELDS if name.rpartition(".")[2] not in ("strategy", "interval_ms")),
}

Row = tuple[str, "Estimate"]
"""When, and what polling costs then."""


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
        typer.Option("--batch-ms", help="Milliseconds that a batch takes; else the strategy's shortest interval."),
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Estimate the strategies of seed 002 instead.")] = False,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings; else HARK_CONFIG, else ./hark.toml.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the polling strategy of workers, where each part of it comes from, and what a worker's polls cost.

    An idle worker polls by the clock. A busy one polls back to back, once for each batch: its polls follow its work.
    """
    if batch_ms is not None and not 0 < batch_ms <= 86_400_000:
        raise typer.BadParameter("--batch-ms: expected a number of milliseconds above 0, at most 86400000")
    from hark.polling.choosing import strategy_from
    from hark.polling.cost import SEED_CASES, estimate

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
    from hark.polling.cost import AT_A_SERVER, estimate

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
    from hark.polling.cost import AWS_S3

    idle = _WITHOUT_EFFECT[strategy.strategy]
    table(
        ("Setting", "Value", "Source"),
        ((name, f"{shown(loaded.settings, name)}", loaded.sources[name]) for name in _FIELDS if name not in idle),
    )
    say("")
    _print_costs("A worker that is", rows)
    batch = batch_seconds or strategy.initial_interval()
    say("")
    say(f"Dollars: polls as GETs of {AWS_S3.name}, ${AWS_S3.get_per_thousand:g} for a thousand; a server takes none.")
    held = loaded.settings.pop.default_timeout_ms / 1000
    say(f"Idle: a poll every {strategy.longest_interval():g} s; a server holds each for up to {held:g} s.")
    say(f"Busy: polls back to back, one for each batch; counted as one every {batch * 1000:g} ms (--batch-ms).")


def _print_comparison(rows: list[Row], as_json: bool) -> None:
    if as_json:
        raw(msgspec.json.encode({"perMonth": _estimates(rows)}))
    else:
        _print_costs("Configuration", rows)


def _print_costs(title: str, rows: list[Row]) -> None:
    table(
        (title, "Polls/month", "Dollars/month"),
        ((name, f"{cost.polls_per_month:,}", f"{cost.dollars_per_month:.2f}") for name, cost in rows),
    )
