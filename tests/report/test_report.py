"""The report's page: well formed, self-contained, and nothing in a record or a comparison can act in it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from results import report
from results.compare.changes import Change, ChangeKind
from results.compare.comparison import Comparison, compare
from results.compare.numbers import MovedNumbers, Movement
from results.compare.pairing import Comparisons
from results.record.reading import Outcome, Record, RecordError, Variant
from results.report.page import render
from results.report.runs import COLOURS, RunColumn
from results.report.text import clean, described, href, linked
from results.show.differences import markdown
from results.show.findings import findings
from tests.support import doctored
from tests.support.reporting import HOSTILE, MEGABYTES, abridged, baselines, infected, infected_page, page, record
from tools.browser import Reader


@cache
def parsed(name: str) -> Reader:
    """A page read."""
    return Reader({"baselines": page, "infected": infected_page}[name]())


DATA = ("application/json", "application/gzip")
"""Types of script elements that hold data."""

BOTH = pytest.mark.parametrize("name", ["baselines", "infected"])


def cells(name: str) -> dict[str, Any]:
    """What lies behind the cells of a page."""
    (text,) = (text for attributes, text in parsed(name).all("script") if attributes.get("id") == "cells-data")
    result: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(text, validate=True)))
    return result


@BOTH
def test_the_page_is_well_formed(name: str) -> None:
    result = parsed(name)
    assert result.wrong == []
    ids = Counter(attributes["id"] for _, attributes in result.elements if "id" in attributes)
    assert [identifier for identifier, count in ids.items() if count > 1] == []
    for _, attributes in result.elements:
        for reference in ("aria-labelledby", "for"):
            assert attributes.get(reference, "cell") in {*ids, "cell"}
    links = [attributes["href"] or "" for attributes, _ in result.all("a")]
    assert {link[1:] for link in links if re.match(r"#[^?]", link)} <= set(ids)
    filters = [parse_qsl(link[2:], strict_parsing=True) for link in links if link.startswith("#?")]
    named = {attributes.get("data-name") or text for attributes, text in result.all("option")}
    for chosen in filters:
        assert {field for field, _ in chosen} <= set(ids)
        assert {value for _, value in chosen} <= named


@BOTH
def test_the_page_asks_nobody_for_anything(name: str) -> None:
    for tag, attributes in parsed(name).elements:
        assert not {"src", "srcset", "action", "formaction", "poster", "ping", "style"} & attributes.keys()
        assert not [attribute for attribute in attributes if attribute.startswith("on")]
        if tag == "a":
            link = attributes["href"] or ""
            assert link.startswith("#") or (href(link) and attributes["rel"] == "noopener noreferrer"), link
        elif "href" in attributes:
            assert (tag, attributes["href"]) == ("link", "data:,")


@BOTH
def test_only_our_scripts_and_styles_may_run(name: str) -> None:
    result = parsed(name)
    (policy,) = [a["content"] or "" for a, _ in result.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    scripts = [text for attributes, text in result.all("script") if attributes.get("type") not in DATA]
    assert rules["default-src"] == "'none'"
    assert rules["script-src"].split() == [digest(script) for script in scripts]
    assert rules["style-src"].split() == [digest(style) for _, style in result.all("style")]
    assert "unsafe" not in policy
    for attributes, text in result.all("script"):
        if attributes.get("type") == "application/json":
            assert not set("<>&\u2028\u2029") & set(text)
            json.loads(text)


def digest(text: str) -> str:
    """How a policy names a script or a style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_hostile_records_add_no_kind_of_element() -> None:
    benign, hostile = ({tag for tag, _ in parsed(name).elements} for name in ("baselines", "infected"))
    assert hostile - benign <= {"strong"}, "interrupted runs are emphasised"
    assert len(parsed("infected").all("script")) == len(parsed("baselines").all("script"))


def test_a_long_text_is_cut_with_a_notice() -> None:
    assert len(infected_page()) < 8 * 2**20
    notices = re.findall(r"… \[([\d,]+) more characters are left out\]", "\n".join(cells("infected")["texts"]))
    assert max(int(notice.replace(",", "")) for notice in notices) > (MEGABYTES - 1) * 2**20


def test_the_page_is_the_same_each_time() -> None:
    assert render(abridged()) == render(abridged())


def test_every_test_is_counted_once_in_the_matrix() -> None:
    data = cells("baselines")
    placed = ((run, data["verdicts"][place]) for _, run, verdicts in data["cells"] for place, _ in verdicts)
    result = Counter((run, data["outcomes"][verdict[0]][0]) for run, verdict in placed)
    for number, one in enumerate(baselines()):
        for outcome in Outcome:
            assert result[number, outcome.value] == sum(v.outcome is outcome for v in one.verdicts)
    buttons = [a for a, _ in parsed("baselines").all("button") if "data-cell" in a]
    assert {int(a["data-cell"] or -1) for a in buttons} == set(range(len(data["cells"])))


