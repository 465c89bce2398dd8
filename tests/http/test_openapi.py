"""The OpenAPI document is made of the table of routes, and what the server answers is what it says."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, cast

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode, openapi
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from hark.api.fields import FIELDS, OF_SCHEMA
from hark.api.operations import WEBSOCKET
from hark.broker import Broker
from hark.http.app import App
from hark.http.routes.table import EVENTS
from hark.settings import Limits, Settings
from tests.http.api import Api, Json
from tests.http.test_errors import TABLE as ROUTES
from tests.http.test_fuzz import FIXED, SERVER_SETTINGS
from tests.servers import running_server

EXAMPLES = int(os.environ.get("HARK_TEST_FUZZ_REQUESTS", "4"))
_ORDER = ["GET", "POST", "PUT", "DELETE"]
"""What reads comes before what destroys: so there is something to read."""

TABLE = {
    f"{'GET' if method == WEBSOCKET else method} {re.sub(r':path', '', path)}": operation
    for path, operations in ROUTES.items()
    for method, operation in operations.items()
}
"""The operations as the document has them: `GET /path/{name}`."""
NAMES = sorted(TABLE, key=lambda name: _ORDER.index(name.partition(" ")[0]))


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
    assert re.fullmatch(r"[A-Z][^.;:]{3,80}", operation["summary"]), "a short summary without a full stop"
    assert operation["description"].endswith(".")
    assert not operation["description"].startswith(operation["summary"] + ". ")
    assert operation["tags"]
    for parameter in operation["parameters"]:
        assert parameter["description"].endswith(".")
    [(status, answer), *_] = operation["responses"].items()
    assert status in {"101", "200", "201"}
    assert status == "101" or answer["content"], f"{name} does not say what it answers"


def test_every_field_has_a_description(document: Json) -> None:
    schemas = document["components"]["schemas"]
    fields = {(name, field): text for name, schema in schemas.items() for field, text in schema["properties"].items()}
    assert [name for name, field in fields.items() if not field["description"].endswith(".")] == []
    options = schemas["ConfigureBody"]["properties"]["options"]["anyOf"][0]["properties"]
    assert all(
        options[name]["description"] == schemas["QueueOptions"]["properties"][name]["description"] for name in options
    )


def test_every_description_of_a_field_is_used(document: Json) -> None:
    fields = {name: set(schema["properties"]) for name, schema in document["components"]["schemas"].items()}
    own = {(name, field) for name, texts in OF_SCHEMA.items() for field in texts}
    assert {(name, field) for name, field in own if field not in fields.get(name, ())} == set()
    shared = {field for name, names in fields.items() for field in names if (name, field) not in own}
    assert set(FIELDS) == shared


def test_only_what_is_for_everyone_needs_no_token(operations: dict[str, Json]) -> None:
    public = {name for name, operation in operations.items() if not operation["security"]}
    assert public == {name for name, operation in TABLE.items() if operation.role is None}
    assert "GET /health" in public


def test_the_numbers_are_those_of_the_settings() -> None:
    table = App(cast(Broker, None), Settings(limits=Limits(max_batch=7))).table
    [batch] = [param for param in table["/api/v1/pop"]["GET"].query if param.name == "batch"]
    assert batch.schema()["maximum"] == 7


# The running server ----------------------------------------------------------------------------------------


CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
_SECONDS = 20.0

AnyCase = Case[Any]

Known = Mapping[str, Sequence[str]]
"""Names and ids that the server knows, by the name of the parameter."""


def seed(api: Api) -> Known:
    """Fill a server with one of everything, and answer what it is called."""
    api.configure("seeded", maxInFlight=100)
    api.push("seeded", {"n": 1}, {"n": 2}, 3, partition="p")
    dead = api.kill("seeded", {"dead": True}, group="g", partition="other")
    message = api.pop_one("seeded", "p", consumerGroup="g")
    trace = {"data": {"step": 1}, "eventType": "info", "traceNames": ["named"], "consumerGroup": "g"}
    name = {"transactionId": message["transactionId"], "partitionId": message["partitionId"]}
    api.post("/traces", name | trace).raise_for_status()
    letters = api.get("/dlq", queue="seeded").json()["messages"]
    api.client.put("/keyval/api/keys/seeded/1", json={"a": 1}).raise_for_status()
    api.client.post("/keyval/api/queue/enqueue", json={"value": 1}).raise_for_status()
    return {
        "queue": ["seeded"],
        "partition": ["p", "other"],
        "group": ["g"],
        "consumerGroup": ["g"],
        "name": ["named"],
        "id": [message["id"], *(letter["deadLetterId"] for letter in letters)],
        "messageId": [message["id"], dead["id"]],
        "lease_id": [message["leaseId"]],
        "partition_id": [message["partitionId"]],
        "transaction_id": [message["transactionId"]],
        "key": ["seeded"],
        "prefix": ["seeded"],
        "keys": ["seeded/1"],
    }


class Conformance:
    """A server, its document, and a client that believes nothing."""

    def __init__(self, url: str) -> None:
        load_all_checks()
        self.client = httpx.Client(base_url=url, timeout=_SECONDS)
        self.api = Api(self.client)
        document = self.client.get("/openapi.json").json()
        known = seed(self.api)
        self._operations = {
            GenerationMode.POSITIVE: _operations_of(_with_known(document, known)),
            GenerationMode.NEGATIVE: _operations_of(_with_known(document, {})),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        self.client.close()

    def check(self, name: str, mode: GenerationMode, examples: int) -> None:
        """Send requests of one operation, right or wrong ones, and check their answers."""
        operation = self._operations[mode][name]

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=FIXED,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def each(case: AnyCase) -> None:
            self._try(case)

        try:
            each()
        except Unsatisfiable:
            assert mode is GenerationMode.NEGATIVE  # Nothing of it can be wrong.

    def _try(self, case: AnyCase) -> None:
        sent = case.as_transport_kwargs(base_url=str(self.client.base_url).rstrip("/"))
        request = self.client.build_request(
            sent["method"],
            sent["url"],
            params=sent.get("params") or None,
            headers=sent.get("headers"),
            content=sent.get("data"),
            json=sent.get("json"),
        )
        response = self.client.send(request, stream=True)
        try:
            if response.headers.get("content-type", "").startswith(EVENTS):
                assert response.status_code == 200
                return
            response.read()
        finally:
            response.close()
            self._undo(case)
        assert response.status_code not in {500, 502, 503}, response.text
        case.validate_response(response, checks=CHECKS)

    def _undo(self, case: AnyCase) -> None:
        """Whatever stops everybody else must not last."""
        if "/maintenance" in case.path and case.method.upper() == "POST":
            for path in ("/system/maintenance", "/system/maintenance/pop"):
                self.api.post(path, {"enabled": False}).raise_for_status()


def _operations_of(document: Any) -> dict[str, Any]:
    schema = schemathesis.openapi.from_dict(document)
    results: list[Any] = list(schema.get_all_operations())
    operations = [result.ok() for result in results]
    return {f"{operation.method.upper()} {operation.path}": operation for operation in operations}


def _with_known(document: Any, known: Known) -> Any:
    """The document, with what the server knows among the values of parameters."""
    document = copy.deepcopy(document)
    for operation in (operation for path in document["paths"].values() for operation in path.values()):
        operation["security"] = []  # Authentication is off: whatever tokens would be drawn are not looked at.
        for parameter in operation["parameters"]:
            if names := known.get(parameter["name"]):
                parameter["schema"] = {"anyOf": [{"enum": list(names)}, parameter["schema"]]}
    return document


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
