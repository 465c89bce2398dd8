"""Counts the functions and files of Hark that one call passes: a server in a thread, and a client on a plain socket.

Only functions of src/hark count. A comprehension is a part of its function. Each verb runs several times, and the run
with the fewest calls counts, because the server's periodic work can fall into the others.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from bench.raw import RawClient, get, post
from tests.postgres_server import any_server
from tests.servers import running_server

import hark

SOURCE = str(Path(hark.__file__).parent) + os.sep
COMPREHENSIONS = frozenset({"<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>"})
ENGINES = ("sqlite", "postgres")
ROUNDS = 7
REST_SECONDS = 0.05
"""A call is over when no function was called for this time: some work comes after the response."""
Passed = Counter[str]
"""How often each function was called, as file:function, in the order of the first calls."""


class Walk:
    """Notes the functions that the threads of this process call."""

    def __init__(self) -> None:
        self.passed: Passed | None = None

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        """Called by the interpreter, in every thread that begins later."""
        code = frame.f_code
        if self.passed is None or event != "call" or not code.co_filename.startswith(SOURCE):
            return
        if code.co_name not in COMPREHENSIONS:
            self.passed[f"{code.co_filename.removeprefix(SOURCE)}:{code.co_qualname}"] += 1

    def of(self, call: Callable[[], object]) -> Passed:
        """Return what one call passes."""
        passed = self.passed = Counter()
        call()
        before = -1
        while (now := passed.total()) != before:
            before = now
            time.sleep(REST_SECONDS)
        self.passed = None
        return passed


class Calls:
    """The verbs, each with what it needs before."""

    def __init__(self, port: int) -> None:
        self._client, self._other = RawClient(port), RawClient(port)
        self._numbers = itertools.count()
        for queue in ("plain", "waited", "rejected"):
            self._ask("/api/v1/configure", {"queue": queue, "options": {"retryLimit": 0}})

    def _ask(self, path: str, body: object) -> Any:
        status, answer = self._client.answer(post(path.encode(), json.dumps(body).encode()))
        assert status < 300, answer
        return json.loads(answer)

    def _push(self, queue: str) -> None:
        self._ask("/api/v1/push", {"items": [{"queue": queue, "payload": {"n": next(self._numbers)}}]})

    def _pop(self, queue: str) -> dict[str, Any]:
        status, answer = self._client.answer(get(f"/api/v1/pop/queue/{queue}".encode()))
        assert status == 200, answer
        message: dict[str, Any] = json.loads(answer)["messages"][0]
        return message

    def _settle(self, message: dict[str, Any], status: str) -> None:
        names = ("transactionId", "partitionId", "leaseId")
        [outcome] = self._ask("/api/v1/ack", {**{name: message[name] for name in names}, "status": status})
        assert outcome["success"], outcome

    def push(self, walk: Walk) -> Passed:
        """Push a message to a queue that has a group."""
        return walk.of(lambda: self._push("plain"))

    def pop(self, walk: Walk) -> Passed:
        """Receive a message that is there."""
        self._push("plain")
        taken: list[dict[str, Any]] = []
        passed = walk.of(lambda: taken.append(self._pop("plain")))
        self._settle(taken[0], "completed")
        return passed

    def waiting_pop(self, walk: Walk) -> Passed:
        """Wait for a message, and receive it when it is pushed."""

        def wait() -> None:
            self._other.send(get(b"/api/v1/pop/queue/waited?wait=true&timeout=20000"))
            time.sleep(REST_SECONDS)
            self._push("waited")
            status, answer = self._other.receive()
            assert status == 200, answer
            taken.append(json.loads(answer)["messages"][0])

        taken: list[dict[str, Any]] = []
        passed = walk.of(wait)
        self._settle(taken[0], "completed")
        return passed

    def ack(self, walk: Walk) -> Passed:
        """Acknowledge a message."""
        self._push("plain")
        message = self._pop("plain")
        return walk.of(lambda: self._settle(message, "completed"))

    def nack(self, walk: Walk) -> Passed:
        """Reject a message that becomes a dead letter."""
        self._push("rejected")
        message = self._pop("rejected")
        return walk.of(lambda: self._settle(message, "failed"))

    def key_write(self, walk: Walk) -> Passed:
        """Write a key."""
        value = next(self._numbers)
        write = {"mutations": [{"type": "set", "key": ["paths"], "value": value}]}
        return walk.of(lambda: self._ask("/keyval/api/atomic", write))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._other.close()


VERBS: dict[str, Callable[[Calls, Walk], Passed]] = {
    "push": Calls.push,
    "pop": Calls.pop,
    "waiting pop, with its push": Calls.waiting_pop,
    "ack": Calls.ack,
    "nack to dead letter": Calls.nack,
    "key write": Calls.key_write,
}


@contextmanager
def server_on(engine: str) -> Iterator[int]:
    """Run a server in a thread and yield its port."""
    with tempfile.TemporaryDirectory() as folder:
        if engine == "sqlite":
            with running_server(Path(folder), engine="sqlite:///hark.db") as url:
                yield int(url.rpartition(":")[2])
        else:
            with (
                any_server(os.environ.get("HARK_TEST_POSTGRES")) as postgres,
                postgres.fresh_database() as database,
                running_server(Path(folder), engine=database) as url,
            ):
                yield int(url.rpartition(":")[2])


def main() -> None:
    """Print a table for each engine."""
    parser = argparse.ArgumentParser(prog="scripts/paths")
    parser.add_argument("verbs", nargs="*", metavar="VERB", help=", ".join(VERBS))
    parser.add_argument("--engine", choices=ENGINES, action="append")
    parser.add_argument("--walk", action="store_true", help="list the functions in the order of their first call")
    given = parser.parse_args()
    verbs = {name: verb for name, verb in VERBS.items() if not given.verbs or name.split(",")[0] in given.verbs}
    walk = Walk()
    threading.setprofile(walk.note)
    for engine in given.engine or ENGINES:
        print(f"{engine:<28}{'functions':>10}{'files':>8}{'calls':>8}")
        with server_on(engine) as port:
            calls = Calls(port)
            for name, verb in verbs.items():
                passed = min((verb(calls, walk) for _ in range(ROUNDS)), key=Counter.total)
                files = {step.partition(":")[0] for step in passed}
                print(f"{name:<28}{len(passed):>10}{len(files):>8}{passed.total():>8}")
                if given.walk:
                    print(
                        *(f"  {step}" + (f" x{times}" if times > 1 else "") for step, times in passed.items()),
                        sep="\n",
                    )
            calls.close()


if __name__ == "__main__":
    main()
