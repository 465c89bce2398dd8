"""`hark doctor`: checks this machine, the server and the store, and gives advice."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Literal

import msgspec

from hark._version import __version__
from hark.api import operations, types
from hark.cli.command import command, main
from hark.cli.output import Failure, raw, table
from hark.cli.remote import Answer, Server
from hark.errors import InvalidSetting
from hark.settings import load
from hark.settings.tree import S3_SCHEME

MIB = 1024 * 1024
LITTLE_DISK = 1024 * MIB
CLOCK_SECONDS = 5.0
MANY_FAILED, FAILED_SHARE = 20, 0.05
"""The number and the share of failed requests to the bucket above which the check warns."""


class Check(msgspec.Struct, frozen=True):
    """One check, with advice if there is something to do."""

    name: str
    result: Literal["ok", "warn", "fail"]
    detail: str
    advice: str = ""

    @classmethod
    def warn_if(cls, bad: bool, name: str, detail: str, advice: str) -> Check:
        """Make a check that warns with advice, or is in order."""
        return cls(name, "warn", detail, advice) if bad else cls(name, "ok", detail)


@command(
    main,
    "doctor",
    "hark doctor",
    "hark doctor --url http://queue.internal:6632 --json",
    "hark doctor --url s3://bucket/queues",
)
def doctor(server: Server) -> None:
    """Check this machine and the server, with advice.

    For a server on this machine, the command also checks its settings and its store. With --url s3://..., it checks a
    bucket instead of a server. The exit code is 1 if a check fails; warnings do not change it.
    """
    checks = [Check("python", "ok", platform.python_version())]
    if server.url.startswith(S3_SCHEME):
        checks += _store(server.url)
    else:
        checks += [*_server(server), *(_store() if server.is_local else ())]
    if server.as_json:
        raw(msgspec.json.encode(checks))
    else:
        table(
            checks,
            {
                "Result": lambda c: c.result,
                "Check": lambda c: c.name,
                "Details": lambda c: c.detail,
                "Advice": lambda c: c.advice,
            },
            long=("Details", "Advice"),
        )
    if failed := sum(check.result == "fail" for check in checks):
        raise Failure(f"{failed} of {len(checks)} checks failed; follow the advice above and run the command again")


def _server(server: Server) -> Iterator[Check]:
    """Check the server, as far as it responds."""
    sent = time.time()
    try:
        answer = server.send(operations.HEALTH, timeout=5)
    except Failure as failure:
        reason, _, advice = str(failure).partition("\n")
        if not advice or "hark doctor" in advice:
            advice = "check --url and HARK_URL, the network and the server's log"
        yield Check("server", "fail", reason, advice)
        return
    received = time.time()
    yield Check("server", "ok", f"{server.url} responds in {(received - sent) * 1000:.0f} ms")
    yield from _health(answer)
    yield _clock(answer, sent, received)
    yield from _requests(server)


def _requests(server: Server) -> Iterator[Check]:
    """Check the requests of the server to its store, if they cost money."""
    try:
        numbers = server.call(operations.METRICS, timeout=5).read().store
    except Failure:
        return  # An older server, or an unhealthy one, which the check of /health reports.
    if "s3_dollars" not in numbers:
        return
    puts, gets, failed = (int(numbers.get(f"s3_requests_{name}", 0)) for name in ("put", "get", "failed"))
    detail = (
        f"{puts:,} PUT and {gets:,} GET requests since the server started, {failed:,} failed; "
        f"cost ${numbers['s3_dollars']:.4f}"
    )
    bad = failed > MANY_FAILED and failed > FAILED_SHARE * (puts + gets)
    advice = "check the server's log for errors of the bucket, and the request limits of the provider"
    yield Check.warn_if(bad, "requests", detail, advice)


def _health(answer: Answer[types.server.Health]) -> Iterator[Check]:
    """Check the health and the version that the server reports."""
    try:
        health = answer.read()
    except Failure:
        detail = f"/health returned status {answer.status} with an unknown body"
        yield Check("health", "fail", detail, "another program uses this address: check --url and HARK_URL")
        return
    if answer.status == 200 and health.status == "healthy":
        yield Check("health", "ok", health.status)
    else:
        yield Check("health", "fail", f"{health.status} (status {answer.status})", "check the server's log")
    if health.version == __version__:
        yield Check("version", "ok", __version__)
    else:
        detail = f"server {health.version or 'unknown'}, command line {__version__}"
        yield Check("version", "warn", detail, "install the same version of Hark on both machines")


def _clock(answer: Answer[object], sent: float, received: float) -> Check:
    """Compare the clocks; the server's is known to the second."""
    try:
        theirs = parsedate_to_datetime(answer.headers["date"]).timestamp()
    except (KeyError, ValueError):
        return Check("clock", "warn", "the response has no valid Date header", "compare the two clocks manually")
    # A Date header has no fraction of a second: on average the server is half a second ahead of it.
    ahead = theirs + 0.5 - (sent + received) / 2
    advice = "run NTP on both machines: times in seek and --from are inexact until then"
    return compare_clocks("clock", "the server's", "this machine's", ahead, advice)


def compare_clocks(name: str, one: str, other: str, ahead: float, advice: str) -> Check:
    """Check by how many seconds a clock is ahead of another one."""
    if abs(ahead) <= CLOCK_SECONDS:
        return Check(name, "ok", f"{one} clock differs from {other} by less than {CLOCK_SECONDS:g} s")
    side = "ahead of" if ahead > 0 else "behind"
    return Check(name, "warn", f"{one} clock is {abs(ahead):.0f} s {side} {other}", advice)


def _store(engine: str | None = None) -> Iterator[Check]:
    """Check the settings and the store of a server on this machine, or the store at a URL."""
    try:
        settings = load({"engine": engine}, os.environ).settings
    except InvalidSetting as error:
        yield Check("settings", "fail", error.text, "correct this setting; docs/settings.md lists all settings")
        return
    yield Check("settings", "ok", "hark.toml and HARK_* variables are valid")
    path = settings.sqlite_path
    if settings.on_postgres or settings.on_s3:
        import asyncio

        from hark.cli.doctor_stores import bucket_checks, database_checks

        checks = bucket_checks if settings.on_s3 else database_checks
        yield from asyncio.run(checks(settings))
    elif path is not None and path != ":memory:":
        yield _writable(Path(path).parent)
        yield _disk(Path(path).parent, settings.limits.min_free_bytes)


def _existing(directory: Path) -> Path:
    """Find the part of a path that already exists."""
    return next((existing for existing in (directory, *directory.absolute().parents) if existing.exists()), Path("/"))


def _writable(directory: Path) -> Check:
    """Check that a file can be written, by writing one."""
    existing = _existing(directory)
    try:
        with tempfile.TemporaryFile(dir=existing):
            return Check("data", "ok", f"{directory} is writable")
    except OSError as error:
        detail = f"{existing} is not writable: {error.strerror}"
        return Check("data", "fail", detail, "change its owner or mode, or set HARK_DATA to another directory")


def _disk(directory: Path, min_free_bytes: int) -> Check:
    from hark.engine.sqlite.store import least_free

    disk = shutil.disk_usage(_existing(directory))
    free = disk.free
    detail = f"{free // MIB:,} MiB free"
    if free < least_free(disk.total, min_free_bytes):
        return Check("disk", "fail", detail, "free disk space now: the server refuses pushes (limits.min_free_bytes)")
    return Check.warn_if(free < LITTLE_DISK, "disk", detail, "free disk space soon")
