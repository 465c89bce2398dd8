"""The checks themselves: each finds what it is for, and nothing in a page that is as it should be."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Browser, Page

from tests.dashboard.accessibility import check_page, check_tab_reaches_everything
from tests.dashboard.screen import Screen

GOOD = """
<h1>Queues</h1><p>All of them.</p><a href="#x">orders</a><button>Delete</button>
<label for="name">Name</label><input id="name"><input aria-label="Search"><div tabindex="0" aria-label="Plot"></div>
"""
SOFT = "<p style='color: #555'>soft</p><div style='overflow: auto'><pre>wide</pre></div>"
WRONG = [
    ("<button></button>", "has no name"),
    ("<input placeholder='Queue'>", "has no name"),
    ("<button tabindex='-1'>Go</button>", "is not reached by the Tab key"),
    ("<span style='cursor: pointer'>Go</span>", "can be clicked but not reached"),
    ("<img src='data:,'>", "has no alternative text"),
    ("<p id='a'></p><p id='a'></p>", "id a is there twice"),
    ("<h1>Other</h1>", "main headings"),
    ("<div style='width: 3000px'>wide</div>", "is wider than the window"),
    ("<p style='color: #999'>pale</p>", "has a contrast of 2.8"),
    ("<div style='background: #333'><p style='color: #555'>dark</p></div>", "has a contrast of"),
]
TRAP = "<button onfocus='this.blur(); document.querySelector(\"a\").focus()'>Trap</button><button>Behind</button>"
BAD_SCRIPTS = {
    "console.error('oops')": "console error: oops",
    "console.warn('hm')": "console warning: hm",
    "setTimeout(() => { throw new Error('bang') })": "error in a script: .*bang",
    "fetch('http://127.0.0.1:9/').catch(() => {})": "ERR_",
}
INLINE_STYLE = "const node = document.createElement('div'); node.setAttribute('style', 'color: red');"


async def test_what_is_wrong_is_found_and_a_page_as_it_should_be_passes(browser: Browser) -> None:
    page = await browser.new_page()

    async def show(parts: str) -> None:
        await page.set_content(f"<!doctype html><html lang='en'><title>Test</title><body>{GOOD}{parts}</body></html>")

    await show(SOFT)
    await check_page(page, "good")
    await check_tab_reaches_everything(page, "good")
    for parts, expected_text in WRONG:
        await show(parts)
        with pytest.raises(AssertionError, match=expected_text):
            await check_page(page, parts)
    await show(TRAP)
    with pytest.raises(AssertionError, match="Behind"):
        await check_tab_reaches_everything(page, "trap")
    await page.context.close()


async def run(page: Page, problems: list[str], script: str, expected_text: str) -> None:
    """Run a script and wait until it is noted what is wrong with it; a test that hangs here fails too."""
    await page.evaluate(f"() => {{ {script} }}")
    while not re.search(expected_text, "\n".join(problems)):
        await page.evaluate("() => new Promise(requestAnimationFrame)")


async def test_what_goes_wrong_in_a_page_fails_its_test(browser: Browser, server_url: str) -> None:
    expected = [*BAD_SCRIPTS.values(), "status 404", "Content Security Policy"]
    with pytest.raises(AssertionError) as failed:
        async with Screen.opened(browser, server_url) as screen:
            await screen.page.goto("about:blank")
            for script, expected_text in BAD_SCRIPTS.items():
                await run(screen.page, screen.problems, script, expected_text)
            await screen.page.goto(f"{server_url}/nothing-here")
            # A style in the page itself is refused by the policy of the page.
            await screen.show()
            style = f"{INLINE_STYLE} document.body.append(node)"
            await run(screen.page, screen.problems, style, "Content Security Policy")
    for expected_text in expected:
        assert re.search(expected_text, str(failed.value))
