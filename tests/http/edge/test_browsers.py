"""What browsers get: the headers of every answer, nothing for pages of other sites, a cookie for a token."""

from __future__ import annotations

import asyncio
import logging

import pytest

from hark.api.operations import WEBSOCKET
from hark.errors import InvalidInput, Overloaded
from hark.http import admission
from hark.http.admission import FAILURES, WINDOW_SECONDS, Guesses, cookie_value, set_cookie
from hark.http.exchange import RequestIds
from hark.settings import Auth, Cors, Settings
from tests.http.edge.app_client import AppClient, Json, Off, serving

QUEUES = "/api/v1/resources/queues"
SESSION = "/api/v1/session"
EVIL = "https://evil.example"
TOOLS = "https://tools.example"
PUSH = {"items": [{"queue": "q", "payload": 1}]}
ANONYMOUS = {"required": True, "authenticated": False, "subject": "", "role": None, "queues": []}

# Headers ---------------------------------------------------------------------------------------------------


async def test_no_answer_of_any_route_may_be_taken_for_something_else_or_kept(ask: AppClient) -> None:
    for pattern, methods in ask.app.table.items():
        for method in methods:
            if method == WEBSOCKET:
                continue
            for token in ("admin", None):
                answer = await ask(method, pattern.replace("{", "").replace("}", ""), token)
                if answer.status != 204:
                    assert answer.headers["x-content-type-options"] == "nosniff", (method, pattern, token)
                if method == "GET" and pattern.startswith(("/api/", "/keyval/")):
                    assert answer.headers["cache-control"].startswith(("no-store", "no-cache")), (pattern, token)


async def test_pages_may_load_nothing_but_their_own_files_and_show_in_no_frame(ask: AppClient) -> None:
    answer = await ask("GET", "/")
    assert answer.status == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert "strict-transport-security" not in answer.headers
    answer = await ask("GET", "/", scheme="https")
    assert answer.headers["strict-transport-security"] == "max-age=31536000"


# Request ids -----------------------------------------------------------------------------------------------


async def test_the_clients_request_id_comes_back_in_every_answer_and_what_is_none_is_replaced(ask: AppClient) -> None:
    for given in ("abc", "A.b_c-1", "x" * 128):
        for method, path, token in (
            ("POST", "/api/v1/push", "writer"),
            ("GET", "/api/v1/pop/queue/q", "writer"),
            ("GET", QUEUES, "reader"),
            ("GET", QUEUES, None),
            ("GET", "/api/v1/nothing", "reader"),
            ("POST", "/api/v1/ack", "writer"),
            ("GET", "/", None),
        ):
            answer = await ask(method, path, token, PUSH, headers={"x-request-id": given})
            assert answer.headers["x-request-id"] == given, path
    wrong = ("", "x" * 129, "a b", "a\tb", "ä", "<b>", "a,b")
    answers = [await ask("GET", QUEUES, "reader", headers={"x-request-id": given}) for given in (*wrong, *wrong)]
    ids = {answer.headers["x-request-id"] for answer in answers}
    assert len(ids) == 14
    assert not ids & set(wrong)


@pytest.mark.parametrize("later", [False, True])
async def test_a_bug_is_answered_with_the_id_that_its_lines_in_the_log_have(
    ask: AppClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, later: bool
) -> None:
    def broken(*_arguments: object) -> asyncio.Future[Json]:
        failed: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        failed.set_exception(ZeroDivisionError())
        return failed if later else failed.result()

    monkeypatch.setattr(ask.broker, "begin_push", broken)
    caplog.handler.addFilter(RequestIds())
    with caplog.at_level(logging.ERROR):
        answer = await ask("POST", "/api/v1/push", "writer", PUSH, headers={"x-request-id": "look-for-me"})
    assert (answer.status, answer.json["requestId"]) == (500, "look-for-me")
    assert "ZeroDivisionError" not in answer.body.decode()
    [record] = [record for record in caplog.records if record.exc_info]
    assert vars(record)["request_id"] == "look-for-me"
    answer = await ask("POST", "/api/v1/push", "writer", PUSH)
    assert answer.json["requestId"] == answer.headers["x-request-id"]


