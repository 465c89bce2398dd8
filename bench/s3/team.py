"""Processes that work together on one store, and what the bucket counted meanwhile."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import IO

import msgspec

from bench.s3.bucket import Counts, Stub
from bench.s3.process import READY, Done, Job
from bench.servers import ROOT

_END_SECONDS = 120.0
"""How long a process may take beyond its time before it is given up."""
_REST_SECONDS = 5.0


class Together(msgspec.Struct, frozen=True):
    """What several processes did side by side."""

    parts: list[Done]
    counts: Counts

    @property
    def pushed(self) -> int:
        """Messages that are in the bucket."""
        return sum(part.pushed for part in self.parts)

    @property
    def consumed(self) -> int:
        """Messages that were handled and acked."""
        return sum(part.consumed for part in self.parts)

    @property
    def seconds(self) -> float:
        """Until the last of them had its last answer."""
        return max(part.seconds for part in self.parts)

    @property
    def throughput(self) -> float:
        """Messages a second that were pushed and consumed: of both the fewer."""
        return min(self.pushed, self.consumed) / self.seconds

    @property
    def requests_per_message(self) -> float:
        """Paid requests for each message of its way from a producer to its ack."""
        return self.counts.requests / max(1, min(self.pushed, self.consumed))

    @property
    def dollars_per_million(self) -> float:
        """What a million messages would cost in requests."""
        return 1e6 * self.counts.dollars / max(1, min(self.pushed, self.consumed))


class _Member:
    """One process."""

    def __init__(self, job: Job, errors: IO[bytes]) -> None:
        self._name = job.name
        self._errors = errors
        command = [sys.executable, "-m", "bench.s3.process", msgspec.json.encode(job).decode()]
        self._limit = job.seconds + _END_SECONDS
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )

    def wait_until_ready(self) -> None:
        """It is connected."""
        if self._read_line(_END_SECONDS) != READY:
            raise self._failure()

    def go_on(self) -> None:
        """Tell it that it may begin, or end."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """Let it end, and wait for that."""
        self.go_on()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{self._name} did not end") from None

    def done(self) -> Done:
        """What it did, when it has."""
        try:
            return msgspec.json.decode(self._read_line(self._limit), type=Done)
        except msgspec.DecodeError:
            raise self._failure() from None

    def _read_line(self, seconds: float) -> str:
        """Its next line; nothing if it ends before, or is ended because that takes so long."""
        assert self._process.stdout is not None
        watch = threading.Timer(seconds, self._process.kill)
        watch.start()
        try:
            return self._process.stdout.readline().strip()
        finally:
            watch.cancel()

    def _failure(self) -> RuntimeError:
        self._process.kill()
        self._process.wait()
        self._errors.seek(0)
        return RuntimeError(f"{self._name} failed:\n{self._errors.read().decode(errors='replace')[-2000:]}")

    def close(self) -> None:
        """End it, if it has not ended."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def _wait_until_unwritten(bucket: Stub) -> None:
    """Until nobody has written for a while: all have started, and made their groups known."""
    before, after = bucket.counts().put, -1
    while before != after:
        before = bucket.counts().put
        time.sleep(_REST_SECONDS)
        after = bucket.counts().put


def work_together(bucket: Stub, jobs: Sequence[Job], *, idle: bool = False) -> Together:
    """Run a process for each job; they begin at the same time, when all are connected. `idle`: when all are at rest."""
    with ExitStack() as stack:
        members = []
        for job in jobs:
            members.append(_Member(job, stack.enter_context(tempfile.TemporaryFile())))
            stack.callback(members[-1].close)
        for member in members:
            member.wait_until_ready()
        if idle:
            _wait_until_unwritten(bucket)
        before = bucket.counts()
        for member in members:
            member.go_on()
        done = [member.done() for member in members]
        counts = bucket.counts().since(before)
        for member in members:
            member.end()
        return Together(done, counts)
