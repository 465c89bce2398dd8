"""The thread with the event loop behind a sync client, and the blocking versions of messages and parts of a client."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import update_wrapper
from typing import Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, cast

from hark.api.types.dead_letters import ListedDeadLetter
from hark.api.types.keys import AtomicResult
from hark.client.admin import Admin as AsyncAdmin
from hark.client.admin import Groups as AsyncGroups
from hark.client.admin import Schedules as AsyncSchedules
from hark.client.admin import Traces as AsyncTraces
from hark.client.arguments import DeliveredMessage, Wrapped
from hark.client.calling import Caller
from hark.client.delivery.message import Message as AsyncMessage
from hark.client.delivery.message import Received
from hark.client.io_thread import LoopThread
from hark.client.keys import Atomic as AsyncAtomic
from hark.client.keys import KeyChanges
from hark.client.keys import KeyValue as AsyncKeyValue
from hark.client.queue import DeadLetters as AsyncDeadLetters
from hark.client.queue import QueueAdmin as AsyncQueueAdmin
from hark.client.transaction import Transaction as AsyncTransaction
from hark.client.transaction import TransactionQueue
from hark.errors import HarkError
from hark.model import Status

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


# Messages, and the parts of a client -------------------------------------------------------------------------


class Message(Received):
    """A delivered message. Settle it once: with `with`, or with `ack`, `nack`, `retry` or `dead_letter`.

    ```python
    for message in client.queue("orders").group("billing").messages():
        with message:
            print(message.data)
    ```

    At the end of the `with` block the message is acknowledged. If the block raises, the message is rejected with the
    error text and the traceback, and the exception propagates. Ctrl-C releases the message without counting an attempt.
    Inside the block the lease is renewed.
    """

    __slots__ = ("inner", "portal")

    def __init__(self, inner: AsyncMessage, portal: Portal) -> None:
        super().__init__(inner.delivered)
        self.inner = inner
        self.portal = portal

    ack = blocking(AsyncMessage.ack)
    nack = blocking(AsyncMessage.nack)
    retry = blocking(AsyncMessage.retry)
    dead_letter = blocking(AsyncMessage.dead_letter)
    renew = blocking(AsyncMessage.renew)
    trace = blocking(AsyncMessage.trace)
    begin = blocking(AsyncMessage.begin)
    _leave = blocking(AsyncMessage.settle_at_end)

    @property
    def settled(self) -> Status | None:
        """The settlement: `completed`, `failed`, `retry` or `dlq`. None while the message is not settled."""
        return self.inner.settled

    @property
    def lost(self) -> bool:
        """Whether the lease is known to have expired: another consumer may have received the message."""
        return self.inner.lost

    def __enter__(self) -> Self:
        self.begin()
        self.inner.open_span()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            self._leave(error)
        finally:
            self.inner.close_span(error)

    def __repr__(self) -> str:
        return repr(self.inner)


class Admin(Part[AsyncAdmin]):
    """Administration of the server and of single messages, `client.admin`."""

    queues = blocking(AsyncAdmin.queues)
    namespaces = blocking(AsyncAdmin.namespaces)
    tasks = blocking(AsyncAdmin.tasks)
    overview = blocking(AsyncAdmin.overview)
    consumers = blocking(AsyncAdmin.consumers)
    leases = blocking(AsyncAdmin.leases)
    messages = blocking(AsyncAdmin.messages)
    message = blocking(AsyncAdmin.message)
    explain = blocking(AsyncAdmin.explain)
    delete_message = blocking(AsyncAdmin.delete_message)
    cancel = blocking(AsyncAdmin.cancel)
    flow = blocking(AsyncAdmin.flow)
    cancel_flow = blocking(AsyncAdmin.cancel_flow)
    health = blocking(AsyncAdmin.health)
    metrics = blocking(AsyncAdmin.metrics)
    key_metrics = blocking(AsyncAdmin.key_metrics)
    prometheus = blocking(AsyncAdmin.prometheus)
    maintenance = blocking(AsyncAdmin.maintenance)
    set_push_maintenance = blocking(AsyncAdmin.set_push_maintenance)
    set_pop_maintenance = blocking(AsyncAdmin.set_pop_maintenance)


class Groups(Part[AsyncGroups]):
    """Administration of consumer groups, `client.groups`."""

    list = blocking(AsyncGroups.list)
    get = blocking(AsyncGroups.get)
    lagging = blocking(AsyncGroups.lagging)
    seek = blocking(AsyncGroups.seek)
    set_subscription = blocking(AsyncGroups.set_subscription)
    delete = blocking(AsyncGroups.delete)
    pause = blocking(AsyncGroups.pause)
    resume = blocking(AsyncGroups.resume)
    purge = blocking(AsyncGroups.purge)
    limits = blocking(AsyncGroups.limits)
    set_limits = blocking(AsyncGroups.set_limits)


class Schedules(Part[AsyncSchedules]):
    """Schedules of the server, `client.schedules`."""

    put = blocking(AsyncSchedules.put)
    list = blocking(AsyncSchedules.list)
    get = blocking(AsyncSchedules.get)
    pause = blocking(AsyncSchedules.pause)
    resume = blocking(AsyncSchedules.resume)
    run = blocking(AsyncSchedules.run)
    delete = blocking(AsyncSchedules.delete)


class Traces(Part[AsyncTraces]):
    """Trace events about messages, `client.traces`."""

    add = blocking(AsyncTraces.add)
    of = blocking(AsyncTraces.of)
    by_name = blocking(AsyncTraces.by_name)
    names = blocking(AsyncTraces.names)


class DeadLetters(Part[AsyncDeadLetters]):
    """The dead letters of all queues, of one queue, or of one group. Iterate over it for all of them."""

    def __iter__(self) -> Iterator[ListedDeadLetter]:
        return self.all()

    list = blocking(AsyncDeadLetters.list)
    all = iterating(AsyncDeadLetters.all)
    get = blocking(AsyncDeadLetters.get)
    requeue = blocking(AsyncDeadLetters.requeue)
    requeue_all = blocking(AsyncDeadLetters.requeue_all)
    delete = blocking(AsyncDeadLetters.delete)
    purge = blocking(AsyncDeadLetters.purge)


class QueueAdmin(Part[AsyncQueueAdmin]):
    """Administration of one queue, `client.queue("orders").admin`."""

    configure = blocking(AsyncQueueAdmin.configure)
    change = blocking(AsyncQueueAdmin.change)
    limits = blocking(AsyncQueueAdmin.limits)
    set_limits = blocking(AsyncQueueAdmin.set_limits)
    stats = blocking(AsyncQueueAdmin.stats)
    partitions = blocking(AsyncQueueAdmin.partitions)
    depth = blocking(AsyncQueueAdmin.depth)
    delete = blocking(AsyncQueueAdmin.delete)
    pause = blocking(AsyncQueueAdmin.pause)
    resume = blocking(AsyncQueueAdmin.resume)
    purge = blocking(AsyncQueueAdmin.purge)
    work_stats = blocking(AsyncQueueAdmin.work_stats)
    work_settings = blocking(AsyncQueueAdmin.work_settings)
    set_lock_duration = blocking(AsyncQueueAdmin.set_lock_duration)


class Atomic(AsyncAtomic):
    """An atomic write to the key-value store: `client.kv.atomic()` creates it, `commit` applies it."""

    def __init__(self, caller: Caller, portal: Portal) -> None:
        super().__init__(caller)
        self._portal = portal

    def commit(self) -> AtomicResult:  # type: ignore[override]  # It blocks; the async one is awaited.
        """Apply everything, or nothing if a check fails: the result is then false.

        Raises `Conflict` if a change does not fit the stored value, and `ConnectionFailed` if the reply was lost.
        """
        return self._portal.run(super().commit())


class KeyValue(Part[AsyncKeyValue]):
    """The key-value store of the server, `client.kv`. A key is a tuple such as `("users", 17)`."""

    get = blocking(AsyncKeyValue.get)
    get_many = blocking(AsyncKeyValue.get_many)
    set = blocking(AsyncKeyValue.set)
    delete = blocking(AsyncKeyValue.delete)
    delete_many = blocking(AsyncKeyValue.delete_many)
    list = iterating(AsyncKeyValue.list)
    count = blocking(AsyncKeyValue.count)
    watch = iterating(AsyncKeyValue.watch)
    watch_prefix = iterating(AsyncKeyValue.watch_prefix)

    def atomic(self) -> Atomic:
        """A new atomic write: checks and changes of keys that are applied together or not at all."""
        return Atomic(self.inner._caller, self.portal)


class Transaction(Part[AsyncTransaction]):
    """Collects pushes, settlements and key-value writes. `commit` applies all of them or none.

    As a context manager it commits at the end of the block. If the block raises, nothing is sent.
    """

    push = fluent(AsyncTransaction.push)
    require = fluent(AsyncTransaction.require)
    commit = blocking(AsyncTransaction.commit)
    _leave = blocking(AsyncTransaction.__aexit__)

    def ack(
        self,
        message: Message | DeliveredMessage | Wrapped,
        status: Status = "completed",
        *,
        error: str | None = None,
        delay: float | timedelta | None = None,
    ) -> Self:
        """Settle a delivered message: acknowledge it, or give another status.

        `status` is `completed`, `failed`, `retry` or `dlq`. `delay` is the time in seconds before the redelivery, for
        `failed` and `retry` only.
        """
        self.inner.ack(message.inner if isinstance(message, Message) else message, status, error=error, delay=delay)
        return self

    def queue(self, name: str) -> TransactionQueue[Transaction]:
        """The queue of a push in the fluent form: `transaction.queue("invoices").partition("7").push(data)`."""
        return TransactionQueue(self.push, name)

    @property
    def kv(self) -> KeyChanges:
        """Checks and writes of keys in this transaction."""
        return self.inner.kv

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._leave(*error)