# Other sites -----------------------------------------------------------------------------------------------


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
async def test_a_page_of_another_site_can_not_even_pop(ask_open: AppClient, headers: dict[str, str]) -> None:
    assert (await ask_open("POST", "/api/v1/push", None, PUSH)).status == 201
    for method, path in (("GET", "/api/v1/pop/queue/q"), ("POST", "/api/v1/push"), ("DELETE", "/api/v1/dlq")):
        answer = await ask_open(method, path, None, PUSH, headers=headers)
        assert (answer.status, answer.code) == (403, "cross_origin")
        assert "access-control-allow-origin" not in answer.headers
    assert (await ask_open("GET", f"{QUEUES}/q")).json["totals"]["pending"] == 1


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
async def test_programs_and_pages_of_this_server_are_served(ask: AppClient, headers: dict[str, str]) -> None:
    assert (await ask("POST", "/api/v1/push", "writer", PUSH, headers=headers)).status == 201
    assert (await ask("GET", "/api/v1/pop/queue/q", "writer", headers=headers)).status == 200


async def test_a_link_from_another_site_leads_to_the_dashboard_but_is_no_way_to_act(ask: AppClient) -> None:
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    picture = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert (await ask("GET", "/", headers=link)).status == 200
    assert (await ask("GET", "/", headers=picture)).status == 403
    assert (await ask("GET", "/api/v1/pop/queue/q", "writer", headers=link)).status == 403


# CORS ------------------------------------------------------------------------------------------------------


async def test_nothing_is_stated_of_other_sites_where_none_are_named(ask_open: AppClient) -> None:
    answer = await ask_open("GET", QUEUES)
    assert not [name for name in answer.headers if name.startswith("access-control") or name == "vary"]
    params = {"origin": EVIL, "access-control-request-method": "POST"}
    answer = await ask_open("OPTIONS", "/api/v1/push", headers=params)
    assert (answer.status, answer.code) == (403, "cross_origin")
    assert (await ask_open("OPTIONS", "/api/v1/push")).status == 405


async def test_a_named_site_may_ask_and_read() -> None:
    async with serving(Settings(cors=Cors(origins=(TOOLS,)))) as ask:
        params = {"origin": TOOLS, "access-control-request-method": "POST", "sec-fetch-site": "cross-site"}
        answer = await ask("OPTIONS", "/api/v1/push", headers=params)
        assert (answer.status, answer.body) == (204, b"")
        assert answer.headers["access-control-allow-origin"] == TOOLS
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert "authorization" in answer.headers["access-control-allow-headers"]
        assert answer.headers["vary"] == "origin"
        requests = {"origin": TOOLS, "sec-fetch-site": "cross-site"}
        for method, path, token, status in (
            ("POST", "/api/v1/push", "writer", 201),
            ("GET", "/api/v1/pop/queue/q", "writer", 200),
            ("GET", "/api/v1/pop/queue/q", "writer", 204),
            ("GET", QUEUES, "reader", 200),
            ("GET", QUEUES, None, 401),
            ("GET", "/api/v1/nothing", None, 404),
        ):
            answer = await ask(method, path, token, PUSH, headers=requests)
            assert answer.status == status
            assert (answer.headers["access-control-allow-origin"], answer.headers["vary"]) == (TOOLS, "origin")
            assert "access-control-allow-credentials" not in answer.headers
        other = await ask("GET", QUEUES, "reader", headers={"origin": EVIL})
        assert (other.status, other.headers.get("access-control-allow-origin")) == (403, None)