def test_reasons_and_links_of_known_failures_are_in_the_page() -> None:
    unpacked = json.dumps(cells("baselines"))
    for finding in findings(baselines()[-1]):
        assert json.dumps(finding.reason)[1:-1] in unpacked
        assert finding.link in unpacked


def test_every_clause_and_run_has_an_address_of_its_own() -> None:
    anchors = [a["id"] for a, _ in parsed("baselines").all("td") if a.get("id")]
    assert len(anchors) == len(set(anchors)) == len({c for one in baselines() for c in one.clauses}) * len(baselines())
    assert {"scaling.automaton@torch-eager", "scaling.automaton@paddle-dygraph-forced-scaler"} <= set(anchors)
    assert all(re.fullmatch(r"[\w.~+-]+@[\w.~+-]+", anchor) for anchor in anchors)
    hostile = [a["id"] or "" for a, _ in parsed("infected").all("td") if a.get("id")]
    assert all(re.fullmatch(r"[\w.~+-]+@[\w.~+-]*", anchor, re.ASCII) for anchor in hostile)


@pytest.mark.parametrize("records", [[], [record("torch", {})]], ids=["none", "one without a test"])
def test_little_is_enough(records: list[Record], tmp_path: Path) -> None:
    report.write(records, tmp_path / "report.html")
    assert Reader((tmp_path / "report.html").read_text("utf-8")).wrong == []


def test_a_report_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"cannot be written"):
        report.write([], tmp_path / "missing" / "report.html")


def test_a_comparison_shows_environment_numbers_and_what_is_not_judged() -> None:
    old = doctored.baseline()
    test = next(verdict.test for verdict in old.verdicts if "test_float32_sgd_parity[digits-mlp]" in verdict.test)
    old = doctored.with_errors(old, test, 0.01)
    case = test.partition("/")[2]
    new = doctored.with_tensors(doctored.with_errors(old, test, 0.99), case, {"output/3": 2})
    new = doctored.with_variant(new, packages={"numpy": "2.5.0", "protobuf": "7.0"}, environment={"threads": "2"})
    timed = tuple(replace(m, samples=m.samples[::-1]) if m.unit == "s" else m for m in new.measurements)
    new = doctored.with_verdicts(
        replace(new, measurements=timed),
        lambda v: replace(v, setup_hash="other") if v.clause.startswith("resume.") else v,
    )
    text = render([new], Comparisons((compare(old, new),)))
    changes = Reader(text)
    assert changes.wrong == []
    text = text[text.index('<section id="changes"') :]
    assert "No regressions; 1 test drifted." in text
    assert "companion packages, which may be the cause: numpy: 2.4.6 → 2.5.0" in text
    assert "<code>TORCH_VERSION=2.13.0 NUMPY_VERSION=2.4.6 tox -e torch</code>" in text
    assert "<li>protobuf: 6.33.1 → 7.0</li>" in text
    assert "threads: 1 → 2: sums may round differently" in text
    assert "6 timings not judged here: times of separate runs are not comparable" in text
    assert "first tensor that differs: output/3 (bfloat16), by 2 units in the last place" in text
    assert re.search(r"<summary>\d+ not comparable</summary>", text)
    assert "1 drift.</p>" in text


def test_a_comparison_of_a_record_with_itself_says_so() -> None:
    old = doctored.baseline()
    text = render([old], Comparisons((compare(old, old),)))
    text = text[text.index('<section id="changes"') :]
    assert "No regressions: the two runs are identical." in text
    assert "Tests with moved numbers" not in text
    assert "not judged here" not in text


@pytest.mark.parametrize("part", range(4))
def test_nothing_in_a_comparison_can_act_in_the_page(part: int) -> None:
    pairs = []
    for text in HOSTILE[part::4]:
        old, new = infected(text), infected(f"{text}2")
        variant = Variant(text, {text: text}, {"numpy": text, text: text}, {text: text}, (text,))
        other = Variant(text, {text: f"{text}2"}, {"numpy": f"{text}2", text: f"{text}2"}, {text: "2"}, ("avx2",))
        changes = tuple(Change(kind, text, text, text, text, text, text) for kind in ChangeKind)
        moved = tuple(MovedNumbers(text, text, movement, text, text, text, text, text) for movement in Movement)
        old, new = replace(old, variant=variant), replace(new, variant=other)
        pairs.append(Comparison(old, new, changes, 1, numbers=moved))
    page = Reader(render([], Comparisons(tuple(pairs))))
    assert page.wrong == []
    prose = re.sub("`[^`]*`", "", markdown(Comparisons(tuple(pairs))))
    assert not re.search(r"(?<!\\)<(?!/?(details|summary)>)", prose)


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
