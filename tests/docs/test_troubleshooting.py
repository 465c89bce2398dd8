"""What the pages for operators show is run: each symptom is made, and the commands must find it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import runner
from tests.http.api import Api, read
from tests.servers import running_server

from .examples import DOCS, RUN, Block, blocks_of, run_command, run_page

PAGE = DOCS / "troubleshooting.md"
QUEUE, GROUP = "orders", "billing"
SWITCHES = ("/system/maintenance", "/system/maintenance/pop")
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a store on disk, for all parts of the page."""
    directory = tmp_path_factory.mktemp("server")
    with running_server(directory, engine=f"sqlite:///{directory / 'hark.db'}") as running:
        yield running


@pytest.fixture
def api(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """Its API; the queue of the page is empty at first, and nothing stays switched."""
    monkeypatch.chdir(tmp_path)
    with httpx.Client(base_url=url, timeout=30) as client:
        api = Api(client)
        api.delete(f"/resources/queues/{QUEUE}")
        yield api
        for switch in SWITCHES:
            read(api.post(switch, {"enabled": False}))


def sections() -> dict[str, list[Block]]:
    """The commands of the page, by its headings."""
    text = PAGE.read_text(encoding="utf-8")
    lines = [(text.count("\n", 0, match.start()) + 1, match[1]) for match in _HEADING.finditer(text)]
    found: dict[str, list[Block]] = {name: [] for _, name in lines}
    for block in blocks_of(PAGE):
        assert block.note == RUN, f"{block.location} is not run"
        found[max((line, name) for line, name in lines if line < block.line)[1]].append(block)
    return found


# Symptoms --------------------------------------------------------------------------------------------------


def pushed(api: Api, *payloads: object, **fields: object) -> list[str]:
    """Push messages: their ids."""
    return [one["message_id"] for one in api.push(QUEUE, *payloads, **fields)]


def nothing_is_wrong(api: Api) -> str:
    """A message that nobody asked for."""
    return pushed(api, 1)[0]


def pops_are_stopped(api: Api) -> str:
    """Pop maintenance."""
    read(api.post(SWITCHES[1], {"enabled": True}))
    return pushed(api, 1)[0]


def a_client_asks_in_a_loop(api: Api) -> str:
    """Empty pops."""
    for _ in range(5):
        assert api.pop(QUEUE) == []
    return ""


def a_delayed_message(api: Api) -> str:
    """A message for later, and a group that wants it."""
    assert api.pop(QUEUE, consumerGroup=GROUP) == []
    return pushed(api, 1, delay=3_600_000)[0]


def a_consumer_that_hangs(api: Api) -> str:
    """A message behind one that a consumer holds."""
    _, second = pushed(api, 1, 2, partition="p")
    api.pop_one(QUEUE, consumerGroup=GROUP, consumer="worker 7")
    return second


def a_message_that_failed(api: Api) -> str:
    """A message for the second time."""
    [message_id] = pushed(api, 1)
    assert api.ack(api.pop_one(QUEUE), "failed", error="no such customer")["success"]
    return message_id


def dead_letters(api: Api) -> str:
    """Two of them, with different errors."""
    api.push(QUEUE, 1, 2)
    for message, error in zip(api.pop(QUEUE, batch=2), ("a timeout", "no such customer"), strict=True):
        assert api.ack(message, "dlq", error=error)["dlq"]
    return ""


def pushes_are_stopped(api: Api) -> str:
    """Push maintenance, and somebody who was refused."""
    read(api.post(SWITCHES[0], {"enabled": True}))
    assert api.post("/push", {"items": [{"queue": QUEUE, "payload": 1}]}).status_code == 503
    return ""


SYMPTOMS: dict[str, tuple[Callable[[Api], str], tuple[str, ...]]] = {
    "First checks": (nothing_is_wrong, ("No group: no_group", '"status":"ready"', "backlog")),
    "Pops do not wait": (pops_are_stopped, ("204 after", "pops    stopped")),
    "High CPU usage": (
        a_client_asks_in_a_loop,
        ("hark_empty_pops_total", "hark_http_requests_total{", "hark_wakes_total{", "hark_event_loop_lag_seconds_sum"),
    ),
    "Messages arrive late": (a_delayed_message, ("Group billing: delayed", "hark_delivery_age_seconds_sum")),
    "Requests time out": (
        nothing_is_wrong,
        ("s to connect", 'hark_engine_call_seconds_sum{verb="push"}', "hark_event_loop_lag_seconds_count"),
    ),
    "Leases expire": (a_consumer_that_hangs, ("worker 7", "hark_lease_expiries_total")),
    "A partition is stuck": (a_consumer_that_hangs, ("Group billing: behind", "worker 7")),
    "Messages are delivered twice": (
        a_message_that_failed,
        ("no such customer", '"attempts":1', "hark_settle_refusals_total"),
    ),
    "Dead letters accumulate": (
        dead_letters,
        ("no such customer", "requeued 1 dead letter\n", "deleted 1 dead letter of queue orders"),
    ),
    "429 and 503 responses": (
        pushes_are_stopped,
        ('status="503"', 'hark_maintenance{verb="push"} 1.0', "hark_store_up 1.0"),
    ),
    "401 and 403 responses": (nothing_is_wrong, ('"required":false',)),
    "The disk is full": (nothing_is_wrong, ("hark_store_free_bytes", "hark_store_log_bytes")),
}


def test_every_part_of_the_page_has_commands_and_a_symptom() -> None:
    assert {name for name, blocks in sections().items() if blocks} == set(SYMPTOMS)
    assert [name for name, blocks in sections().items() if not blocks] == []


@pytest.mark.parametrize("name", SYMPTOMS)
def test_the_commands_of_a_part_find_what_it_is_about(
    api: Api, url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, expected = SYMPTOMS[name]
    monkeypatch.setenv("ID", prepare(api))
    output = "".join(run_command(block, url) for block in sections()[name])
    assert [words for words in expected if words not in output] == [], output


def test_the_advice_for_a_stuck_partition_frees_it(api: Api, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a_consumer_that_hangs(api)
    [lease] = read(api.get("/leases", queue=QUEUE))["leases"]
    monkeypatch.setenv("HARK_URL", url)
    result = runner()("ack", lease["firstMessageId"], "--group", GROUP, "--status", "retry")
    assert (result.exit_code, result.stdout) == (0, "settled as retry\n")
    assert api.pop_one(QUEUE, consumerGroup=GROUP)["id"] == lease["firstMessageId"]


def test_the_commands_for_operators_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hark-data").mkdir()
    page = DOCS / "operations.md"
    shown = [block for block in blocks_of(page) if block.note]
    with running_server(tmp_path, engine=f"sqlite:///{tmp_path / 'hark-data' / 'hark.db'}") as url:
        assert run_page(page, url, "docs_operations") == len(shown) == 4
    assert (tmp_path / "restored-data" / "hark.db").exists()
