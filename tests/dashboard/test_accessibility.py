"""The checks themselves: each finds what it is for, and nothing in a page that is as it should be."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser

from tests.dashboard.accessibility import check_page, check_tab_reaches_everything
from tests.dashboard.screen import Screen

GOOD = """
<h1>Queues</h1><p>All of them.</p><a href="#x">orders</a><button>Delete</button>
<label for="name">Name</label><input id="name"><input aria-label="Search"><div tabindex="0" aria-label="Plot"></div>
"""
WRONG = {
    "no name": ("<button></button>", "has no name"),
    "placeholder only": ("<input placeholder='Queue'>", "has no name"),
    "out of the way of Tab": ("<button tabindex='-1'>Go</button>", "is not reached by the Tab key"),
    "click without keyboard": ("<span style='cursor: pointer'>Go</span>", "can be clicked but not reached"),
    "picture without text": ("<img src='data:,'>", "has no alternative text"),
    "an id twice": ("<p id='a'></p><p id='a'></p>", "id a is there twice"),
    "two main headings": ("<h1>Other</h1>", "main headings"),
    "too wide": ("<div style='width: 3000px'>wide</div>", "is wider than the window"),
    "pale text": ("<p style='color: #999'>pale</p>", "has a contrast of 2.8"),
    "pale on a ground": ("<div style='background: #333'><p style='color: #555'>dark</p></div>", "has a contrast of"),
}


async def shown(browser: Browser, parts: str) -> Screen:
    """A page that has these parts beside the good ones."""
    screen = Screen(await browser.new_page(), "about:blank")
    await screen.page.set_content(
        f"<!doctype html><html lang='en'><title>Test</title><body>{GOOD}{parts}</body></html>"
    )
    return screen


async def test_a_page_as_it_should_be_passes(browser: Browser) -> None:
    screen = await shown(browser, "<p style='color: #555'>soft</p><div style='overflow: auto'><pre>wide</pre></div>")
    await check_page(screen.page, "good")
    await check_tab_reaches_everything(screen.page, "good")
    await screen.page.close()


@pytest.mark.parametrize("name", WRONG, ids=list(WRONG))
async def test_what_is_wrong_is_found(browser: Browser, name: str) -> None:
    parts, said = WRONG[name]
    screen = await shown(browser, parts)
    with pytest.raises(AssertionError, match=said):
        await check_page(screen.page, name)
    await screen.page.close()


async def test_what_the_tab_key_jumps_over_is_found(browser: Browser) -> None:
    trap = "<button onfocus='this.blur(); document.querySelector(\"a\").focus()'>Trap</button><button>Behind</button>"
    screen = await shown(browser, trap)
    with pytest.raises(AssertionError, match="Behind"):
        await check_tab_reaches_everything(screen.page, "trap")
    await screen.page.close()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("console.error('oops')", "console error: oops"),
        ("console.warn('hm')", "console warning: hm"),
        ("setTimeout(() => { throw new Error('bang') })", "error in a script: .*bang"),
        ("fetch('http://127.0.0.1:9/').catch(() => {})", "ERR_"),
    ],
    ids=["console error", "warning", "exception", "failed request"],
)
async def test_what_goes_wrong_in_a_page_fails_its_test(
    browser: Browser, server_url: str, script: str, said: str
) -> None:
    with pytest.raises(AssertionError, match=said):
        async with Screen.opened(browser, server_url) as screen:
            await screen.page.goto("about:blank")
            await screen.page.evaluate(f"() => {{ {script} }}")
            await screen.page.wait_for_function("() => document.readyState === 'complete'")
            while not screen.problems:  # It comes when the browser says so; a test that hangs here fails too.
                await screen.page.evaluate("() => new Promise(requestAnimationFrame)")


async def test_an_answer_that_nobody_expects_fails_its_test(browser: Browser, server_url: str) -> None:
    with pytest.raises(AssertionError, match="status 404"):
        async with Screen.opened(browser, server_url) as screen:
            await screen.page.goto(f"{server_url}/nothing-here")
    async with Screen.opened(browser, server_url) as screen:
        screen.expect_status(404)
        await screen.page.goto(f"{server_url}/nothing-here")


async def test_a_script_or_style_in_the_page_itself_is_refused_and_fails_its_test(
    browser: Browser, server_url: str
) -> None:
    with pytest.raises(AssertionError, match="Content Security Policy"):
        async with Screen.opened(browser, server_url) as screen:
            await screen.show()
            inline = "const node = document.createElement('div'); node.setAttribute('style', 'color: red');"
            await screen.page.evaluate(f"() => {{ {inline} document.body.append(node) }}")
            while not screen.problems:
                await screen.page.evaluate("() => new Promise(requestAnimationFrame)")
