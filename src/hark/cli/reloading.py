"""`hark work --reload`: a parent process that watches Python files and restarts the worker when one changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from hark.cli.command import FAILED, Failure, complain

_LOOK_MS = 200
"""How often the parent checks whether the worker has ended."""


def work_and_reload(arguments: Sequence[str], directory: Path) -> int:
    """Run `hark work` with these arguments, and restart it after changes, until a signal; return its exit code."""
    try:
        from watchfiles import PythonFilter, watch
    except ImportError:
        raise Failure("--reload needs the package watchfiles; install it with: pip install 'hark-mq[reload]'") from None
    stop = threading.Event()
    with _Child(arguments, directory, stop) as child, _signals(child, stop):
        for changes in watch(
            directory,
            watch_filter=PythonFilter(),
            stop_event=stop,
            rust_timeout=_LOOK_MS,
            yield_on_timeout=True,
            raise_interrupt=False,
        ):
            if not child.has_started:  # Only now: from here on, every change is noticed.
                complain(f"reload: watching Python files in {directory}")
                child.start()
            elif changes:
                names = sorted({os.path.relpath(path, directory) for _, path in changes})
                complain(f"reload: {', '.join(names)} changed; restarting the worker")
                child.restart()
            child.look()
        return child.wait()


class _Child:
    """The worker's process, in a separate process group, so that Ctrl-C reaches it once, through the parent."""

    def __init__(self, arguments: Sequence[str], directory: Path, stop: threading.Event) -> None:
        self._command = [sys.executable, "-m", "hark", "work", *arguments]
        self._directory = directory
        self._stop = stop
        self._process: subprocess.Popen[bytes] | None = None
        self._reported = False

    def __enter__(self) -> _Child:
        # The worker reads from one end and stops when the other end is closed: so it never outlives its parent.
        self._lifeline, self._life = os.pipe()
        return self

    def __exit__(self, *_: object) -> None:
        self.signal(signal.SIGTERM)
        self.wait()
        os.close(self._lifeline)
        os.close(self._life)

    @property
    def has_started(self) -> bool:
        """Whether a process was ever started."""
        return self._process is not None

    def start(self) -> None:
        """Start the process, unless a signal has arrived."""
        if self._stop.is_set():
            return
        self._reported = False
        self._process = subprocess.Popen(
            [*self._command, "--parent", str(self._lifeline)],
            cwd=self._directory,
            pass_fds=(self._lifeline,),
            process_group=0,
        )

    def restart(self) -> None:
        """Shut the process down gracefully, and start the next."""
        self.signal(signal.SIGTERM)
        self.wait()
        self.start()

    def signal(self, number: int) -> None:
        """Send a signal, if the process still runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def look(self) -> None:
        """Report once that the process has ended."""
        if self._stop.is_set():
            return
        if self._process is not None and self._process.poll() is not None and not self._reported:
            self._reported = True
            code = self._process.returncode
            complain(f"reload: the worker ended with exit code {code}; it restarts when a file changes")

    def wait(self) -> int:
        """Wait for the process; return its exit code."""
        code = 0 if self._process is None else self._process.wait()
        return code if code >= 0 else FAILED


@contextmanager
def _signals(child: _Child, stop: threading.Event) -> Iterator[None]:
    """Forward signals: the first starts a graceful shutdown, the second an immediate one, as without --reload."""

    def hand_on(number: int, _frame: FrameType | None) -> None:
        stop.set()
        child.signal(number)

    before = {number: signal.signal(number, hand_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_with(parent: int) -> None:
    """In the worker's process: shut down gracefully when the parent has ended."""

    def watch() -> None:
        os.read(parent, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="hark-reload-parent", daemon=True).start()
