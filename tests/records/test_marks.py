"""What a record says links to nothing in a pull request's comment, and acts on no terminal."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from results.compare.pairing import compare_sets
from results.record.outcomes import Outcome
from results.show import ctrf
from results.show.differences import to_json
from results.show.digest import markdown
from results.show.marks import escaped, html, words
from tests.support.small_record import BASE, verdict

REFERENCES = (
    *("https://example.org/x", "HTTP://example.org", "ftp://example.org", "www.example.org", "mailto:a@example.org"),
    *(
        "#1",
        "owner/name#23",
        "GH-1",
        "gh-77",
        "@name",
        "owner/name@a1b2c3d",
        "a1b2c3d",
        "deadbeef" * 5,
        "0123456789abcdef",
    ),
)
LINKED = re.compile(
    r"(?i)(?:https?|ftp|mailto|xmpp):[^\s\u200b]|www\.|@\w|#\d|\bGH-\d|(?<![`>])\b(?=[0-9]*[a-f])[0-9a-f]{7,40}\b"
)


@pytest.mark.parametrize("text", REFERENCES)
def test_nothing_in_a_text_becomes_a_link(text: str) -> None:
    assert LINKED.search(text), "it is one that would"
    for result in (words(text), html(text)):
        assert not LINKED.search(result.replace("\\", ""))
        assert re.sub(r"[\u200b\\`]|</?code>", "", result) == text


@pytest.mark.parametrize("text", ["1048576 bytes", "0.0001234567", "#a heading", "a www b", "3 of 12345678"])
def test_numbers_stay_as_they_are(text: str) -> None:
    assert "\u200b" not in words(text)


def test_a_record_in_a_comment_links_to_nothing() -> None:
    text = " ".join(REFERENCES)
    comment = markdown([verdict(BASE, 0, outcome=Outcome.FAIL, message=text)])
    without_code = re.sub(r"`[^`]*`", "", comment).replace("\\", "")
    assert "example" in without_code
    assert not LINKED.search(without_code)


def test_a_comparison_as_json_has_no_raw_control_characters() -> None:
    text = "\x1b[2J \x7f \x9b31m \u202e ü"
    content = to_json(compare_sets([BASE], [verdict(BASE, 0, outcome=Outcome.FAIL, message=text)]))
    assert content.replace("\n", "").isprintable()
    assert json.loads(content)["pairs"][0]["changes"][0]["detail"].startswith(text)


def test_ctrf_has_no_raw_control_characters() -> None:
    text = "\x1b[2J \x7f \x9b31m \u202e \U000e0001 ü ✓"
    record = verdict(BASE, 0, outcome=Outcome.FAIL, message=text)
    content = ctrf.dumps([replace(record, notes=(text,))]).decode("utf-8")
    assert content.replace("\n", "").isprintable()
    assert any(test.get("message") == text for test in json.loads(content)["results"]["tests"])
    assert "✓" in content
    assert escaped('"\U000e0001"') == '"\\udb40\\udc01"'
