"""A recorded history of operations, and the checkers that find in it what a queue must never do.

One JSON line per operation: process, operation, arguments, result (None: unknown), call and return time. Unknown
means that the reply was lost: the operation may have happened or not.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

import msgspec

Message = tuple[str, int, str]
"""Partition, offset, value."""


class Operation(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One call and what is known of its outcome."""

    process: str
    name: str
    called: float
    returned: float = float("inf")
    known: bool = False
    messages: list[Message] = []
    """Pushed (offset 0), delivered, or settled."""
    lease: str = ""


class History:
    """Operations in the order in which they were called."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def call(self, process: str, name: str, messages: list[Message] | None = None, lease: str = "") -> Operation:
        """Note that a call begins."""
        operation = Operation(process=process, name=name, called=time.monotonic(), messages=messages or [], lease=lease)
        self.operations.append(operation)
        return operation

    def done(self, operation: Operation, messages: list[Message] | None = None, lease: str = "") -> None:
        """Note that its reply arrived."""
        operation.returned = time.monotonic()
        operation.known = True
        if messages is not None:
            operation.messages = messages
        operation.lease = lease or operation.lease

    def named(self, name: str) -> list[Operation]:
        """The operations of one kind."""
        return [operation for operation in self.operations if operation.name == name]


@contextmanager
def recorded(path: Path) -> Iterator[History]:
    """A history that is saved in the end, whatever happened, with a JSON line per operation."""
    history = History()
    try:
        yield history
    finally:
        path.write_bytes(b"".join(msgspec.json.encode(operation) + b"\n" for operation in history.operations))


class _Line(msgspec.Struct):
    number: int
    operation: Operation


class Journal(History):
    """Survives the process that writes it: each call is on disk before it is made, each reply after it.

    It goes on with what the file holds already.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.operations = operations_in(path)
        self._numbers = {id(operation): number for number, operation in enumerate(self.operations)}
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(self._file, b"\n")  # The last line may be torn.

    def call(self, process: str, name: str, messages: list[Message] | None = None, lease: str = "") -> Operation:
        """Note that a call begins."""
        operation = super().call(process, name, messages, lease)
        self._numbers[id(operation)] = len(self.operations) - 1
        self._write(operation)
        return operation

    def done(self, operation: Operation, messages: list[Message] | None = None, lease: str = "") -> None:
        """Note that its reply arrived."""
        super().done(operation, messages, lease)
        self._write(operation)

    def _write(self, operation: Operation) -> None:
        # In one piece, and not into a buffer: what the kernel has, a kill does not take.
        os.write(self._file, msgspec.json.encode(_Line(self._numbers[id(operation)], operation)) + b"\n")

    def last_number(self, name: str) -> int:
        """The last number that a producer has pushed, or tried to."""
        return max((int(value) for _, values in self._pushes(name) for value in values), default=0)

    def open_batch(self, name: str) -> list[str]:
        """What a producer was about to push when it was killed; empty: nothing."""
        for known, values in reversed(self._pushes(name)):
            return [] if known else values
        return []

    def _pushes(self, name: str) -> list[tuple[bool, list[str]]]:
        pushes = [operation for operation in self.named("push") if operation.process == name]
        return [(push.known, [value for _, _, value in push.messages]) for push in pushes]


def operations_in(path: Path) -> list[Operation]:
    """The operations that a journal tells of, in the order of their calls."""
    found: dict[int, Operation] = {}
    for text in path.read_bytes().splitlines() if path.exists() else []:
        try:
            line = msgspec.json.decode(text, type=_Line)
        except msgspec.DecodeError:
            continue  # Torn by a kill.
        found[line.number] = line.operation
    return [found[number] for number in sorted(found)]


def problems(history: History) -> list[str]:
    """Everything that is wrong with a history; empty when the queue kept its promises."""
    return [
        *lost_or_invented(history),
        *offsets_disagree(history),
        *settled_but_delivered_again(history),
        *delivered_over_unsettled(history),
        *settled_under_a_stale_lease(history),
    ]


def lost_or_invented(history: History) -> list[str]:
    """Every acknowledged push is delivered; nothing is delivered that nobody pushed."""
    pushes = history.named("push")
    attempted = {(partition, value) for push in pushes for partition, _, value in push.messages}
    acknowledged = {(partition, value) for push in pushes if push.known for partition, _, value in push.messages}
    delivered = {(partition, value) for pop in history.named("pop") for partition, _, value in pop.messages}
    return [f"lost: {item}" for item in sorted(acknowledged - delivered)] + [
        f"invented: {item}" for item in sorted(delivered - attempted)
    ]


