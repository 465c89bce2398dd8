"""The pages about keys: browse by prefix, look, set, delete."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

import httpx
from playwright.async_api import Locator, expect

from tests.dashboard.accessibility import check_tab_reaches_everything
from tests.dashboard.screen import Screen
from tests.http.api import Api


def put(api: Api, key: list[Any], value: str, **query: Any) -> None:
    """Set a key to JSON text."""
    api.client.put(_path(key), content=value.encode(), params=query).raise_for_status()


def stored(api: Api, key: list[Any]) -> str | None:
    """The JSON text of a value, as the server has it."""
    response: httpx.Response = api.client.get(_path(key))
    if response.status_code == 404:
        return None
    found = re.search(r'"value":(.*),"versionstamp"', response.text)
    assert found is not None, response.text
    return found[1]


def _path(key: list[Any]) -> str:
    return f"/keyval/api/keys/{quote(json.dumps(key), safe='')}"


def names(screen: Screen) -> Locator:
    """The keys on the list."""
    return screen.page.get_by_role("table", name="Keys").locator("tbody td.main")


async def test_keys_below_a_prefix_are_listed_in_their_order_and_paged(screen: Screen, api: Api, queue: str) -> None:
    for number in range(55):
        put(api, [queue, number], f'{{"n":{number}}}')
    await screen.show(f"keys?prefix={queue}")
    await expect(names(screen)).to_have_count(50)
    await expect(names(screen).first).to_have_text(f"{queue}/0")
    await screen.look("keys")
    await screen.button("Next page").click()
    await expect(names(screen)).to_have_text([f"{queue}/{number}" for number in range(50, 55)])
    await screen.page.reload()
    await expect(names(screen)).to_have_text([f"{queue}/{number}" for number in range(50, 55)])
    await screen.button("Previous page").click()
    await expect(names(screen).first).to_have_text(f"{queue}/0")
    await screen.page.get_by_label("Key prefix").fill(f"{queue}-nothing")
    await expect(screen.page.get_by_text("No key has this prefix.")).to_be_visible()


async def test_a_key_is_set_and_shown_with_every_digit_its_version_and_its_end(
    screen: Screen, api: Api, queue: str
) -> None:
    await screen.show(f"keys?prefix={queue}")
    await screen.button("Set key").click()
    await screen.dialog.get_by_label("Key", exact=True).fill(f"{queue}/17")
    value = screen.dialog.get_by_label("Value (JSON)")
    await value.fill("{nonsense")
    await screen.button("Save", screen.dialog).click()
    await expect(screen.dialog.get_by_role("alert")).to_contain_text("Invalid JSON")
    await value.fill('{"big":12345678901234567890}')
    await screen.dialog.get_by_label("Expires after (seconds)").fill("3600")
    await screen.button("Save", screen.dialog).click()
    await screen.expect_note("Saved the value.")
    assert stored(api, [queue, 17]) == '{"big":12345678901234567890}'
    assert "expiresAt" in api.client.get(_path([queue, 17])).json()
    await screen.show(f"keys?prefix={queue}")
    await screen.page.get_by_role("link", name=f"{queue}/17").click()
    await expect(screen.page.locator("pre.json")).to_contain_text('"big": 12345678901234567890')
    about = screen.page.get_by_role("region", name="Details")
    await expect(about).to_contain_text(re.compile(r"Version\d{20}"))
    await expect(about).to_contain_text(re.compile("in 59 min|in 1 h"))
    await screen.look("key")
    await check_tab_reaches_everything(screen.page, "key")


async def test_a_key_is_changed_on_its_page_and_a_text_is_notified_from_a_number(
    screen: Screen, api: Api, queue: str
) -> None:
    put(api, [queue, "17"], '{"n":1}')
    await screen.show(f"keys?prefix={queue}")
    await screen.page.get_by_role("link", name=json.dumps([queue, "17"], separators=(",", ":"))).click()
    await screen.button("Change value").click()
    await screen.dialog.get_by_label("Value (JSON)").fill("2")
    await screen.button("Cancel", screen.dialog).click()
    assert stored(api, [queue, "17"]) == '{"n":1}'
    await screen.button("Change value").click()
    await screen.dialog.get_by_label("Value (JSON)").fill("2")
    await screen.button("Save", screen.dialog).click()
    await expect(screen.page.locator("pre.json")).to_have_text("2")
    assert stored(api, [queue, "17"]) == "2"


async def test_deleting_a_key_asks_first_and_takes_along_what_is_below_only_if_wanted(
    screen: Screen, api: Api, queue: str
) -> None:
    put(api, [queue], "1")
    put(api, [queue, "below"], "2")
    await screen.show(f"keys/{quote(json.dumps([queue]), safe='')}")
    await screen.button("Delete").click()
    await screen.button("Cancel", screen.dialog).click()
    assert stored(api, [queue]) == "1"
    await screen.button("Delete").click()
    await screen.button("Delete", screen.dialog).click()
    await screen.expect_note("Deleted the key.")
    assert (stored(api, [queue]), stored(api, [queue, "below"])) == (None, "2")
    put(api, [queue], "1")
    await screen.show(f"keys/{quote(json.dumps([queue]), safe='')}")
    await screen.page.reload()  # The note of before is gone.
    await screen.button("Delete").click()
    await screen.dialog.get_by_label("Also delete the 1 key below it").check()
    await screen.button("Delete", screen.dialog).click()
    await screen.expect_note("Deleted the key.")
    assert (stored(api, [queue]), stored(api, [queue, "below"])) == (None, None)
