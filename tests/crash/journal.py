"""A history that survives the process that writes it: each call is on disk before it is made, each reply after it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from tests.crash.history import History, Message, Operation


class _Line(msgspec.Struct):
    number: int
    operation: Operation


class Journal(History):
    """Goes on with what the file holds already."""

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
