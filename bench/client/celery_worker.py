"""Celery on Redis, with the settings that its guide to optimising gives for short tasks.

`python -m bench.client.celery_worker push URL NUMBER` enqueues; `celery -A bench.client.celery_worker worker` works.
Each child writes how many it ran, and from when to when, at its end.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec
from celery import Celery
from celery.signals import worker_process_shutdown

app = Celery("bench", broker=os.environ.get("BENCH_REDIS", ""))
app.conf.update(
    task_ignore_result=True,
    task_serializer="json",
    worker_prefetch_multiplier=128,
    worker_disable_rate_limits=True,
    task_default_delivery_mode=1,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)


class Ran(msgspec.Struct):
    """What one process ran."""

    tasks: int = 0
    first: float = 0.0
    last: float = 0.0


RAN = Ran()


@app.task(name="noop")  # type: ignore[untyped-decorator]  # Celery has no types.
def noop(number: int) -> None:
    """Nothing but what is needed to know when it was run."""
    RAN.last = time.time()
    RAN.first = RAN.first or RAN.last
    RAN.tasks += 1


@worker_process_shutdown.connect  # type: ignore[untyped-decorator]  # Celery has no types.
def report(**_: object) -> None:
    """Leave behind what this child did."""
    if RAN.tasks:
        folder = Path(os.environ["BENCH_FOLDER"])
        (folder / f"{os.getpid()}.json").write_bytes(msgspec.json.encode(RAN))


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        noop.delay(number)
