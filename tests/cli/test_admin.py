"""`hark queue`, `group` and `dlq`: what they send, what they print, and what they ask before they destroy."""

from __future__ import annotations

from datetime import datetime
from types import SimpleNamespace

import msgspec
import pytest

from .conftest import Run
from .stub import Stub

DESTRUCTIVE = [
    (("queue", "delete", "orders"), "DELETE", "/api/v1/resources/queues/orders"),
    (("queue", "purge", "orders"), "POST", "/api/v1/resources/queues/orders/purge"),
    (("queue", "purge", "orders", "--group", "g"), "POST", "/api/v1/resources/queues/orders/groups/g/purge"),
    (("group", "delete", "g"), "DELETE", "/api/v1/consumer-groups/g?deleteMetadata=true"),
    (("dlq", "purge", "orders"), "DELETE", "/api/v1/dlq?queue=orders"),
]


@pytest.fixture
def hark_on_a_terminal(hark: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command line, for which stdin is a terminal."""
    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("hark.cli.command.sys", terminal)
    return hark


# Destruction -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [args for args, _, _ in DESTRUCTIVE], ids=" ".join)
def test_destructive_commands_refuse_without_a_terminal_and_without_yes(
    hark: Run, stub: Stub, args: tuple[str, ...]
) -> None:
    result = hark(*args)
    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert stub.seen == []


@pytest.mark.parametrize(("args", "method", "target"), DESTRUCTIVE)
def test_destructive_commands_do_not_ask_with_yes(
    hark: Run, stub: Stub, args: tuple[str, ...], method: str, target: str
) -> None:
    stub.answer(200, {"success": True, "deleted": 3, "purged": 3})
    assert hark(*args, "--yes").exit_code == 0
    assert (stub.last.method, stub.last.target) == (method, target)


@pytest.mark.parametrize(("typed", "requests", "exit_code"), [("y", 1, 0), ("n", 0, 1), ("", 0, 1)])
def test_destructive_commands_ask_on_a_terminal(
    hark_on_a_terminal: Run, stub: Stub, typed: str, requests: int, exit_code: int
) -> None:
    result = hark_on_a_terminal("queue", "delete", "orders", stdin=f"{typed}\n")
    assert "Delete the queue orders with everything in it?" in result.stderr
    assert (len(stub.seen), result.exit_code) == (requests, exit_code)


def test_an_empty_name_never_widens_what_is_destroyed(hark: Run, stub: Stub) -> None:
    commands = (
        ("queue", "delete", ""),
        ("dlq", "purge", ""),
        ("dlq", "purge", "orders", "--group", ""),
        ("dlq", "purge", "orders", "--partition", ""),
        ("dlq", "purge", "orders", "--from", ""),
        ("dlq", "purge", "orders", "--to", ""),
        ("queue", "purge", "orders", "--group", ""),
        ("group", "delete", ""),
        ("group", "delete", "g", "--queue", ""),
        ("queue", "purge", ""),
    )
    assert [hark(*args, "--yes").exit_code for args in commands] == [2] * len(commands)
    assert hark("dlq", "delete", "").exit_code == 2
    assert hark("message", "delete", "").exit_code == 2
    assert stub.seen == []


# Queues ----------------------------------------------------------------------------------------------------


def test_queue_list_shows_a_table(hark: Run, stub: Stub) -> None:
    queue = {"id": "q1", "name": "orders", "namespace": "shop", "task": "", "partitions": 3}
    stub.answer(200, {"queues": [{**queue, "messages": {"total": 12, "pending": 7, "processing": 1}}]})
    result = hark("queue", "list")
    assert stub.last.target == "/api/v1/resources/queues"
    row = next(line for line in result.stdout.splitlines() if "orders" in line)
    assert row.split() == ["orders", "shop", "-", "3", "7", "1", "12", "-", "-"]


def test_queue_list_asks_for_a_page_of_those_that_match(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"queues": []})
    hark("queue", "list", "--search", "a b", "--namespace", "n", "--task", "t", "--sort", "backlog", "--limit", "5")
    assert stub.last.target == "/api/v1/resources/queues?search=a+b&namespace=n&task=t&sort=backlog&limit=5"
    stub.answer(200, {"queues": []})
    hark("queue", "list", "--offset", "20")
    assert stub.last.target == "/api/v1/resources/queues?offset=20"


def test_queue_list_without_queues_says_how_to_make_one(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"queues": []})
    assert "hark push orders" in hark("queue", "list").stdout


def test_queue_show_shows_options_totals_and_partitions(hark: Run, stub: Stub) -> None:
    counts = {"total": 5, "pending": 4, "processing": 0, "completed": 1, "failed": 0, "deadLetter": 2}
    partition = {"id": "p1", "name": "customer-4", "createdAt": "x", "stats": counts, "oldestMessage": None}
    body = {"id": "q1", "name": "orders", "partitions": [partition], "totals": counts}
    stub.answer(200, {**body, "options": {"leaseTime": 60, "deadLetterQueue": True}})
    out = hark("queue", "show", "orders").stdout
    assert "customer-4" in out
    lines = [line.split() for line in out.splitlines()]
    assert ["leaseTime", "60"] in lines
    assert ["deadLetterQueue", "yes"] in lines
    assert ["dead_letter", "2"] in lines


def test_queue_create_sends_options_with_their_types_however_they_are_spelled(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"configured": True, "queue": "orders"})
    sets = ("leaseTime=60", "retry_limit=5", "retry-multiplier=1.5", "deadLetterQueue=false")
    result = hark("queue", "create", "orders", "--namespace", "shop", *(x for s in sets for x in ("--set", s)))
    assert stub.last.json == {
        "queue": "orders",
        "namespace": "shop",
        "options": {"leaseTime": 60, "retryLimit": 5, "retryMultiplier": 1.5, "deadLetterQueue": False},
    }
    assert result.stdout == "configured orders\n"


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("leastTime=60", "did you mean leaseTime?"),
        ("leaseTime", "OPTION=VALUE"),
        ("leaseTime=soon", "Expected `int`"),
        ("colour=red", "--help"),
    ],
)
def test_queue_create_refuses_an_option_it_does_not_know(hark: Run, stub: Stub, option: str, hint: str) -> None:
    result = hark("queue", "create", "orders", "--set", option)
    assert result.exit_code == 2
    assert hint in result.stderr
    assert stub.seen == []


def test_queue_create_warns_of_options_that_the_server_ignored(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"configured": True, "queue": "orders", "ignoredOptions": ["ttl"]})
    assert "does not know the option ttl" in hark("queue", "create", "orders", "--set", "ttl=1").stderr


def test_queue_delete_of_what_is_not_there_exits_with_1(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"deleted": True, "queue": "orders", "existed": False})
    result = hark("queue", "delete", "orders", "--yes")
    assert (result.exit_code, result.stderr) == (1, "hark: there is no queue orders (not_found)\n")


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_queues_and_groups_are_paused_and_resumed(hark: Run, stub: Stub, verb: str) -> None:
    hark("queue", verb, "orders")
    assert (stub.last.method, stub.last.target) == ("POST", f"/api/v1/resources/queues/orders/{verb}")
    result = hark("group", verb, "g", "orders")
    assert stub.last.target == f"/api/v1/resources/queues/orders/groups/g/{verb}"
    assert result.stdout == f"{verb}d g in orders\n"


def test_purges_say_how_much_they_removed(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"success": True, "purged": 3})
    assert hark("queue", "purge", "orders", "--yes").stdout == "purged orders (3 messages)\n"
    stub.answer(200, {"success": True, "deleted": 2})
    assert hark("dlq", "purge", "orders", "--yes").stdout == "purged 2 dead letters of orders\n"


# Groups ----------------------------------------------------------------------------------------------------


GROUPS = b'[{"name":"g","queueName":"orders","other":1.0e1}]'


def test_group_list_can_be_limited_to_a_queue(hark: Run, stub: Stub) -> None:
    stub.answer(200, GROUPS)
    out = hark("group", "list", "--queue", "orders").stdout
    assert "orders" in out
    assert stub.last.target == "/api/v1/consumer-groups?queue=orders"


def test_group_list_json_is_the_servers(hark: Run, stub: Stub) -> None:
    stub.answer(200, GROUPS)
    assert hark("group", "list", "--json").stdout_bytes == GROUPS + b"\n"


def test_group_show_lists_its_places(hark: Run, stub: Stub) -> None:
    place = {
        "partition": "p",
        "offsetLag": 3,
        "timeLagSeconds": 1.5,
        "leaseActive": True,
        "lastConsumedAt": None,
    }
    stub.answer(200, {"orders": {"partitions": [place]}})
    row = next(line for line in hark("group", "show", "g").stdout.splitlines() if "orders" in line)
    assert row.split() == ["orders", "p", "3", "1.5", "yes", "-"]


def test_group_show_of_an_unknown_group_exits_with_1(hark: Run, stub: Stub) -> None:
    stub.answer(200, {})
    result = hark("group", "show", "g")
    assert (result.exit_code, result.stderr) == (1, "hark: there is no group g (not_found)\n")


@pytest.mark.parametrize(
    ("flags", "target", "body"),
    [
        (("--to-end",), "/seek", {"toEnd": True}),
        (("--timestamp", "2026-01-31T12:00:00Z"), "/seek", {"timestamp": "2026-01-31T12:00:00+00:00"}),
        (("--timestamp", "2026-01-31T12:00:00+02:00"), "/seek", {"timestamp": "2026-01-31T12:00:00+02:00"}),
        (("--timestamp", "2026-01-31"), "/seek", {"timestamp": "2026-01-31T00:00:00+00:00"}),
    ],
)
def test_group_seek_sends_its_target(
    hark: Run, stub: Stub, flags: tuple[str, ...], target: str, body: dict[str, object]
) -> None:
    stub.answer(200, {"success": True, "partitionsUpdated": 4})
    result = hark("group", "seek", "g", "orders", *flags)
    assert stub.last.target == f"/api/v1/consumer-groups/g/queues/orders{target}"
    assert stub.last.json == body
    assert result.stdout == "moved g in orders (4 partitions)\n"


def test_group_seek_can_move_one_partition(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"success": True, "updated": True, "nextOffset": 7})
    result = hark("group", "seek", "g", "orders", "--offset", "7", "--partition", "p/1")
    assert stub.last.target == "/api/v1/consumer-groups/g/queues/orders/partitions/p%2F1/seek"
    assert stub.last.json == {"offset": 7}
    assert result.stdout == "moved g in orders (next offset 7)\n"


@pytest.mark.parametrize("flags", [(), ("--to-end", "--offset", "1"), ("--timestamp", "yesterday"), ("--offset", "0")])
def test_group_seek_needs_exactly_one_good_target(hark: Run, stub: Stub, flags: tuple[str, ...]) -> None:
    assert hark("group", "seek", "g", "orders", *flags).exit_code == 2
    assert stub.seen == []


def test_group_seek_that_the_server_did_not_do_exits_with_1(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"success": False, "error": "Partition not found"})
    result = hark("group", "seek", "g", "orders", "--to-end", "--partition", "p")
    assert (result.exit_code, result.stderr) == (1, "hark: Partition not found\n")


def test_group_delete_can_be_limited_to_a_queue_and_keep_its_subscription(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"success": True, "deletedPartitions": 3})
    result = hark("group", "delete", "g", "--queue", "orders", "--keep-subscription", "--yes")
    assert stub.last.target == "/api/v1/consumer-groups/g/queues/orders?deleteMetadata=false"
    assert result.stdout == "deleted g (3 partitions)\n"


# Dead letters ----------------------------------------------------------------------------------------------


def test_dlq_list_asks_with_its_filters_and_tells_of_more(hark: Run, stub: Stub) -> None:
    letter = {"id": "m1", "deadLetterId": "d1", "queue": "orders", "attempts": 4, "errorMessage": "boom"}
    stub.answer(200, {"messages": [{**letter, "data": {"n": 1}}], "total": 9})
    result = hark("dlq", "list", "--queue", "orders", "--group", "g", "--limit", "1", "--offset", "2")
    assert stub.last.target == "/api/v1/dlq?queue=orders&consumerGroup=g&limit=1&offset=2"
    assert all(text in result.stdout for text in ("d1", "boom", '{"n":1}', "1 of 9", "--offset 3"))


def test_dlq_requeue_takes_all_that_match_until_none_are_left(hark: Run, stub: Stub) -> None:
    for answer in ({"requeued": 1000, "remaining": 5}, {"requeued": 5, "remaining": 0}):
        stub.answer(200, {**answer, "results": []})
    result = hark("dlq", "requeue", "--all", "--queue", "orders", "--search", "timeout")
    assert result.stdout == "requeued 1005 dead letters\n"
    bodies = [msgspec.json.decode(request.body) for request in stub.seen]
    assert [request.target for request in stub.seen] == ["/api/v1/dlq/requeue"] * 2
    assert bodies[0] == bodies[1], "what fails meanwhile is newer and stays"
    until = bodies[0]["filter"].pop("to")
    assert datetime.fromisoformat(until).tzinfo is not None
    assert bodies[0]["filter"] == {"queue": "orders", "search": "timeout"}


@pytest.mark.parametrize(
    "arguments", [(), ("d1", "--all"), ("d1", "--queue", "orders"), ("--queue", "orders")], ids=" ".join
)
def test_dlq_requeue_wants_ids_or_all(hark: Run, stub: Stub, arguments: tuple[str, ...]) -> None:
    result = hark("dlq", "requeue", *arguments)
    assert (result.exit_code, stub.seen) == (2, [])


def test_dlq_requeue_of_everything_asks_first(hark: Run, stub: Stub) -> None:
    assert hark("dlq", "requeue", "--all").exit_code == 2
    assert stub.seen == []
    stub.answer(200, {"requeued": 0, "remaining": 0, "results": []})
    assert hark("dlq", "requeue", "--all", "--yes").stdout == "requeued 0 dead letters\n"


def test_dlq_list_and_purge_search_in_errors(hark: Run, stub: Stub) -> None:
    stub.answer(200, {"messages": [], "total": 0})
    hark("dlq", "list", "--search", "time out")
    assert stub.last.target == "/api/v1/dlq?search=time+out&limit=100&offset=0"
    stub.answer(200, {"deleted": 2})
    hark("dlq", "purge", "orders", "--search", "boom", "--yes")
    assert stub.last.target == "/api/v1/dlq?queue=orders&search=boom"


def test_dlq_requeue_and_delete_take_several_ids(hark: Run, stub: Stub) -> None:
    assert hark("dlq", "requeue", "d1", "d2").stdout == "requeued d1\nrequeued d2\n"
    assert [(seen.method, seen.target) for seen in stub.seen] == [
        ("POST", "/api/v1/dlq/d1/requeue"),
        ("POST", "/api/v1/dlq/d2/requeue"),
    ]
    assert hark("dlq", "delete", "d3").stdout == "deleted d3\n"
    assert (stub.last.method, stub.last.target) == ("DELETE", "/api/v1/dlq/d3")


def test_a_dead_letter_that_fails_does_not_keep_the_others_back(hark: Run, stub: Stub) -> None:
    stub.answer(404, {"error": "no such dead letter", "code": "not_found"})
    result = hark("dlq", "requeue", "d1", "d2")
    assert result.exit_code == 1
    assert result.stdout == "requeued d2\n"
    assert result.stderr == "hark: d1: no such dead letter (not_found)\nhark: 1 of 2 failed\n"
