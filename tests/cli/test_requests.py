"""What each command line sends to the server, and which ones are wrong usage and send nothing."""

from __future__ import annotations

import shlex
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from .commands import REMOTE_COMMANDS, answer_to, options
from .conftest import Run
from .stub import Stub

QUEUES = "/resources/queues"
GROUPS = "/consumer-groups"
EACH = {"maxInFlightPerPartition": 0, "rateLimitPerPartition": 0, "rateBurstPerPartition": 0}
KEYS = "/keyval/api/keys"
FROM, TO = "2026-01-02T03:04:05Z", "2026-01-02T04:04:05Z"
TIMES, REQUESTED = f"--from {FROM} --to {TO}", "from=2026-01-02T03%3A04%3A05Z&to=2026-01-02T04%3A04%3A05Z"
LETTERS, FILTER = (
    f"--group g --partition p --search 'a b' {TIMES}",
    f"consumerGroup=g&partition=p&search=a+b&{REQUESTED}",
)
PUSH = "POST /push"
KEY = '[["failed", 17], ["b", true]]'
SETS = "--set leaseTime=60 --set retry_limit=5 --set retry-multiplier=1.5 --set deadLetterQueue=false"


class Row(NamedTuple):
    """A command line, the requests that it sends (below /api/v1), the JSON of the last one, and all that it prints."""

    line: str
    sent: str
    body: Any = None
    printed: str | None = None


