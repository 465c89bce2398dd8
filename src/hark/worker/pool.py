"""Runs functions in processes that can be killed: for computations, with time limits and cancellation that end them.

Each process runs one function at a time, and is kept for the next one. The worker talks to it from a thread: for
the executor, such a function is one in a thread that `Run.kill` ends.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import cached_property
from importlib import import_module
from logging.handlers import QueueHandler
from multiprocessing import spawn
from multiprocessing.connection import Connection, wait
from operator import attrgetter
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import msgspec

from hark.errors import HarkError, InvalidInput
from hark.worker.middleware import Address, TaskContext, current_task, unreachable
from hark.worker.task import AnyTask, Task

if TYPE_CHECKING:
    from hark.client.client import Client as AsyncClient
    from hark.sync.client import Client

START_SECONDS = 60.0
"""Time limit for the start of a process and the import of its function."""
_FIELDS = ("task", "message_id", "attempt", "arguments", "queue", "worker_id")
_PROGRAM = "import sys; from hark.worker.pool import Child; Child(int(sys.argv[1])).run()"
_IMPORTS = ("sys_path", "sys_argv", "dir", "init_main_from_name", "init_main_from_path")


class ProcessDied(HarkError):
    """The process of a task ended before its function did: it crashed, or was killed."""

    code = "process_died"


class NotPicklable(Exception):
    """A function returned what cannot be sent from its process. It would return the same again."""


class Call(msgspec.Struct, frozen=True):
    """What a process is to run."""

    module: str
    qualname: str
    """Qualified name of the function in its module."""
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    context: Mapping[str, Any]
    """The fields of the task's context."""
    address: Address | None
    log_level: int


class Begun(msgspec.Struct, frozen=True):
    """The function is imported and starts now."""


class Reported(msgspec.Struct, frozen=True):
    """The function reported its progress."""

    progress: float | None
    note: str | None


class Done(msgspec.Struct, frozen=True):
    """The function has ended."""

    result: Any = None
    error: BaseException | None = None
    trace: str = ""
    """The remote traceback of the error."""


class RemoteTraceback(Exception):
    """The traceback of an error in another process: the cause of the error in this one."""

    def __init__(self, trace: str) -> None:
        super().__init__(trace)
        self.trace = trace

    def __str__(self) -> str:
        return f"\n{self.trace}"


class _Child:
    """A process, from the view of the worker."""

    def __init__(self, with_main: bool) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            # A session of its own: Ctrl-C reaches only the worker, and what the function starts is killed with it.
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.pipe = Connection(ours.detach())
        self._ended = os.pidfd_open(self.process.pid) if hasattr(os, "pidfd_open") else None
        prepared = spawn.get_preparation_data("hark-task")
        wanted = [name for name in _IMPORTS if name in prepared and (with_main or not name.startswith("init_main"))]
        with suppress(OSError):
            self.pipe.send({name: prepared[name] for name in wanted})

    def receive(self) -> Any:
        """The next frame. Raises `EOFError` if the process has ended, even if one that it forked holds its pipe."""
        sources: list[Connection | int] = [self.pipe] if self._ended is None else [self.pipe, self._ended]
        if self.pipe not in wait(sources):
            raise EOFError
        return self.pipe.recv()

    def kill(self) -> None:
        """Kill the process and all that it started. It must not have been waited for."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> int:
        """Kill the process and wait for its end."""
        self.kill()
        code = self.process.wait()
        self.close()
        return code

    def close(self) -> None:
        """Close the pipe of a process that has ended."""
        self.pipe.close()
        if self._ended is not None:
            os.close(self._ended)
            self._ended = None


class Processes:
    """The processes of a worker. They start when they are needed, and end with the worker."""

    def __init__(self) -> None:
        self._idle: list[_Child] = []
        self._lock = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """End idle processes. Those that run functions are killed by `Run.kill`."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for child in idle:
            child.end()

    def take(self, with_main: bool) -> _Child:
        """An idle process, or a new one. With the main module of this one, if a function is defined there."""
        with self._lock:
            while self._idle:
                child = self._idle.pop()
                if child.process.poll() is None:
                    return child
                child.close()
        return _Child(with_main)

    def put(self, child: _Child) -> None:
        """Keep a process for the next function."""
        with self._lock:
            if not self._closed:
                self._idle.append(child)
                return
        child.end()


class Run:
    """One function in a process."""

    def __init__(self, processes: Processes, task: AnyTask, context: TaskContext) -> None:
        self._processes = processes
        self._context = context
        function = task.function
        args, kwargs = task.signature.call(lambda *args, **kwargs: (args, kwargs), context.arguments)
        fields = {name: getattr(context, name) for name in _FIELDS}
        self._call = Call(
            function.__module__,
            function.__qualname__,
            args,
            kwargs,
            {**fields, "headers": dict(context.headers)},
            None if context._clients is None else context._clients.address,
            logging.getLogger().getEffectiveLevel(),
        )
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self.killed = False

    def kill(self) -> None:
        """Kill the process, from any thread. The call ends with `ProcessDied`."""
        with self._lock:
            self.killed = True
            if self._child is not None:
                self._child.kill()

    def __call__(self, begun: Callable[[], object]) -> Any:
        """Run the function. Blocks the thread until it has ended."""
        try:
            call = pickle.dumps(self._call)
        except Exception as error:
            raise InvalidInput(f"the arguments cannot be sent to another process: {error}") from error
        child = self._processes.take(self._call.module == "__main__")
        with self._lock:
            self._child = child
            if self.killed:
                child.kill()
        done = code = None
        try:
            child.pipe.send_bytes(call)
            done = self._follow(child, begun)
        except (EOFError, OSError):
            pass  # The process has ended.
        finally:
            with self._lock:
                self._child = None
            if done is None or self.killed:
                code = child.end()
            else:
                self._processes.put(child)
        if done is None:
            raise ProcessDied(f"the process of the task ended with {_reason(code or 0)}")
        if done.error is not None:
            raise done.error from RemoteTraceback(done.trace)
        return done.result

    def _follow(self, child: _Child, begun: Callable[[], object]) -> Done:
        while True:
            match child.receive():
                case Begun():
                    begun()
                case Reported(progress, note):
                    self._context.progress(progress, note)
                case logging.LogRecord() as record:
                    log = logging.getLogger(record.name)
                    if log.isEnabledFor(record.levelno):
                        log.handle(record)
                case Done() as done:
                    return done


def cpus() -> int:
    """How many processes compute at the same time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _reason(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


# The program of such a process -------------------------------------------------------------------------------


class Child:
    """Such a process, from its own view.

    The functions run in the main thread. Another one listens to the worker, and ends the process when that has ended.
    """

    def __init__(self, descriptor: int) -> None:
        self._pipe = Connection(descriptor)
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
