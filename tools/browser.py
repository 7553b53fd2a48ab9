"""A headless Chromium and an HTML reader for tests of pages, and a picture of the report.

`python -m tools screenshot docs/report.png` writes README's picture. It needs Chromium, chromedriver, selenium and the
dependency group `report`. Exit status 0, or 2 and one line.
"""

import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

PATIENCE = 900
"""Timeout of a page in seconds, enough for a busy machine."""

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_VOID = frozenset({"meta", "link", "input", "br", "wbr", "hr", "img"})
_LOCAL = ("file:", "data:", "about:")


def missing() -> str:
    """The missing requirement of browser tests, "" if there is none."""
    if find_spec("selenium") is None:
        return "selenium is not installed"
    if not any(map(shutil.which, _PROGRAMS)):
        return "no Chromium is on the path"
    return "" if shutil.which("chromedriver") else "no chromedriver is on the path"


in_browser = pytest.mark.skipif(bool(missing()), reason=missing() or "there is one")
"""Marks a test that needs a browser."""


@contextmanager
def chromium(folder: Path) -> Iterator["Browser"]:
    """A browser with an empty profile in a folder."""
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    options.binary_location = next(filter(None, map(shutil.which, _PROGRAMS)), "")
    arguments = "headless=new no-sandbox disable-gpu disable-dev-shm-usage force-prefers-reduced-motion"
    for argument in (*arguments.split(), f"user-data-dir={folder}", "window-size=1280,900"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options=options, service=ChromeService(shutil.which("chromedriver")))
    try:
        driver.set_script_timeout(PATIENCE)
        driver.command_executor.client_config.timeout = PATIENCE
        yield Browser(driver)
    finally:
        driver.quit()


class Browser:
    """A driver with the operations of the tests."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path, fragment: str = "") -> None:
        """Loads a page again, at a fragment ("#...") of its address; earlier messages are forgotten."""
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

    def console(self) -> list[str]:
        """The messages on the console since the last call, the browser's own errors included."""
        return [f"{entry['level']}: {entry['message']}" for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """The addresses requested since the last call, except the page itself and data: addresses."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith(_LOCAL)]

    def run(self, script: str, *arguments: object) -> Any:
        """The value that a script returns."""
        return self.driver.execute_script(script, *arguments)

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

    def wait(self, condition: str) -> None:
        """Waits until a JavaScript expression is true."""
        end = time.monotonic() + PATIENCE
        while not self.run(f"return Boolean({condition})"):
            assert time.monotonic() < end, condition
            time.sleep(0.05)

    def violations(self, within: str = "html") -> list[str]:
        """The serious and critical violations that axe reports for the shown page, or for one element of it."""
        if not self.run("return typeof axe === 'object'"):
            package = find_spec("axe_playwright_python")
            assert package is not None
            assert package.origin is not None
            script = Path(package.origin).with_name("axe.min.js").read_text("utf-8")
            self.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": script})
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


class Reader(HTMLParser):
    """Reads the elements of a page with attributes and text, and the tags that are not closed in order."""

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
            (attributes, self.content.get(i, "")) for i, (kind, attributes) in enumerate(self.elements) if kind == tag
        ]


def main(arguments: list[str]) -> int:
    """Draws the first view of the committed baselines; returns the exit status."""
    from conformance.runner.baselines import BASELINES
    from results import report
    from results.record.folders import read

    if lacking := missing() or ("" if len(arguments) == 1 else "name one file: python -m tools screenshot FILE.png"):
        print(f"no picture: {lacking}", file=sys.stderr)
        return 2
    with TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        report.write(read([BASELINES]), page)
        with chromium(Path(folder) / "profile") as browser:
            browser.resize(1280, 640)
            browser.open(page)
            Path(arguments[0]).write_bytes(browser.driver.get_screenshot_as_png())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
