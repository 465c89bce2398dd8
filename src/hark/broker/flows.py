"""Flows: the next step is pushed in one transaction with the settlement of the step before it.

The server keeps what it knows of a flow below one key of its own: the plan (`flow_plans.py`), the ends of some steps,
how many members of a group are left, and the end of the flow. So a message carries only its ref in the flow, and a
worker needs no right to push. The next step is pushed once, because the transaction is refused if its settlement
repeats an earlier one, and if the flow has an end: the end of a flow that was stopped is kept as long as its plan. The
list of the results of a group is complete, because the transaction requires that its counter has not changed.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from hark.api.types.tasks import FlowStatus, FlowStep, PushedFlow, TaskStatus
from hark.broker.flow_plans import Advance, FlowMap, Plan, Progress, Step, in_parts, reached, steps_of
from hark.broker.keyvalue import KeyValue
from hark.broker.sealing import SealedQueues
from hark.clock import MILLISECOND, SECOND
from hark.engine.api import Engine
from hark.engine.keyvalue import CHECK_FAILED, REPEATED
from hark.errors import Conflict, HarkError, NotFound, Overloaded, Unavailable
from hark.model import (
    OWN,
    Key,
    KeyCheck,
    KeyEntry,
    KeyMutation,
    KeyRange,
    KeyWrite,
    NewMessage,
    PushOutcome,
    Settlement,
    SettleOutcome,
    StepRef,
    Transaction,
)
from hark.model.messages import NULL_PAYLOAD

if TYPE_CHECKING:
    from hark.broker.broker import Broker

log = logging.getLogger(__name__)

FlowState = Literal["pending", "running", "done", "failed", "cancelled"]
StepState = Literal["waiting", "pending", "scheduled", "running", "done", "failed", "cancelled"]
ENDED = frozenset({"done", "failed", "cancelled"})
"""The last states of flows and tasks; what has failed can still be requeued."""
_KEPT_MS = 30 * 24 * 3600 * SECOND // MILLISECOND
"""How long a flow is kept whose last step is not done."""
_TOGETHER = 200
"""Maximum number of settlements of one flow in a transaction, and of steps to cancel in one."""
_PLANS = 4000
"""Number of plans to cache. A flow of ten steps takes about 10 KB of memory."""
_PLAN_BYTES = 25_000
"""Size of the largest plan to cache, in bytes."""
_ATTEMPTS = 100
_AT_ONCE = 20
_PAGE = 1000
_LOOK_AGAIN = 5 * SECOND
"""How often a wait looks for failed steps. A message whose leases expire becomes a dead letter without a note."""
_LOOK_SHARE = 10
"""The least ratio of a pause to the look before it."""

FlowId = tuple[str, str]
"""Queue and id."""
Settle = Callable[[Sequence[Settlement]], Awaitable[list[SettleOutcome]]]


class Sealed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record of a flow as it is stored."""

    data: msgspec.Raw
    by: str = ""
    """The queue whose encryption protects it."""


