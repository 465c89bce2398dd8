"""What can't be sent is refused before it is, with an error that says which value that is, and harms nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from hark.client.calling import Caller, path
from hark.client.client import Client
from hark.client.producing.pushing import NewMessage, Pusher, new_message
from hark.client.transport.http import HttpTransport
from hark.errors import HarkError, InvalidInput

HALF = "\ud800"
"""Half of a surrogate pair: a Python string, but no text that UTF-8 could carry."""

Use = Callable[[Client], Awaitable[object]]

WRONG: dict[str, tuple[Use, str]] = {
    "queue of a push": (lambda client: client.queue(HALF).push(1), "queue: half of a surrogate pair"),
    "queue of a pop": (lambda client: client.queue(HALF).pop(), "queue: half of a surrogate pair"),
    "key": (lambda client: client.queue("q").push(1, key=HALF), "key: half of a surrogate pair"),
    "queue of a transaction": (
        lambda client: client.transaction().push(HALF, 1).commit(),
        "queue: half of a surrogate pair",
    ),
    "path": (lambda client: client.groups.get(HALF), "half of a surrogate pair"),
    "path of another type": (lambda client: client.groups.get(5), "5: expected a string"),  # type: ignore[arg-type]  # On purpose.
    "query": (lambda client: client.admin.queues(search=HALF), "half of a surrogate pair"),
    "body": (
        lambda client: client.traces.add(partition_id="p", transaction_id=HALF, data=1),
        "half of a surrogate pair",
    ),
    "name of another type": (
        lambda client: client.queue("q").partition(7).push(1),  # type: ignore[arg-type]  # On purpose.
        "partition: expected a string, got 7",
    ),
    "value of a key": (lambda client: client.kv.set(("a",), [float("inf")]), "value: has a number that JSON does not"),
    "value in an atomic write": (
        lambda client: client.kv.atomic().set(("a",), float("nan")).commit(),
        "value: has a number that JSON does not",
    ),
    "text for many messages": (lambda client: client.queue("q").push_many("abc"), "items: expected several messages"),
    "object for many messages": (
        lambda client: client.queue("q").buffer().push_many({"a": 1}),
        "items: expected several messages",
    ),
    "something else for a message": (
        lambda client: client.transaction().ack("m").commit(),  # type: ignore[arg-type]  # On purpose.
        "message: expected one that was delivered, got 'm'",
    ),
    "something else to trace": (
        lambda client: client.traces.add("m"),  # type: ignore[arg-type]  # On purpose.
        "message: expected one .*, got 'm'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
async def test_nothing_is_sent_of_a(case: str) -> None:
    use, text = WRONG[case]
    async with Client(HttpTransport("http://127.0.0.1:1")) as client:
        with pytest.raises(InvalidInput, match=text):
            await use(client)


async def test_a_message_that_can_not_be_written_harms_no_neighbour(caller: Caller, queue: str) -> None:
    pusher = Pusher(caller)
    messages = [new_message(queue, number) for number in range(3)]
    messages[1] = NewMessage(queue=queue, payload=msgspec.Raw(b"1"), transaction_id=HALF)
    outcomes = await asyncio.gather(*(pusher.push(message) for message in messages), return_exceptions=True)
    assert [isinstance(outcome, HarkError) for outcome in outcomes] == [False, True, False]
    assert isinstance(outcomes[1], InvalidInput)


def test_a_path_takes_any_text() -> None:
    assert path("a/b", "ä", "..") == "/api/v1/a%2Fb/%C3%A4/.."