REQUESTS = [
    # Messages
    Row("push orders 1 --transaction-id t1", PUSH, [{"payload": 1, "transactionId": "t1"}]),
    Row(
        "push orders 1 --unique-key k --unique-until started",
        PUSH,
        [{"payload": 1, "uniqueKey": "k", "uniqueUntil": "started"}],
    ),
    Row(
        "push orders '{\"n\": 1}' [2] --partition p --delay 5 --priority 9",
        PUSH,
        [{"payload": payload, "partition": "p", "delay": 5, "priority": 9} for payload in ({"n": 1}, [2])],
    ),
    Row(
        f"push orders 1 --deliver-at {FROM} --keys-if-undelivered '{KEY}'",
        PUSH,
        [{"payload": 1, "deliverAt": FROM, "keysIfUndelivered": [["failed", 17], ["b", True]]}],
    ),
    Row("push orders --text 'say \"hi\"'", PUSH, [{"payload": 'say "hi"'}]),
    Row("pop orders", "GET /pop/queue/orders"),
    Row(
        "pop orders --partition p --group g --group-mode shared --batch 5 --partitions 2 --wait --timeout 9 --auto-ack"
        " --consumer 'worker 7' --subscription-mode new --subscription-from now",
        "GET /pop/queue/orders/partition/p?consumerGroup=g&groupMode=shared&batch=5&partitions=2&wait=true"
        "&timeout=9&autoAck=true&subscriptionMode=new&subscriptionFrom=now&consumer=worker+7",
    ),
    Row("pop --namespace shop --task mail", "GET /pop?namespace=shop&task=mail"),
    *(
        Row(f"pop '{name}' --partition '{name}'", f"GET /pop/queue/{segment}/partition/{segment}")
        for name, segment in (
            ("a/b", "a%2Fb"),
            ("a b", "a%20b"),
            ("50%", "50%25"),
            ("a?b#c", "a%3Fb%23c"),
            ("é", "%C3%A9"),
            ("%2F", "%252F"),
        )
    ),
    Row(
        "ack p1 t1",
        "POST /ack",
        {"partitionId": "p1", "transactionId": "t1", "status": "completed"},
        "settled as completed\n",
    ),
    Row(
        "ack p1 t1 --lease L --group g --status failed --error boom",
        "POST /ack",
        {"partitionId": "p1", "transactionId": "t1", "status": "failed"}
        | {"leaseId": "L", "consumerGroup": "g", "error": "boom"},
        "settled as failed\n",
    ),
    Row(
        "ack m1 --status retry --delay 500",
        "POST /ack",
        {"transactionId": "m1", "status": "retry", "delay": 500},
        "settled as retry\n",
    ),
    Row("cancel m/1", "POST /messages/m%2F1/cancel?running=true", None, "cancelled message m/1\n"),
    Row("tail orders --limit 1", "GET /listen/queue/orders?browse=true&from=tail"),
    Row(
        "tail orders --from head --partition p --limit 1", "GET /listen/queue/orders?browse=true&from=head&partition=p"
    ),
    Row(
        f"message list orders --partition p --status pending --limit 5 --offset 2 {TIMES}",
        f"GET /messages?queue=orders&partition=p&status=pending&{REQUESTED}&limit=5&offset=2",
    ),
    Row("message list", "GET /messages?limit=100&offset=0"),
    Row("message show p1 t/1", "GET /messages/p1/t%2F1"),
    Row("message show m1", "GET /explain/m1 GET /messages/p/m1"),
    Row("flow show images f/1", "GET /flows/images/f%2F1"),
    Row("flow cancel images f1", "POST /flows/images/f1/cancel", None, "cancelled flow f1\n"),
    Row("message delete m1", "DELETE /messages/m1"),
    Row("message delete p1 t1", "DELETE /messages/p1/t1"),
    # Queues
    Row("queue list", f"GET {QUEUES}"),
    Row(
        "queue list --search 'a b' --namespace n --task t --paused --sort backlog --limit 5 --offset 20",
        f"GET {QUEUES}?search=a+b&namespace=n&task=t&paused=true&sort=backlog&limit=5&offset=20",
    ),
    Row("queue show orders", f"GET {QUEUES}/orders?limit=100"),
    Row("queue show orders --search p --limit 7 --offset 9", f"GET {QUEUES}/orders?search=p&limit=7&offset=9"),
    Row(
        f"queue create orders --namespace shop --task mail {SETS}",
        "POST /configure",
        {
            "queue": "orders",
            "namespace": "shop",
            "task": "mail",
            "options": {"retryDelay": 1000, "retryMultiplier": 1.5, "leaseTime": 60, "retryLimit": 5}
            | {"deadLetterQueue": False},
        },
        "configured queue orders\n",
    ),
    Row("queue delete orders --yes", f"DELETE {QUEUES}/orders"),
    Row("queue purge orders --yes", f"POST {QUEUES}/orders/purge", None, "purged queue orders (3 messages)\n"),
    Row("queue purge orders --group g --yes", f"POST {QUEUES}/orders/groups/g/purge"),
    Row("queue pause orders", f"POST {QUEUES}/orders/pause"),
    Row(
        "schedule put night/ly reports '{\"a\": 1}' --cron '0 2 * * *' --timezone UTC --start-at 2026-01-01 "
        "--jitter 5m --overlap skip --catch-up all --partition p --priority 3 --ttl 1000",
        "PUT /schedules/night%2Fly",
        {
            "queue": "reports",
            "payload": {"a": 1},
            "cron": "0 2 * * *",
            "timezone": "UTC",
            "startAt": "2026-01-01",
            "jitter": "5m",
            "overlap": "skip",
            "catchUp": "all",
            "partition": "p",
            "priority": 3,
            "ttl": 1000,
        },
        "schedule nightly: next run 2026-01-02T01:00:00Z\n",
    ),
    Row(
        "schedule put nightly reports --text hello --every 90s",
        "PUT /schedules/nightly",
        {"queue": "reports", "payload": "hello", "every": "90s"},
    ),
    Row(
        "schedule list --queue reports --search n --limit 5 --offset 2",
        "GET /schedules?queue=reports&search=n&limit=5&offset=2",
    ),
    Row("schedule show nightly", "GET /schedules/nightly"),
    Row("schedule pause nightly", "POST /schedules/nightly/pause", None, "paused schedule nightly\n"),
    Row("schedule resume nightly", "POST /schedules/nightly/resume"),
    Row("schedule run nightly", "POST /schedules/nightly/run", None, "pushed message m1\n"),
    Row("schedule delete nightly --yes", "DELETE /schedules/nightly", None, "deleted schedule nightly\n"),
    Row("queue resume orders", f"POST {QUEUES}/orders/resume"),
    Row("queue limits orders", f"GET {QUEUES}/orders?limit=1"),
    Row(
        "queue limits orders --max-in-flight 0 --rate-limit 2.5 --rate-burst 3",
        f"GET {QUEUES}/orders?limit=1 POST /configure",
        {
            "queue": "orders",
            "namespace": "shop",
            "task": "",
            "options": {"leaseTime": 60, "maxInFlight": 0, "rateLimit": 2.5, "rateBurst": 3},
        },
    ),
    Row(
        "queue limits orders --max-in-flight-per-partition 2 --rate-limit-per-partition 10"
        " --rate-burst-per-partition 20",
        f"GET {QUEUES}/orders?limit=1 POST /configure",
        {
            "queue": "orders",
            "namespace": "shop",
            "task": "",
            "options": {"leaseTime": 60, "maxInFlight": 5, "rateLimit": 0.0, "rateBurst": 0}
            | {"maxInFlightPerPartition": 2, "rateLimitPerPartition": 10.0, "rateBurstPerPartition": 20},
        },
    ),
    # Groups
    Row("group list", f"GET {GROUPS}"),
    Row("group list --queue orders", f"GET {GROUPS}?queue=orders"),
    Row("group lagging --seconds 30 --limit 5", f"GET {GROUPS}/lagging?minLagSeconds=30&limit=5"),
    Row("group show g", f"GET {GROUPS}/g"),
    *(
        Row(
            f"group seek g orders {flag}",
            f"POST {GROUPS}/g/queues/orders/seek",
            body,
            "moved group g in queue orders (4 partitions)\n",
        )
        for flag, body in (
            ("--to-end", {"toEnd": True}),
            ("--timestamp 2026-01-31T12:00:00Z", {"timestamp": "2026-01-31T12:00:00+00:00"}),
            ("--timestamp 2026-01-31T12:00:00+02:00", {"timestamp": "2026-01-31T12:00:00+02:00"}),
            ("--timestamp 2026-01-31", {"timestamp": "2026-01-31T00:00:00+00:00"}),
        )
    ),
    Row(
        "group seek g orders --offset 7 --partition p/1",
        f"POST {GROUPS}/g/queues/orders/partitions/p%2F1/seek",
        {"offset": 7},
    ),
    Row("group delete g --yes", f"DELETE {GROUPS}/g?deleteMetadata=true", None, "deleted group g (3 partitions)\n"),
    Row(
        "group delete g --queue orders --keep-subscription --yes",
        f"DELETE {GROUPS}/g/queues/orders?deleteMetadata=false",
    ),
    Row("group pause g orders", f"POST {QUEUES}/orders/groups/g/pause", None, "paused group g in queue orders\n"),
    Row("group resume g orders", f"POST {QUEUES}/orders/groups/g/resume", None, "resumed group g in queue orders\n"),
    Row("group limits g/1 orders", f"GET {GROUPS}/g%2F1/queues/orders/limits"),
    Row(
        "group limits g orders --max-in-flight 3 --rate-burst 0",
        f"GET {GROUPS}/g/queues/orders/limits PUT {GROUPS}/g/queues/orders/limits",
        {"maxInFlight": 3, "rateLimit": 0.5, "rateBurst": 0} | EACH,
    ),
    Row(  # A rate that is taken away takes its burst with it.
        "group limits g orders --rate-limit 0",
        f"GET {GROUPS}/g/queues/orders/limits PUT {GROUPS}/g/queues/orders/limits",
        {"maxInFlight": 0, "rateLimit": 0.0, "rateBurst": 0} | EACH,
    ),
    Row(
        "group limits g orders --rate-limit-per-partition 10 --rate-burst-per-partition 20"
        " --max-in-flight-per-partition 2",
        f"GET {GROUPS}/g/queues/orders/limits PUT {GROUPS}/g/queues/orders/limits",
        {"maxInFlight": 0, "rateLimit": 0.5, "rateBurst": 7}
        | EACH
        | {"rateLimitPerPartition": 10.0, "rateBurstPerPartition": 20, "maxInFlightPerPartition": 2},
    ),
    # Dead letters
    Row("dlq list", "GET /dlq?limit=100&offset=0"),
    Row(
        f"dlq list --queue orders --id d1 {LETTERS} --limit 1 --offset 2",
        f"GET /dlq?queue=orders&consumerGroup=g&partition=p&id=d1&search=a+b&{REQUESTED}&limit=1&offset=2",
    ),
    Row("dlq requeue d1 d2", "POST /dlq/d1/requeue POST /dlq/d2/requeue", None, "requeued d1\nrequeued d2\n"),
    Row(
        f"dlq requeue --all --queue orders {LETTERS}",
        "POST /dlq/requeue",
        {
            "filter": {"queue": "orders", "consumerGroup": "g", "partition": "p", "search": "a b"}
            | {"from": FROM, "to": TO}
        },
        "requeued 5 dead letters\n",
    ),
    Row("dlq delete d3", "DELETE /dlq/d3", None, "deleted d3\n"),
    Row("dlq purge orders --yes", "DELETE /dlq?queue=orders", None, "deleted 2 dead letters of queue orders\n"),
    Row(f"dlq purge orders {LETTERS} --yes", f"DELETE /dlq?queue=orders&{FILTER}"),
    # Keys
    Row("kv get users/17", f"GET {KEYS}/users/17", None, '{"n":1}\n'),
    Row(
        "kv put users/17 '{\"n\": 1}' --expires-in 5000",
        f"PUT {KEYS}/users/17?expiresIn=5000",
        {"n": 1},
        "version 00000000000000000009\n",
    ),
    Row("kv put a/b --text 'a b'", f"PUT {KEYS}/a/b", "a b"),
    Row("kv delete users/17", f"DELETE {KEYS}/users/17?exact=true", None, "deleted 1 key\n"),
    Row("kv delete users --tree --yes", f"DELETE {KEYS}/%5B%22users%22%5D?exact=false"),
    Row(
        "kv list users --start users/1 --end users/9 --limit 5 --reverse",
        f"GET {KEYS}?prefix=users&start=users%2F1&end=users%2F9&limit=5&reverse=true",
    ),
    Row("kv count users", f"GET {KEYS}/count?prefix=users", None, "17\n"),
    Row(
        'kv watch users/17 b \'["c", "1"]\' --limit 1',
        "GET /keyval/api/watch"
        "?keys=%5B%5B%22users%22%2C17%5D%2C%5B%22b%22%5D%2C%5B%22c%22%2C%221%22%5D%5D&initial=true",
    ),
    Row("kv watch --prefix users --new --limit 1", "GET /keyval/api/watch/prefix?prefix=users&initial=false"),
    # Looking
    Row("explain m1", "GET /explain/m1"),
    Row("explain m1 --group billing", "GET /explain/m1?consumerGroup=billing"),
    Row("leases", "GET /leases?limit=100&offset=0", None, "no leases\n"),
    Row(
        "leases orders --group billing --partition p1 --limit 5 --offset 2",
        "GET /leases?queue=orders&partition=p1&consumerGroup=billing&limit=5&offset=2",
    ),
    Row("consumers", "GET /consumers?limit=100&offset=0", None, "no consumers are waiting on this server\n"),
    Row("consumers orders --limit 5 --offset 2", "GET /consumers?queue=orders&limit=5&offset=2"),
    Row("audit --limit 20", "GET /system/audit?limit=20"),
    Row("top --once", "GET /events"),
    Row("settings", "GET /system/settings"),
    Row("trace names --limit 1 --offset 3", "GET /traces/names?limit=1&offset=3"),
    Row("trace show p order/17 --limit 1 --offset 3", "GET /traces/p/order%2F17?limit=1&offset=3"),
    Row("trace by-name n --limit 1 --offset 3", "GET /traces/by-name/n?limit=1&offset=3"),
    # Maintenance
    Row(
        "maintenance show",
        "GET /system/maintenance",
        None,
        "pushes  stopped: they return status 503\npops    accepted\n",
    ),
    *(
        Row(f"maintenance {verb} {state}", f"POST /system/maintenance{path}", {"enabled": state == "on"})
        for verb, path in (("push", ""), ("pop", "/pop"))
        for state in ("on", "off")
    ),
]


