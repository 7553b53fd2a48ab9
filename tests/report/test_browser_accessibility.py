"""The report in a browser: keyboard, dark mode, narrow windows, and violations that axe finds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import browser
from tools.browser import Browser, in_browser

with_axe = pytest.mark.skipif(not browser.axe(), reason=f"{browser.AXE_VARIABLE} names no axe.min.js (npm's axe-core)")


@in_browser
def test_dark_mode_follows_the_system_and_the_switch_is_remembered(shown: Browser, pages: Path) -> None:
    def lightness() -> float:
        red, green, blue = re.findall(r"\d+", shown.run("return getComputedStyle(document.body).backgroundColor"))[:3]
        return (int(red) + int(green) + int(blue)) / 765

    def pressed() -> str:
        return str(shown.run("return document.getElementById('theme').getAttribute('aria-pressed')"))

    assert (lightness() > 0.9, pressed()) == (True, "false")
    shown.prefer("dark")
    shown.wait("document.getElementById('theme').getAttribute('aria-pressed') === 'true'")
    assert lightness() < 0.2
    shown.driver.find_element("id", "theme").click()
    assert (lightness() > 0.9, pressed()) == (True, "false")
    shown.open(pages / "baselines.html")
    assert (lightness() > 0.9, pressed()) == (True, "false")


@in_browser
def test_tab_reaches_everything(shown: Browser) -> None:
    shown.driver.find_element("id", "search").send_keys("paper-defaults")
    expected = shown.run(
        """
        const kinds = "a[href], button, input:not([type=radio]), select, summary, [tabindex='0']";
        const there = [...document.querySelectorAll(kinds)].filter((e) => e.checkVisibility() && !e.closest("dialog"));
        const reached = new Set();
        addEventListener("focusin", ({target}) => {
          reached.add(target);
          document.body.dataset.missed = there.filter((e) => !reached.has(e)).length;
        });
        document.activeElement.blur();
        return there.length;
        """
    )
    for _ in range(2 * expected // 50 + 2):
        shown.press(*["\ue004"] * 50)
        if shown.run("return document.body.dataset.missed") == "0":
            break
    assert shown.run("return document.body.dataset.missed") == "0"


@in_browser
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_the_page_never_scrolls_sideways(shown: Browser, width: int) -> None:
    shown.resize(width)
    shown.all_charts()
    shown.run("for (const d of document.querySelectorAll('details')) d.open = true")
    assert shown.run("return document.documentElement.scrollWidth") <= width
    shown.open_cell(".matrix .w-known")
    assert shown.run("return document.getElementById('cell').getBoundingClientRect().right") <= width


KINDS = """
for (const d of document.querySelectorAll('details')) d.open = true;
const kind = (e) => `${e.localName}.${[...e.classList].sort().join('.')}`;
return [...new Set([...document.querySelectorAll('body *')].map(kind))];
"""


@in_browser
def test_the_abridged_page_has_every_kind_of_element(shown: Browser, pages: Path) -> None:
    shown.all_charts()
    every = shown.run(KINDS)
    shown.open(pages / "abridged.html")
    shown.all_charts()
    assert len(every) > 100
    assert [kind for kind in every if kind not in shown.run(KINDS)] == []


@in_browser
@with_axe
@pytest.mark.timeout(4 * browser.PATIENCE)
@pytest.mark.parametrize(
    ("scheme", "width"),
    [
        ("light", 360),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (("light", 1280), ("dark", 360), ("dark", 1280))),
    ],
)
def test_axe_finds_no_serious_violation(shown: Browser, pages: Path, scheme: str, width: int) -> None:
    shown.open(pages / "abridged.html")
    shown.prefer(scheme)
    shown.resize(width)
    shown.all_charts()
    shown.run("for (const d of document.querySelectorAll('details')) d.open = true")
    assert shown.violations() == []
    shown.open_cell(".matrix .w-known")
    shown.run("for (const d of document.querySelectorAll('#cell details')) d.open = true")
    assert shown.violations("#cell") == []
