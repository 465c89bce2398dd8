"""Functions that run in processes of their own. A test learns of them by files and by their results."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from pathlib import Path

from hark.worker import Discard, Retry, Worker, current

worker = Worker(queue="heavy")


class Odd(Exception):
    """An exception that cannot be unpickled."""

    def __init__(self, left: str, right: str) -> None:
        super().__init__(f"{left} and {right}")


def note(file: str) -> None:
    """Say which process this is, once it is readable."""
    path = Path(file)
    part = path.with_suffix(".part")
    part.write_text(str(os.getpid()))
    part.rename(path)


def square(number: int) -> int:
    """A computation."""
    return number * number


def where() -> int:
    """The process."""
    return os.getpid()


def spin(file: str) -> None:
    """Compute for ever, without a look at anything. A process that it started runs along."""
    child = subprocess.Popen(["sleep", "3600"])
    note(f"{file}.child-{child.pid}")
    note(file)
    while True:
        pass


def spin_first(file: str) -> int:
    """Compute for ever, unless it was tried before."""
    if current().attempt > 1:
        return current().attempt
    note(file)
    while True:
        pass


def fail(kind: str) -> None:
    """Fail in one of several ways."""
    match kind:
        case "value":
            raise ValueError("no fuel")
        case "odd":
            raise Odd("one", "two")
        case "retry":
            if current().attempt == 1:
                raise Retry(after=0, reason="not yet")
        case "discard":
            raise Discard("not needed")
        case "exit":
            raise SystemExit(3)
        case "die":
            os._exit(7)
        case "orphan":
            if os.fork() == 0:
                threading.Event().wait()  # It holds whatever its parent held.
            os._exit(8)


def lock() -> object:
    """What cannot be sent."""
    return threading.Lock()


def context(greeting: str) -> list[object]:
    """What the context says."""
    here = current()
    logging.getLogger("heavy").warning("%s from %s", greeting, here.task)
    here.progress(0.5, "half")
    return [here.task, here.message_id, here.attempt, dict(here.arguments), dict(here.headers), here.queue]


def report(begun: str, until: str) -> str:
    """Report progress, and wait for a file."""
    current().progress(0.25, "a quarter")
    note(begun)
    while not Path(until).exists():
        threading.Event().wait(0.01)
    return "done"


def forward(number: int) -> None:
    """Push a task from the process."""
    del number


@worker.task("cube", pool="process", result=True)
def cube(number: int) -> int:
    """A task whose function is found through its task."""
    return number**3


@worker.task(pool="process")
def square_of_cube(number: int) -> None:
    """Push a task, and a message with the client."""
    cube.push_sync(number**2)
    current().sync_client.queue("notes").push(number)
