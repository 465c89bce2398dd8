"""Pages of other sites get nothing, unless the settings name them."""

from __future__ import annotations

import pytest

from hark.settings import Cors, Settings
from tests.http.edge.asking import Asking, Off, serving

EVIL = "https://evil.example"
TOOLS = "https://tools.example"
PUSH = {"items": [{"queue": "q", "payload": 1}]}


async def waiting(ask: Asking, token: str | None = None) -> int:
    """How many messages there are in `q`."""
    answer = await ask("GET", "/api/v1/resources/queues/q", token)
    return int(answer.json["totals"]["pending"])


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": EVIL},
        {"origin": "null"},
        {"origin": "http://["},
        {"origin": "http://localhost:9999"},
        {"origin": "localhost:6632"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
        {"sec-fetch-site": "cross-site", "origin": EVIL},
        {"sec-fetch-site": "same-origin", "origin": EVIL},
    ],
    ids=str,
)
async def test_a_page_of_another_site_can_not_even_pop(ask_open: Asking, headers: dict[str, str]) -> None:
    assert (await ask_open("POST", "/api/v1/push", None, PUSH)).status == 201
    for method, path in (("GET", "/api/v1/pop/queue/q"), ("POST", "/api/v1/push"), ("DELETE", "/api/v1/dlq")):
        answer = await ask_open(method, path, None, PUSH, headers=headers)
        assert (answer.status, answer.code) == (403, "cross_origin")
        assert "access-control-allow-origin" not in answer.headers
    assert await waiting(ask_open) == 1


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://localhost:6632"},
        {"origin": "http://localhost:6632", "sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none", "sec-fetch-mode": "navigate"},
        {"origin": "https://hark.example", "host": "hark.example"},
    ],
    ids=str,
)
async def test_programs_and_pages_of_this_server_are_served(ask: Asking, headers: dict[str, str]) -> None:
    assert (await ask("POST", "/api/v1/push", "writer", PUSH, headers=headers)).status == 201
    assert (await ask("GET", "/api/v1/pop/queue/q", "writer", headers=headers)).status == 200


async def test_a_link_from_another_site_leads_to_the_dashboard_but_is_no_way_to_act(ask: Asking) -> None:
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    picture = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert (await ask("GET", "/", headers=link)).status == 200
    assert (await ask("GET", "/", headers=picture)).status == 403
    assert (await ask("GET", "/api/v1/pop/queue/q", "writer", headers=link)).status == 403


# CORS ------------------------------------------------------------------------------------------------------


async def test_nothing_is_said_of_other_sites_where_none_are_named(ask_open: Asking) -> None:
    answer = await ask_open("GET", "/api/v1/resources/queues")
    assert not [name for name in answer.headers if name.startswith("access-control") or name == "vary"]
    wish = {"origin": EVIL, "access-control-request-method": "POST"}
    answer = await ask_open("OPTIONS", "/api/v1/push", headers=wish)
    assert (answer.status, answer.code) == (403, "cross_origin")
    assert (await ask_open("OPTIONS", "/api/v1/push")).status == 405


async def test_a_named_site_may_ask_and_read() -> None:
    async with serving(Settings(cors=Cors(origins=(TOOLS,)))) as ask:
        wish = {"origin": TOOLS, "access-control-request-method": "POST", "sec-fetch-site": "cross-site"}
        answer = await ask("OPTIONS", "/api/v1/push", headers=wish)
        assert (answer.status, answer.body) == (204, b"")
        assert answer.headers["access-control-allow-origin"] == TOOLS
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert "authorization" in answer.headers["access-control-allow-headers"]
        assert answer.headers["vary"] == "origin"
        asked = {"origin": TOOLS, "sec-fetch-site": "cross-site"}
        for method, path, token, status in (
            ("POST", "/api/v1/push", "writer", 201),
            ("GET", "/api/v1/pop/queue/q", "writer", 200),
            ("GET", "/api/v1/pop/queue/q", "writer", 204),
            ("GET", "/api/v1/resources/queues", "reader", 200),
            ("GET", "/api/v1/resources/queues", None, 401),
            ("GET", "/api/v1/nothing", None, 404),
        ):
            answer = await ask(method, path, token, PUSH, headers=asked)
            assert answer.status == status
            assert (answer.headers["access-control-allow-origin"], answer.headers["vary"]) == (TOOLS, "origin")
            assert "access-control-allow-credentials" not in answer.headers
        other = await ask("GET", "/api/v1/resources/queues", "reader", headers={"origin": EVIL})
        assert (other.status, other.headers.get("access-control-allow-origin")) == (403, None)


@pytest.mark.parametrize("origins", [(TOOLS,), ("*",)], ids=str)
async def test_the_cookie_of_the_dashboard_does_not_count_for_other_sites(origins: tuple[str, ...]) -> None:
    async with serving(Settings(cors=Cors(origins=origins))) as ask:
        cookie = {"cookie": "hark_session=admin"}
        assert (await ask("GET", "/api/v1/resources/queues", headers=cookie)).status == 200
        answer = await ask("GET", "/api/v1/resources/queues", headers=cookie | {"origin": TOOLS})
        assert answer.status == 401
        assert answer.headers["access-control-allow-origin"] == origins[0]
        assert "access-control-allow-credentials" not in answer.headers


# DNS rebinding ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:6632", "localhost.evil.example", "[", "", "a b"], ids=str
)
async def test_another_name_for_a_server_without_tokens_is_refused(ask_open: Asking, host: str) -> None:
    for headers in ({"host": host}, {"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin"}):
        answer = await ask_open("GET", "/api/v1/resources/queues", headers=headers)
        assert (answer.status, answer.code) == (403, "host_not_allowed")


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:6632", "LOCALHOST:6632", "hark.localhost", "127.0.0.1", "127.0.0.1:6632", "[::1]:6632"],
    ids=str,
)
async def test_localhost_and_addresses_are_good_names(ask_open: Asking, host: str) -> None:
    assert (await ask_open("GET", "/api/v1/resources/queues", headers={"host": host})).status == 200


async def test_a_name_is_good_if_the_settings_say_so_or_tokens_are_needed_or_others_reach_the_server(
    ask: Asking,
) -> None:
    there = {"host": "hark.example:6632"}
    assert (await ask("GET", "/api/v1/resources/queues", "reader", headers=there)).status == 200
    for settings in (Settings(allowed_hosts=("hark.example",)), Settings(host="0.0.0.0")):
        async with serving(settings, Off()) as open_server:
            assert (await open_server("GET", "/api/v1/resources/queues", headers=there)).status == 200
