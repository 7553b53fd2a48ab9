"""The README's picture of the report: `python -m conformance self screenshot docs/report.png`.

It wants Chromium, chromedriver, selenium and the dependency group `report`. The picture in
docs has 16 colours and its upper half, for docs has at most 250 KB. Exit status 0, or 2 and one line.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from conformance.running.baselines import BASELINES
from results import report
from results.record.folders import read
from tests.browser import chromium, missing


def take(page: Path, picture: Path, profile: Path) -> None:
    """The matrix of the clauses about loss scaling, as a PNG 1280 pixels wide."""
    with chromium(profile) as browser:
        browser.open(page)
        browser.resize(1280, 1000)
        browser.choose("family", "scaling")
        browser.run("document.getElementById('matrix').scrollIntoView()")
        picture.write_bytes(browser.driver.get_screenshot_as_png())


def main(arguments: list[str]) -> int:
    """Draws the committed baselines; returns the exit status."""
    if lacking := missing() or ("name the picture" if len(arguments) != 1 else ""):
        print(f"no picture: {lacking}", file=sys.stderr)
        return 2
    with TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        report.write(read([BASELINES]), page)
        take(page, Path(arguments[0]), Path(folder) / "profile")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
