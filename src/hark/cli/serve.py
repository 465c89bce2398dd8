"""`hark serve`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from hark.cli.command import command, complain
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
        "hark serve --host 0.0.0.0 --tls-certificate cert.pem --tls-key key.pem",
        "hark serve --config hark.toml --show-settings",
    )(serve)


def serve(
    *,
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="The port to listen on; 0 takes a free one.")] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="sqlite:///file.db, postgresql://..., s3://... or memory; else a file under --data."
        ),
    ] = None,
    data: Annotated[str | None, typer.Option(metavar="DIR", help="The directory for what is kept.")] = None,
    workers: Annotated[
        int | None, typer.Option(help="Server processes on the port; several need PostgreSQL or S3.")
    ] = None,
    tls_certificate: Annotated[
        str | None, typer.Option(metavar="FILE", help="Serve HTTPS with this certificate (PEM).")
    ] = None,
    tls_key: Annotated[str | None, typer.Option(metavar="FILE", help="The certificate's private key (PEM).")] = None,
    insecure_bind: Annotated[
        bool | None,
        typer.Option(
            "--insecure-bind", help="Listen where other machines can connect, although nobody is asked for a token."
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings; else HARK_CONFIG, else ./hark.toml.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    log_format: Annotated[str | None, typer.Option(help="auto (text on a terminal, else JSON), text or json.")] = None,
    show_settings: Annotated[
        bool, typer.Option("--show-settings", help="Print every setting and where it came from, and exit.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --show-settings: print JSON.")] = False,
) -> None:
    """Serve queues over HTTP until told to stop.

    Settings come from hark.toml, then HARK_* variables, then these flags; docs/settings.md lists them all.
    """
    if as_json and not show_settings:
        raise typer.BadParameter("--json goes with --show-settings")
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
    """Print every setting, its value (no secrets) and its source."""
    rows = [(name, shown(loaded.settings, name), loaded.sources[name]) for name in SETTINGS]
    if as_json:
        raw(msgspec.json.encode({name: {"value": value, "source": source} for name, value, source in rows}))
    else:
        table(("Setting", "Value", "Source"), ((name, _text(value), source) for name, value, source in rows))


def _text(value: object) -> str:
    """Write a value for the table; an empty one shows as a dash."""
    return "" if value == () else str(value)
