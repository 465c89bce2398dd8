"""Logging in with a token, what a role may not do, and logging out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from hark.access.tokens import TokenFile, make_token
from hark.api.operations import Role
from hark.clock import SystemClock
from tests.dashboard.accessibility import check_tab_reaches_everything
from tests.dashboard.screen import Screen
from tests.http.api import Api, read
from tests.servers import running_server


def keep_token(directory: Path, name: str, role: Role, *queues: str) -> str:
    """Make a token for the server that has its data here; its text."""
    token, text = make_token(name, role, queues or ("*",), now=SystemClock().now())
    TokenFile(directory / "hark-data" / "tokens.json").add(lambda _others: token)
    return text


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """A server that lets nobody in without a token, and a token for each role."""
    directory = tmp_path_factory.mktemp("guarded")
    tokens = {role.text: keep_token(directory, f"ada-{role.text}", role) for role in Role}
    tokens["restricted"] = keep_token(directory, "bob", Role.READ_WRITE, "mail*")
    with running_server(directory) as url:
        yield url, tokens


@pytest.fixture(scope="module")
def tokens(guarded: tuple[str, dict[str, str]]) -> dict[str, str]:
    """The tokens by role."""
    return guarded[1]


@pytest.fixture(scope="module")
def api(guarded: tuple[str, dict[str, str]]) -> Iterator[Api]:
    """The guarded server, for an administrator."""
    url, tokens = guarded
    with httpx.Client(base_url=url, timeout=30, headers={"Authorization": f"Bearer {tokens['admin']}"}) as client:
        yield Api(client)


@pytest_asyncio.fixture(loop_scope="session")
async def screen(browser: Browser, guarded: tuple[str, dict[str, str]]) -> AsyncIterator[Screen]:
    """The dashboard of the guarded server, where nobody has logged in."""
    async with Screen.opened(browser, guarded[0]) as opened:
        opened.expect_status(401)
        yield opened


async def log_in(screen: Screen, token: str) -> None:
    """Give a token on the page that asks for one."""
    await expect(screen.heading).to_have_text("Log in to Hark")
    await screen.page.get_by_label("Token").fill(token)
    await screen.page.keyboard.press("Enter")


async def test_who_is_not_known_logs_in_comes_where_they_wanted_to_and_logs_out(
    screen: Screen, api: Api, tokens: dict[str, str], queue: str
) -> None:
    api.push(queue, 1, transactionId="hidden-thing")
    await screen.show(f"messages?queue={queue}")
    await expect(screen.heading).to_have_text("Log in to Hark")
    await screen.look("login")
    await check_tab_reaches_everything(screen.page, "login")
    await log_in(screen, "hark_wrongwrong_not-a-token")
    await expect(screen.page.get_by_role("main").get_by_role("alert")).to_be_visible()
    await expect(screen.page.get_by_text("hidden-thing")).to_have_count(0)
    await log_in(screen, tokens["admin"])
    await expect(screen.heading).to_have_text("Messages")
    await expect(screen.page.get_by_role("link", name="hidden-thing")).to_be_visible()
    await expect(screen.page.locator("#who")).to_contain_text("ada-admin")
    await expect(screen.page.locator("#live")).to_have_text("live")
    seen = await screen.page.evaluate("JSON.stringify([document.cookie, {...localStorage}, {...sessionStorage}])")
    assert tokens["admin"] not in seen
    [cookie] = await screen.page.context.cookies()
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == ("hark_session", True, "Strict")
    await screen.button("Log out").click()
    await expect(screen.heading).to_have_text("Log in to Hark")
    await screen.expect_note("Logged out.")
    await screen.show("queues")
    await expect(screen.heading).to_have_text("Log in to Hark")


async def test_what_a_role_may_not_do_is_off_and_says_why(
    screen: Screen, api: Api, tokens: dict[str, str], queue: str
) -> None:
    [message] = api.push(queue, 1, transactionId="t")
    await screen.show(f"messages/{message['partition_id']}/{message['message_id']}")
    await log_in(screen, tokens["read-only"])
    await expect(screen.button("Delete")).to_be_disabled()
    await expect(screen.button("Delete")).to_have_attribute(
        "title", "This requires the role read-write. Your role is read-only."
    )
    await screen.show("settings")
    await expect(screen.button("Stop pushes")).to_be_disabled()
    await expect(screen.page.get_by_role("region", name="Audit log")).to_contain_text("Permission required")
    await screen.look("settings-read-only")


async def test_someone_with_some_queues_sees_those_and_is_notified_of_the_others(
    screen: Screen, api: Api, tokens: dict[str, str]
) -> None:
    api.push("mail-in", 1, transactionId="post-17")
    api.push("secrets", 1, transactionId="hidden")
    screen.expect_status(403)
    await screen.show("messages?queue=mail-in")
    await log_in(screen, tokens["restricted"])
    await expect(screen.page.get_by_role("link", name="post-17")).to_be_visible()
    await screen.narrow("Queue", "secrets")
    await expect(screen.page.get_by_role("main")).to_contain_text("secrets")
    await expect(screen.page.get_by_role("link", name="hidden")).to_have_count(0)
    await expect(screen.page.locator(".toast.bad, .empty")).to_contain_text("secrets")
    await screen.show("")
    await expect(screen.page.get_by_role("main")).to_contain_text("Your token is limited to some queues")


async def test_with_a_read_write_token_dead_letters_are_requeued(
    screen: Screen, api: Api, tokens: dict[str, str], queue: str
) -> None:
    api.kill(queue, 1)
    await screen.show(f"dead-letters?queue={queue}")
    await log_in(screen, tokens["read-write"])
    await expect(screen.button("Purge")).to_be_disabled()
    await screen.row("boom").get_by_role("checkbox").check()
    await screen.button("Requeue selected").click()
    await screen.button("Requeue", screen.dialog).click()
    await screen.expect_note("Requeued 1 dead letter.")
    assert read(api.get("/dlq", queue=queue))["total"] == 0
