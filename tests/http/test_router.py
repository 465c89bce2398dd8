"""How paths find their operations."""

from __future__ import annotations

from typing import Any

import pytest

from hark.errors import InvalidInput, MethodNotAllowed, NotFound
from hark.http.routes.router import Found, Router
from hark.http.routes.table import WEBSOCKET, Operation, Reach, Table, public, read


async def _nothing(_request: Any) -> Any:
    """Nothing."""


def _operation(*, raw: bool = False) -> Operation:
    return read(_nothing, Reach.SERVER, raw=raw)


LIST, COUNT, GET, PUT, POP, PAIR, NAMED, SOCKET = (_operation() for _ in range(8))
RAW = _operation(raw=True)
TABLE: Table = {
    "/keys": {"GET": LIST},
    "/keys/count": {"GET": COUNT},
    "/keys/{key:path}": {"GET": GET, "PUT": PUT},
    "/pop/{queue}": {"GET": RAW},
    "/traces/by-name/{name}": {"GET": NAMED},
    "/traces/{partition}/{message}": {"GET": PAIR, "DELETE": public(_nothing)},
    "/consume": {WEBSOCKET: SOCKET},
}


@pytest.fixture(scope="module")
def router() -> Router:
    return Router(TABLE)


def find(router: Router, path: str, method: str = "GET") -> Found:
    return router.find({"type": "http", "method": method, "path": path, "raw_path": path.encode()})


def test_a_path_without_names_is_found(router: Router) -> None:
    assert find(router, "/keys") == (LIST, {}, "/keys")


def test_where_two_patterns_fit_the_first_that_has_the_method_counts(router: Router) -> None:
    assert find(router, "/keys/count").operation is COUNT
    assert find(router, "/keys/count", "PUT") == (PUT, {"key": ["count"]}, "/keys/{key:path}")
    assert find(router, "/traces/by-name/x").operation is NAMED
    assert find(router, "/traces/by-name/x", "DELETE").params == {"partition": "by-name", "message": "x"}


def test_a_slash_that_is_encoded_is_part_of_a_name(router: Router) -> None:
    assert find(router, "/pop/a%2Fb").params == {"queue": "a/b"}
    with pytest.raises(NotFound):
        find(router, "/pop/a/b")


def test_the_rest_of_a_path_is_a_list_of_one_or_more(router: Router) -> None:
    assert find(router, "/keys/a/b%2Fc/").params == {"key": ["a", "b/c", ""]}


def test_words_may_be_encoded_but_not_what_is_between_them(router: Router) -> None:
    assert find(router, "/keys/%63ount").operation is COUNT
    with pytest.raises(NotFound):
        find(router, "/keys%2Fcount")


def test_a_path_without_its_raw_form_is_found(router: Router) -> None:
    found = router.find({"type": "http", "method": "GET", "path": "/pop/ä b"})
    assert found.params == {"queue": "ä b"}


def test_head_goes_where_get_does_but_never_takes_messages(router: Router) -> None:
    assert find(router, "/keys", "HEAD").operation is LIST
    with pytest.raises(MethodNotAllowed):
        find(router, "/pop/q", "HEAD")


def test_a_wrong_method_is_told_all_right_ones(router: Router) -> None:
    with pytest.raises(MethodNotAllowed) as refused:
        find(router, "/keys/count", "POST")
    assert refused.value.allow == "GET, HEAD, PUT"


def test_a_websocket_is_no_request_and_a_request_no_websocket(router: Router) -> None:
    socket = {"type": "websocket", "path": "/consume", "raw_path": b"/consume"}
    assert router.find(socket).operation is SOCKET
    with pytest.raises(InvalidInput, match="ws://"):
        find(router, "/consume")
    with pytest.raises(NotFound):
        router.find(socket | {"path": "/keys", "raw_path": b"/keys"})


def test_a_path_that_is_not_utf_8_is_refused(router: Router) -> None:
    with pytest.raises(InvalidInput):
        find(router, "/pop/%FF")


@pytest.mark.parametrize("length", [10, 10_000])
def test_long_paths_are_found_as_short_ones_are(router: Router, length: int) -> None:
    for _ in range(2):
        assert find(router, f"/pop/{'x' * length}").params == {"queue": "x" * length}
