"""The command line against a real server: what a newcomer types in the first minutes."""

from __future__ import annotations

import json
import shlex
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


def dead_letter(run: Run, queue: str, payload: str = "1") -> str:
    """Make a dead letter and give its id."""
    assert run("push", queue, payload).exit_code == 0
    assert run("ack", pop_one(run, queue)["id"], "--status", "dlq", "--error", "boom").exit_code == 0
    [letter] = answer(run, "dlq", "list", "--queue", queue)["messages"]
    return str(letter.get("deadLetterId") or letter["id"])


def follow(run: Run, script: str, **names: str) -> None:
    """Run the lines of a script: each says after ` -> ` what is in its output, or its exit code, which else is 0."""
    for line in script.strip().splitlines():
        command, _, expected = line.strip().partition(" -> ")
        result = run(*shlex.split(command.format(**names)))
        code = int(expected) if expected.isdigit() else 0
        assert result.exit_code == code, f"{line}\n{result.output}"
        assert expected.isdigit() or expected.format(**names) in result.stdout, f"{line}\n{result.output}"


# Messages --------------------------------------------------------------------------------------------------


def test_a_misspelt_queue_is_answered_with_the_name_that_is_near(hark: Run, queue: str) -> None:
    hark("push", queue, "1")
    wrong = f"{queue}x"
    hint = f"did you mean {queue}?"
    popped = hark("pop", wrong)
    assert (popped.exit_code, f"queue {wrong}; the queue does not exist; {hint}" in popped.stderr) == (3, True)
    listed = hark("message", "list", wrong).stdout
    assert f"no messages; queue {wrong} does not exist; {hint}" in " ".join(listed.split())
    assert f"no schedules; queue {wrong} does not exist; {hint}" in hark("schedule", "list", "--queue", wrong).stdout
    for verb in ("show", "cancel"):
        flow = hark("flow", verb, wrong, "some-id")
        assert (flow.exit_code, f"queue {wrong} does not exist; {hint}" in flow.stderr) == (1, True)
        assert "result has expired" in hark("flow", verb, queue, "some-id").stderr
    assert f"created queue {wrong}; {hint}" in hark("push", wrong, "1").stderr
    assert hark("push", wrong, "2").stderr == "", "it is not new any more"
    assert hint not in hark("pop", wrong).stderr


def test_ids_that_are_not_those_of_a_message_are_explained(hark: Run) -> None:
    assert "give the IDs that `hark pop` printed" in hark("ack", "1", "2").stderr
    assert "check that it is the message id, not the transaction id" in hark("explain", "order-17").stderr


def test_what_is_pushed_is_popped_and_settled_once(hark: Run, queue: str) -> None:
    first = answer(hark, "push", queue, '{"id": 17}', "--transaction-id", "order-17")
    second = answer(hark, "push", queue, "1", "--transaction-id", "order-17")
    assert [first[0]["status"], second[0]["status"]] == ["queued", "duplicate"]
    assert first[0]["message_id"] == second[0]["message_id"]
    refused = hark("ack", first[0]["partition_id"], "order-17", "--lease", "0" * 32)
    assert (refused.exit_code, refused.stderr[:6]) == (1, "hark: ")
    message = pop_one(hark, queue)
    assert (message["data"], message["transactionId"], message["queue"]) == ({"id": 17}, "order-17", queue)
    settle = ("ack", message["partitionId"], message["transactionId"], "--lease", message["leaseId"])
    assert hark(*settle).exit_code == 0
    assert hark("pop", queue).exit_code == 3
    assert hark("pop", queue, "--wait", "--timeout", "1").exit_code == 3


def test_lines_from_stdin_keep_their_order_and_the_printed_command_settles(hark: Run, queue: str) -> None:
    assert hark("push", queue, "--stdin", stdin="1\n2\n3\n").stdout == "3 queued\n"
    messages = answer(hark, "pop", queue, "--batch", "2", "--auto-ack")["messages"]
    assert [message["data"] for message in messages] == [1, 2]
    line = next(line for line in hark("pop", queue).stdout.splitlines() if "hark ack" in line)
    assert hark(*line.split()[1:]).stdout == "settled as completed\n"


def test_a_strange_queue_name_works_in_every_path_and_as_namespace(hark: Run, queue: str) -> None:
    script = """
        push '{name}' 1 --partition '{name}'
        pop '{name}' --partition '{name}' --json -> "partition":"{name}"
        queue show '{name}' --json -> "name":"{name}"
        queue delete '{name}' --yes
        push {queue}.mail.welcome 1
        pop --namespace {queue} --task mail --json -> "queue":"{queue}.mail.welcome"
    """
    follow(hark, script, name=f"{queue} b/50%é?#", queue=queue)


def test_a_message_is_listed_shown_deleted_and_cancelled_once(hark: Run, queue: str) -> None:
    [pushed] = answer(hark, "push", queue, '{"id": 17}', "--transaction-id", "t")
    [later] = answer(hark, "push", queue, "1", "--delay", "3600000")
    script = """
        message list {queue} --json -> "id":"{id}"
        message show {partition} t -> "id": 17
        message delete {id}
        message delete {id} -> 1
        pop {queue} -> 3
        cancel {later} -> cancelled
        cancel {later} -> 1
    """
    names = {"id": pushed["message_id"], "partition": pushed["partition_id"], "later": later["message_id"]}
    follow(hark, script, queue=queue, **names)


