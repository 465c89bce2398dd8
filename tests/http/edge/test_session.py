"""The dashboard's login: a token for a cookie."""

from __future__ import annotations

import pytest

from hark.errors import InvalidInput, Overloaded
from hark.http.edge import sessions
from hark.http.edge.sessions import FAILURES, WINDOW_SECONDS, Guesses, cookie_value, set_cookie
from tests.http.edge.asking import Asking

PATH = "/api/v1/session"
NOBODY = {"required": True, "authenticated": False, "subject": "", "role": None, "queues": []}


def kept(header: str) -> dict[str, str]:
    """What a browser sends after it got this header."""
    return {"cookie": header.partition(";")[0]}


async def test_a_token_becomes_a_cookie_that_lets_in_until_logout(ask: Asking) -> None:
    assert (await ask("GET", PATH)).json == NOBODY
    answer = await ask("POST", PATH, body={"token": "mine-reader"})
    assert answer.status == 200
    who = {
        "required": True,
        "authenticated": True,
        "subject": "mine-reader",
        "role": "read-only",
        "queues": ["mine*"],
    }
    assert answer.json == who
    cookie = answer.headers["set-cookie"]
    assert cookie == "hark_session=mine-reader; Path=/; HttpOnly; SameSite=Strict"
    assert (await ask("GET", PATH, headers=kept(cookie))).json == who
    assert (await ask("GET", "/api/v1/resources/queues", headers=kept(cookie))).status == 200
    assert (await ask("DELETE", "/api/v1/resources/queues/mine", headers=kept(cookie))).status == 403
    answer = await ask("DELETE", PATH, headers=kept(cookie))
    assert (answer.status, answer.json) == (200, NOBODY)
    assert answer.headers["set-cookie"].startswith("hark_session=;")
    assert "Max-Age=0" in answer.headers["set-cookie"]


async def test_over_tls_the_cookie_stays_on_tls(ask: Asking) -> None:
    answer = await ask("POST", PATH, body={"token": "admin"}, scheme="https")
    assert answer.headers["set-cookie"].endswith("; Secure")


async def test_a_login_that_is_much_too_long_is_not_read(ask: Asking) -> None:
    answer = await ask("POST", PATH, body={"token": "x" * 70_000})
    assert (answer.status, answer.code) == (413, "body_too_large")


async def test_behind_a_proxy_with_tls_the_cookie_stays_on_tls(ask: Asking) -> None:
    page = {"host": "hark.example", "origin": "https://hark.example"}
    answer = await ask("POST", PATH, body={"token": "admin"}, headers=page)
    assert answer.headers["set-cookie"].endswith("; Secure")


async def test_a_header_counts_before_a_cookie_and_a_wrong_cookie_is_a_401(ask: Asking) -> None:
    cookie = {"cookie": "other=1; hark_session=admin"}
    assert (await ask("DELETE", "/api/v1/resources/queues/q", headers=cookie)).status == 200
    assert (await ask("DELETE", "/api/v1/resources/queues/q", "reader", headers=cookie)).status == 403
    assert (await ask("GET", "/api/v1/resources/queues", headers={"cookie": "hark_session=old"})).status == 401
    assert (await ask("GET", PATH, headers={"cookie": "hark_session=old"})).json == NOBODY


async def test_without_authentication_nobody_has_to_log_in(ask_open: Asking) -> None:
    who = {"required": False, "authenticated": True, "subject": "", "role": "admin", "queues": ["*"]}
    assert (await ask_open("GET", PATH)).json == who
    answer = await ask_open("POST", PATH, body={"token": "whatever"})
    assert (answer.json, answer.headers.get("set-cookie")) == (who, None)


async def test_pages_of_other_sites_can_not_log_a_browser_in(ask: Asking) -> None:
    answer = await ask("POST", PATH, body={"token": "admin"}, headers={"origin": "https://evil.example"})
    assert (answer.status, answer.headers.get("set-cookie")) == (403, None)


async def test_guessing_is_stopped_by_address(ask: Asking) -> None:
    for _ in range(FAILURES):
        answer = await ask("POST", PATH, body={"token": "wrong"}, client="10.0.0.1")
        assert (answer.status, answer.headers.get("set-cookie")) == (401, None)
    for token in ("wrong", "admin"):
        answer = await ask("POST", PATH, body={"token": token}, client="10.0.0.1")
        assert (answer.status, answer.code) == (429, "too_many_logins")
        assert 1 <= int(answer.headers["retry-after"]) <= WINDOW_SECONDS
    assert (await ask("POST", PATH, body={"token": "admin"}, client="10.0.0.2")).status == 200
    assert (await ask("GET", "/api/v1/resources/queues", "admin", client="10.0.0.1")).status == 200


def test_wrong_guesses_are_forgotten_after_a_while_and_so_are_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_ADDRESSES", 3)
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
