"""Closed-loop load: wrk with a Lua script made for the row, or Hark's own generator where there is no wrk."""

from __future__ import annotations

import resource
import secrets
import shutil
import subprocess
import tempfile
from pathlib import Path

import msgspec

from hark.cli.bench import Load, generate, payload_of, percentile

LUA = Path(__file__).parent / "lua"
MARK = "BENCH "
BUSY = 0.9
"""From this share of one core on, a generator with one thread may be what limits a row."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of a generator saw."""

    messages: int
    seconds: float
    errors: int
    empty: int
    p50_ms: float
    p99_ms: float
    generator_cpu: float
    """Share of one core that the generator used."""

    @property
    def throughput(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds if self.seconds else 0.0


class _Report(msgspec.Struct):
    requests: int
    seconds: float
    errors: int
    consumed: int
    empty: int
    p50_ms: float
    p99_ms: float


def available() -> bool:
    """Whether wrk is installed."""
    return shutil.which("wrk") is not None


def lua_script(load: Load, token: str = "") -> str:
    """The script that makes wrk send a load."""
    values: dict[str, str | int | bool] = {
        "queue": load.queue,
        "batch": load.batch,
        "partitions": load.partitions,
        "payload": payload_of(load.size).decode(),
        "spread": load.spread,
        "auto_ack": load.auto_ack,
        "shared": load.shared,
        "token": token,
        # Bytes between two messages' transaction ids that can't hold one.
        "stride": load.size,
        # The front 24 of the 36 characters of a transaction id, new for each run; "": the server makes them.
        "tag": f"{secrets.token_hex(4)}-0000-4000-8000-" if load.transaction_ids else "",
    }
    config = ", ".join(f"{name} = {_literal(value)}" for name, value in values.items())
    names = ("push.lua" if load.kind == "push" else "consume.lua", "done.lua")
    return "\n".join([f"config = {{{config}}}", *((LUA / name).read_text(encoding="utf-8") for name in names)])


def _literal(value: str | int | bool) -> str:
    # JSON's strings, numbers and booleans are Lua's, for text without control characters.
    return msgspec.json.encode(value).decode()


def parse_report(text: str, kind: str, batch: int, generator_cpu: float) -> Sample:
    """The sample in what wrk printed."""
    lines = [line for line in text.splitlines() if line.startswith(MARK)]
    if not lines:
        raise RuntimeError(f"wrk printed no report:\n{text}")
    report = msgspec.json.decode(lines[-1].removeprefix(MARK), type=_Report)
    answered = max(0, report.requests - report.errors)
    return Sample(
        messages=answered * batch if kind == "push" else report.consumed,
        seconds=report.seconds,
        errors=report.errors,
        empty=report.empty,
        p50_ms=report.p50_ms,
        p99_ms=report.p99_ms,
        generator_cpu=generator_cpu,
    )


def run(port: int, load: Load, seconds: float, token: str = "") -> Sample:
    """Load a server for so long."""
    url = f"http://127.0.0.1:{port}"
    before = _children_cpu()
    if not available():
        outcome = generate(url, msgspec.structs.replace(load, seconds=seconds))[0]
        return Sample(
            messages=outcome.messages,
            seconds=outcome.seconds,
            errors=outcome.errors,
            empty=outcome.empty,
            p50_ms=percentile(outcome.latencies_ms, 50),
            p99_ms=percentile(outcome.latencies_ms, 99),
            generator_cpu=(_children_cpu() - before) / (outcome.seconds or 1),
        )
    with tempfile.NamedTemporaryFile("w", suffix=".lua", encoding="utf-8") as script:
        script.write(lua_script(load, token))
        script.flush()
        command = ["wrk", "-t1", f"-c{load.connections}", f"-d{round(seconds)}s", "--timeout", "10s"]
        done = subprocess.run([*command, "-s", script.name, url], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"wrk failed: {done.stderr or done.stdout}")
    return parse_report(done.stdout, load.kind, load.batch, (_children_cpu() - before) / seconds)


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