class StepEnd(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of a step. A failed one may be requeued, and end again."""

    state: Literal["done", "failed", "cancelled"] = "done"
    result: msgspec.Raw = msgspec.Raw(NULL_PAYLOAD)
    """Kept for the last steps of the members of a group."""


class _Waiting(NamedTuple):
    """A settlement that waits for its transaction."""

    item: Settlement
    ref: StepRef
    queue: str
    answer: asyncio.Future[SettleOutcome]


_encode = msgspec.json.Encoder().encode
_decode_sealed = msgspec.json.Decoder(Sealed).decode
_decode_plan = msgspec.json.Decoder(Plan).decode
_decode_step = msgspec.json.Decoder(StepEnd).decode
_decode_end = msgspec.json.Decoder(FlowStatus).decode


def _key(flow: FlowId, *parts: str) -> Key:
    return (OWN, "flow", *flow, *parts)


class _Known:
    """What was read of a flow before a transaction."""

    def __init__(self, flows: Flows, map: FlowMap) -> None:
        self._flows = flows
        self._flow = map.queue, map.id
        plan, end = _key(self._flow, "plan"), _key(self._flow, "end")
        self.versions = {plan: KeyCheck(plan, map.version), end: KeyCheck(end, None)}
        """The versions that the transaction requires, by key. All parts of these keys are texts."""
        self.counters: dict[str, int] = {}
        self.ends: dict[str, StepEnd] = {}
        self.ended = False
        self.complete = False
        """Whether the ends of all steps were read."""

    def left(self, group: str) -> int:
        return self.counters[group]

    def result(self, path: str) -> bytes:
        if not self.complete:
            raise _Incomplete
        return bytes(self.ends[path].result)

    async def read(self, paths: Sequence[str], groups: Sequence[str]) -> None:
        """Read the end of the flow, the ends of these steps, and the counters of these groups."""
        keys = [_key(self._flow, "end"), *(_key(self._flow, "step", path) for path in paths)]
        keys += [_key(self._flow, "left", group) for group in groups]
        entries = await self._flows.fetch(keys)
        self.ended = entries[0] is not None
        for key, entry in zip(keys, entries, strict=True):
            self.versions[key] = KeyCheck(key, None if entry is None else entry.version)
        for path, entry in zip(paths, entries[1 : 1 + len(paths)], strict=True):
            if entry is not None:
                self.ends[path] = _decode_step(self._flows.opened(entry))
        for group, entry in zip(groups, entries[1 + len(paths) :], strict=True):
            if entry is not None:
                self.counters[group] = msgspec.json.decode(self._flows.opened(entry), type=int)


class _Incomplete(Exception):
    """The results of all steps are required."""


class Flows:
    """The flows of all queues."""

    def __init__(self, broker: Broker, engine: Engine, keyvalue: KeyValue, sealed: SealedQueues) -> None:
        self._broker = broker
        self._engine = engine
        self._keyvalue = keyvalue
        self._sealed = sealed
        self._maps: OrderedDict[FlowId, FlowMap] = OrderedDict()
        self._waiting: dict[FlowId, list[_Waiting]] = {}
        """Settlements, by their flow. The flows in it have a task that settles them."""
        self._tasks: set[asyncio.Task[None]] = set()

    # Push --------------------------------------------------------------------------------------------------

    async def push(self, plan: Plan, id: str | None = None) -> PushedFlow:
        """Store a flow and push its first steps. The same id is pushed once."""
        messages = list(steps_of(plan.nodes))
        queues = list(dict.fromkeys(message.queue for message in messages))
        await self._sealed.learn_of(queues)
        sealed_by = next((queue for queue in queues if queue in self._sealed.names), "")
        map = FlowMap(queues[0], id or str(uuid.uuid4()), plan, sealed_by)
        known = _Known(self, map)
        advance = Advance(map, known)
        advance.begin()
        await asyncio.sleep(0)  # A plan can have several MB.
        mutations = [self._set(map, "plan", _encode(plan)), *self._counters(map, advance)]
        keys = KeyWrite(checks=list(known.versions.values()), mutations=mutations)
        outcome = await self._broker.transact(Transaction(advance.messages, keys=keys, once=True))
        # Messages with its id can be retained for longer than its end.
        if outcome.code in (CHECK_FAILED, REPEATED):
            return PushedFlow("duplicate", map.id, map.queue)
        if not outcome.success:
            raise _refusal(outcome.code, outcome.error)
        map.version = None if outcome.keys is None else outcome.keys.version
        self._note(map, bytes(mutations[0].value))
        return PushedFlow("queued", map.id, map.queue)

    # Settlements -------------------------------------------------------------------------------------------

    async def settle(self, items: Sequence[tuple[Settlement, StepRef, str]], plain: Settle) -> list[SettleOutcome]:
        """Settle steps that are done or were cancelled, and push what comes after them.

        The steps of several flows share a transaction if they end no member of a group, because this costs less. If
        anything is refused, and for the members of groups, those of one flow share a transaction.
        """
        outcomes: dict[int, SettleOutcome] = {}
        maps = await self._read_maps([(ref.queue, ref.id) for _, ref, _ in items])
        simple: dict[FlowId, tuple[int, FlowMap]] = {}
        """One settlement of each flow: they are applied in one transaction, and each one checks the state before it."""
        for index, (_, ref, queue) in enumerate(items):
            flow = ref.queue, ref.id
            map = maps[flow]
            step = None if map is None else map.steps.get(ref.path)
            if (
                map is not None
                and step is not None
                and step.message.queue == queue
                and not map.ends_member(step.path)
                and flow not in self._waiting
            ):
                simple[flow] = index, map
        if len(simple) > 1 and (settled := await self._apply_all([(*items[at], map) for at, map in simple.values()])):
            outcomes.update(zip((index for index, _ in simple.values()), settled, strict=True))
        left = [index for index in range(len(items)) if index not in outcomes]
        one_by_one = (self._settle(*items[index], plain) for index in left)
        for index, outcome in zip(left, await asyncio.gather(*one_by_one, return_exceptions=True), strict=True):
            if isinstance(outcome, BaseException):
                raise outcome
            outcomes[index] = outcome
        return [outcomes[index] for index in range(len(items))]

    async def _apply_all(self, some: Sequence[tuple[Settlement, StepRef, str, FlowMap]]) -> list[SettleOutcome]:
        """Settle steps of several flows in one transaction. Empty: something was refused, and nothing is changed."""
        checks: list[KeyCheck] = []
        mutations: list[KeyMutation] = []
        messages: list[NewMessage] = []
        for item, ref, _, map in some:
            known = _Known(self, map)
            changes, pushes = self._consequences(map, [(item, ref.path)], known)
            checks += known.versions.values()
            mutations += changes
            messages += pushes
        operations: list[NewMessage | Settlement] = [*(item for item, *_ in some), *messages]
        outcome = await self._broker.transact(Transaction(operations, keys=KeyWrite(checks, mutations), once=True))
        return [one for one in outcome.results if isinstance(one, SettleOutcome)] if outcome.success else []

    async def _settle(self, item: Settlement, ref: StepRef, queue: str, plain: Settle) -> SettleOutcome:
        flow = ref.queue, ref.id
        answer: asyncio.Future[SettleOutcome] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.get(flow)
        if waiting is None:
            waiting = self._waiting[flow] = []
            task = asyncio.get_running_loop().create_task(self._lead(flow, plain))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        waiting.append(_Waiting(item, ref, queue, answer))
        return await answer

    async def _lead(self, flow: FlowId, plain: Settle) -> None:
        """Settle all that wait for a flow, until none is left."""
        while waiting := self._waiting[flow]:
            some = waiting[:_TOGETHER]
            del waiting[:_TOGETHER]
            try:
                await self._settle_together(flow, some, plain)
            except BaseException as error:
                for one in some:
                    if not one.answer.done():
                        one.answer.set_exception(error)
                        one.answer.exception()  # A caller that has left does not read it.
        del self._waiting[flow]

    async def _settle_together(self, flow: FlowId, some: list[_Waiting], plain: Settle) -> None:
        optimistic = len(some) == 1
        for _ in range(_ATTEMPTS):
            if not some:
                return
            map = await self._map(flow)
            steps: dict[str, _Waiting] = {}
            """What is settled together: each step once."""
            others: list[_Waiting] = []
            later: list[_Waiting] = []
            for one in some:
                step = None if map is None else map.steps.get(one.ref.path)
                if step is None or step.message.queue != one.queue:
                    others.append(one)
                elif step.path in steps:
                    later.append(one)
                else:
                    steps[step.path] = one
            if map is not None and steps:
                known = await self._read(map, list(steps), optimistic=optimistic)
                if known.ended:
                    others, later, steps = some, [], {}
                for path in list(steps):
                    end = known.ends.get(path)
                    is_started = known.counters.keys() >= set(map.counters(path))
                    if not is_started or (end is not None and end.state != "failed"):
                        others.append(steps.pop(path))
            if others:
                await _answer(others, plain)
            some = later
            if map is not None and steps:
                some += await self._apply(map, list(steps.values()), known, plain)
            optimistic = False
        raise Unavailable("other servers settle steps of this flow all the time; retry", code="flow_busy")

    async def _read(self, map: FlowMap, paths: Sequence[str], *, optimistic: bool) -> _Known:
        known = _Known(self, map)
        if not optimistic or map.ends_member(paths[0]):
            groups = dict.fromkeys(group for path in paths for group in map.counters(path))
            await known.read(paths, list(groups))
        return known

    async def _apply(self, map: FlowMap, some: list[_Waiting], known: _Known, plain: Settle) -> list[_Waiting]:
        """Settle steps in one transaction. Returns those that must be tried again."""
        ends = [(one.item, one.ref.path) for one in some]
        try:
            mutations, messages = self._consequences(map, ends, known)
        except _Incomplete:
            known.ends |= await self._ends(map)
            known.complete = True
            mutations, messages = self._consequences(map, ends, known)
        keys = KeyWrite(checks=list(known.versions.values()), mutations=mutations)
        operations: list[NewMessage | Settlement] = [*(one.item for one in some), *messages]
        outcome = await self._broker.transact(Transaction(operations, keys=keys, once=True))
        if outcome.success:
            _answer_with(some, outcome.results)
            return []
        if outcome.code == CHECK_FAILED:
            self._maps.pop((map.queue, map.id), None)  # The plan may be gone.
            return some
        failed = outcome.failed_index
        if outcome.code == REPEATED and failed is not None and failed >= len(some):
            # What follows one of them was pushed when another consumer group settled it.
            if len(some) == 1:
                await _answer(some, plain)
                return []
            for one in some:
                await self._settle_together((map.queue, map.id), [one], plain)
            return []
        if failed is None or failed >= len(some):
            raise _refusal(outcome.code, outcome.error)
        refused = some[failed]
        if outcome.code == REPEATED:
            await _answer([refused], plain)
        elif not refused.answer.done():
            last = outcome.results[-1] if outcome.results else None
            if not isinstance(last, SettleOutcome) or last.success:
                last = SettleOutcome(refused.item.transaction_id, False, outcome.code, outcome.error)
            refused.answer.set_result(last)
        return some[:failed] + some[failed + 1 :]

    def _consequences(
        self, map: FlowMap, ends: Sequence[tuple[Settlement, str]], known: _Known
    ) -> tuple[list[KeyMutation], list[NewMessage]]:
        """The changes of keys and the messages that follow from the ends of steps, given with their paths."""
        flow = map.queue, map.id
        advance = Advance(map, known)
        mutations: list[KeyMutation] = []
        cancelled = False
        for item, path in ends:
            end = item.task
            assert end is not None
            if end.state == "cancelled":
                cancelled = True
                mutations.append(self._set(map, ("step", path), _encode(StepEnd("cancelled"))))
                continue
            advance.finish(path, end.result)
            if map.is_recorded(path):
                kept = StepEnd(result=msgspec.Raw(end.result)) if map.ends_member(path) else StepEnd()
                mutations.append(self._set(map, ("step", path), _encode(kept)))
        mutations += self._counters(map, advance)
        if advance.ended is not None or advance.failure is not None:
            result = msgspec.UNSET if advance.ended is None else msgspec.Raw(advance.ended)
            state: FlowState = "failed" if advance.failure else "done"
            done = tuple(_shown(step, "done") for step in map.steps.values())
            status = FlowStatus(
                id=map.id, queue=map.queue, state=state, result=result, error=advance.failure, steps=done
            )
            if advance.ended is not None:  # Nothing else is needed any more.
                end_of_flow = self._set(map, "end", _encode(status), map.plan.ttl_ms)
                return [KeyMutation(kind="delete_tree", key=_key(flow)), end_of_flow], []
            return [*mutations, self._set(map, "end", _encode(status))], []
        if cancelled:  # A step was discarded, so no other one follows.
            status = FlowStatus(id=map.id, queue=map.queue, state="cancelled")
            return [*mutations, self._set(map, "end", _encode(status))], []
        return mutations, advance.messages

    async def note_failure(self, ref: StepRef) -> None:
        """Note that a step has become a dead letter, and notify those who wait for its flow."""
        map = await self._map((ref.queue, ref.id))
        if map is not None and ref.path in map.steps:
            alive = list(_Known(self, map).versions.values())
            first = KeyCheck(_key((map.queue, map.id), "step", ref.path), None)
            end = self._set(map, ("step", ref.path), _encode(StepEnd("failed")))
            await self._keyvalue.write_keys(KeyWrite([*alive, first], [end]))
            await self._keyvalue.write_keys(KeyWrite(alive, [self._set(map, "failed", _encode(ref.path))]))

    # State -------------------------------------------------------------------------------------------------

    async def status(self, queue: str, id: str, wait_seconds: float = 0) -> FlowStatus:
        """The state of a flow; with `wait_seconds`, when it has ended or after that time. Raises `NotFound`."""
        flow = queue, id
        keys = [_key(flow, "end"), _key(flow, "failed")]
        timers = self._keyvalue.watchers.timers
        deadline = timers.now() + round(wait_seconds * SECOND)
        while True:
            began = timers.now()
            [plan, *entries] = await self.fetch([_key(flow, "plan"), *keys])
            if plan is None:  # It has ended, or its queue was deleted.
                self._maps.pop(flow, None)
            status = await self._status(flow, entries[0])
            took = timers.now() - began  # Long if there are many steps.
            left = deadline - timers.now() - took
            if status.state in ENDED or left <= 0:
                return status
            pause = min(left, max(_LOOK_AGAIN, _LOOK_SHARE * took))
            await self._keyvalue.watchers.wait_for_change(keys, entries, pause / SECOND)

    async def _status(self, flow: FlowId, entry: KeyEntry | None) -> FlowStatus:
        end = None if entry is None else _decode_end(self.opened(entry))
        if end is not None and end.steps:
            return end
        map = await self._map(flow)
        if map is None:
            if entry is None:  # It may have ended since then.
                [entry] = await self.fetch([_key(flow, "end")])
                if entry is not None:
                    return await self._status(flow, entry)
            raise NotFound("Flow not found; its result has expired, or its queue was deleted", code="flow_not_found")
        steps = await self._steps(map, stopped=end is not None)
        if end is not None:
            return msgspec.structs.replace(end, steps=tuple(steps))
        [entry] = await self.fetch([_key(flow, "end")])
        if entry is not None:  # It has ended meanwhile.
            return await self._status(flow, entry)
        failed = next((step for step in steps if step.state == "failed"), None)
        error = (
            None if failed is None else f"step {failed.path} ({failed.task}) failed: {failed.error or 'no error text'}"
        )
        states = {step.state for step in steps}
        state: FlowState = "pending"
        if failed is not None:
            state = "failed"
        elif "cancelled" in states:
            state = "cancelled"
        elif states & {"done", "running"}:
            state = "running"
        return FlowStatus(id=map.id, queue=map.queue, state=state, error=error, steps=tuple(steps))

    async def _steps(self, map: FlowMap, *, stopped: bool) -> list[FlowStep]:
        """The states of all steps. When the flow has `stopped`, those that are not done are cancelled."""
        before: object = None
        ends = await self._ends(map)
        while True:
            steps = await self._steps_with(map, ends, stopped=stopped)
            cancelled = [step.path for step in steps if step.state == "cancelled"]
            if stopped or not cancelled:
                return steps
            # A step may have been done between the looks at its flow and at its message: then the flow has gone on.
            now = await self._ends(map)
            if before == (cancelled, ends) and now == ends:
                return steps
            before, ends = (cancelled, ends), now

    async def _steps_with(self, map: FlowMap, ends: dict[str, StepEnd], *, stopped: bool) -> list[FlowStep]:
        done = {path: end.state == "done" for path, end in ends.items()}
        turns = asyncio.Semaphore(_AT_ONCE)

        async def is_stored(step: Step) -> bool:
            async with turns:
                partition_id = await self._broker.queue_lookup.partition_id(step.message.queue, step.message.partition)
                name = map.transaction_id(step.path)
                return partition_id is not None and await self._broker.message(partition_id, name) is not None

        async def state_of(step: Step, progress: Progress) -> FlowStep:
            end = ends.get(step.path)
            if progress == "done":
                return _shown(step, "done")
            if end is not None and end.state == "cancelled":
                return _shown(step, "cancelled")
            if progress == "waiting" or stopped:
                return _shown(step, "cancelled" if stopped else "waiting")
            async with turns:
                return await self._live(map, step, end)

        return await in_parts(state_of(*one) for one in await reached(map, done, is_stored))

    async def _live(self, map: FlowMap, step: Step, end: StepEnd | None) -> FlowStep:
        """The state of a step that was pushed and is not done, from its message."""
        partition_id = await self._broker.queue_lookup.partition_id(step.message.queue, step.message.partition)
        task = run = None
        if partition_id is not None:
            with suppress(NotFound):  # It was removed; or settled, with an option that removes it then.
                task, run = await self._broker.tasks.run(partition_id, map.transaction_id(step.path))
        if task is None or task.state in ("done", "cancelled"):
            # It was settled without its flow, which has no result then and does not go on; or it was removed.
            return _shown(step, "cancelled")
        if task.state == "failed" and end is None:
            await self.note_failure(map.ref(step.path))
        return _shown(step, task.state, task, run, partition_id)

    async def _ends(self, map: FlowMap) -> dict[str, StepEnd]:
        prefix = _key((map.queue, map.id), "step")
        ends: dict[str, StepEnd] = {}
        page: list[KeyEntry] | None = None
        while page is None or len(page) == _PAGE:
            after = page[-1].key if page else None
            page = await self._keyvalue.fetch_range(KeyRange(prefix=prefix, after=after, limit=_PAGE))
            ends |= {str(entry.key[-1]): _decode_step(self.opened(entry)) for entry in page}
        return ends

    # Cancellation ------------------------------------------------------------------------------------------

    async def cancel(self, queue: str, id: str) -> bool:
        """Stop a flow: no step is pushed any more, and pending and running steps are cancelled. False if it ended."""
        flow = queue, id
        self._maps.pop(flow, None)
        map = await self._map(flow)
        [entry] = await self.fetch([_key(flow, "end")])
        if entry is not None:
            end = _decode_end(self.opened(entry))
            if end.state != "cancelled" or end.steps:
                return False
        if map is None:
            raise NotFound("Flow not found; its result has expired, or its queue was deleted", code="flow_not_found")
        if entry is None:  # Otherwise a cancellation ended in the middle, and this one completes it.
            end = FlowStatus(id=map.id, queue=map.queue, state="cancelled")
            write = KeyWrite(list(_Known(self, map).versions.values()), [self._set(map, "end", _encode(end))])
            if not (await self._keyvalue.write_keys(write)).success:
                return False
        # No step is pushed from here on. Without the messages it is not known how far the flow was.
        steps = await self._steps(map, stopped=False)
        live = [step.message_id for step in steps if step.message_id is not None]
        ended = [_shown(map.steps[step.path], "done" if step.state == "done" else "cancelled") for step in steps]
        end = msgspec.structs.replace(end, steps=tuple(ended))
        await self._keyvalue.write_keys(KeyWrite(mutations=[self._set(map, "end", _encode(end))]))
        # Those that no worker has, in few calls.
        received: list[str] = []
        for start in range(0, len(live), _TOGETHER):
            some = live[start : start + _TOGETHER]
            outcomes = await self._engine.cancel(some)
            received += [one for one, outcome in zip(some, outcomes, strict=True) if outcome == "leased"]
        turns = asyncio.Semaphore(_AT_ONCE)

        async def cancel_one(message_id: str) -> None:
            async with turns:
                await self._broker.tasks.cancel(message_id)

        await in_parts(cancel_one(message_id) for message_id in received)
        return True

    # Records -----------------------------------------------------------------------------------------------

    async def fetch(self, keys: Sequence[Key]) -> list[KeyEntry | None]:
        """Records as they are stored."""
        return await self._keyvalue.fetch(keys)

    def opened(self, entry: KeyEntry) -> msgspec.Raw:
        """The data of a record."""
        sealed = _decode_sealed(entry.value)
        return self._sealed.read(sealed.by, sealed.data, sealed=True) if sealed.by else sealed.data

    def _set(self, map: FlowMap, name: str | tuple[str, ...], data: bytes, ttl_ms: int = _KEPT_MS) -> KeyMutation:
        names = (name,) if isinstance(name, str) else name
        by = map.sealed_by if map.sealed_by in self._sealed.names else ""
        value = _encode(Sealed(msgspec.Raw(self._sealed.seal_bytes(by or None, data)), by))
        return KeyMutation(kind="set", key=_key((map.queue, map.id), *names), value=value, ttl_ms=ttl_ms)

    def _counters(self, map: FlowMap, advance: Advance) -> list[KeyMutation]:
        return [self._set(map, ("left", group), _encode(left)) for group, left in advance.counters.items()]

    async def _map(self, flow: FlowId) -> FlowMap | None:
        """The plan of a flow; None if it is not stored any more."""
        return (await self._read_maps([flow]))[flow]

    async def _read_maps(self, flows: Sequence[FlowId]) -> dict[FlowId, FlowMap | None]:
        """The plans of flows. Those that are not cached are read together."""
        maps = {flow: self._maps.get(flow) for flow in flows}
        missing = []
        for flow, known in maps.items():
            if known is None:
                missing.append(flow)
            else:
                self._maps.move_to_end(flow)
        entries = await self.fetch([_key(flow, "plan") for flow in missing]) if missing else ()
        for flow, entry in zip(missing, entries, strict=True):
            if entry is not None:
                by = _decode_sealed(entry.value).by
                plan = _decode_plan(self.opened(entry))
                await asyncio.sleep(0)  # A plan can have several MB.
                map = maps[flow] = FlowMap(*flow, plan, by)
                map.version = entry.version
                self._note(map, bytes(entry.value))
        return maps

    def _note(self, map: FlowMap, stored: bytes) -> None:
        if len(stored) <= _PLAN_BYTES:
            self._maps[map.queue, map.id] = map
            if len(self._maps) > _PLANS:
                self._maps.popitem(last=False)


async def _answer(some: Sequence[_Waiting], plain: Settle) -> None:
    """Settle messages whose flow goes on without them."""
    outcomes = await plain([one.item for one in some])
    for one, outcome in zip(some, outcomes, strict=True):
        if not one.answer.done():
            one.answer.set_result(outcome)


def _answer_with(some: Sequence[_Waiting], results: Sequence[PushOutcome | SettleOutcome]) -> None:
    for one, settled in zip(some, results, strict=False):  # The messages follow.
        if isinstance(settled, SettleOutcome) and not one.answer.done():
            one.answer.set_result(settled)


def _refusal(code: str | None, text: str | None) -> HarkError:
    """The error of a transaction whose pushes were refused. The consumer settles again later."""
    text = text or "the next step cannot be pushed; retry later"
    if code == "queue_full":
        return Overloaded(text, code=code)
    return Conflict(text, code=code or "flow_refused")


def _shown(
    step: Step,
    state: StepState,
    task: TaskStatus | None = None,
    message_id: str | None = None,
    partition_id: str | None = None,
) -> FlowStep:
    shown = FlowStep(step.path, step.task, step.message.queue, state, message_id=message_id, partition_id=partition_id)
    if task is None:
        return shown
    return msgspec.structs.replace(
        shown, error=task.error, attempts=task.attempts, progress=task.progress, note=task.note
    )
