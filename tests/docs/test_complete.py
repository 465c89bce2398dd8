"""The guides leave nothing out: every verb, option and fixture that users have is shown or named."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable

import pytest

import hark
from hark.client.admin import Admin, Groups, Schedules, Traces
from hark.client.arguments import PushOptions
from hark.client.client import Client
from hark.client.delivery.message import Message
from hark.client.keys import Atomic, KeyValue
from hark.client.queue import DeadLetters, Queue, QueueAdmin
from hark.client.transaction import Transaction
from hark.polling import Poller, PollingStrategy
from hark.settings import SETTINGS
from hark.testing import HarkServer, ServerClock
from hark.worker import Counts, RetryPolicy, Task, TaskContext, Worker, WorkerRunOptions
from hark.worker import __all__ as of_workers
from hark.worker.task import PushOptions as TaskPushOptions

from .examples import DOCS
from .test_examples import PAGES

_CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)

UNSAID = {
    Client: {"buffers", "caller", "open", "open_prefetcher", "pusher", "retire"} | {"settler", "sockets"},
    Message: {"begin", "conclude", "delivered", "in_span", "stop_renewing", "open_span", "released"}
    | {"close_span", "settle_at_end"},
    Atomic: {"body", "empty", "repeatable"},
    Worker: {"client", "connect_to", "group", "middleware", "name", "run_from_thread", "queue", "send", "send_many"}
    | {"address", "caller_of_handle", "move_to", "tasks"},
    Task: {
        "function",
        "is_async",
        "message",
        "name",
        "node",
        "result_type",
        "returns",
        "send",
        "send_from_thread",
        "send_many",
        "signature",
        "unique",
        "worker",
    },
    TaskContext: {"lose", "lost"},
    RetryPolicy: {"delay", "delays", "jittered"},
    Poller: {"strategy", "stopped", "metrics", "interval"},
    PollingStrategy: {"longest_interval"},
    Counts: {"add", "seconds"},
}
"""What is for Hark itself, or explains itself."""


def _public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")} - UNSAID.get(kind, set())


def _missing(page: str, names: Iterable[str]) -> list[str]:
    code = "\n".join(_CODE.findall((DOCS / page).read_text(encoding="utf-8")))
    return sorted(name for name in names if not re.search(rf"\b{re.escape(name)}\b", code))


GUIDES: dict[str, tuple[type, ...]] = {
    "client.md": (
        Client,
        Queue,
        Message,
        Transaction,
        DeadLetters,
        KeyValue,
        Atomic,
        Traces,
        Schedules,
        Groups,
        Admin,
        QueueAdmin,
    ),
    "worker.md": (Worker, Task, TaskContext, RetryPolicy, Counts),
    "polling.md": (Poller, PollingStrategy),
    "testing.md": (HarkServer, ServerClock),
}


@pytest.mark.parametrize(
    ("page", "kind"),
    [(page, kind) for page, kinds in GUIDES.items() for kind in kinds],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_every_verb_is_in_the_guide(page: str, kind: type) -> None:
    assert _missing(page, _public(kind)) == []


def test_every_option_of_a_push_and_of_a_connection_is_in_the_guide() -> None:
    assert _missing("client.md", PushOptions.__annotations__) == []
    assert (
        _missing("client.md", [name for name in inspect.signature(hark.connect).parameters if name != "target"]) == []
    )


def test_every_option_of_a_worker_is_in_its_guide() -> None:
    options = [*WorkerRunOptions.__struct_fields__, *TaskPushOptions.__annotations__]
    made_with = [name for name in inspect.signature(Worker).parameters if name != "target"]
    task_options = [name for name in inspect.signature(Task).parameters if name not in ("worker", "function")]
    assert _missing("worker.md", [*options, *made_with, *task_options]) == []


def test_every_public_name_is_in_a_guide() -> None:
    answers = {"Counts", "Outgoing", "Snapshot", "Summary", "TaskContext", "TaskEvent"}
    pages = [page.name for page in DOCS.glob("*.md")]
    for name in {*hark.__all__, *of_workers} - answers - {"__version__"}:
        assert any(not _missing(page, [name]) for page in pages), name


def test_a_name_that_a_guide_does_not_have_is_found() -> None:
    assert _missing("client.md", ["push", "no_such_verb"]) == ["no_such_verb"]


def test_every_variable_and_every_setting_that_a_guide_names_exists() -> None:
    # Read elsewhere; and what begins the names of several.
    others = {"HARK_URL", "HARK_CONFIG", "HARK_TOKEN", "HARK_CA_FILE", "HARK_POLLING_"}
    for page in PAGES:
        text = (DOCS / page).read_text(encoding="utf-8")
        variables = set(re.findall(r"\bHARK_[A-Z_]+", text)) - others
        assert variables <= {setting.env for setting in SETTINGS.values()}, page
        named = set(re.findall(r"settings? `(worker\.[a-z_.]+)`", text))
        assert {name for name in named if name not in SETTINGS and f"{name}.strategy" not in SETTINGS} == set(), page