def test_two_consumers_work_off_one_partition_in_a_shared_group(hark: Run, queue: str) -> None:
    follow(hark, "push {queue} 1 2\npush {queue} 3 --priority 9", queue=queue)
    first, second = (pop_one(hark, queue, "--group", "g", "--group-mode", "shared") for _ in range(2))
    assert (first["data"], second["data"]) == (3, 1)
    script = """
        ack {second} --group g
        ack {first} --group g --status failed --delay 3600000
        group list --queue {queue} -> shared
    """
    follow(hark, script, queue=queue, first=first["id"], second=second["id"])
    result = hark("pop", queue, "--group", "g", "--group-mode", "ordered")
    assert result.exit_code == 1
    assert "group_mode_conflict" in result.stderr


def test_dead_letters_are_put_back_or_deleted_one_by_one_or_all_at_once(hark: Run, queue: str) -> None:
    script = """
        dlq list --queue {queue} -> boom
        dlq requeue {letter}
        dlq requeue {letter} -> 1
        pop {queue} --auto-ack --json -> "data":{{"id": 17}}
    """
    follow(hark, script, queue=queue, letter=dead_letter(hark, queue, '{"id": 17}'))
    for remove in (("delete", dead_letter(hark, queue)), ("purge", queue, "--yes")):
        assert hark("dlq", *remove).exit_code == 0
        assert answer(hark, "dlq", "list", "--queue", queue)["total"] == 0
        dead_letter(hark, queue)


# Administration --------------------------------------------------------------------------------------------


def test_a_queue_is_created_listed_paused_resumed_purged_and_deleted(hark: Run, queue: str) -> None:
    script = """
        queue create {queue} --set leaseTime=60
        queue list --json -> "{queue}"
        push {queue} 1
        queue pause {queue}
        pop {queue} -> 3
        queue resume {queue}
        queue purge {queue} --yes
        pop {queue} -> 3
        queue list -> {queue}
        queue show {queue} -> Default
        queue delete {queue} --yes
        queue delete {queue} --yes -> 1
        queue show {queue} -> 1
    """
    follow(hark, script, queue=queue)


def test_a_group_is_listed_moved_paused_and_deleted(hark: Run, queue: str) -> None:
    script = """
        push {queue} '"first"' '"second"' '"third"'
        pop {queue} --group {group} --auto-ack -> first
        group list --queue {queue} -> {group}
        group show {group} -> {queue}
        group seek {group} {queue} --to-end
        pop {queue} --group {group} -> 3
        group seek {group} {queue} --partition Default --offset 2
        pop {queue} --group {group} --auto-ack -> second
        group pause {group} {queue}
        pop {queue} --group {group} -> 3
        group resume {group} {queue}
        group delete {group} --yes
        pop {queue} --group {group} -> first
    """
    follow(hark, script, queue=queue, group=f"{queue}-billing")


def test_limits_are_set_shown_and_kept(hark: Run, queue: str) -> None:
    script = """
        queue create {queue} --set leaseTime=60 --set maxInFlight=1
        push {queue} 1 2
        pop {queue} --group-mode shared
        pop {queue} -> 3
        queue limits {queue} --max-in-flight 2 --json -> "leaseTime":60
        pop {queue}
        group limits __QUEUE_MODE__ {queue} --rate-limit 0.5
        group limits __QUEUE_MODE__ {queue} -> 0.5 messages per second
        group limits nobody {queue} -> 1
    """
    follow(hark, script, queue=queue)
    limits = answer(hark, "group", "limits", "__QUEUE_MODE__", queue)["limits"]
    assert {name: value for name, value in limits.items() if value} == {"rateLimit": 0.5}


def test_limits_per_partition_are_set_and_explained(hark: Run, queue: str) -> None:
    _, second = answer(hark, "push", queue, "1", "2")
    script = """
        queue limits {queue} --max-in-flight-per-partition 1 --rate-limit-per-partition 10
        queue limits {queue} -> 10 messages per second
        pop {queue} --group g --group-mode shared --batch 5
        pop {queue} --group g -> 3
        explain {id} --group g -> (maxInFlightPerPartition)
        group limits g {queue} --max-in-flight-per-partition 2
        group limits g {queue} -> 2 messages
    """
    follow(hark, script, queue=queue, id=second["message_id"])


def test_commands_that_only_look_understand_a_real_server(hark: Run, queue: str) -> None:
    [pushed] = answer(hark, "push", queue, "1", "--transaction-id", "t")
    pop_one(hark, queue, "--consumer", "worker 7")
    script = """
        consumers {queue}
        leases {queue} -> worker 7
        explain {id}
        message list
        message list {queue} --to 2100-01-01T00:00:00Z
        message show {id}
        group lagging --seconds 0
        queue list --paused
        maintenance show
        trace names
        trace by-name none
        trace show {partition} t
        settings
        audit
        top --once
    """
    follow(hark, script, queue=queue, id=pushed["message_id"], partition=pushed["partition_id"])
    checks = answer(hark, "doctor")
    assert {check["result"] for check in checks} <= {"ok", "warn"}
