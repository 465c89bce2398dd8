"""The API is described once: the server answers all of its operations and no others, and nothing else has a path."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest

from hark.api import operations
from hark.api.operations import Operation
from hark.broker import Broker
from hark.http.app import App
from hark.settings import Settings

ROOT = Path(operations.__file__).parents[1]
OPERATIONS: dict[str, Operation[Any]] = {
    name: one for name, one in vars(operations).items() if isinstance(one, Operation)
}
_PATH = re.compile(r"""["']/(?:api/v1|keyval/api)/""")


def test_the_server_answers_every_operation_and_no_other() -> None:
    table = App(cast(Broker, None), Settings()).table
    bound = {(path, method): one for path, methods in table.items() for method, one in methods.items()}
    described = {(one.path, one.method): one for one in OPERATIONS.values()}
    assert len(described) == len(OPERATIONS), "two operations with the same method and path"
    assert bound.keys() == described.keys()
    for name, one in described.items():
        assert (bound[name].role, bound[name].reach) == (one.role, one.reach)
        assert one.answer() in (*bound[name].answers.values(), str), name


@pytest.mark.parametrize("folder", ["client", "cli", "http", "worker", "sync"])
def test_paths_stand_in_the_description_only(folder: str) -> None:
    found = [str(path) for path in (ROOT / folder).rglob("*.py") if _PATH.search(path.read_text())]
    assert found == []


@pytest.mark.parametrize(
    ("operation", "names", "path"),
    [
        (operations.LIST_QUEUES, (), "/api/v1/resources/queues"),
        (operations.SHOW_QUEUE, ("a/b c",), "/api/v1/resources/queues/a%2Fb%20c"),
        (operations.POP_OF_QUEUE_PARTITION, ("q", "{queue}"), "/api/v1/pop/queue/q/partition/%7Bqueue%7D"),
        (operations.KEYVAL_GET_KEY, ("users", "a/b"), "/keyval/api/keys/users/a%2Fb"),
    ],
)
def test_names_in_a_path_are_percent_encoded(operation: Operation[Any], names: tuple[str, ...], path: str) -> None:
    assert operation.at(*names) == path
