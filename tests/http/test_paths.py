"""How paths find their operations, and that names of queues, partitions and groups may hold anything but NUL."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from hark.api.operations import WEBSOCKET, Reach, Role
from hark.errors import InvalidInput, MethodNotAllowed, NotFound
from hark.http.app import Found, Router
from hark.http.exchange import Exchange
from hark.http.routing import Operation, Table
from tests.http.api import Api, data, read, refusal


async def _nothing(_request: Any) -> Any:
    """Nothing."""


def _operation(*, raw: bool = False) -> Operation:
    return Operation(endpoint=_nothing, role=Role.READ_ONLY, reach=Reach.SERVER, raw=raw)


LIST, COUNT, GET, PUT, POP, PAIR, NAMED, SOCKET = (_operation() for _ in range(8))
RAW = _operation(raw=True)
TABLE: Table = {
    "/keys": {"GET": LIST},
    "/keys/count": {"GET": COUNT},
    "/keys/{key:path}": {"GET": GET, "PUT": PUT},
    "/pop/{queue}": {"GET": RAW},
    "/traces/by-name/{name}": {"GET": NAMED},
    "/traces/{partition}/{message}": {"GET": PAIR, "DELETE": _operation()},
    "/consume": {WEBSOCKET: SOCKET},
}


@pytest.fixture(scope="module")
def router() -> Router:
    return Router(TABLE)


def find(router: Router, path: str, method: str = "GET") -> Found:
    return router.find(Exchange(method, path.encode(), b"", {}, None, secure=False))


def test_a_path_is_split_before_it_is_decoded(router: Router) -> None:
    assert find(router, "/keys") == (LIST, {}, "/keys")
    assert find(router, "/keys/%63ount").operation is COUNT
    assert find(router, "/pop/a%2Fb").params == {"queue": "a/b"}
    assert find(router, "/keys/a/b%2Fc/").params == {"key": ["a", "b/c", ""]}
    scope = {"type": "http", "method": "GET", "path": "/pop/ä b", "query_string": b"", "headers": []}
    assert router.find(Exchange.of(scope)).params == {"queue": "ä b"}, "a scope without the raw form of its path"
    for path in ("/pop/a/b", "/keys%2Fcount"):
        with pytest.raises(NotFound):
            find(router, path)
    with pytest.raises(InvalidInput):
        find(router, "/pop/%FF")


def test_where_two_patterns_fit_the_first_that_has_the_method_counts(router: Router) -> None:
    assert find(router, "/keys/count").operation is COUNT
    assert find(router, "/keys/count", "PUT") == (PUT, {"key": ["count"]}, "/keys/{key:path}")
    assert find(router, "/traces/by-name/x").operation is NAMED
    assert find(router, "/traces/by-name/x", "DELETE").params == {"partition": "by-name", "message": "x"}


def test_head_goes_where_get_does_but_never_takes_messages(router: Router) -> None:
    assert find(router, "/keys", "HEAD").operation is LIST
    with pytest.raises(MethodNotAllowed):
        find(router, "/pop/q", "HEAD")


def test_a_wrong_method_is_notified_all_right_ones(router: Router) -> None:
    with pytest.raises(MethodNotAllowed) as refused:
        find(router, "/keys/count", "POST")
    assert refused.value.allow == "GET, HEAD, PUT"


def test_a_websocket_is_no_request_and_a_request_no_websocket(router: Router) -> None:
    assert find(router, "/consume", WEBSOCKET).operation is SOCKET
    with pytest.raises(InvalidInput, match="ws://"):
        find(router, "/consume")
    with pytest.raises(NotFound):
        find(router, "/keys", WEBSOCKET)


@pytest.mark.parametrize("length", [10, 10_000])
def test_long_paths_are_found_as_short_ones_are(router: Router, length: int) -> None:
    for _ in range(2):
        assert find(router, f"/pop/{'x' * length}").params == {"queue": "x" * length}


# Names ----------------------------------------------------------------------------------------------------

NAMES = ["with space", "with/slash", "ünïcødé 🙂", "100%", "a?b#c&d=e", "%2F", "...", "'\"\\", "+plus+"]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_works_everywhere(api: Api, queue: str, name: str) -> None:
    queue_name, group = f"{queue} {name}", f"group {name}"
    path = f"/resources/queues/{quote(queue_name, safe='')}"
    api.push(queue_name, 1, 2, partition=name, transactionId=name)
    message = api.pop_one(queue_name, name, consumerGroup=group)
    assert (message["partition"], message["transactionId"], message["consumerGroup"]) == (name, name, group)
    assert api.ack(message, "failed", error=name)["success"]
    assert read(api.get(path))["name"] == queue_name
    shown = read(api.get(f"/messages/{message['partitionId']}/{quote(name, safe='')}"))
    assert (shown["transactionId"], shown["queue"]) == (name, queue_name)
    assert list(read(api.get(f"/consumer-groups/{quote(group, safe='')}"))) == [queue_name]
    seek = f"/consumer-groups/{quote(group, safe='')}/queues/{quote(queue_name, safe='')}"
    seek += f"/partitions/{quote(name, safe='')}/seek"
    assert read(api.post(seek, {"toEnd": True}))["partitionName"] == name
    assert read(api.get(f"{path}/depth", group=group))["pending"] == 0
    assert read(api.delete(f"/consumer-groups/{quote(group, safe='')}"))["consumerGroup"] == group
    assert read(api.delete(path)) == {"deleted": True, "queue": queue_name, "existed": True}


def test_a_slash_that_is_not_encoded_is_another_route(api: Api, queue: str) -> None:
    api.push(f"{queue}/x", 1)
    refusal(api.get(f"/resources/queues/{queue}/x"), 404)
    assert data(api.pop(f"{queue}/x")) == [1]
