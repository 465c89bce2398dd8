"""MiniStack, an S3 server that others wrote, whose conditional writes are atomic: is the stub right, is Hark?

It lives in a virtual environment of its own (`scripts/test` makes it), since it needs exactly its version of botocore.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue

PROGRAM = Path(__file__).parents[2] / ".venv" / "ministack" / "bin" / "ministack"
START_SECONDS = 60.0
STOP_SECONDS = 20.0
_LISTENING = re.compile(r"Running on (http://127\.0\.0\.1:\d+)")


class Ministack:
    """A server that runs."""

    def __init__(self, url: str) -> None:
        self.url = url

    def make_bucket(self) -> str:
        """The name of a new bucket."""
        name = f"hark-{uuid.uuid4().hex[:12]}"
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/{name}", method="PUT")) as answer:
            assert answer.status == 200
        return name

    def bucket_url(self, prefix: str = "") -> str:
        """A new bucket, as Hark is told of it."""
        return f"s3://{self.make_bucket()}/{prefix}?endpoint={self.url}"


@contextmanager
def running_ministack(directory: Path) -> Iterator[Ministack]:
    """Start a server that keeps its files in `directory`; stopped at the end."""
    if not PROGRAM.exists():
        # Not a reason to skip: without it nobody else says how a bucket behaves.
        raise RuntimeError(f"MiniStack is not installed ({PROGRAM}): run the tests by scripts/test, which installs it")
    # Port 0 is a free one, which it says; its file with the process id bears the same name in every process.
    own = {"GATEWAY_PORT": "0", "BIND_HOST": "127.0.0.1", "SERVICES": "s3", "TMPDIR": str(directory)}
    process = subprocess.Popen(
        [str(PROGRAM)],
        cwd=directory,
        env={name: os.environ[name] for name in ("PATH", "HOME", "LANG", "LC_ALL") if name in os.environ} | own,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield Ministack(_wait_until_listening(process))
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_listening(process: subprocess.Popen[str]) -> str:
    transcript: list[str] = []
    addresses: SimpleQueue[str | None] = SimpleQueue()

    def read() -> None:
        assert process.stdout is not None
        with process.stdout as output:
            # Reads on after the start too: a full pipe would stop the server.
            for line in output:
                if found := _LISTENING.search(line):
                    addresses.put(found[1])
                transcript.append(line)
        addresses.put(None)

    threading.Thread(target=read, name="ministack-output", daemon=True).start()
    try:
        address = addresses.get(timeout=START_SECONDS)
    except Empty:
        address = None
    if address is None:
        raise RuntimeError(f"MiniStack did not start; it said:\n{''.join(transcript)}")
    return address
