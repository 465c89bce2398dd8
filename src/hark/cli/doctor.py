"""`hark doctor`: what could be wrong here, and what to do about it."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from hark._version import __version__
from hark.cli import answers
from hark.cli.check import Check
from hark.cli.command import DEFAULT_URL, Failure, Url, command
from hark.cli.output import raw, table
from hark.cli.remote import Answer, call, is_local, path, send
from hark.errors import InvalidSetting
from hark.settings import Settings, load

MIB = 1024 * 1024
LITTLE_DISK, NO_DISK = 1024 * MIB, 64 * MIB
CLOCK_SECONDS = 5.0
OLDEST_PYTHON = (3, 11)
BUCKET = "s3://"
MANY_FAILED, FAILED_SHARE = 20, 0.05
"""So many requests to the bucket, and such a share of them, may fail before that is worth a word."""


def register_doctor(main: typer.Typer) -> None:
    """Add the command at the top level."""
    command(
        main,
        "doctor",
        "hark doctor",
        "hark doctor --url http://queue.internal:6632 --json",
        "hark doctor --url s3://bucket/queues",
    )(doctor)


def doctor(
    url: Url = DEFAULT_URL,
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Check this machine and the server (or the bucket), and say what to do about what is wrong."""
    if url.startswith(BUCKET):
        checks = [_python(), *_store(url)]
    else:
        checks = [_python(), *_server(url), *(_store() if is_local(url) else ())]
    if as_json:
        raw(msgspec.json.encode(checks))
    else:
        table(("", "Check", "Found", "What to do"), ((c.result, c.name, c.detail, c.advice) for c in checks))
    if failed := sum(check.result == "fail" for check in checks):
        raise Failure(f"{failed} of {len(checks)} checks failed")


def _python() -> Check:
    """Look at the interpreter."""
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < OLDEST_PYTHON:
        return Check("python", "fail", found, "Hark needs Python 3.11 or newer")
    return Check("python", "ok", found)


def _server(url: str) -> Iterator[Check]:
    """Look at the server, as far as it answers."""
    sent = time.time()
    try:
        answer = send(url, "GET", "/health", timeout=5)
    except Failure as failure:
        reason, _, advice = str(failure).partition("\n")
        yield Check("server", "fail", reason, advice or "check --url or HARK_URL")
        return
    received = time.time()
    yield Check("server", "ok", f"{url} answers in {(received - sent) * 1000:.0f} ms")
    yield from _health(answer)
    yield _clock(answer, sent, received)
    yield from _requests(url)


def _requests(url: str) -> Iterator[Check]:
    """Look at what the server asked of its store, if that costs something."""
    try:
        numbers = call(url, "GET", path("system", "metrics"), timeout=5).read(answers.Metrics).store
    except Failure:
        return  # An older server, or a sick one, of which /health has said so.
    if "s3_dollars" not in numbers:
        return
    puts, gets, failed = (int(numbers.get(f"s3_requests_{name}", 0)) for name in ("put", "get", "failed"))
    detail = f"{puts:,} PUT and {gets:,} GET since the server started, {failed:,} failed: ${numbers['s3_dollars']:.4f}"
    if failed > MANY_FAILED and failed > FAILED_SHARE * (puts + gets):
        advice = "look at the server's log for what the bucket answers, and at the limits of the bucket"
        yield Check("requests", "warn", detail, advice)
    else:
        yield Check("requests", "ok", detail)


def _health(answer: Answer) -> Iterator[Check]:
    """Look at what the server says of itself."""
    try:
        health = answer.read(answers.Health)
    except Failure:
        detail = f"/health answered {answer.status}, not in Hark's words"
        yield Check("health", "fail", detail, "another program listens there: check --url or HARK_URL")
        return
    if answer.status == 200 and health.status == "healthy":
        yield Check("health", "ok", health.status)
    else:
        yield Check("health", "fail", f"{health.status} ({answer.status})", "look at the server's log")
    if health.version == __version__:
        yield Check("version", "ok", __version__)
    else:
        detail = f"server {health.version or 'unknown'}, this command {__version__}"
        yield Check("version", "warn", detail, "use the same version on both sides")


def _clock(answer: Answer, sent: float, received: float) -> Check:
    """Compare the clocks; the server's is known to a second."""
    try:
        server = parsedate_to_datetime(answer.headers["date"]).timestamp()
    except (KeyError, ValueError):
        return Check("clock", "warn", "the server does not tell its time", "compare the clocks by hand")
    # A Date header cuts off the fraction of the second: on average the server is half a second further.
    behind = (sent + received) / 2 - (server + 0.5)
    if abs(behind) <= CLOCK_SECONDS:
        return Check("clock", "ok", "server and client agree")
    side = "behind" if behind > 0 else "ahead of"
    detail = f"the server is {abs(behind):.0f} s {side} this machine"
    return Check("clock", "warn", detail, "run a time service (NTP) on both: times in seek and --from are off")


def _store(engine: str | None = None) -> Iterator[Check]:
    """Look at the place where a server on this machine keeps its messages, or at another."""
    try:
        settings = load({"engine": engine}, os.environ).settings
    except InvalidSetting as error:
        yield Check("settings", "fail", error.text, "correct it; docs/settings.md lists all settings")
        return
    yield Check("settings", "ok", "hark.toml and the environment are understood")
    if settings.engine.startswith(("postgresql://", "postgres://")):
        from hark.cli.doctor_postgres import database_checks

        yield from database_checks(settings)
        return
    if settings.engine.startswith(BUCKET):
        from hark.cli.doctor_s3 import bucket_checks

        yield from bucket_checks(settings)
        return
    directory = _directory(settings)
    if directory is not None:
        yield _writable(directory)
        yield _disk(directory)


def _directory(settings: Settings) -> Path | None:
    """Find the directory of a file store; None for one without."""
    if not settings.engine:
        return Path(settings.data)
    scheme, _, file = settings.engine.partition(":///")
    return Path(file).parent if scheme == "sqlite" else None


def _existing(directory: Path) -> Path:
    """Find the part of a path that is already there."""
    return next((place for place in (directory, *directory.absolute().parents) if place.exists()), Path("/"))


def _writable(directory: Path) -> Check:
    """Try to write, for permissions alone do not tell."""
    place = _existing(directory)
    try:
        with tempfile.TemporaryFile(dir=place):
            return Check("data", "ok", f"{directory} can be written")
    except OSError as error:
        detail = f"{place} can't be written: {error.strerror}"
        return Check("data", "fail", detail, "change its owner or mode, or choose another: HARK_DATA")


def _disk(directory: Path) -> Check:
    """Look at the room that is left."""
    free = shutil.disk_usage(_existing(directory)).free
    detail = f"{free // MIB:,} MiB free"
    if free < NO_DISK:
        return Check("disk", "fail", detail, "free some space: pushes fail when it is full")
    if free < LITTLE_DISK:
        return Check("disk", "warn", detail, "free some space soon")
    return Check("disk", "ok", detail)
