"""A disk that fills up: nothing is added, what is there can be worked off, and the service resumes by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import httpx
import pytest

from hark.clock import FakeClock
from hark.engine.sqlite import SqliteEngine
from hark.engine.sqlite.store import AUTO, least_free
from hark.errors import DiskFull, HarkError, error_of
from hark.model import (
    KeyMutation,
    KeyWrite,
    KeyWritten,
    NewMessage,
    NewTrace,
    PopRequest,
    PopResult,
    Settlement,
    Transaction,
    TransactionOutcome,
)
from tests.servers import server_on

MIB = 1 << 20


class Usage(NamedTuple):
    """As `shutil.disk_usage` answers."""

    total: int
    used: int
    free: int


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A disk of 100 GB with as much free space as the test says."""
    disk = SimpleNamespace(free=50_000 * MIB)
    usage = lambda _path: Usage(100_000 * MIB, 0, disk.free)  # noqa: E731
    monkeypatch.setattr("hark.engine.sqlite.store.disk_usage", usage)
    yield disk
    disk.free = 50_000 * MIB


def message(size: int = 1) -> NewMessage:
    """A message with a payload of so many bytes."""
    return NewMessage("orders", "p", b'"%s"' % (b"x" * size))


async def pop(engine: SqliteEngine) -> PopResult:
    """Up to 1,000 messages."""
    [popped] = await engine.pop([PopRequest(queue="orders", batch=1000)])
    assert isinstance(popped, PopResult)
    return popped


def settlements(popped: PopResult) -> list[Settlement]:
    """Complete what was popped."""
    return [Settlement(one.transaction_id, one.partition_id, lease_id=popped.lease_id) for one in popped.messages]


async def pushes(engine: SqliteEngine) -> bool:
    """Whether a push is taken."""
    [answer] = await engine.push([[message()]])
    if isinstance(answer, list):
        return True
    assert isinstance(answer, DiskFull)
    assert (answer.status, answer.code, answer.retry_after) == (507, "disk_full", 10)
    assert "limits.min_free_bytes" in answer.text
    return False


async def test_below_the_margin_nothing_is_added_and_the_rest_goes_on(
    engine: SqliteEngine, disk: SimpleNamespace
) -> None:
    [outcomes] = await engine.push([[message(), message(), message()]])
    assert isinstance(outcomes, list) and outcomes[0].partition_id is not None
    await engine.write_keys([KeyWrite(mutations=[KeyMutation(kind="set", key=("a",), value=b"1")])])
    disk.free = 256 * MIB
    assert await pushes(engine)
    disk.free -= 1
    assert not await pushes(engine)
    [popped] = await engine.pop([PopRequest(queue="orders", batch=2)])
    assert isinstance(popped, PopResult) and len(popped.messages) == 2
    first, second = settlements(popped)
    refused = [
        *await engine.transact([Transaction([first, message()])]),
        *await engine.write_keys([KeyWrite(mutations=[KeyMutation(kind="set", key=("b",), value=b"1")])]),
        *await engine.write_keys([KeyWrite(messages=[message()])]),
        *await engine.trace([NewTrace(partition_id=outcomes[0].partition_id, transaction_id="t", data=b"1")]),
    ]
    assert [type(one) for one in refused] == [DiskFull] * 4
    [settled] = await engine.settle([[first]])
    assert isinstance(settled, list) and settled[0].success
    [transacted] = await engine.transact([Transaction([second])])
    assert isinstance(transacted, TransactionOutcome) and transacted.success
    [deleted] = await engine.write_keys([KeyWrite(mutations=[KeyMutation(kind="delete", key=("a",))])])
    assert isinstance(deleted, KeyWritten) and deleted.success
    [last] = await engine.pop([PopRequest(queue="orders", auto_ack=True)])
    assert isinstance(last, PopResult) and len(last.messages) == 1
    disk.free += 1
    assert await pushes(engine)


async def test_what_was_removed_makes_room_for_pushes_though_the_file_does_not_shrink(
    engine: SqliteEngine, disk: SimpleNamespace
) -> None:
    await engine.push([[message(10_000) for _ in range(300)]])
    disk.free = 255 * MIB
    assert not await pushes(engine)
    await engine.purge("orders")
    while (await engine.collect(1000)).more:
        pass
    assert await pushes(engine)


@pytest.mark.parametrize(("setting", "total", "least"), [(AUTO, 100_000, 256), (AUTO, 1000, 20), (7, 1000, 7)])
def test_the_margin_is_256_mib_at_most_2_percent_or_as_set(setting: int, total: int, least: int) -> None:
    assert least_free(total * MIB, setting if setting == AUTO else setting * MIB) == least * MIB


async def test_the_margin_can_be_set_and_turned_off(tmp_path: Path, disk: SimpleNamespace) -> None:
    disk.free = 1000
    for margin, taken in [(1001, False), (1000, True), (0, True)]:
        engine = SqliteEngine(str(tmp_path / "hark.db"), clock=FakeClock(), min_free_bytes=margin)
        await engine.start(lambda _hints: None)
        assert await pushes(engine) is taken
        await engine.close()


def test_clients_get_507_with_a_time_to_wait(tmp_path: Path, disk: SimpleNamespace) -> None:
    with server_on("", tmp_path) as url, httpx.Client(base_url=url) as http:
        item = {"queue": "orders", "payload": 1}
        assert http.post("/api/v1/push", json={"items": [item]}).status_code == 201
        disk.free = 0
        for path, body in [
            ("/api/v1/push", {"items": [item]}),
            ("/api/v1/transaction", {"operations": [{"type": "push", "items": [item]}]}),
        ]:
            answer = http.post(path, json=body)
            assert (answer.status_code, answer.json()["code"]) == (507, "disk_full")
            assert answer.headers["retry-after"] == "10"
        assert http.put("/keyval/api/keys/a", json=1).status_code == 507
        assert http.get("/api/v1/pop/queue/orders").status_code == 200
        disk.free = 50_000 * MIB
        assert http.post("/api/v1/push", json={"items": [item]}).status_code == 201
    error: HarkError = error_of(507, "disk_full", "full", 10)
    assert isinstance(error, DiskFull) and error.retryable
