"""The plan of a flow: which step comes after which one, and what is pushed when a step is done.

A plan is a list of nodes, one after the other. A node is a step or a group, and a group has members, which are such
lists again. The path of a node says where it is: `1` is the second node, `1.0` the first member of a group there, and
`1.0.2` the third node of that member, unless the member is a single node, whose path is that of the member.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Literal, Protocol, TypeVar

import msgspec

from hark.model import NewMessage, StepRef

T = TypeVar("T")
RECORDED = 10
"""The end of every tenth step of a list is stored. That a step in between is done is known by the message after it."""
_AT_ONCE = 200
_TOO_LARGE = 16 * 2**20
"""Maximum size of the results of a group together, in bytes."""


class PlanNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step with its message, or a group with its members."""

    message: NewMessage | None = None
    takes_result: bool = True
    """Whether a step gets the result of the step before."""
    group: list[list[PlanNode]] = []


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is stored of a flow when it is pushed."""

    nodes: list[PlanNode]
    ttl_ms: int
    """How long the result is kept."""


class _Task(msgspec.Struct):
    task: str


_task_of = msgspec.json.Decoder(_Task).decode
_encode = msgspec.json.Encoder().encode


class Step(msgspec.Struct, frozen=True):
    """A step of a map, with its message."""

    path: str
    node: PlanNode
    message: NewMessage

    @property
    def task(self) -> str:
        """The name of the task."""
        return _task_of(self.message.payload).task


class FlowMap:
    """A plan with its paths."""

    def __init__(self, queue: str, id: str, plan: Plan, sealed_by: str = "") -> None:
        self.queue = queue
        self.id = id
        self.plan = plan
        self._hash = hashlib.blake2b(queue.encode(), digest_size=4).hexdigest()
        self.sealed_by = sealed_by
        """The queue whose encryption protects the records of the flow; empty: none."""
        self.version: int | None = None
        """The version of the stored plan."""
        self.steps: dict[str, Step] = {}
        self.groups: dict[str, list[list[str]]] = {}
        """The paths of the nodes of each member, by the path of the group."""
        self.after: dict[str, str | None] = {}
        """The path of the node after each one, in its list; None: it is the last one."""
        self.group_of: dict[str, str] = {}
        """The group whose member a list is, by the path of the last node of the list."""
        self.root = self._add(plan.nodes, [str(index) for index in range(len(plan.nodes))])

    def _add(self, nodes: Sequence[PlanNode], paths: list[str]) -> list[str]:
        for path, node, after in zip(paths, nodes, (*paths[1:], None), strict=True):
            self.after[path] = after
            if node.message is not None:
                self.steps[path] = Step(path, node, node.message)
                continue
            members = self.groups[path] = []
            for index, member in enumerate(node.group):
                own = f"{path}.{index}"
                names = [own] if len(member) == 1 else [f"{own}.{number}" for number in range(len(member))]
                members.append(self._add(member, names))
                self.group_of[names[-1]] = path
        return paths

    def ref(self, path: str) -> StepRef:
        """The step as its payload names it."""
        return StepRef(self.queue, self.id, path)

    def ends_member(self, path: str) -> bool:
        """Whether the end of this step may end a group."""
        return self.after[path] is None and path in self.group_of

    def is_recorded(self, path: str) -> bool:
        """Whether the end of this step is stored."""
        index = int(path.rpartition(".")[2])
        return self.ends_member(path) or self.after[path] in self.groups or index % RECORDED == RECORDED - 1

    def counters(self, path: str) -> Iterator[str]:
        """The groups that the end of a step may end, from the inside."""
        while self.after[path] is None and path in self.group_of:
            path = self.group_of[path]
            yield path

    def message(self, path: str, result: bytes | None) -> NewMessage:
        """The message of a step, with the result of the step before."""
        step = self.steps[path]
        payload = step.message.payload[:-1]  # It is an object that is not empty.
        if result is not None and step.node.takes_result:
            payload += b',"input":' + result
        name = self.transaction_id(path)
        payload += b',"transactionId":' + _encode(name) + b',"flow":' + _encode(self.ref(path)) + b"}"
        return msgspec.structs.replace(step.message, payload=payload, transaction_id=name)

    def transaction_id(self, path: str) -> str:
        """The transaction id of a step: it is pushed once. Flows of two queues can have one id, and share a queue."""
        return f"{self.id}/{self._hash}/{path}"


class Known(Protocol):
    """What is stored of the flow."""

    def left(self, group: str) -> int:
        """How many members of a group are not done."""

    def result(self, path: str) -> bytes:
        """The result of the last step of a member."""


class Advance:
    """What the ends of some steps bring about, to be applied in one transaction."""

    def __init__(self, map: FlowMap, known: Known) -> None:
        self._map = map
        self._known = known
        self.results: dict[str, bytes] = {}
        """The results of these steps."""
        self.messages: list[NewMessage] = []
        """The messages to push."""
        self.counters: dict[str, int] = {}
        """How many members of each group are left."""
        self.ended: bytes | None = None
        """The result of the flow, if it has ended."""
        self.failure: str | None = None
        """Why the flow cannot go on, although its steps are done."""

    def begin(self) -> None:
        """Start the flow."""
        self._start(self._map.root[0], None)

    def finish(self, path: str, result: bytes) -> None:
        """A step is done."""
        self.results[path] = result
        while (after := self._map.after[path]) is None:
            group = self._map.group_of.get(path)
            if group is None:
                self.ended = result
                return
            left = self.counters.get(group)
            self.counters[group] = left = (self._known.left(group) if left is None else left) - 1
            if left > 0:
                return
            path, result = group, self._result(group)
            if len(result) > _TOO_LARGE:
                self.failure = f"the results of the group {group} have {len(result)} bytes, at most {_TOO_LARGE} fit"
                return
        self._start(after, result)

    def _start(self, path: str, result: bytes | None) -> None:
        members = self._map.groups.get(path)
        if members is None:
            self.messages.append(self._map.message(path, result))
            return
        self.counters[path] = len(members)
        for member in members:
            self._start(member[0], result)

    def _result(self, path: str) -> bytes:
        members = self._map.groups.get(path)
        if members is not None:
            return b"[" + b",".join(self._result(member[-1]) for member in members) + b"]"
        own = self.results.get(path)
        return self._known.result(path) if own is None else own


def steps_of(nodes: Sequence[PlanNode]) -> Iterator[NewMessage]:
    """The messages of all steps of a plan."""
    for node in nodes:
        if node.message is not None:
            yield node.message
        for member in node.group:
            yield from steps_of(member)


async def in_parts(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Await all calls, some at a time: to start thousands at once takes too long."""
    left = iter(calls)
    results: list[T] = []
    while some := list(islice(left, _AT_ONCE)):
        results += await asyncio.gather(*some)
    return results


