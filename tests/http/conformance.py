"""Requests that are drawn from the OpenAPI document of a running server, and what their answers must be."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from tests.http.api import Api

EVENTS = "text/event-stream"
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
SERVER_SETTINGS = {"HARK_POP_DEFAULT_TIMEOUT_MS": "20", "HARK_POP_MAX_TIMEOUT_MS": "20"}
"""Of a server that is asked so much: nobody waits long for what does not come."""
FIXED = "HARK_TEST_FUZZ_BODIES" not in os.environ
"""Whether the same is sent each time: so a red build is about the change. `scripts/fuzz` sends what was never sent."""
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
    place = {"transactionId": message["transactionId"], "partitionId": message["partitionId"]}
    api.post("/traces", place | trace).raise_for_status()
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
