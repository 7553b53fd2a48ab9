"""A headless Chromium for the tests of the report: pages from files, what the console and the network saw, axe."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SELENIUM = find_spec("selenium") is not None

AXE_VARIABLE = "CONFORMANCE_AXE"
"""Environment variable that names axe.min.js."""

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_AXE_PLACES = ("node_modules/axe-core/axe.min.js", "/usr/lib/node_modules/axe-core/axe.min.js")
_AXE_PACKAGE = "axe_playwright_python"
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
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


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
        driver.set_script_timeout(60)
        yield Browser(driver)
    finally:
        driver.quit()


class Browser:
    """A driver, and what the tests ask of it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path) -> None:
        """Loads a page anew; what was logged before is forgotten."""
        self.driver.get("about:blank")
        self.console()
        self.requests()
        self.driver.get(path.as_uri())

    def resize(self, width: int, height: int = 900) -> None:
        """Gives the page a viewport of this size."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """Makes the system prefer "light" or "dark"."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

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

    def all_charts(self) -> int:
        """Brings every chart into view, waits until it is drawn and returns how many there are."""
        count: int = self.driver.execute_async_script(
            """
            const done = arguments[0];
            const all = [...document.querySelectorAll(".canvas")];
            (async () => {
              const pause = () => new Promise((go) => setTimeout(go, 25));
              for (const canvas of all) {
                canvas.scrollIntoView();
                for (let i = 0; i < 600 && !canvas.querySelector("svg"); i++) await pause();
              }
              scrollTo(0, 0);
              done(all.filter((canvas) => canvas.querySelector("svg")).length);
            })();
            """
        )
        return count

    def violations(self) -> list[str]:
        """What axe finds to be a serious or critical violation of the page as it is shown."""
        if not self.run("return typeof axe === 'object'"):
            self.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": axe()})
        found = self.driver.execute_async_script(
            "const done = arguments[0];"
            "axe.run(document, {resultTypes: ['violations']}).then((found) => done(found.violations))"
        )
        return [
            f"{violation['id']}: {node['html'][:200]} {node['failureSummary'][:400]}"
            for violation in found
            if violation["impact"] in ("serious", "critical")
            for node in violation["nodes"][:3]
        ]
