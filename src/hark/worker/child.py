"""The program of a process that runs functions for a worker, one after the other (`pool.py`).

The functions run in the main thread. Another one listens to the worker, and ends the process when the worker has ended.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
import threading
import traceback
from contextlib import ExitStack, suppress
from functools import cached_property
from importlib import import_module
from logging.handlers import QueueHandler
from multiprocessing import spawn
from multiprocessing.connection import Connection
from operator import attrgetter
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import msgspec

from hark.errors import InvalidInput
from hark.worker.middleware import Address, TaskContext, current_task, unreachable
from hark.worker.pool import Begun, Call, Done, NotPicklable, Reported
from hark.worker.task import Task

if TYPE_CHECKING:
    from hark.client.client import Client as AsyncClient
    from hark.sync.client import Client


class Child:
    """One such process."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._calls: SimpleQueue[bytes] = SimpleQueue()
        self._lock = threading.Lock()

    def run(self) -> None:
        """Run what the worker says, until it kills this process or has ended."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _leave_it_to_the_worker)
        logging.getLogger().addHandler(_Forwarder(self._send))  # First: basicConfig of a module adds no other then.
        spawn.prepare(self._pipe.recv())
        threading.Thread(target=self._listen, name="hark-worker", daemon=True).start()
        while True:
            self._send(self._done(self._calls.get()))

    def _listen(self) -> None:
        try:
            while True:
                self._calls.put(self._pipe.recv_bytes())
        except (EOFError, OSError):
            os.killpg(0, signal.SIGKILL)  # Another worker gets the task when its lease expires.

    def _send(self, frame: object) -> None:
        data = pickle.dumps(frame)
        with self._lock:
            self._pipe.send_bytes(data)

    def _done(self, text: bytes) -> Done:
        try:
            call: Call = pickle.loads(text)
            function = _found(call)
            logging.getLogger().setLevel(call.log_level)
            with ExitStack() as stack:
                context = TaskContext(**call.context, _clients=_OwnClients(call.address, stack))
                context._report = lambda progress, note: self._send(Reported(progress, note))
                current_task.set(context)
                self._send(Begun())
                result = function(*call.args, **call.kwargs)
        except BaseException as error:
            return _failed(error)
        return _ended(result)


class _OwnClients:
    """The client of a function, which is opened when it is used and closed when the function has ended."""

    client: AsyncClient
    loop = None

    def __init__(self, address: Address | None, stack: ExitStack) -> None:
        self.address = address
        self._stack = stack

    @cached_property
    def sync_client(self) -> Client:
        """A client of the server that the task came from."""
        if self.address is None:
            raise unreachable()
        from hark.sync.client import connect  # Imported here: few functions need it.

        return self._stack.enter_context(connect(**msgspec.structs.asdict(self.address)))


class _Forwarder(QueueHandler):
    """Sends log records to the worker, which logs them."""

    def __init__(self, send: Any) -> None:
        super().__init__(send)
        self._send = send

    def enqueue(self, record: logging.LogRecord) -> None:
        """Send a record."""
        self._send(record)


def _leave_it_to_the_worker(_number: int, _frame: object) -> None:
    """A signal to all processes of a service is for the worker: it lets the function finish, or kills it."""


def _found(call: Call) -> Any:
    """The function of a task, which may be the task itself now."""
    name = f"{call.module}.{call.qualname}"
    try:
        found = attrgetter(call.qualname)(import_module(call.module))
    except AttributeError as error:
        raise InvalidInput(f"another process cannot import {name}; define it at the top level of a module") from error
    if isinstance(found, Task):
        found.worker.move_to(call.address)  # What the function pushes goes where the task came from, also in a test.
    function = found.function if isinstance(found, Task) else found
    if not callable(function):
        raise InvalidInput(f"{name} is no function in another process; give the function of the task its own name")
    return function


def _ended(result: object) -> Done:
    done = Done(result)
    try:
        pickle.dumps(done)
    except Exception as error:
        return _failed(NotPicklable(f"the result cannot be sent from another process: {error}"))
    return done


def _failed(error: BaseException) -> Done:
    """The error with its traceback. One that cannot be sent is replaced by its text."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace))
    done = Done(error=error, trace=text)
    if isinstance(error, Exception):  # Others, such as SystemExit, would end the worker.
        with suppress(Exception):
            pickle.loads(pickle.dumps(done))
            return done
    return Done(error=RuntimeError(f"{type(error).__name__}: {error}"), trace=text)


if __name__ == "__main__":
    Child(Connection(int(sys.argv[1]))).run()