@pytest.mark.parametrize("row", REQUESTS, ids=lambda row: row.line)
def test_what_a_command_sends(hark: Run, stub: Stub, row: Row) -> None:
    sent = [f"/api/v1{word}" if word[0] == "/" and word[:8] != "/keyval/" else word for word in row.sent.split()]
    for _ in sent[::2]:
        stub.answer(200, answer_to(row.line))
    result = hark(*shlex.split(row.line))
    assert result.exit_code == 0, result.output
    assert [word for seen in stub.seen for word in (seen.method, seen.target)] == sent
    if row.line.startswith("push "):  # Each item names its queue.
        assert stub.last.json == {"items": [{"queue": "orders", **item} for item in row.body]}
    else:
        assert (stub.last.json if stub.last.body else None) == row.body
    if row.printed is not None:
        assert result.stdout == row.printed


def test_every_command_and_every_option_is_in_the_table() -> None:
    everywhere = {"--url", "--token", "--ca-file", "--json"}  # tested for all commands together, and over TLS
    elsewhere = {"push": {"--stdin"}, "kv put": {"--stdin"}}
    for name in REMOTE_COMMANDS:
        lines = [row.line for row in REQUESTS if row.line.split()[: len(name.split())] == name.split()]
        assert lines, name
        used = {word for line in lines for word in shlex.split(line) if word.startswith("--")}
        used |= {"--yes"} if any(line.startswith(name) for line in DESTRUCTIVE) else set()
        assert options(name) - everywhere - elsewhere.get(name, set()) <= used, name


