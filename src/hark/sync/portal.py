"""The thread with the event loop behind a sync client, and the conversion of async classes to sync ones."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from functools import update_wrapper
from typing import Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast

from hark.client.io_thread import LoopThread
from hark.errors import HarkError

T = TypeVar("T")


class Portal(LoopThread):
    """Runs coroutines for threads that have no event loop."""

    def __init__(self) -> None:
        super().__init__("hark-sync")

    def run(self, work: Coroutine[object, object, T], interrupted: Callable[[], object] | None = None) -> T:
        """Wait for a coroutine, from any thread but its own.

        Ctrl-C cancels the coroutine. With `interrupted`, the first Ctrl-C calls that function, waits for the coroutine
        and then raises.
        """
        if threading.current_thread() is self._thread:
            work.close()
            text = "a sync client cannot be used on its own event loop; call it from another thread"
            raise HarkError(text, code="client_closed")
        future = self.submit(work)
        try:
            try:
                return future.result()
            except KeyboardInterrupt:
                if interrupted is None:
                    raise
                interrupted()
                future.result()
                raise
        except concurrent.futures.CancelledError:
            raise HarkError("the client was closed during this call", code="client_closed") from None
        except BaseException:
            future.cancel()  # After Ctrl-C there is no caller any more. A completed future is not affected.
            raise

    def iterate(self, stream: AsyncIterator[T]) -> Iterator[T]:
        """Iterate over an async iterator."""

        async def step() -> tuple[T] | None:
            try:
                return (await anext(stream),)
            except StopAsyncIteration:
                return None

        while (found := self.run(step())) is not None:
            yield found[0]


class BorrowedLoop(Portal):
    """Runs coroutines on an event loop that exists already. Create it in that loop's thread or before its use."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.closed = False
        self._lock = threading.Lock()
        self._thread = threading.Thread()  # Its users are other threads than that of the loop.

    def run(self, work: Coroutine[object, object, T], interrupted: Callable[[], object] | None = None) -> T:
        """Wait for a coroutine, from any thread but that of the loop."""
        with suppress(RuntimeError):
            if asyncio.get_running_loop() is self.loop:
                work.close()
                raise HarkError("a sync client cannot be used on its own event loop; use the async client there")
        return super().run(work, interrupted)

    def close(self) -> None:
        """Do nothing: the loop belongs to its creator."""


A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
F = TypeVar("F", bound="Facade[object]")
P = ParamSpec("P")
R = TypeVar("R")


class Facade(Protocol[A_co]):
    """A sync object around an async one."""

    @property
    def inner(self) -> A_co:
        """The async object that does the work."""

    @property
    def portal(self) -> Portal:
        """The portal that runs it."""


class Part(Generic[A]):
    """A facade of one object."""

    def __init__(self, inner: A, portal: Portal) -> None:
        self.inner = inner
        self.portal = portal


class _Converted(Generic[A, P, R]):
    """A method of an async class as an attribute of its facade."""

    def __init__(self, method: Callable[Concatenate[A, P], R]) -> None:
        self._method = method
        self.__doc__ = method.__doc__


class blocking(_Converted[A, P, Coroutine[object, object, T]]):  # Reads like a decorator.
    """Converts a coroutine method to a blocking one."""

    def __get__(self, facade: Facade[A], kind: type | None = None) -> Callable[P, T]:
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            return facade.portal.run(self._method(facade.inner, *args, **kwargs))

        return update_wrapper(call, self._method) if facade is not None else cast(Callable[P, T], self)


class iterating(_Converted[A, P, AsyncIterator[T]]):
    """Converts a method that returns an async iterator to one that returns an iterator."""

    def __get__(self, facade: Facade[A], kind: type | None = None) -> Callable[P, Iterator[T]]:
        def call(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
            return facade.portal.iterate(self._method(facade.inner, *args, **kwargs))

        return update_wrapper(call, self._method) if facade is not None else cast(Callable[P, Iterator[T]], self)


class fluent(_Converted[A, P, A]):
    """Converts a method that returns its own object to one that returns the facade."""

    def __get__(self, facade: F, kind: type | None = None) -> Callable[P, F]:
        def call(*args: P.args, **kwargs: P.kwargs) -> F:
            self._method(cast(A, facade.inner), *args, **kwargs)
            return facade

        return update_wrapper(call, self._method) if facade is not None else cast(Callable[P, F], self)
