"""Text in the report: links, characters made visible, and colours that contrast."""

from __future__ import annotations

import math
import re
from importlib.resources import files

import pytest

from results.report.runs import COLOURS, RunColumn
from results.report.text import clean, described, href, linked


@pytest.mark.parametrize(
    ("link", "good"),
    [
        ("https://example.org/a?b=c#d", True),
        ("http://example.org", True),
        ("https://example.org/@name", True),
        ("https://name:hunter2@example.org/", False),
        ("https://name@example.org/", False),
        ("HTTPS://:hunter2@example.org", False),
        ("javascript:alert(1)", False),
        ("https://", False),
        ("https://[", False),
        ("https://a b", False),
        ("https://a/\u202e", False),
        (" https://example.org", False),
        ("//example.org", False),
        ("https://example.org/" + "x" * 3000, False),
    ],
)
def test_links_lead_to_the_web_only(link: str, good: bool) -> None:
    assert href(link) == (link if good else "")


def test_addresses_in_a_text_become_links() -> None:
    pieces = linked("a https://a.org/1, b (https://b.org) c")
    assert [(piece.text, piece.href) for piece in pieces if piece.href] == [
        ("https://a.org/1", "https://a.org/1"),
        ("https://b.org", "https://b.org"),
    ]
    assert "".join(piece.text for piece in pieces) == "a https://a.org/1, b (https://b.org) c"


def test_a_text_is_made_visible() -> None:
    assert clean("a\u202eb\x00\n") == "a‹U+202E›b‹U+0000›‹U+000A›"
    assert clean("a\nb", lines=True) == "a\nb"
    assert clean("\ud800") == "‹U+D800›"
    assert clean("x" * 10, 4) == "xxxx… [6 more characters are left out]"
    assert described({"a": [1.5, True, None, math.inf]}) == "{a: [1.5, yes, none, inf]}"


ON_PAPER = ("paper", "raised", "sunk")


READ_ON = {
    "ink": (*ON_PAPER, "known-back", "odd-back", "bad-back", "cast-low", "cast-follows", "cast-wide", "cast-other"),
    "ink-2": (*ON_PAPER, "known-back", "odd-back", "bad-back"),
    "link": (*ON_PAPER, "odd-back"),
    "good": (*ON_PAPER, "known-back", "bad-back", "odd-back"),
    "known": (*ON_PAPER, "known-back", "bad-back", "odd-back"),
    "still": (*ON_PAPER, "known-back", "bad-back", "odd-back"),
    "odd": (*ON_PAPER, "odd-back", "bad-back", "known-back"),
    "bad": (*ON_PAPER, "bad-back", "odd-back", "known-back"),
}


GRAPHICS_ON = {
    "focus": ON_PAPER,
    "line-2": ("raised",),
    **{f"run-{i}": ("raised", "sunk", "band") for i in range(COLOURS)},
}


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_colours_contrast(mode: int) -> None:
    style = files("results.report").joinpath("templates/style.css").read_text("utf-8")
    colours = {
        name: pair[mode]
        for name, *pair in re.findall(r"--([\w-]+): light-dark\(#([0-9a-f]{6}), #([0-9a-f]{6})\)", style)
    }
    for least, pairs in ((4.5, READ_ON), (3.0, GRAPHICS_ON)):
        for front, backs in pairs.items():
            for back in backs:
                assert contrast(colours[front], colours[back]) >= least, f"{front} on {back}"


def contrast(*colours: str) -> float:
    """The contrast of two colours as WCAG defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted(map(luminance, colours))
    return (high + 0.05) / (low + 0.05)


def test_a_version_breaks_between_its_packages() -> None:
    run = RunColumn(0, "jax", "0.10.2+flax.0.12.8.optax.0.2.8", "jit cpu", False)
    assert run.packages == ["0.10.2+", "flax.0.12.8.", "optax.0.2.8"]
    assert RunColumn(0, "paddle", "3.3.1", "cpu", False).packages == ["3.3.1"]
