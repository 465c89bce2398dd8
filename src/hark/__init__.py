"""Hark: a durable message queue.

```python
import hark

async with hark.connect("http://localhost:6632") as client:
    await client.queue("orders").push({"id": 1})
```

Start a server with the command `hark serve`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from hark._version import __version__

if TYPE_CHECKING:
    from hark import sync
    from hark.client.calling import CallPolicy
    from hark.client.client import Client
    from hark.client.delivery.message import Message
    from hark.client.queue import Queue
    from hark.connecting import connect
    from hark.errors import HarkError
    from hark.polling import PollingStrategy
    from hark.worker import (
        Discard,
        Flow,
        FlowHandle,
        Retry,
        RetryPolicy,
        Task,
        TaskCancelled,
        TaskFailed,
        TaskHandle,
        Worker,
        WorkerRunOptions,
        chain,
        group,
    )

__all__ = [
    "CallPolicy",
    "Client",
    "Discard",
    "Flow",
    "FlowHandle",
    "HarkError",
    "Message",
    "PollingStrategy",
    "Queue",
    "Retry",
    "RetryPolicy",
    "Task",
    "TaskCancelled",
    "TaskFailed",
    "TaskHandle",
    "Worker",
    "WorkerRunOptions",
    "__version__",
    "chain",
    "connect",
    "group",
    "sync",
]

_HOMES = dict.fromkeys(__all__, "hark.worker") | {
    "CallPolicy": "hark.client.calling",
    "Client": "hark.client.client",
    "HarkError": "hark.errors",
    "Message": "hark.client.delivery.message",
    "PollingStrategy": "hark.polling",
    "Queue": "hark.client.queue",
    "connect": "hark.connecting",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use, so that the server and the command line start faster."""
    if name == "sync":
        return import_module("hark.sync")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'hark' has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
