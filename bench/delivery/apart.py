"""Runs a client in a process of its own, so that it and the server do not share an interpreter."""

from __future__ import annotations

import gc
import multiprocessing
import resource
from collections.abc import Callable, Coroutine
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

import uvloop

P = TypeVar("P")
R = TypeVar("R")


def raise_open_files() -> int:
    """Let this process and those that it starts have as many open files as the system allows; how many that is."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def apart(client: Callable[[P], Coroutine[Any, Any, R]], plan: P) -> R:
    """What a client made of its plan; both it and its result must be picklable."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=raise_open_files) as pool:
        return pool.submit(_run, client, plan).result()


def _run(client: Callable[[P], Coroutine[Any, Any, R]], plan: P) -> R:
    try:
        return uvloop.run(client(plan))
    except (ExceptionGroup, TimeoutError) as error:
        # Of several only the first tells something: the others were cancelled or failed because of it.
        cause: Exception = error
        while isinstance(cause, ExceptionGroup):
            cause = cause.exceptions[0]
        raise RuntimeError(f"{client.__name__}: {cause!r}") from None


def keep_what_is() -> None:
    """Spare the collector what is there now: walking ten thousand connections would show in the latencies."""
    gc.collect()
    gc.freeze()
