"""Whether everybody can use a page: by keyboard, by ear, on a small screen, with weak eyes."""

from __future__ import annotations

from pathlib import Path

from playwright.async_api import Page

_SCRIPT = (Path(__file__).parent / "accessibility.js").read_text()
_MOST_STOPS = 400
_WATCH_FOCUS = """() => {
    const usable = "a[href], button, input, select, textarea, summary, [tabindex]";
    const reachable = [...document.querySelectorAll(usable)]
        .filter(node => node.checkVisibility({visibilityProperty: true}) && !node.disabled && node.tabIndex >= 0);
    window.notReached = new Set(reachable);
    document.addEventListener("focusin", event => window.notReached.delete(event.target));
    document.activeElement?.blur();
    return reachable.length;
}"""


async def check_page(page: Page, where: str) -> None:
    """Fail with a list of what is wrong with what is shown now."""
    problems: list[str] = await page.evaluate(f"({_SCRIPT})()")
    assert not problems, f"{where}:\n" + "\n".join(problems)


async def check_tab_reaches_everything(page: Page, where: str) -> None:
    """Walk through the page with the Tab key; all that can be used has to be on the way."""
    redrawn = True
    while redrawn:  # Rows that came or changed during the walk are new elements: it begins again.
        stops: int = await page.evaluate(f"({_WATCH_FOCUS})()")
        assert stops <= _MOST_STOPS, f"{where}: {stops} stops for the Tab key are too many"
        for _ in range(stops + 2):
            await page.keyboard.press("Tab")
        redrawn = await page.evaluate("() => [...window.notReached].some(node => !node.isConnected)")
    missing: list[str] = await page.evaluate("() => [...window.notReached].map(node => node.outerHTML.slice(0, 160))")
    assert not missing, f"{where}: the Tab key never comes to\n" + "\n".join(missing)
