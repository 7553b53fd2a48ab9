"""The README's picture of the report: `python -m tools screenshot docs/report.png`.

It needs Chromium, chromedriver, selenium and the dependency group `report`. Exit status 0, or 2 and one line.
"""

from __future__ import annotations

import argparse
import base64
import struct
import sys
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from conformance.runner.baselines import BASELINES
from results import report
from results.record.folders import read
from tools.browser import Browser, chromium, missing

COLOURS = 16
"""Colours of the picture: the most frequent ones of the page, four bits a pixel."""

PIXELS = """
const [picture, done] = arguments;
const image = new Image();
image.onload = () => {
  const canvas = Object.assign(document.createElement("canvas"), {width: image.width, height: image.height});
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const { data } = context.getImageData(0, 0, image.width, image.height);
  const parts = [];
  for (let at = 0; at < data.length; at += 3000) parts.push(btoa(String.fromCharCode(...data.subarray(at, at + 3000))));
  done([image.height, image.width, parts.join("")]);
};
image.src = `data:image/png;base64,${picture}`;
"""
"""A script: height, width and RGBA bytes in base64 of a PNG in base64."""


def take(page: Path, picture: Path, profile: Path) -> None:
    """The matrix, filtered to the clauses about loss scaling, as a PNG 1280 pixels wide."""
    with chromium(profile) as browser:
        browser.open(page)
        browser.resize(1280, 520)
        browser.choose("family", "scaling")
        browser.run("document.getElementById('search').scrollIntoView()")
        shot = browser.driver.get_screenshot_as_base64()
        browser.driver.get("about:blank")
        picture.write_bytes(png(pixels(browser, shot)))


def pixels(browser: Browser, picture: str) -> NDArray[np.uint8]:
    """A PNG in base64 as an array of shape (height, width, 3)."""
    height, width, content = browser.driver.execute_async_script(PIXELS, picture)
    return np.frombuffer(base64.b64decode(content), np.uint8).reshape(height, width, 4)[..., :3]


def png(image: NDArray[np.uint8]) -> bytes:
    """An image of shape (height, width, 3) as a PNG of at most `COLOURS` colours, each pixel in the nearest one."""
    height, width, _ = image.shape
    colours, places, counts = np.unique(image.reshape(-1, 3), axis=0, return_inverse=True, return_counts=True)
    palette = colours[np.argsort(-counts, kind="stable")[:COLOURS]]
    distances = ((colours[:, None].astype(np.int32) - palette[None].astype(np.int32)) ** 2).sum(-1)
    rows = distances.argmin(1).astype(np.uint8)[places.reshape(height, width)]
    packed = np.pad(rows, ((0, 0), (0, width % 2))).reshape(height, -1, 2) @ np.array([16, 1], np.uint8)
    lines = b"".join(b"\0" + row.tobytes() for row in packed)
    header = struct.pack(">IIBBBBB", width, height, 4, 3, 0, 0, 0)
    parts = ((b"IHDR", header), (b"PLTE", palette.tobytes()), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, *zip(*parts, strict=True)))


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def main(arguments: list[str]) -> int:
    """Draws the committed baselines; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools screenshot", description=__doc__)
    parser.add_argument("picture", type=Path, help="the file to write, PNG")
    picture = parser.parse_args(arguments).picture
    if lacking := missing():
        print(f"no picture: {lacking}", file=sys.stderr)
        return 2
    with TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        report.write(read([BASELINES]), page)
        take(page, picture, Path(folder) / "profile")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
