"""The sync client, against a real server."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import hark.sync
from hark.errors import HarkError


@pytest.fixture
def client(url: str) -> Iterator[hark.sync.Client]:
    with hark.sync.connect(url) as opened:
        yield opened


def test_the_example(client: hark.sync.Client, queue: str) -> None:
    client.queue(queue).partition("customer-7").push({"id": 1})
    charged = []
    for message in client.queue(queue).group("billing").batch(10).messages():
        with message:
            charged.append(message.data)
        break
    assert charged == [{"id": 1}]
    assert client.queue(queue).group("billing").depth().pending == 0


def test_a_block_that_raises_nacks_and_ctrl_c_in_it_hands_back_uncounted(client: hark.sync.Client, queue: str) -> None:
    client.queue(queue).configure(retry_limit=0)
    client.queue(queue).push(1)
    [message] = client.queue(queue).pop()
    with pytest.raises(KeyboardInterrupt), message:
        raise KeyboardInterrupt
    [message] = client.queue(queue).pop()
    assert message.attempt == 1
    with pytest.raises(ValueError, match="no"), message:
        raise ValueError("no")
    assert message.settled == "failed"
    [letter] = client.queue(queue).dlq()
    assert letter.error.startswith("ValueError: no\n")


def test_an_iteration_ends_at_its_limit_and_hands_back_what_was_not_begun(client: hark.sync.Client, queue: str) -> None:
    client.queue(queue).push_many(range(4))
    with client.queue(queue).group("g").batch(4).messages() as messages:
        next(messages).ack()
    assert [message.data for message in client.queue(queue).group("g").batch(9).pop()] == [1, 2, 3]
    seen = [message.data for message in client.queue(queue).auto_ack().limit(3).messages()]
    assert seen == [0, 1, 2]


def test_threads_share_a_client(client: hark.sync.Client, queue: str) -> None:
    with ThreadPoolExecutor(8) as threads:
        pushed = list(threads.map(lambda number: client.queue(queue).push(number, key=str(number % 50)), range(100)))
    assert sorted(one.status for one in pushed) == ["duplicate"] * 50 + ["queued"] * 50


def test_handlers_run_in_threads_at_the_same_time(client: hark.sync.Client, queue: str) -> None:
    for partition in "abc":
        client.queue(queue).partition(partition).push(partition)
    together = threading.Barrier(3, timeout=30)
    seen = []

    def handle(message: hark.sync.Message) -> None:
        together.wait()
        seen.append(message.data)
        message.trace({"thread": threading.current_thread().name})

    done = client.queue(queue).concurrency(3).limit(3).consume(handle).run()
    assert (done.succeeded, sorted(seen)) == (3, ["a", "b", "c"])


def test_callbacks_get_messages_that_wait(client: hark.sync.Client, queue: str) -> None:
    client.queue(queue).push_many([1, 2])
    outcomes: list[object] = []

    def handle(_: list[hark.sync.Message]) -> str:
        if outcomes:
            raise ValueError("again")
        return "fine"

    def succeeded(messages: list[hark.sync.Message], result: object) -> None:
        outcomes.append((messages[0].data, result))
        messages[0].ack()
        messages[1].nack("later")

    def failed(messages: list[hark.sync.Message], error: Exception) -> None:
        outcomes.append((messages[0].data, str(error)))
        messages[0].dead_letter(error)

    consumption = client.queue(queue).batch(2).limit(3).consume(handle).on_success(succeeded).on_error(failed)
    consumption.run()
    assert outcomes == [(1, "fine"), (2, "again")]
    assert [letter.data for letter in client.dlq(queue)] == [2]


def test_stop_ends_a_consumption(client: hark.sync.Client, queue: str) -> None:
    client.queue(queue).push(1)
    handled = threading.Event()
    consumption = client.queue(queue).consume(lambda _: handled.set())

    def stop() -> None:
        handled.wait(30)
        consumption.stop()

    threading.Thread(target=stop).start()
    assert consumption.run().succeeded == 1


INTERRUPTED = """
import sys
import hark.sync

def handle(message):
    print("began", flush=True)
    sys.stdin.readline()

with hark.sync.connect(sys.argv[1]) as client:
    client.queue(sys.argv[2]).group("g").consume(handle).run()
"""


def test_ctrl_c_lets_a_handler_finish_and_is_raised_then(client: hark.sync.Client, url: str, queue: str) -> None:
    client.queue(queue).push(1)
    command = [sys.executable, "-c", INTERRUPTED, url, queue]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"began\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(b"\n", timeout=30)
    assert errors.rstrip().endswith(b"KeyboardInterrupt")
    assert client.queue(queue).group("g").depth().pending == 0


def test_transactions_keys_buffers_and_the_rest(client: hark.sync.Client, queue: str) -> None:
    client.queue(queue).push(1)
    [message] = client.queue(queue).group("g").pop()
    with message, client.transaction() as transaction:
        transaction.ack(message, "failed", error="no").queue(queue).partition("out").push(2)
        transaction.kv.set((queue, "a"), 1)
    assert message.settled == "failed"
    assert client.kv.atomic().check((queue, "b"), None).set((queue, "b"), 2).commit()
    assert [entry.value for entry in client.kv.list((queue,))] == [1, 2]
    changes = client.kv.watch([(queue, "a")])
    assert next(changes).value == 1
    assert [group.name for group in client.groups.list(queue)] == ["g"]
    assert client.queue(queue).admin.stats().name == queue
    assert client.admin.leases(queue=queue).total == 0
    assert client.admin.health()
    orders = client.queue(queue).buffer(max_ms=3_600_000).partition("p")
    orders.push_many([1, 2])
    orders.push(3)
    client.flush()
    assert [message.data for message in client.queue(queue).partition("p").batch(9).pop()] == [1, 2, 3]


def test_its_threads_end_with_it(url: str, queue: str) -> None:
    before = set(threading.enumerate())
    client = hark.sync.connect(url)
    client.queue(queue).push(1)
    client.close()
    client.close()
    assert set(threading.enumerate()) == before
    with pytest.raises(HarkError, match="client is closed"):
        client.queue(queue).push(1)


FORGETFUL = """
import sys
import hark.sync

client = hark.sync.connect(sys.argv[1])
queue = client.queue(sys.argv[2])
queue.buffer(max_ms=60_000).push("buffered")
queue.push("pushed")
"""


def test_a_program_that_forgets_to_close_loses_nothing_and_says_nothing(
    client: hark.sync.Client, url: str, queue: str
) -> None:
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", FORGETFUL, url, queue]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert client.queue(queue).depth().pending == 2