@pytest.mark.parametrize("origins", [(TOOLS,), ("*",)], ids=str)
async def test_the_cookie_of_the_dashboard_does_not_count_for_other_sites(origins: tuple[str, ...]) -> None:
    async with serving(Settings(cors=Cors(origins=origins))) as ask:
        cookie = {"cookie": "hark_session=admin"}
        assert (await ask("GET", QUEUES, headers=cookie)).status == 200
        answer = await ask("GET", QUEUES, headers=cookie | {"origin": TOOLS})
        assert answer.status == 401
        assert answer.headers["access-control-allow-origin"] == origins[0]
        assert "access-control-allow-credentials" not in answer.headers


# DNS rebinding ---------------------------------------------------------------------------------------------


async def test_localhost_and_addresses_are_good_names_for_a_server_without_tokens_and_others_are_refused(
    ask_open: AppClient,
) -> None:
    for host in ("evil.example", "evil.example:6632", "localhost.evil.example", "[", "", "a b"):
        for headers in ({"host": host}, {"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin"}):
            answer = await ask_open("GET", QUEUES, headers=headers)
            assert (answer.status, answer.code) == (403, "host_not_allowed"), headers
    here = ("localhost", "LOCALHOST", "hark.localhost", "127.0.0.1", "[::1]")
    for host in (*here, *(f"{name}:6632" for name in here)):
        assert (await ask_open("GET", QUEUES, headers={"host": host})).status == 200, host


async def test_a_name_is_good_if_the_settings_say_so_or_tokens_are_needed(ask: AppClient) -> None:
    there = {"host": "hark.example:6632"}
    assert (await ask("GET", QUEUES, "reader", headers=there | BROWSERS["plain http"])).status == 200
    for settings in (
        Settings(allowed_hosts=("hark.example",)),
        Settings(host="0.0.0.0", allowed_hosts=("Hark.Example",)),
    ):
        async with serving(settings, Off()) as open_server:
            for headers in ({}, *BROWSERS.values()):
                own = {"origin": "http://hark.example:6632"} if "origin" in headers else {}
                assert (await open_server("GET", QUEUES, headers=there | headers | own)).status == 200, headers


