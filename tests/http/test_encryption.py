"""encryptionEnabled: payloads are unreadable at rest, and nothing is ever stored plain by accident."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.conftest import running_server
from tests.http.api import Api, data, read, refusal

KEY = "ab" * 32
SECRET = "the quick brown secret"


@contextmanager
def serving(directory: Path, *, key: str | None = None) -> Iterator[Api]:
    """A server on the directory's database, with or without a key."""
    settings = {} if key is None else {"HARK_ENCRYPTION_KEY": key}
    with (
        running_server(directory, engine=f"sqlite:///{directory / 'hark.db'}", settings=settings) as url,
        httpx.Client(base_url=url, timeout=30) as client,
    ):
        yield Api(client)


def test_payloads_are_unreadable_at_rest_and_readable_to_consumers(tmp_path: Path, queue: str) -> None:
    with serving(tmp_path, key=KEY) as api:
        api.configure(queue, encryptionEnabled=True)
        api.push(queue, {"text": SECRET})
        api.transact({"type": "push", "queue": queue, "payload": [SECRET]})
        first, second = api.pop(queue, batch=10)
        assert (first["data"], second["data"]) == ({"text": SECRET}, [SECRET])
        shown = api.show(first)
        assert (shown["payload"], shown["isEncrypted"]) == ({"text": SECRET}, True)
        api.ack(first, "dlq")
        assert data(api.dead_letters(queue)) == [{"text": SECRET}]
    assert [path.name for path in tmp_path.iterdir() if SECRET.encode() in path.read_bytes()] == []
    with serving(tmp_path, key=KEY) as api:
        assert data(api.pop(queue)) == [[SECRET]]


def test_a_queue_is_plain_again_after_it_was_deleted(tmp_path: Path, queue: str) -> None:
    with serving(tmp_path, key=KEY) as api:
        api.configure(queue, encryptionEnabled=True)
        read(api.delete(f"/resources/queues/{queue}"))
        api.push(queue, 1)
        message = api.pop_one(queue)
        assert (message["data"], api.show(message)["isEncrypted"]) == (1, False)


def test_encryption_can_be_switched_with_messages_in_the_queue(tmp_path: Path, queue: str) -> None:
    with serving(tmp_path, key=KEY) as api:
        for number, enabled in enumerate((False, True, False)):
            api.configure(queue, encryptionEnabled=enabled)
            api.push(queue, number)
        assert data(api.pop(queue, batch=10)) == [0, 1, 2]


def test_without_the_key_nothing_is_delivered_nor_counted(tmp_path: Path, queue: str) -> None:
    with serving(tmp_path, key=KEY) as api:
        api.configure(queue, encryptionEnabled=True)
        api.push(queue, SECRET)
    with serving(tmp_path) as api:
        assert api.try_pop(queue).status_code == 503
        refusal(api.post("/push", {"items": [{"queue": queue}]}), 503)
    with serving(tmp_path, key=KEY) as api:
        message = api.pop_one(queue)
        assert (message["data"], message["deliveryAttempt"]) == (SECRET, 1)