# Destruction -----------------------------------------------------------------------------------------------

DESTRUCTIVE = [
    "queue delete orders",
    "schedule delete nightly",
    "queue purge orders",
    "queue purge orders --group g",
    "group delete g",
    "dlq purge orders",
    "dlq requeue --all",
    "kv delete users --tree",
]


@pytest.mark.parametrize(("typed", "requests", "exit_code"), [("y", 1, 0), ("n", 0, 1), ("", 0, 1)])
@pytest.mark.parametrize("line", DESTRUCTIVE)
def test_destructive_commands_ask_on_a_terminal(
    hark: Run, stub: Stub, line: str, typed: str, requests: int, exit_code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("hark.cli.output.sys", terminal)
    stub.answer(200, answer_to(line))
    result = hark(*line.split(), stdin=f"{typed}\n")
    assert "? [y/N]" in result.stderr
    assert (len(stub.seen), result.exit_code) == (requests, exit_code)
    if line == "queue delete orders":
        assert "Delete queue orders with its messages, groups and dead letters?" in result.stderr


# Wrong usage -----------------------------------------------------------------------------------------------

WRONG: list[tuple[str, str]] = [
    *((line, "--yes") for line in DESTRUCTIVE),
    # An empty name never widens what is destroyed.
    ("queue delete '' --yes", "empty"),
    ("queue purge '' --yes", "empty"),
    ("queue purge orders --group '' --yes", "empty"),
    ("group delete '' --yes", "empty"),
    ("group delete g --queue '' --yes", "empty"),
    ("dlq purge '' --yes", "empty"),
    *(
        (f"dlq purge orders {flag} '' --yes", "empty")
        for flag in ("--group", "--partition", "--search", "--from", "--to")
    ),
    *((f"{command} ''", "empty") for command in ("dlq delete", "message delete", "cancel")),
    ("kv get ''", ""),
    ("push '' 1", "empty"),
    # Messages
    ("push orders", ""),
    ("push orders 1 --stdin", ""),
    ("push orders 1 2 --transaction-id t", ""),
    ("push orders --stdin --transaction-id t", ""),
    ("push orders 1 --unique-until done", "--unique-key"),
    ("push orders 1 --unique-key k --unique-until ever", "started"),
    ("push orders 1 --priority 10", ""),
    ("push orders 1 --delay -1", ""),
    ("push orders '{id: 17}'", "{id: 17}"),
    ("push orders '{id: 17}'", """hark push orders '{"id": 17}'"""),
    ("push orders '{id: 17}'", "--text"),
    *(
        (f"push orders 1 --keys-if-undelivered '{keys}'", """'[["failed", "orders", 17]]'""")
        for keys in ("failed", '["failed"]', "[[", "[[null]]", '{"a": 1}')
    ),
    ("pop", ""),
    ("pop orders --namespace shop", ""),
    ("pop --task mail --partition p", ""),
    ("pop orders --batch 0", ""),
    ("pop orders --timeout 5", ""),
    ("pop orders --subscription-mode old", ""),
    ("pop orders --group-mode both", ""),
    ("ack p1 t1 --status done", ""),
    ("ack m1 --delay 500", "--status failed"),
    # Queues, groups and dead letters
    ("queue create orders --set leastTime=60", "did you mean leaseTime?"),
    ("queue create orders --set leaseTime", "OPTION=VALUE"),
    ("queue create orders --set leaseTime=soon", "Expected `int`"),
    ("queue create orders --set colour=red", "--help"),
    *(
        (f"{command} {flag}", "")
        for command in ("queue limits orders", "group limits g orders")
        for flag in ("--max-in-flight -1", "--rate-limit fast", "--rate-burst 1.5")
    ),
    *((f"group seek g orders {flags}", "") for flags in ("", "--to-end --offset 1", "--offset 0")),
    ("group seek g orders --timestamp yesterday", ""),
    *((f"dlq requeue {ids}", "--all") for ids in ("", "d1 --all", "d1 --queue orders", "--queue orders")),
    ("maintenance push maybe", ""),
    ("maintenance pop", ""),
    # Keys
    ("kv put a {x}", "the value is not JSON: {x}"),
    ("kv put a {x}", "--text"),
    ("kv put a", ""),
    ("kv put a 1 --stdin", ""),
    *((f"kv watch {keys}", "") for keys in ("", "a --prefix b", "--prefix ''", "[1")),
    # For all commands
    ("qeue list", ""),
    ("queue list --colour", ""),
    ("queue show \udcff", "hark: an argument is not valid UTF-8"),
    ("queue list --url s3://my-bucket/shop", "hark serve --engine s3://"),
    *((f"queue list --url {url}", "HARK_URL") for url in ("127.0.0.1:6632", "ftp://x", "http://[::1", "nonsense")),
]


@pytest.mark.parametrize(("line", "named"), WRONG)
def test_wrong_usage_exits_with_2_and_sends_nothing(hark: Run, stub: Stub, line: str, named: str) -> None:
    result = hark(*shlex.split(line), stdin="")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr
    assert named in result.stderr
    assert stub.seen == []


@pytest.mark.parametrize(
    ("line", "named"), [("push orders --stdin --text", "line 1 is not UTF-8"), ("kv put a --text --stdin", "not UTF-8")]
)
def test_input_that_is_not_utf8_is_wrong_usage(hark: Run, stub: Stub, line: str, named: str) -> None:
    result = hark(*line.split(), stdin=b"\xff\n")
    assert (result.exit_code, stub.seen) == (2, [])
    assert named in result.stderr
