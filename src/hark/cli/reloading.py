"""`hark work --reload`: a parent that watches Python files and starts the worker anew when one changes."""

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
"""How often the parent looks whether the worker has ended by itself."""


def work_and_reload(arguments: Sequence[str], directory: Path) -> int:
    """Run `hark work` with these arguments again and again until told to stop; answers the last exit code."""
    try:
        from watchfiles import PythonFilter, watch
    except ImportError:
        raise Failure("--reload needs the package watchfiles: pip install 'hark[reload]'") from None
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
            if not child.has_started:  # Only now: what changes from here on is seen.
                complain(f"reload: watching {directory} for changes of Python files")
                child.start()
            elif changes:
                names = sorted({os.path.relpath(path, directory) for _, path in changes})
                complain(f"reload: {', '.join(names)} changed, the worker starts anew")
                child.restart()
            child.look()
        return child.wait()


class _Child:
    """The worker's process: in a group of its own, so that Ctrl-C reaches it once, through the parent."""

    def __init__(self, arguments: Sequence[str], directory: Path, stop: threading.Event) -> None:
        self._command = [sys.executable, "-m", "hark", "work", *arguments]
        self._directory = directory
        self._stop = stop
        self._process: subprocess.Popen[bytes] | None = None
        self._told = False

    def __enter__(self) -> _Child:
        # The worker reads from one end and stops when nobody holds the other: so it never outlives its parent.
        self._held, self._life = os.pipe()
        return self

    def __exit__(self, *_: object) -> None:
        self.signal(signal.SIGTERM)
        self.wait()
        os.close(self._held)
        os.close(self._life)

    @property
    def has_started(self) -> bool:
        """Whether there ever was a process."""
        return self._process is not None

    def start(self) -> None:
        """Begin, unless it is all over."""
        if self._stop.is_set():
            return
        self._told = False
        self._process = subprocess.Popen(
            [*self._command, "--parent", str(self._held)],
            cwd=self._directory,
            pass_fds=(self._held,),
            process_group=0,
        )

    def restart(self) -> None:
        """Stop it gracefully, and start the next."""
        self.signal(signal.SIGTERM)
        self.wait()
        self.start()

    def signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def look(self) -> None:
        """Say once that it has ended by itself."""
        if self._stop.is_set():
            return
        if self._process is not None and self._process.poll() is not None and not self._told:
            self._told = True
            complain(f"reload: the worker ended with {self._process.returncode}; it starts again when a file changes")

    def wait(self) -> int:
        """Its exit code."""
        code = 0 if self._process is None else self._process.wait()
        return code if code >= 0 else FAILED


@contextmanager
def _signals(child: _Child, stop: threading.Event) -> Iterator[None]:
    """Hand signals on: the first stops gracefully, the second at once, as without --reload."""

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
    """In the worker's process: stop gracefully when the parent is gone, however it ended."""

    def watch() -> None:
        os.read(parent, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="hark-reload-parent", daemon=True).start()
