"""`hark serve`."""

from __future__ import annotations

import os
from typing import Annotated

import msgspec
import typer

from hark.cli.command import DEFAULTS, Config, Data, LogFormat, LogLevel, command, complain
from hark.cli.output import raw, table
from hark.settings import SETTINGS, Loaded, load, shown


def register_serve(main: typer.Typer) -> None:
    """Add the command at the top level."""
    command(
        main,
        "serve",
        "hark serve",
        "hark serve --port 7000 --data /var/lib/hark",
        "hark serve --engine memory",
        "hark serve --engine postgresql://hark@localhost/hark --workers 4",
        "hark serve --engine s3://bucket/queues",
        "hark serve --tls-certificate cert.pem --tls-key key.pem",
        "hark serve --config hark.toml --show-settings",
    )(serve)


def serve(
    *,
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Address to listen on.", show_default=DEFAULTS.host)
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(metavar="PORT", help="Port to listen on; 0 for a free port.", show_default=str(DEFAULTS.port)),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Store URL: sqlite:///FILE, postgresql://..., s3://... or memory.",
            show_default="a SQLite file in --data",
        ),
    ] = None,
    data: Data = None,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Number of server processes; more than 1 needs PostgreSQL or S3.",
            show_default=str(DEFAULTS.workers),
        ),
    ] = None,
    tls_certificate: Annotated[
        str | None, typer.Option(metavar="FILE", help="Certificate file for HTTPS (PEM).")
    ] = None,
    tls_key: Annotated[str | None, typer.Option(metavar="FILE", help="Private key file for HTTPS (PEM).")] = None,
    insecure_bind: Annotated[
        bool | None,
        typer.Option("--insecure-bind", help="Allow connections from other machines without authentication."),
    ] = None,
    config: Config = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    show_settings: Annotated[
        bool, typer.Option("--show-settings", help="Print all settings with their sources, and exit.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text, with --show-settings.")] = False,
) -> None:
    """Start a server.

    Options take precedence over HARK_* variables, which take precedence over hark.toml. docs/settings.md lists all
    settings. Ctrl-C or SIGTERM shuts the server down gracefully.
    """
    if as_json and not show_settings:
        raise typer.BadParameter("--json needs --show-settings")
    flags = {
        "host": host,
        "port": port,
        "engine": engine,
        "data": data,
        "workers": workers,
        "log_level": log_level,
        "log_format": log_format,
        "insecure_bind": insecure_bind,
        "tls.certificate": tls_certificate,
        "tls.key": tls_key,
    }
    loaded = load(flags, os.environ, config)
    for note in loaded.notes:
        complain(f"warning: {note}")
    if show_settings:
        _show(loaded, as_json)
        return
    from hark.serving.server import serve as run

    run(loaded)


def _show(loaded: Loaded, as_json: bool) -> None:
    """Print all settings with their values (no secrets) and sources."""
    rows = [(name, shown(loaded.settings, name), loaded.sources[name]) for name in SETTINGS]
    if as_json:
        raw(msgspec.json.encode({name: {"value": value, "source": source} for name, value, source in rows}))
    else:
        table(
            ("Setting", "Value", "Source"),
            ((name, _text(value), source) for name, value, source in rows),
            long=("Value",),
        )


def _text(value: object) -> str:
    """Format a value for the table; an empty one is shown as a dash."""
    return "" if value == () else str(value)
