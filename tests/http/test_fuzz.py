"""Whatever is sent, the answer is JSON with a status that says whose fault it is: no 500, no hang, no leak.

`scripts/fuzz` runs the same with as many examples as one likes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import running_server
from tests.http.api import Api
from tests.http.fuzzing import FIXED, SERVER_SETTINGS, Target, anything, bodies, encoded, paths, queries, targets

BODIES = int(os.environ.get("HARK_TEST_FUZZ_BODIES", "1000"))
SECONDS = 20.0
MARKER = "what-is-in-the-other-queue"

TARGETS = targets()
WITH_BODY = [target for target in TARGETS if target.operation.body is not None]
WITHOUT_BODY = [target for target in TARGETS if target.method == "GET"]

NEAR_MISSES = st.one_of(
    [st.tuples(st.just(target), paths(target.path), bodies(target.operation.body).map(encoded)) for target in WITH_BODY]
)
QUERIES = st.one_of(
    [st.tuples(st.just(target), paths(target.path), queries(target.operation.query)) for target in WITHOUT_BODY]
)

usual = settings(deadline=None, derandomize=FIXED, suppress_health_check=[HealthCheck.too_slow])
many = settings(usual, max_examples=max(1, BODIES // 2))
few = settings(usual, max_examples=max(1, BODIES // 6))


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server that answers soon, with a message, a lease, a dead letter and a key that are nobody's business."""
    with (
        running_server(tmp_path_factory.mktemp("fuzzed"), settings=SERVER_SETTINGS) as url,
        httpx.Client(base_url=url, timeout=SECONDS) as client,
    ):
        api = Api(client)
        api.push("other", {MARKER: MARKER}, MARKER)
        api.pop_one("other", consumerGroup="another")
        api.kill("other", {MARKER: MARKER})
        client.put("/keyval/api/keys/other", json=MARKER).raise_for_status()
        yield api


def check(api: Api, target: Target, response: httpx.Response) -> None:
    """The answer is one that the contract knows, and tells nothing of what was not asked for."""
    assert response.status_code in {200, 201, 204, 304, 400, 404, 409, 413, 429, 501}, response.text
    if response.status_code >= 400:
        assert set(response.json()) == {"error", "code"}
        assert MARKER not in response.text
    elif target.operation.body is not None and not target.path.startswith("/keyval/api/keys"):
        assert MARKER not in response.text
    if "/maintenance" in target.path:  # Whatever stops everybody else must not last.
        for path in ("/system/maintenance", "/system/maintenance/pop"):
            api.post(path, {"enabled": False}).raise_for_status()


@many
@given(request=NEAR_MISSES)
def test_bodies_that_are_nearly_right(fuzzed: Api, request: tuple[Target, str, bytes]) -> None:
    target, path, body = request
    check(fuzzed, target, fuzzed.client.request(target.method, path, content=body))


@few
@given(target=st.sampled_from(WITH_BODY), body=anything)
def test_any_json_body(fuzzed: Api, target: Target, body: Any) -> None:
    check(fuzzed, target, fuzzed.client.request(target.method, _plain(target.path), content=encoded(body)))


@few
@given(target=st.sampled_from(WITH_BODY), body=st.binary(max_size=40))
def test_any_bytes_as_a_body(fuzzed: Api, target: Target, body: bytes) -> None:
    check(fuzzed, target, fuzzed.client.request(target.method, _plain(target.path), content=body))


@few
@given(request=NEAR_MISSES, start=st.floats(0, 1), length=st.floats(0, 1), patch=st.binary(max_size=4))
def test_bodies_that_are_torn(
    fuzzed: Api, request: tuple[Target, str, bytes], start: float, length: float, patch: bytes
) -> None:
    target, path, body = request
    cut = int(start * len(body))
    torn = body[:cut] + patch + body[cut + int(length * (len(body) - cut)) :]
    check(fuzzed, target, fuzzed.client.request(target.method, path, content=torn))


@few
@given(request=QUERIES)
def test_any_parameters(fuzzed: Api, request: tuple[Target, str, dict[str, str]]) -> None:
    target, path, query = request
    response = fuzzed.client.request(target.method, path, params=query)
    # Pages and what is exported are no JSON; everything else is.
    check(fuzzed, target, response)
    if response.content and response.headers["content-type"].startswith("application/json"):
        json.loads(response.content)


@few
@given(name=st.text(min_size=1, max_size=100))
def test_any_name_in_a_path(fuzzed: Api, name: str) -> None:
    segment = quote(name.encode("utf-8", "replace"), safe="")
    letter = f"/keyval/api/queue/dlq/{segment}"
    for method, path in (
        *(("GET", f"/api/v1/{above}/{segment}") for above in ("resources/queues", "pop/queue", "consumer-groups")),
        *(("GET", letter), ("DELETE", letter), ("POST", f"{letter}/requeue")),
    ):
        response = fuzzed.client.request(method, path)
        assert response.status_code in {200, 204, 400, 404}, response.text


def _plain(path: str) -> str:
    return path.replace("{key:path}", "k").replace("{", "").replace("}", "")
