"""The OpenAPI document is made of the table of routes, and what the server answers is what it says."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any, cast

import httpx
import pytest
from schemathesis import GenerationMode, openapi

from hark.broker import Broker
from hark.http.app import App
from hark.http.routes.table import WEBSOCKET
from hark.settings import Limits, Settings
from tests.conftest import running_server
from tests.http.conformance import SERVER_SETTINGS, Conformance

EXAMPLES = int(os.environ.get("HARK_TEST_FUZZ_REQUESTS", "4"))
_ORDER = ["GET", "POST", "PUT", "DELETE"]
"""What reads comes before what destroys: so there is something to read."""

Json = Any


def _names() -> list[str]:
    """The operations of the table as the document has them: `GET /path/{name}`."""
    table = App(cast(Broker, None), Settings()).table
    names = [
        f"{'GET' if method == WEBSOCKET else method} {re.sub(r':path', '', path)}"
        for path, operations in table.items()
        for method in operations
    ]
    return sorted(names, key=lambda name: _ORDER.index(name.partition(" ")[0]))


NAMES = _names()


@pytest.fixture(scope="module")
def document(server_url: str) -> Json:
    """What a server says of itself."""
    response = httpx.get(f"{server_url}/openapi.json")
    assert response.headers["content-type"] == "application/json"
    return response.json()


@pytest.fixture(scope="module")
def operations(document: Json) -> dict[str, Json]:
    """Its operations, by method and path."""
    return {
        f"{method.upper()} {path}": operation
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }


def test_the_document_is_valid(document: Json) -> None:
    openapi.from_dict(document).validate()
    assert document["openapi"].startswith("3.1")


def test_the_document_has_every_route_of_the_table_and_nothing_else(operations: dict[str, Json]) -> None:
    assert sorted(operations) == sorted(NAMES)


def test_every_operation_has_a_name_of_its_own(operations: dict[str, Json]) -> None:
    ids = [operation["operationId"] for operation in operations.values()]
    assert len(ids) == len(set(ids))
    assert [id for id in ids if not re.fullmatch(r"[a-z_]+", id)] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_operation_says_what_it_does_takes_and_answers(operations: dict[str, Json], name: str) -> None:
    operation = operations[name]
    assert 0 < len(operation["summary"]) <= 120
    assert operation["tags"]
    for parameter in operation["parameters"]:
        assert parameter["in"] == "path" or parameter["description"].endswith(".")
    [(status, answer), *_] = operation["responses"].items()
    assert status in {"101", "200", "201"}
    assert status == "101" or answer["content"], f"{name} does not say what it answers"


def test_only_what_is_for_everybody_needs_no_token(operations: dict[str, Json]) -> None:
    public = {name for name, operation in operations.items() if not operation["security"]}
    assert public == {
        "GET /",
        "GET /assets/{path}",
        "GET /health",
        "GET /health/live",
        "GET /health/ready",
        "GET /openapi.json",
        "GET /api/v1/session",
        "POST /api/v1/session",
        "DELETE /api/v1/session",
    }


def test_the_numbers_are_those_of_the_settings() -> None:
    table = App(cast(Broker, None), Settings(limits=Limits(max_batch=7))).table
    [batch] = [param for param in table["/api/v1/pop"]["GET"].query if param.name == "batch"]
    assert batch.schema()["maximum"] == 7


# The running server ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def conformance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conformance]:
    """A server with one of everything."""
    with (
        running_server(tmp_path_factory.mktemp("conformance"), settings=SERVER_SETTINGS) as url,
        Conformance(url) as checked,
    ):
        yield checked


@pytest.mark.parametrize("name", NAMES)
def test_right_requests_are_answered_as_the_document_says(conformance: Conformance, name: str) -> None:
    conformance.check(name, GenerationMode.POSITIVE, EXAMPLES)


@pytest.mark.parametrize("name", NAMES)
def test_wrong_requests_are_refused_as_the_document_says(conformance: Conformance, name: str) -> None:
    conformance.check(name, GenerationMode.NEGATIVE, EXAMPLES)
