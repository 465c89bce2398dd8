"""What commands do with whole stores: `hark export` and `import`, `backup` and `restore`, `migrate`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hark.clock import SystemClock
from tests.postgres_server import PostgresServer
from tests.s3.credentials import AWS_ENVIRONMENT
from tests.s3.stub.server import StubServer, serving_in_thread
from tests.s3.stub.store import StubStore
from tests.servers import running_server

from .conftest import Run, runner


@pytest.fixture(scope="module")
def other_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A second server, to import into."""
    with running_server(tmp_path_factory.mktemp("other")) as url:
        yield url


@pytest.fixture
def hark(server_url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command line, pointed at the server to export from."""
    monkeypatch.setenv("HARK_URL", server_url)
    return runner()


def done(run: Run, *args: str, stdin: str | None = None) -> str:
    """Run a command that must succeed; what it printed."""
    result = run(*args, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout


def popped(run: Run, *args: str) -> list[Any]:
    """The payloads that a group gets now, settled."""
    result = run("pop", *args, "--batch", "100", "--auto-ack", "--json")
    return [message["data"] for message in json.loads(result.stdout)["messages"]] if result.exit_code == 0 else []


# Export and import -----------------------------------------------------------------------------------------


def test_groups_go_on_in_the_other_store_where_they_stood(hark: Run, queue: str, other_url: str) -> None:
    done(hark, "queue", "create", queue, "--set", "leaseTime=7")
    done(hark, "push", queue, "1", "2", "3", "--partition", "p1")
    done(hark, "push", queue, "4", "--partition", "p2")
    done(hark, "pop", queue, "--group", "half", "--partition", "p1", "--auto-ack")
    done(hark, "pop", queue, "--group", "whole", "--partition", "p1", "--batch", "3", "--auto-ack")
    done(hark, "export", queue, "--output", "queue.jsonl")
    there = ("--url", other_url)
    assert "4 queued; groups created: half, whole" in done(hark, "import", "queue.jsonl", *there)
    assert json.loads(done(hark, "queue", "show", queue, "--json", *there))["options"]["leaseTime"] == 7
    assert sorted(popped(hark, queue, "--group", "half", "--partition", "p1", *there)) == [2, 3]
    assert popped(hark, queue, "--group", "half", "--partition", "p2", *there) == [4]
    assert popped(hark, queue, "--group", "whole", "--partition", "p1", *there) == []
    assert popped(hark, queue, "--group", "new", "--partition", "p1", *there) == [1, 2, 3]


def test_a_second_import_changes_nothing(hark: Run, queue: str, other_url: str) -> None:
    done(hark, "push", queue, "1", "2")
    done(hark, "pop", queue, "--group", "audit", "--auto-ack")
    done(hark, "export", queue, "--output", "queue.jsonl")
    done(hark, "import", "queue.jsonl", "--url", other_url)
    assert popped(hark, queue, "--group", "audit", "--url", other_url) == [2]
    again = hark("import", "queue.jsonl", "--url", other_url)
    assert again.exit_code == 0, again.output
    assert "2 duplicate" in again.stdout
    assert "keeps its options" in again.stderr and "keeps its position" in again.stderr
    assert popped(hark, queue, "--group", "audit", "--url", other_url) == []


def test_groups_are_put_in_their_positions_also_behind_messages_that_were_there(hark: Run, queue: str) -> None:
    done(hark, "push", queue, "1", "2", "3")
    done(hark, "pop", queue, "--group", "audit", "--auto-ack")
    lines = done(hark, "export", queue)
    copy = f"{queue}-copy"
    done(hark, "push", copy, '"old"')
    done(hark, "import", "-", "--queue", copy, stdin=lines)
    assert popped(hark, copy, "--group", "audit") == [2, 3]


def test_paused_groups_and_limits_and_shared_mode_come_along(hark: Run, queue: str, other_url: str) -> None:
    done(hark, "push", queue, "1")
    hark("pop", queue, "--group", "work", "--group-mode", "shared", "--auto-ack")
    done(hark, "push", queue, "2")
    done(hark, "group", "pause", "work", queue)
    done(hark, "group", "limits", "work", queue, "--max-in-flight", "3")
    done(hark, "import", "-", "--url", other_url, stdin=done(hark, "export", queue))
    [group] = json.loads(done(hark, "group", "list", "--queue", queue, "--json", "--url", other_url))
    assert (group["name"], group["groupMode"], group["paused"], group["totalLag"]) == ("work", "shared", True, 1)
    limits = json.loads(done(hark, "group", "limits", "work", queue, "--json", "--url", other_url))
    assert limits["limits"]["maxInFlight"] == 3


def test_options_of_messages_come_along_and_what_expired_does_not(hark: Run, queue: str, other_url: str) -> None:
    done(hark, "push", queue, '"later"', "--delay", "600000", "--priority", "4", "--transaction-id", "t-1")
    lines = done(hark, "export", queue).splitlines()
    message = json.loads(lines[-2])
    message |= {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "vendor=1"}
    lines[-2] = json.dumps(message)
    past = message | {"transactionId": "t-2", "expiresAt": 1, "payload": "past"}
    text = "\n".join([*lines[:-1], json.dumps(past), json.dumps({"type": "end", "messages": 2})])
    assert "1 expired, 1 queued" in done(hark, "import", "-", "--url", other_url, stdin=text)
    again = json.loads(done(hark, "export", queue, "--url", other_url).splitlines()[-2])
    same = ("transactionId", "priority", "deliverAt", "payload", "traceparent", "tracestate")
    assert [again[name] for name in same] == [message[name] for name in same]


def test_an_export_names_the_requeued_messages_that_it_leaves_out(hark: Run, queue: str) -> None:
    kill_one(hark, queue, "1")
    result = hark("export", queue)
    assert result.stderr == ""
    assert json.loads(result.stdout.splitlines()[-1]) == {"type": "end", "messages": 1, "deadLetters": 1}
    done(hark, "dlq", "requeue", "--all", "--queue", queue, "--yes")
    assert "1 messages" in hark("export", queue).stderr


def kill_one(hark: Run, queue: str, payload: str, *there: str) -> None:
    """Push a message that becomes a dead letter of the group `work`."""
    done(hark, "push", queue, payload, "--priority", "4", "--transaction-id", f"dead-{payload[:9]}", *there)
    [message] = json.loads(done(hark, "pop", queue, "--group", "work", "--json", *there))["messages"]
    done(hark, "ack", message["id"], "--group", "work", "--status", "dlq", "--error", "boom", *there)


def letters(hark: Run, queue: str, *there: str) -> list[Any]:
    """The dead letters of a queue, without what depends on the store."""
    found = json.loads(done(hark, "dlq", "list", "--queue", queue, "--json", *there))["messages"]
    return [{name: value for name, value in one.items() if name not in ("id", "partitionId")} for one in found]


def test_dead_letters_and_keys_go_from_store_to_store(
    hark: Run, queue: str, tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in AWS_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with (
        running_server(tmp_path, engine="sqlite:///first.db") as first,
        running_server(tmp_path / "2", engine=postgres_url) as second,
        serving_in_thread(StubServer(StubStore(SystemClock()))) as bucket,
        running_server(tmp_path / "3", engine=bucket.bucket_url("third")) as third,
    ):
        here = ("--url", first)
        for payload in ("1", "2", json.dumps("x" * 5000)):
            kill_one(hark, queue, payload, *here)
        done(hark, "push", queue, "3", *here)
        done(hark, "kv", "put", "users/17", '{"name":\n"Ada"}', *here)
        done(hark, "kv", "put", '["users", "17"]', "null", "--expires-in", "600000", *here)
        wanted, source = letters(hark, queue, *here), first
        assert [one["attempts"] for one in wanted] == [1, 1, 1]
        for url in (second, third):
            done(hark, "export", queue, "--keys", "--output", "all.jsonl", "--url", source)
            shown = done(hark, "import", "all.jsonl", "--url", url)
            assert "4 queued; groups created: work; dead letters: 3 imported; keys: 2 imported" in shown
            again = done(hark, "import", "all.jsonl", "--url", url)
            assert "4 duplicate; groups created: none; dead letters: 3 duplicate; keys: 2 kept" in again
            assert letters(hark, queue, "--url", url) == wanted
            source = url
        there = ("--url", third)
        entries = json.loads(done(hark, "kv", "list", "users", "--json", *there))
        assert [(entry["key"], entry["value"]) for entry in entries] == [
            (["users", "17"], None),
            (["users", 17], {"name": "Ada"}),
        ]
        [old, _] = json.loads(done(hark, "kv", "list", "users", "--json", *here))
        assert entries[0]["expiresAt"] == pytest.approx(old["expiresAt"], abs=5000)
        assert "expiresAt" not in entries[1]
        assert popped(hark, queue, "--group", "work", *there) == [3]
        done(hark, "dlq", "requeue", "--all", "--queue", queue, "--yes", *there)
        assert popped(hark, queue, "--group", "work", *there) == [1, 2, "x" * 5000]


def test_a_copy_in_the_same_store_has_dead_letters_of_its_own(hark: Run, queue: str) -> None:
    kill_one(hark, queue, "1")
    lines, copy = done(hark, "export", queue), f"{queue}-copy"
    assert "dead letters: 1 imported" in done(hark, "import", "-", "--queue", copy, stdin=lines)
    assert "dead letters: 1 duplicate" in done(hark, "import", "-", "--queue", copy, stdin=lines)
    assert "dead letters: 1 duplicate" in done(hark, "import", "-", stdin=lines)
    done(hark, "dlq", "purge", queue, "--yes")
    assert [one["data"] for one in letters(hark, copy)] == [1]


def test_a_dead_letter_whose_message_is_gone_is_imported_too(hark: Run, queue: str, other_url: str) -> None:
    kill_one(hark, queue, "1")
    done(hark, "queue", "purge", queue, "--yes")
    done(hark, "import", "-", "--url", other_url, stdin=done(hark, "export", queue))
    assert [one["transactionId"] for one in letters(hark, queue, "--url", other_url)] == ["dead-1"]
    done(hark, "dlq", "requeue", "--all", "--queue", queue, "--yes", "--url", other_url)
    assert popped(hark, queue, "--group", "work", "--url", other_url) == [1]


def test_a_key_that_exists_is_kept_unless_it_is_to_be_replaced_and_an_expired_one_is_left_out(
    hark: Run, queue: str
) -> None:
    lines = [
        {"type": "keys", "format": 2},
        {"type": "key", "key": [queue, 1], "value": "new"},
        {"type": "key", "key": [queue, 2], "value": "new"},
        {"type": "key", "key": [queue, 3], "value": "past", "expiresAt": 1},
        {"type": "end", "messages": 0, "keys": 3},
    ]
    text = "\n".join(map(json.dumps, lines))
    done(hark, "kv", "put", f"{queue}/1", '"old"')
    assert "imported keys: 1 expired, 1 imported, 1 kept" in done(hark, "import", "-", stdin=text)
    assert (done(hark, "kv", "get", f"{queue}/1"), done(hark, "kv", "get", f"{queue}/2")) == ('"old"\n', '"new"\n')
    assert "imported keys: 1 expired, 2 imported" in done(hark, "import", "-", "--replace", stdin=text)
    assert done(hark, "kv", "count", queue) == "2\n"
    assert done(hark, "kv", "get", f"{queue}/1") == '"new"\n'
    refused = hark("import", "-", "--queue", "orders", stdin=text)
    assert refused.exit_code == 2 and "only keys" in refused.stderr


def test_a_large_value_is_imported_in_a_request_of_its_own(hark: Run, queue: str) -> None:
    header, end = {"type": "keys", "format": 2}, {"type": "end", "messages": 0}
    sizes = [500_000, 10_300_000, 500_000]  # Two of them are larger together than a request may be.
    keys = [{"type": "key", "key": [queue, number], "value": "x" * size} for number, size in enumerate(sizes)]
    done(hark, "import", "-", stdin="\n".join(map(json.dumps, [header, *keys, end])))
    for number, size in enumerate(sizes):
        assert len(json.loads(done(hark, "kv", "get", f"{queue}/{number}"))) == size
        done(hark, "kv", "delete", f"{queue}/{number}")  # Other tests export all keys of this server.


def test_keys_alone_are_exported_page_by_page(hark: Run, queue: str, other_url: str) -> None:
    header, end = {"type": "keys", "format": 2}, {"type": "end", "messages": 0}
    keys = [{"type": "key", "key": [queue, number], "value": number} for number in range(250)]
    done(hark, "import", "-", stdin="\n".join(map(json.dumps, [header, *keys, end])))
    done(hark, "export", "--keys", "--output", "keys.jsonl")
    assert "keys:" in done(hark, "import", "keys.jsonl", "--url", other_url)
    assert done(hark, "kv", "count", queue, "--url", other_url) == "250\n"
    assert hark("export").exit_code == 2


def test_a_file_of_the_first_format_is_imported(hark: Run, queue: str) -> None:
    lines = [
        {"type": "queue", "format": 1, "name": queue, "namespace": "", "task": "", "options": {}, "messages": 1,
         "deadLetters": 2},
        {"type": "group", "name": "work", "mode": "ordered"},
        {"type": "position", "group": "work", "partition": "p", "offset": 2},
        {"type": "message", "partition": "p", "offset": 1, "transactionId": "t", "payload": 1, "createdAt": 1},
        {"type": "end", "messages": 1},
    ]  # fmt: skip
    shown = done(hark, "import", "-", stdin="\n".join(map(json.dumps, lines)))
    assert shown == f"imported queue {queue}: 1 queued; groups created: work\n"


def test_an_export_without_what_the_server_can_not_read_ends_with_a_code_of_its_own(
    hark: Run, queue: str, tmp_path: Path
) -> None:
    store = "sqlite:///sealed.db"
    with running_server(tmp_path, engine=store, settings={"HARK_ENCRYPTION_KEY": "ab" * 32}) as url:
        done(hark, "queue", "create", queue, "--set", "encryptionEnabled=true", "--url", url)
        done(hark, "push", queue, "1", "2", "--url", url)
        kill_one(hark, queue, "3", "--url", url)
        assert len(done(hark, "export", queue, "--url", url).splitlines()) > 4
    with running_server(tmp_path, engine=store, settings={"HARK_ENCRYPTION_KEY": "cd" * 32}) as url:
        done(hark, "push", queue, "4", "--url", url)
        result = hark("export", queue, "--output", "queue.jsonl", "--url", url)
        assert result.exit_code == 4
        assert "exported 1 messages, 0 dead letters" in result.stdout
        assert "3 messages, 1 dead letter;" in result.stderr and "encryption_key_missing" in result.stderr
        imported = hark("import", "queue.jsonl", "--queue", f"{queue}-copy", "--url", url)
        assert imported.exit_code == 0 and "4 entries are missing" in imported.stderr
        shown = json.loads(done(hark, "dlq", "list", "--queue", queue, "--json", "--url", url))["messages"]
        assert [(one["data"], one["payloadError"].split(":")[0]) for one in shown] == [(None, "encryption_key_missing")]
        tail = done(hark, "tail", queue, "--from", "head", "--limit", "4", "--url", url)
        assert tail.count("encryption_key_missing") == 3 and tail.rstrip().endswith("4")


def test_a_bounded_queue_comes_along_with_more_than_its_bound_that_is_settled(
    hark: Run, queue: str, other_url: str
) -> None:
    done(hark, "queue", "create", queue, "--set", "maxSize=2")
    for number in range(4):
        done(hark, "push", queue, str(number))
        done(hark, "pop", queue, "--auto-ack")
    done(hark, "export", queue, "--output", "queue.jsonl")
    done(hark, "import", "queue.jsonl", "--url", other_url)
    assert json.loads(done(hark, "queue", "show", queue, "--json", "--url", other_url))["options"]["maxSize"] == 2


def test_a_file_that_is_not_whole_makes_no_group_and_is_notified(hark: Run, queue: str, other_url: str) -> None:
    done(hark, "push", queue, "1", "2")
    done(hark, "pop", queue, "--group", "audit", "--auto-ack")
    cut = "\n".join(done(hark, "export", queue).splitlines()[:-2])
    result = hark("import", "-", "--url", other_url, stdin=cut)
    assert result.exit_code == 1
    assert "incomplete" in result.stderr and "1 messages" in result.stderr
    assert json.loads(done(hark, "group", "list", "--queue", queue, "--json", "--url", other_url)) == []


def test_when_a_group_can_not_be_put_in_its_place_it_is_given_a_remedy(hark: Run, queue: str, other_url: str) -> None:
    done(hark, "push", queue, "1")
    done(hark, "pop", queue, "--group", "audit", "--auto-ack")
    exported = done(hark, "export", queue).replace('"mode":"ordered"', '"mode":"ordered","limits":{"maxInFlight":-5}')
    result = hark("import", "-", "--url", other_url, stdin=exported)
    assert result.exit_code == 1
    assert "is paused" in result.stderr and "delete the queue and import again" in result.stderr


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", "empty"),
        ("hello", "line 1"),
        ('{"type": "end", "messages": 0}', "does not begin with a queue"),
        ('{"type": "queue", "format": 9, "name": "q", "namespace": "", "task": "", "options": {}, "messages": 0}', "9"),
    ],
    ids=["empty", "text", "headless", "newer"],
)
def test_what_is_no_export_is_refused(hark: Run, text: str, shown: str) -> None:
    result = hark("import", "-", stdin=text)
    assert result.exit_code == 2
    assert shown in result.stderr


def test_a_queue_that_is_not_there_leaves_no_file(hark: Run, queue: str, tmp_path: Path) -> None:
    assert hark("export", queue, "--output", "queue.jsonl").exit_code == 1
    assert list(tmp_path.iterdir()) == []


# Backup and restore ----------------------------------------------------------------------------------------


def test_a_backup_of_a_running_server_can_be_restored_and_served(hark: Run, tmp_path: Path) -> None:
    with running_server(tmp_path, engine="sqlite:///data/hark.db") as url:
        assert hark("push", "orders", "1", "2", "--url", url).exit_code == 0
        result = hark("backup", "copy.db", "--data", "data")
        assert result.exit_code == 0, result.output
        assert "backed up" in result.stdout
        assert hark("restore", "copy.db", "--data", "data", "--replace", "--yes").exit_code == 1, "it is being served"
        assert hark("push", "orders", "3", "--url", url).exit_code == 0
    refused = hark("restore", "copy.db", "--data", "data")
    assert refused.exit_code == 1 and "--replace" in refused.stderr
    restored = hark("restore", "copy.db", "--data", "data", "--replace", "--yes")
    assert restored.exit_code == 0, restored.output
    assert "hark.db.before-" in restored.stdout
    with running_server(tmp_path, engine="sqlite:///data/hark.db") as url:
        assert popped(hark, "orders", "--url", url) == [1, 2]


def test_replacing_asks_first(hark: Run, tmp_path: Path) -> None:
    (tmp_path / "copy.db").touch()
    result = hark("restore", "copy.db", "--replace")
    assert result.exit_code == 2
    assert "--yes" in result.stderr


@pytest.mark.parametrize("engine", ["memory", "postgresql://hark:secret@db/hark"])
def test_other_stores_are_refused_without_their_password(
    hark: Run, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARK_ENGINE", engine)
    result = hark("backup", "copy.db")
    assert result.exit_code == 2
    assert "SQLite" in result.stderr and "secret" not in result.output


# Migrations ------------------------------------------------------------------------------------------------


def test_it_says_what_it_would_do_then_does_it_then_has_nothing_to_do(
    hark: Run, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgres_server.fresh_database(installed=False) as url:
        monkeypatch.setenv("HARK_ENGINE", url)
        dry = hark("migrate", "--dry-run")
        assert (dry.exit_code, dry.stdout.splitlines()[0]) == (0, "would apply 0001 tables (pre)")
        sql = hark("migrate", "--dry-run", "--verbose").stdout
        assert "-- 0001_tables.sql\n" in sql and "create table hark.meta (" in sql
        applied = hark("migrate")
        assert (applied.exit_code, applied.stdout) == (0, dry.stdout.replace("would apply", "applied"))
        for arguments in ((), ("--post",), ("--dry-run",)):
            assert hark("migrate", *arguments).stdout == "the schema is up to date\n"


def test_the_engine_may_come_from_the_environment(
    hark: Run, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARK_ENGINE", postgres_url)
    assert hark("migrate").stdout == "the schema is up to date\n"


@pytest.mark.parametrize("arguments", [(), ("--engine", "memory"), ("--engine", "sqlite:///x.db")])
def test_an_engine_without_a_schema_of_its_own_is_refused(hark: Run, arguments: tuple[str, ...]) -> None:
    result = hark("migrate", *arguments)
    assert result.exit_code == 2
    assert "postgresql://" in result.stderr


@pytest.mark.parametrize("url", ["postgresql://me:s3cret@db/d", "postgres://db/d?password=s3cret&user=me"])
def test_a_password_on_the_command_line_is_refused_with_the_positions_where_it_belongs(hark: Run, url: str) -> None:
    for command in ("migrate", "serve"):
        result = hark(command, "--engine", url)
        assert result.exit_code == 2
        assert "HARK_ENGINE" in result.stderr and "hark.toml" in result.stderr and "PGPASSFILE" in result.stderr
        assert "s3cret" not in result.output


# Stores that cannot be used --------------------------------------------------------------------------------


def test_data_below_a_file_is_explained(hark: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = hark("serve", "--data", str(tmp_path / "file" / "below"), "--port", "0")
    assert result.exit_code == 1
    assert "file/below does not exist and cannot be created in" in result.stderr
    assert "Not a directory; create it, or choose another --data" in result.stderr


def test_a_database_that_is_not_there_exits_with_1_and_shows_no_password(
    hark: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARK_ENGINE", "postgresql://me:s3cret@127.0.0.1:1/d")
    result = hark("migrate")
    assert result.exit_code == 1
    assert "is not reachable" in result.stderr
    assert "s3cret" not in result.output


def test_without_asyncpg_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['asyncpg'] = None; from hark.cli import main; main()"
    command = [sys.executable, "-c", code, "migrate", "--engine", "postgresql://127.0.0.1:1/d"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'hark-mq[postgres]' (invalid_setting)" in done.stderr