Progress = Literal["done", "pushed", "waiting"]


async def reached(
    map: FlowMap, ended: Mapping[str, bool], is_stored: Callable[[Step], Awaitable[bool]]
) -> list[tuple[Step, Progress]]:
    """All steps in order, each with how far it is.

    `ended` has the recorded steps: whether they are done, or have failed or were cancelled. `is_stored` looks for the
    message of a step.
    """

    async def walk(paths: Sequence[str], pushed: bool) -> list[tuple[Step, Progress]]:
        number = await count_done(paths) if pushed else -1
        found: list[tuple[Step, Progress]] = []
        for index, path in enumerate(paths):
            if path in map.steps:
                found.append(
                    (map.steps[path], "done" if index < number else "pushed" if index == number else "waiting")
                )
            members = (walk(member, index <= number) for member in map.groups.get(path, ()))
            found += chain.from_iterable(await in_parts(members))
        return found

    async def count_done(paths: Sequence[str]) -> int:
        known = [index + is_done(path) for index, path in enumerate(paths) if path in ended or is_done(path)]
        least = max(known, default=0)
        # The last message is the one to find, and those before may be removed. In this order none is missed if the flow
        # goes on meanwhile: a message is not removed before the next one is pushed.
        for index in range(least + 1, min(least + RECORDED, len(paths))):
            if paths[index] in map.steps and await is_stored(map.steps[paths[index]]):
                least = index
        return least

    def is_done(path: str) -> bool:
        members = map.groups.get(path)
        return ended.get(path, False) if members is None else all(is_done(member[-1]) for member in members)

    return await walk(map.root, True)
