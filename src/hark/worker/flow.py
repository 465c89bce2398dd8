"""Flows of tasks: chains, groups and chords, and the handle of a pushed flow."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from hark.api import operations
from hark.api.types.tasks import FlowBody, FlowNode, FlowStatus, FlowStep
from hark.client.arguments import seconds_of
from hark.client.handle import Handle, SyncHandle
from hark.errors import InvalidInput

if TYPE_CHECKING:
    from hark.client.calling import Caller
    from hark.worker.task import AnyTask, PushOptions
    from hark.worker.worker import Worker

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class Flow(Generic[R_co]):
    """Tasks that run one after the other or side by side: one step (`task.s()`), a chain or a group.

    `a | b` runs b after a.
    """

    def __init__(self) -> None:
        """Make no steps; the functions `chain` and `group` and the method `s` of a task make flows."""

    def __or__(self, other: Flow[T]) -> Flow[T]:
        """Run another flow after this one, with its result."""
        return Chain((self, other))

    async def push(self, *, id: str | None = None, result_ttl: float | timedelta | None = None) -> FlowHandle[R_co]:
        """Push the flow. All of it is stored when this returns.

        `id`: an idempotency key; a second push with the same id in the same queue changes nothing. `result_ttl`: how
        long the result is kept, in seconds or as a `timedelta`. The default is one hour.
        """
        steps = await self.nodes(first=True)
        ttl = None if result_ttl is None else math.ceil(seconds_of(result_ttl, "result_ttl"))
        # A repeated request is not another flow.
        body = FlowBody(steps, uuid.uuid4().hex if id is None else id, ttl)
        worker = self.worker
        pushed = await worker.client.caller.ask(operations.PUSH_FLOW, body=body, safe=True)
        return FlowHandle(pushed.queue, pushed.id, worker.caller_of_handle(), self.result_type, pushed.status)

    def push_sync(self, *, id: str | None = None, result_ttl: float | timedelta | None = None) -> SyncFlowHandle[R_co]:
        """Push the flow from a function that is not async. Its handle has blocking calls."""
        run = self.worker.run_from_thread
        return SyncFlowHandle(run(lambda: self.push(id=id, result_ttl=result_ttl)), run)

    async def nodes(self, *, first: bool) -> list[FlowNode]:
        """The steps as they are sent. The `first` ones get no result of a step before."""
        raise NotImplementedError

    @property
    def worker(self) -> Worker:
        """The worker of the first step, whose client pushes the flow."""
        raise NotImplementedError

    @property
    def result_type(self) -> Any:
        """The type of the result."""
        raise NotImplementedError


class Step(Flow[R_co]):
    """One task of a flow, with its arguments. `task.s()` and `task.si()` make it."""

    def __init__(
        self,
        task: AnyTask,
        options: PushOptions,
        args: Sequence[object],
        kwargs: dict[str, object],
        *,
        takes_result: bool,
    ) -> None:
        self._task = task
        self._options = options
        self._args = args
        self._kwargs = kwargs
        self._takes_result = takes_result

    def __repr__(self) -> str:
        return f"<Step {self._task.name!r}>"

    async def nodes(self, *, first: bool) -> list[FlowNode]:
        takes_result = self._takes_result and not first
        return [await self._task.node(self._options, self._args, self._kwargs, takes_result=takes_result)]

    @property
    def worker(self) -> Worker:
        return self._task.worker

    @property
    def result_type(self) -> Any:
        return self._task.returns


class Chain(Flow[R_co]):
    """Flows that run one after the other."""

    def __init__(self, flows: Sequence[Flow[Any]]) -> None:
        if not flows:
            raise InvalidInput("chain: expected at least one step")
        self._flows = tuple(_a_flow(one) for one in flows)

    def __repr__(self) -> str:
        return " | ".join(map(repr, self._flows))

    async def nodes(self, *, first: bool) -> list[FlowNode]:
        found: list[FlowNode] = []
        for one in self._flows:
            found += await one.nodes(first=first and not found)
        return found

    @property
    def worker(self) -> Worker:
        return self._flows[0].worker

    @property
    def result_type(self) -> Any:
        return self._flows[-1].result_type


class Group(Flow[R_co]):
    """Flows that run side by side. The result is the list of their results, in their order."""

    def __init__(self, members: Sequence[Flow[Any]]) -> None:
        if not members:
            raise InvalidInput("group: expected at least one step")
        self._members = tuple(_a_flow(one) for one in members)

    def __repr__(self) -> str:
        return f"<Group of {len(self._members)}>"

    async def nodes(self, *, first: bool) -> list[FlowNode]:
        return [FlowNode(group=[await one.nodes(first=first) for one in self._members])]

    @property
    def worker(self) -> Worker:
        return self._members[0].worker

    @property
    def result_type(self) -> Any:
        kinds = [one.result_type for one in self._members]
        if all(kind == kinds[0] for kind in kinds):
            return list[kinds[0]]  # type: ignore[valid-type]
        return tuple[tuple(kinds)]  # type: ignore[misc]


def _a_flow(given: object) -> Flow[Any]:
    if not isinstance(given, Flow):
        raise InvalidInput(f"expected a step such as task.s(1), a chain or a group, got {given!r}")
    return given


def chain(*flows: *tuple[*tuple[Flow[Any], ...], Flow[T]]) -> Flow[T]:
    """Run steps one after the other: the result of a step is the first argument of the next one.

    ```python
    handle = await hark.chain(download.s(url), resize.s(width=200), store.s()).push()
    ```
    """
    return Chain(flows)


def group(*members: Flow[T]) -> Flow[list[T]]:
    """Run steps side by side. The result is the list of their results, which a step after the group gets.

    ```python
    handle = await (hark.group(price.s("a"), price.s("b")) | total.s()).push()
    ```
    """
    return Group(members)


class FlowHandle(Handle[FlowStatus, T]):
    """A pushed flow. `await handle.result()` waits until its last step is done."""

    _cancelled = "was cancelled, or a step was discarded"

    def __init__(
        self,
        queue: str,
        id: str,
        caller: Callable[[], Caller],
        result_type: Any = Any,
        status: Literal["queued", "duplicate"] = "queued",
    ) -> None:
        super().__init__(caller, result_type)
        self.queue = queue
        """The queue that the flow belongs to: that of its first step."""
        self.id = id
        """Id of the flow."""
        self.status = status
        """`queued`, or `duplicate` if a flow with the same id was pushed before."""

    def __repr__(self) -> str:
        return f"<FlowHandle {self.queue!r} {self.id}>"

    async def steps(self) -> Mapping[str, FlowStep]:
        """The state of each step now, by its path: `waiting`, `pending`, `scheduled`, `running`, `done`, `failed` or
        `cancelled`."""
        return {step.path: step for step in (await self.state()).steps}

    async def cancel(self) -> bool:
        """Cancel the flow. Returns False if it has ended before.

        No further step is pushed. Steps that no worker has received are removed, and running ones are cancelled.
        """
        return (await self._caller().ask(operations.CANCEL_FLOW, self.queue, self.id, safe=True)).success

    @property
    def _what(self) -> str:
        return f"flow {self.id} of queue {self.queue!r}"

    async def _show(self, seconds: float | None) -> FlowStatus:
        return await self._ask(operations.SHOW_FLOW, (self.queue, self.id), seconds, {})

    def _outcome(self, status: FlowStatus) -> T:
        found = super()._outcome(status)
        # The members of a group have types of their own, but the result is a list.
        is_of_a_group = getattr(self._type, "__origin__", None) is tuple
        return cast(T, list(found) if isinstance(found, tuple) and is_of_a_group else found)


class SyncFlowHandle(SyncHandle[FlowStatus, T]):
    """The handle of a pushed flow with blocking calls, for functions that are not async."""

    def __init__(self, inner: FlowHandle[T], run: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]) -> None:
        super().__init__(inner, run)
        self.queue = inner.queue
        """The queue that the flow belongs to: that of its first step."""
        self.id = inner.id
        """Id of the flow."""

    def steps(self) -> Mapping[str, FlowStep]:
        """The state of each step now, by its path."""
        return {step.path: step for step in self.state().steps}