def offsets_disagree(history: History) -> list[str]:
    """A place holds one message for ever, and a producer's messages have places in the order it pushed them."""
    found = []
    values: dict[tuple[str, int], str] = {}
    for pop in history.named("pop"):
        for partition, offset, value in pop.messages:
            if values.setdefault((partition, offset), value) != value:
                found.append(f"two messages at one place: {partition} {offset}: {values[partition, offset]}, {value}")
    by_partition: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for (partition, offset), value in values.items():
        by_partition[partition].append((offset, int(value)))
    for partition, stored in by_partition.items():
        numbers = [number for _, number in sorted(stored)]
        if numbers != sorted(set(numbers)):
            found.append(f"reordered or doubled: {partition}: {numbers}")
    return found


def settled_but_delivered_again(history: History) -> list[str]:
    """A settlement that was answered with success is for ever."""
    settled: dict[tuple[str, int], float] = {}
    for ack in history.named("ack"):
        if ack.known:
            for partition, offset, _ in ack.messages:
                settled[partition, offset] = min(ack.returned, settled.get((partition, offset), ack.returned))
    return [
        f"delivered after it was settled: {partition} {offset}"
        for pop in history.named("pop")
        for partition, offset, _ in pop.messages
        if settled.get((partition, offset), float("inf")) < pop.called
    ]


def delivered_over_unsettled(history: History) -> list[str]:
    """Nothing is handed out while an earlier message of its partition is unsettled, but behind it in one batch."""
    attempts: dict[tuple[str, int], float] = {}
    for ack in history.named("ack"):
        for partition, offset, _ in ack.messages:
            attempts[partition, offset] = min(ack.called, attempts.get((partition, offset), ack.called))
    found = []
    for pop in history.named("pop"):
        heads: dict[str, int] = {}
        for partition, offset, _ in pop.messages:
            if heads.setdefault(partition, offset) > offset:
                found.append(f"a batch out of order: {partition}: {offset} after {heads[partition]}")
        for partition, head in heads.items():
            found += [
                f"{partition} {head} was handed out while {offset} was unsettled"
                for offset in range(1, head)
                if attempts.get((partition, offset), float("inf")) > pop.returned
            ]
    return found


class Output(msgspec.Struct):
    """What a pipeline wrote: its messages, and the last one that it noted, by partition."""

    messages: dict[str, list[str]]
    notes: dict[str, str]


def output_differs(history: History, output: Output) -> list[str]:
    """Every message of the input is in the output exactly once and in order: each transaction happened once or not.

    All of the input has been delivered to the consumers beside the pipeline.
    """
    addresses = {
        (partition, offset): value for pop in history.named("pop") for partition, offset, value in pop.messages
    }
    expected: dict[str, list[str]] = {}
    for (partition, _), value in sorted(addresses.items()):
        expected.setdefault(partition, []).append(value)
    found = [f"output without input: {partition}" for partition in output.messages.keys() - expected.keys()]
    for partition, values in expected.items():
        written = Counter(output.messages.get(partition, []))
        found += [f"missing in the output: {partition} {value}" for value in values if value not in written]
        found += [f"{number} times in the output: {partition} {one}" for one, number in written.items() if number > 1]
        if written == Counter(values) and output.messages[partition] != values:
            found.append(f"the output of {partition} is not in order: {output.messages[partition]}")
    return found + [
        f"the note of {partition} is {output.notes.get(partition)}, its last message {values[-1]}"
        for partition, values in expected.items()
        if output.notes.get(partition) != values[-1]
    ]


def by_address(history: History, name: str) -> dict[tuple[str, int], list[Operation]]:
    """The operations of one kind that each message was in."""
    found: defaultdict[tuple[str, int], list[Operation]] = defaultdict(list)
    for operation in history.named(name):
        for partition, offset, _ in operation.messages:
            found[partition, offset].append(operation)
    return found


def settled_under_a_stale_lease(history: History) -> list[str]:
    """A lease settles nothing that was handed out anew before the settlement, unless it is settled by then."""
    deliveries, attempts = by_address(history, "pop"), by_address(history, "ack")
    found = []
    for ack in (ack for ack in history.named("ack") if ack.known):
        for partition, offset, _ in ack.messages:
            under = [pop.returned for pop in deliveries[partition, offset] if pop.lease == ack.lease]
            anew = [
                pop
                for pop in deliveries[partition, offset]
                if pop.lease != ack.lease and any(returned < pop.called for returned in under)
            ]
            # To complete what is completed is a success that changes nothing.
            settled = any(
                other.lease != ack.lease and other.called < ack.returned for other in attempts[partition, offset]
            )
            if not settled and any(pop.returned < ack.called for pop in anew):
                found.append(f"settled under a stale lease: {partition} {offset}")
    return found


def leased_twice(history: History, lease_seconds: float) -> list[str]:
    """Nobody gets a message while it is on another's lease, for stores whose leases outlive their servers.

    A lease begins between the call and the reply of its pop, and ends by time alone: what was settled does not come
    again at all. So two pops got it in turn, whichever was first, only if that much time can lie between them.
    """
    return [
        f"on two leases at once: {partition} {offset}"
        for (partition, offset), pops in by_address(history, "pop").items()
        for first, second in combinations(pops, 2)
        if max(second.returned - first.called, first.returned - second.called) < lease_seconds
    ]
