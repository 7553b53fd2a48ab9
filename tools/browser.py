"""For the tests of the report: pages read, and pages in a headless Chromium with what it logs and what axe says."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

SELENIUM = find_spec("selenium") is not None

AXE_VARIABLE = "CONFORMANCE_AXE"
"""Environment variable that names axe.min.js."""

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_AXE_PLACES = ("node_modules/axe-core/axe.min.js", "/usr/lib/node_modules/axe-core/axe.min.js")
_AXE_PACKAGE = "axe_playwright_python"
PATIENCE = 900
"""Seconds after which a page counts as hung, however busy the machine is."""

_VOID = frozenset({"meta", "link", "input", "br", "wbr", "hr", "img"})
_OWN = ("file:", "data:", "about:")


def missing() -> str:
    """What is not there of what the tests need, or ""."""
    if not SELENIUM:
        return "selenium is not installed"
    if program() is None:
        return "no Chromium is on the path"
    return "" if shutil.which("chromedriver") else "no chromedriver is on the path"


def program() -> str | None:
    """Where Chromium is."""
    return next((result for name in PROGRAMS if (result := shutil.which(name))), None)


in_browser = pytest.mark.skipif(bool(missing()), reason=missing() or "there is one")
"""Marks a test that needs a browser."""


@cache
def axe() -> str:
    """The text of axe.min.js (npm's axe-core, or as a Python package ships it), or "" where there is none."""
    root = Path(__file__).parent.parent
    named = os.environ.get(AXE_VARIABLE)
    package = find_spec(_AXE_PACKAGE)
    shipped = [Path(package.origin).with_name("axe.min.js")] if package and package.origin else []
    places = [Path(named)] if named else [*(root / place for place in _AXE_PLACES), *shipped]
    return next((place.read_text("utf-8") for place in places if place.is_file()), "")


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """A browser with an empty profile in a folder."""
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    options.binary_location = program() or ""
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--force-prefers-reduced-motion",
        f"--user-data-dir={folder}",
        "--window-size=1280,900",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options=options, service=ChromeService(shutil.which("chromedriver")))
    try:
        driver.set_script_timeout(PATIENCE)
        driver.command_executor.client_config.timeout = PATIENCE
        yield Browser(driver)
    finally:
        driver.quit()


class Browser:
    """A driver, and what the tests ask of it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path, fragment: str = "") -> None:
        """Loads a page again, at a fragment ("#...") of its address; what was logged before is forgotten."""
        self.driver.get("about:blank")
        self.console()
        self.requests()
        self.driver.get(path.as_uri() + fragment)

    def resize(self, width: int, height: int = 900) -> None:
        """Gives the page a viewport of this size."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """Makes the system prefer "light" or "dark"."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    @contextmanager
    def beforehand(self, script: str) -> Iterator[None]:
        """While this is open, every page that loads runs a script before its own ones."""
        added = self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})
        yield
        self.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)

    def console(self) -> list[str]:
        """What the console got since the last call, the browser's own errors included."""
        return [f"{entry['level']}: {entry['message']}" for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """The addresses that were asked for since the last call, but for the page itself and data: ones."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith(_OWN)]

    def run(self, script: str, *arguments: object) -> Any:
        """What a script's `return` gives."""
        return self.driver.execute_script(script, *arguments)

    def press(self, *keys: str) -> None:
        """Types keys into whatever has the focus."""
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def point_at(self, selector: str) -> None:
        """Moves the mouse over the first element that a selector finds."""
        from selenium.webdriver import ActionChains

        element = self.driver.find_element("css selector", selector)
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        ActionChains(self.driver).move_to_element(element).perform()

    def choose(self, name: str, text: str) -> None:
        """Picks an option by its text, as a user's choice would."""
        self.run(
            """
            const select = document.getElementById(arguments[0]);
            select.value = [...select.options].find((option) => option.textContent === arguments[1]).value;
            for (const kind of ["input", "change"]) select.dispatchEvent(new Event(kind, {bubbles: true}));
            """,
            name,
            text,
        )

    def open_cell(self, button: str) -> None:
        """Presses the first button that a selector finds, and waits for the tests of its cell."""
        self.run(f"document.querySelector({json.dumps(button)}).click()")
        self.wait("document.getElementById('cell').open")

    def wait(self, condition: str) -> None:
        """Waits until a JavaScript expression is true."""
        end = time.monotonic() + PATIENCE
        while not self.run(f"return Boolean({condition})"):
            assert time.monotonic() < end, condition
            time.sleep(0.05)

    def all_charts(self) -> int:
        """Waits until every chart is drawn and returns how many there are."""
        count: int = self.driver.execute_async_script(
            """
            const done = arguments[0];
            const all = [...document.querySelectorAll(".canvas")];
            (async () => {
              const pause = () => new Promise((go) => setTimeout(go, 25));
              for (const canvas of all) while (!canvas.querySelector("svg")) await pause();
              done(all.length);
            })();
            """
        )
        return count

    def violations(self, within: str = "html") -> list[str]:
        """What axe finds to be a serious or critical violation of the page as it is shown, or of one element of it."""
        if not self.run("return typeof axe === 'object'"):
            self.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": axe()})
        result = self.driver.execute_async_script(
            "const [within, done] = arguments;"
            "axe.run(within, {resultTypes: ['violations']}).then((found) => done(found.violations))",
            within,
        )
        return [
            f"{violation['id']}: {node['html'][:200]} {node['failureSummary'][:400]}"
            for violation in result
            if violation["impact"] in ("serious", "critical")
            for node in violation["nodes"][:3]
        ]


def visible_clauses(browser: Browser) -> list[str]:
    """The clauses that the matrix shows."""
    result: list[str] = browser.run(
        "const rows = [...document.querySelectorAll('.clause')].filter((row) => row.offsetParent);"
        "return rows.map((row) => row.querySelector('code').textContent)"
    )
    return result


class Reader(HTMLParser):
    """Elements, their attributes and text, and whatever is not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.wrong: list[str] = []
        self.content: dict[int, str] = {}
        self._open: list[tuple[str, int]] = []
        self.feed(text)
        self.close()
        self.wrong += [f"<{tag}> is never closed" for tag, _ in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if len({name for name, _ in attrs}) != len(attrs):
            self.wrong.append(f"<{tag}> has an attribute twice")
        if tag not in _VOID:
            self._open.append((tag, len(self.elements)))
        self.elements.append((tag, dict(attrs)))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop()[0] != tag:
            self.wrong.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        if self._open:
            self.content[self._open[-1][1]] = self.content.get(self._open[-1][1], "") + data

    def all(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        """Attributes and own text of every element of a kind."""
        return [
            (attributes, self.content.get(number, ""))
            for number, (result, attributes) in enumerate(self.elements)
            if result == tag
        ]