REBOUND = "evil.example:6632"
"""A name of somebody else that leads to this server."""
BROWSERS = {
    "post": {"origin": f"http://{REBOUND}", "accept-language": "en"},
    "https": {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"},
    "link": {"sec-fetch-site": "none", "sec-fetch-mode": "navigate"},
    "dest": {"sec-fetch-dest": "image"},
    "mode": {"sec-fetch-mode": "navigate"},
    # Chromium 156, on a GET of http://name: neither Origin nor Sec-Fetch-*. A page changes the language, but not that
    # it is sent; and it can not send Sec-Fetch-Mode.
    "plain http": {"accept-language": "en-US,en;q=0.9", "user-agent": "Mozilla/5.0"},
    "any language": {"accept-language": "*", "user-agent": "node"},
    "no language": {"accept-language": ""},
}
"""What browsers send from a page of that name."""
PROGRAMS = {
    "python": {"accept": "*/*"},
    # `fetch` of Node 20; undici sends the mode of the request, and of Sec-Fetch-* nothing else.
    "node": {"accept": "*/*", "accept-language": "*", "sec-fetch-mode": "cors", "user-agent": "node"},
    "node socket": {"accept-language": "*", "sec-fetch-mode": "websocket", "user-agent": "node"},
}
PUBLIC = (
    *(("GET", path) for path in ("/", "/assets/x", "/health", "/health/ready", "/openapi.json", "/metrics")),
    *((method, SESSION) for method in ("GET", "POST", "DELETE")),
)
"""Routes without a token; metrics are one if the settings say so."""
CONTAINER = Settings(host="0.0.0.0", insecure_bind=True, auth=Auth(public_metrics=True))


@pytest.mark.parametrize("browser", BROWSERS.values(), ids=BROWSERS)
async def test_other_machines_use_any_name_for_a_server_without_tokens_and_their_browsers_do_not(
    browser: dict[str, str],
) -> None:
    async with serving(CONTAINER, Off()) as ask:
        for program in PROGRAMS.values():
            for method, path, status in (("POST", "/api/v1/push", 201), ("GET", QUEUES, 200), ("GET", "/health", 200)):
                answer = await ask(method, path, None, PUSH, headers={"host": REBOUND} | program)
                assert answer.status == status, (path, program)
        requests = (
            ("GET", QUEUES),
            ("GET", "/api/v1/pop/queue/q"),
            ("POST", "/api/v1/push"),
            ("DELETE", "/api/v1/dlq"),
        )
        for method, path in (*requests, *PUBLIC):
            answer = await ask(method, path, None, PUSH, headers={"host": REBOUND} | browser)
            assert (answer.status, answer.code) == (403, "host_not_allowed"), (path, "a program used the name before")
        assert (await ask("GET", f"{QUEUES}/q")).json["totals"]["pending"] == len(PROGRAMS)
        for host in ("10.0.0.5:6632", "[fd00::5]:6632", "localhost:6632"):
            own = {"host": host} | browser | ({"origin": f"http://{host}"} if "origin" in browser else {})
            assert (await ask("GET", "/", headers=own)).status == 200
            assert (await ask("GET", QUEUES, headers=own)).status == 200


@pytest.mark.parametrize("browser", BROWSERS.values(), ids=BROWSERS)
async def test_on_loopback_a_rebound_name_shows_a_browser_no_public_route_and_probes_use_any_name(
    browser: dict[str, str],
) -> None:
    async with serving(Settings(auth=Auth(public_metrics=True)), Off()) as ask:
        for method, path in PUBLIC:
            answer = await ask(method, path, None, {"token": "x"}, headers={"host": REBOUND} | browser)
            assert (answer.status, answer.code) == (403, "host_not_allowed"), path
        for path in ("/health", "/health/live", "/metrics"):
            assert (await ask("GET", path, headers={"host": "probe.example"})).status == 200


async def test_a_named_site_reaches_a_server_without_tokens_by_a_good_name_only() -> None:
    settings = Settings(host="0.0.0.0", cors=Cors(origins=(TOOLS,)), allowed_hosts=("hark.example",))
    async with serving(settings, Off()) as ask:
        for host, status in (("hark.example", 201), ("10.0.0.5", 201), (REBOUND, 403)):
            answer = await ask("POST", "/api/v1/push", None, PUSH, headers={"origin": TOOLS, "host": host})
            assert answer.status == status


# Sessions --------------------------------------------------------------------------------------------------


def kept(header: str) -> dict[str, str]:
    """What a browser sends after it got this header."""
    return {"cookie": header.partition(";")[0]}


async def test_a_token_becomes_a_cookie_that_lets_in_until_logout(ask: AppClient) -> None:
    assert (await ask("GET", SESSION)).json == ANONYMOUS
    answer = await ask("POST", SESSION, body={"token": "mine-reader"})
    assert answer.status == 200
    who = ANONYMOUS | {"authenticated": True, "subject": "mine-reader", "role": "read-only", "queues": ["mine*"]}
    assert answer.json == who
    cookie = answer.headers["set-cookie"]
    assert cookie == "hark_session=mine-reader; Path=/; HttpOnly; SameSite=Strict"
    assert (await ask("GET", SESSION, headers=kept(cookie))).json == who
    assert (await ask("GET", QUEUES, headers=kept(cookie))).status == 200
    assert (await ask("DELETE", f"{QUEUES}/mine", headers=kept(cookie))).status == 403
    answer = await ask("DELETE", SESSION, headers=kept(cookie))
    assert (answer.status, answer.json) == (200, ANONYMOUS)
    assert answer.headers["set-cookie"].startswith("hark_session=;")
    assert "Max-Age=0" in answer.headers["set-cookie"]


async def test_a_login_over_tls_keeps_to_it_also_behind_a_proxy_and_one_from_elsewhere_or_too_long_is_refused(
    ask: AppClient,
) -> None:
    page = {"host": "hark.example", "origin": "https://hark.example"}
    for headers, scheme in (({}, "https"), (page, "http")):
        answer = await ask("POST", SESSION, body={"token": "admin"}, headers=headers, scheme=scheme)
        assert answer.headers["set-cookie"].endswith("; Secure")
    answer = await ask("POST", SESSION, body={"token": "admin"}, headers={"origin": EVIL})
    assert (answer.status, answer.headers.get("set-cookie")) == (403, None), "pages of other sites log nobody in"
    answer = await ask("POST", SESSION, body={"token": "x" * 70_000})
    assert (answer.status, answer.code) == (413, "body_too_large")


async def test_a_header_counts_before_a_cookie_and_a_wrong_cookie_is_a_401(ask: AppClient) -> None:
    cookie = {"cookie": "other=1; hark_session=admin"}
    assert (await ask("DELETE", f"{QUEUES}/q", headers=cookie)).status == 200
    assert (await ask("DELETE", f"{QUEUES}/q", "reader", headers=cookie)).status == 403
    assert (await ask("GET", QUEUES, headers={"cookie": "hark_session=old"})).status == 401
    assert (await ask("GET", SESSION, headers={"cookie": "hark_session=old"})).json == ANONYMOUS


async def test_without_authentication_no_one_has_to_log_in(ask_open: AppClient) -> None:
    who = {"required": False, "authenticated": True, "subject": "", "role": "admin", "queues": ["*"]}
    assert (await ask_open("GET", SESSION)).json == who
    answer = await ask_open("POST", SESSION, body={"token": "whatever"})
    assert (answer.json, answer.headers.get("set-cookie")) == (who, None)


async def test_guessing_is_stopped_by_address(ask: AppClient) -> None:
    for _ in range(FAILURES):
        answer = await ask("POST", SESSION, body={"token": "wrong"}, client="10.0.0.1")
        assert (answer.status, answer.headers.get("set-cookie")) == (401, None)
    for token in ("wrong", "admin"):
        answer = await ask("POST", SESSION, body={"token": token}, client="10.0.0.1")
        assert (answer.status, answer.code) == (429, "too_many_logins")
        assert 1 <= int(answer.headers["retry-after"]) <= WINDOW_SECONDS
    assert (await ask("POST", SESSION, body={"token": "admin"}, client="10.0.0.2")).status == 200
    assert (await ask("GET", QUEUES, "admin", client="10.0.0.1")).status == 200


def test_wrong_guesses_are_forgotten_after_a_while_and_so_are_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_ADDRESSES", 3)
    now = 0.0
    guesses = Guesses(lambda: now)
    for _ in range(FAILURES):
        guesses.failed("a")
    with pytest.raises(Overloaded):
        guesses.check("a")
    now = WINDOW_SECONDS
    guesses.check("a")
    for address in "bcde":
        guesses.failed(address)
    assert set(guesses._failures) == {"c", "d", "e"}


@pytest.mark.parametrize("token", ["a b", "a;b", 'a"', "a,b", "a\\b", "ä", "a\nb", "x" * 3801], ids=ascii)
def test_a_token_that_is_no_cookie_is_refused(token: str) -> None:
    with pytest.raises(InvalidInput):
        set_cookie(token, secure=False)


@pytest.mark.parametrize(
    ("header", "value"),
    [
        (None, None),
        (b"", None),
        (b"hark_session=", None),
        (b"xhark_session=a", None),
        (b"hark_session=a", "a"),
        (b"b=c;hark_session=a.b-c_d", "a.b-c_d"),
        (b"b=hark_session; hark_session=a=b", "a=b"),
    ],
)
def test_the_token_is_found_among_cookies(header: bytes | None, value: str | None) -> None:
    assert cookie_value(header) == value
