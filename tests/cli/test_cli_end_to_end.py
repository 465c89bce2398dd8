"""The command line against a real server: what a newcomer types in the first minutes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import Run, runner


@pytest.fixture
def hark(server_url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command line, pointed at a server that the tests share: each uses a queue of its own."""
    monkeypatch.setenv("HARK_URL", server_url)
    return runner()


def answer(run: Run, *args: str) -> Any:
    """Run a command that must succeed, and give the server's JSON."""
    result = run(*args, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def pop_one(run: Run, *args: str) -> dict[str, Any]:
    """Pop exactly one message."""
    [message] = answer(run, "pop", *args)["messages"]
    assert isinstance(message, dict)
    return message


def settle(run: Run, message: dict[str, Any], *args: str) -> None:
    """Settle a popped message."""
    ids = (message["partitionId"], message["transactionId"])
    result = run("ack", *ids, "--lease", message["leaseId"], *args)
    assert result.exit_code == 0, result.output


def dead_letter(run: Run, queue: str, payload: str = "1") -> str:
    """Make a dead letter and give its id."""
    assert run("push", queue, payload).exit_code == 0
    settle(run, pop_one(run, queue), "--status", "dlq", "--error", "boom")
    [letter] = answer(run, "dlq", "list", "--queue", queue)["messages"]
    return str(letter.get("deadLetterId") or letter["id"])


def test_what_is_pushed_is_popped_and_settled_once(hark: Run, queue: str) -> None:
    assert hark("push", queue, '{"id": 17}', "--transaction-id", "order-17").exit_code == 0
    message = pop_one(hark, queue)
    assert (message["data"], message["transactionId"], message["queue"]) == ({"id": 17}, "order-17", queue)
    settle(hark, message)
    assert hark("pop", queue).exit_code == 3


def test_the_printed_command_settles_the_message(hark: Run, queue: str) -> None:
    hark("push", queue, "1")
    line = next(line for line in hark("pop", queue).stdout.splitlines() if "hark ack" in line)
    assert hark(*line.split()[1:]).stdout == "settled as completed\n"


def test_a_settlement_that_is_refused_exits_with_1(hark: Run, queue: str) -> None:
    [pushed] = answer(hark, "push", queue, "1")
    result = hark("ack", pushed["partition_id"], pushed["transaction_id"], "--lease", "0" * 32)
    assert result.exit_code == 1
    assert result.stderr.startswith("hark: ")


def test_a_second_push_with_the_same_transaction_id_is_a_duplicate(hark: Run, queue: str) -> None:
    first = answer(hark, "push", queue, "1", "--transaction-id", "t")
    second = answer(hark, "push", queue, "1", "--transaction-id", "t")
    assert [first[0]["status"], second[0]["status"]] == ["queued", "duplicate"]
    assert first[0]["message_id"] == second[0]["message_id"]


def test_lines_from_stdin_keep_their_order(hark: Run, queue: str) -> None:
    assert hark("push", queue, "--stdin", stdin="1\n2\n3\n").stdout == "3 queued\n"
    messages = answer(hark, "pop", queue, "--batch", "3", "--auto-ack")["messages"]
    assert [message["data"] for message in messages] == [1, 2, 3]


def test_a_strange_queue_name_works_in_every_path(hark: Run, queue: str) -> None:
    name = f"{queue} b/50%é?#"
    assert hark("push", name, "1", "--partition", name).exit_code == 0
    assert pop_one(hark, name, "--partition", name)["partition"] == name
    assert answer(hark, "queue", "show", name)["name"] == name
    assert hark("queue", "delete", name, "--yes").exit_code == 0


def test_a_pop_by_namespace_finds_the_queue(hark: Run, queue: str) -> None:
    hark("push", f"{queue}.mail.welcome", "1")
    assert pop_one(hark, "--namespace", queue, "--task", "mail")["queue"] == f"{queue}.mail.welcome"


def test_a_pop_waits_until_its_timeout_and_exits_with_3(hark: Run, queue: str) -> None:
    assert hark("pop", queue, "--wait", "--timeout", "1").exit_code == 3


def test_a_queue_is_created_listed_paused_resumed_purged_and_deleted(hark: Run, queue: str) -> None:
    assert hark("queue", "create", queue, "--set", "leaseTime=60").exit_code == 0
    assert queue in [listed["name"] for listed in answer(hark, "queue", "list")["queues"]]
    hark("push", queue, "1")
    assert hark("queue", "pause", queue).exit_code == 0
    assert hark("pop", queue).exit_code == 3
    assert hark("queue", "resume", queue).exit_code == 0
    assert hark("queue", "purge", queue, "--yes").exit_code == 0
    assert hark("pop", queue).exit_code == 3
    assert queue in hark("queue", "list").stdout
    assert "Default" in hark("queue", "show", queue).stdout
    assert hark("queue", "delete", queue, "--yes").exit_code == 0
    assert hark("queue", "delete", queue, "--yes").exit_code == 1
    assert hark("queue", "show", queue).exit_code == 1


def test_a_group_is_listed_moved_paused_and_deleted(hark: Run, queue: str) -> None:
    group = f"{queue}-billing"
    in_group = (queue, "--group", group)
    hark("push", queue, "1", "2", "3")
    assert pop_one(hark, *in_group, "--auto-ack")["data"] == 1
    assert group in hark("group", "list", "--queue", queue).stdout
    assert queue in hark("group", "show", group).stdout
    assert hark("group", "seek", group, queue, "--to-end").exit_code == 0
    assert hark("pop", *in_group).exit_code == 3
    assert hark("group", "seek", group, queue, "--partition", "Default", "--offset", "2").exit_code == 0
    assert pop_one(hark, *in_group, "--auto-ack")["data"] == 2
    assert hark("group", "pause", group, queue).exit_code == 0
    assert hark("pop", *in_group).exit_code == 3
    assert hark("group", "resume", group, queue).exit_code == 0
    assert hark("group", "delete", group, "--yes").exit_code == 0
    assert pop_one(hark, *in_group)["data"] == 1


def test_a_dead_letter_is_listed_and_put_back(hark: Run, queue: str) -> None:
    letter = dead_letter(hark, queue, '{"id": 17}')
    assert "boom" in hark("dlq", "list", "--queue", queue).stdout
    assert hark("dlq", "requeue", letter).exit_code == 0
    assert pop_one(hark, queue)["data"] == {"id": 17}
    assert hark("dlq", "requeue", letter).exit_code == 1


def test_dead_letters_are_deleted_one_by_one_and_all_at_once(hark: Run, queue: str) -> None:
    assert hark("dlq", "delete", dead_letter(hark, queue)).exit_code == 0
    assert answer(hark, "dlq", "list", "--queue", queue)["total"] == 0
    dead_letter(hark, queue)
    assert hark("dlq", "purge", queue, "--yes").exit_code == 0
    assert answer(hark, "dlq", "list", "--queue", queue)["total"] == 0


def test_a_message_is_listed_shown_and_deleted(hark: Run, queue: str) -> None:
    [pushed] = answer(hark, "push", queue, '{"id": 17}', "--transaction-id", "t")
    [listed] = answer(hark, "message", "list", queue)["messages"]
    assert listed["id"] == pushed["message_id"]
    assert '{"id": 17}' in hark("message", "show", pushed["partition_id"], "t").stdout
    assert hark("message", "delete", pushed["message_id"]).exit_code == 0
    assert hark("message", "delete", pushed["message_id"]).exit_code == 1
    assert hark("pop", queue).exit_code == 3


def test_a_delayed_message_is_cancelled_once(hark: Run, queue: str) -> None:
    [pushed] = answer(hark, "push", queue, "1", "--delay", "3600000")
    assert hark("cancel", pushed["message_id"]).stdout == "cancelled\n"
    result = hark("cancel", pushed["message_id"])
    assert (result.exit_code, result.stderr) == (1, "hark: Message not found (message_not_found)\n")


def test_two_consumers_work_off_one_partition_in_a_shared_group(hark: Run, queue: str) -> None:
    hark("push", queue, "1", "2")
    hark("push", queue, "3", "--priority", "9")
    first, second = (pop_one(hark, queue, "--group", "g", "--group-mode", "shared") for _ in range(2))
    assert (first["data"], second["data"]) == (3, 1)
    assert hark("ack", second["id"], "--group", "g").exit_code == 0
    assert hark("ack", first["id"], "--group", "g", "--status", "failed", "--delay", "3600000").exit_code == 0
    assert "shared" in hark("group", "list", "--queue", queue).stdout
    result = hark("pop", queue, "--group", "g", "--group-mode", "ordered")
    assert result.exit_code == 1
    assert "group_mode_conflict" in result.stderr


def test_limits_are_set_shown_and_kept(hark: Run, queue: str) -> None:
    hark("queue", "create", queue, "--set", "leaseTime=60", "--set", "maxInFlight=1")
    hark("push", queue, "1", "2")
    assert hark("pop", queue, "--group-mode", "shared").exit_code == 0
    assert hark("pop", queue).exit_code == 3
    assert answer(hark, "queue", "limits", queue, "--max-in-flight", "2")["options"]["leaseTime"] == 60
    assert hark("pop", queue).exit_code == 0
    limits = answer(hark, "group", "limits", "__QUEUE_MODE__", queue, "--rate-limit", "0.5")["limits"]
    assert limits == {"maxInFlight": 0, "rateLimit": 0.5, "rateBurst": 0}
    assert "0.5 per second" in hark("group", "limits", "__QUEUE_MODE__", queue).stdout
    assert hark("group", "limits", "nobody", queue).exit_code == 1


def test_the_doctor_finds_nothing_wrong(hark: Run) -> None:
    result = hark("doctor", "--json")
    assert result.exit_code == 0, result.output
    assert {check["result"] for check in json.loads(result.stdout)} <= {"ok", "warn"}


# What the pages of the dashboard can do --------------------------------------------------------------------


def test_commands_that_only_look_understand_a_real_server(hark: Run, queue: str) -> None:
    [pushed] = answer(hark, "push", queue, "1", "--transaction-id", "t")
    pop_one(hark, queue, "--consumer", "worker 7")
    for args in (
        ("consumers", queue),
        ("leases", queue),
        ("explain", pushed["message_id"]),
        ("message", "list"),
        ("message", "list", queue, "--to", "2100-01-01T00:00:00Z"),
        ("message", "show", pushed["message_id"]),
        ("group", "lagging", "--seconds", "0"),
        ("queue", "list", "--paused"),
        ("maintenance", "show"),
        ("trace", "names"),
        ("trace", "by-name", "none"),
        ("trace", "show", pushed["partition_id"], "t"),
        ("settings",),
        ("audit",),
        ("top", "--once"),
    ):
        result = hark(*args)
        assert result.exit_code == 0, (args, result.output)
    assert "worker 7" in hark("leases", queue).stdout


def test_maintenance_stops_and_resumes_deliveries(hark: Run, queue: str) -> None:
    hark("push", queue, "1")
    try:
        assert hark("maintenance", "pop", "on").stdout == "pops    stopped: they answer empty\n"
        assert hark("pop", queue).exit_code == 3
    finally:
        assert hark("maintenance", "pop", "off").stdout == "pops    served\n"
    assert hark("pop", queue).exit_code == 0
