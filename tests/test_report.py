"""The report: what stands in the page, and that nothing in a record can act in it."""

from __future__ import annotations

import base64
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

import pytest

from results import report
from results.compare.comparison import compare
from results.compare.pairing import Comparisons
from results.record.model import Variant
from results.record.reading import ClauseText, Outcome, Record, RecordError, TestVerdict
from results.report import about, across, matrix, porting
from results.report.page import render
from results.report.runs import COLOURS, Run, runs
from results.report.text import clean, href, linked, told
from results.show.clauses import GRAVITY
from results.show.findings import findings
from results.show.portability import words
from tests.browser import Reader
from tests.reporting import DATE, MEGABYTES, baselines, infected_page, page, record


@cache
def parsed(name: str) -> Reader:
    """A page read."""
    return Reader({"baselines": page, "infected": infected_page}[name]())


BOTH = pytest.mark.parametrize("name", ["baselines", "infected"])


def cells(name: str) -> dict[str, Any]:
    """What lies behind the cells of a page."""
    (text,) = (text for attributes, text in parsed(name).all("script") if attributes.get("id") == "cells-data")
    found: dict[str, Any] = json.loads(text)
    return found


@BOTH
def test_the_page_is_well_formed(name: str) -> None:
    found = parsed(name)
    assert found.wrong == []
    ids = Counter(attributes["id"] for _, attributes in found.elements if "id" in attributes)
    assert [identifier for identifier, count in ids.items() if count > 1] == []
    for _, attributes in found.elements:
        for reference in ("aria-labelledby", "for"):
            assert attributes.get(reference, "cell") in {*ids, "cell"}
    links = [attributes["href"] for attributes, _ in found.all("a") if (attributes["href"] or "").startswith("#")]
    assert {link[1:] for link in links if link} <= set(ids)


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
    found = parsed(name)
    (policy,) = [a["content"] or "" for a, _ in found.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    scripts = [text for attributes, text in found.all("script") if attributes.get("type") != "application/json"]
    assert rules["default-src"] == "'none'"
    assert rules["script-src"].split() == [digest(script) for script in scripts]
    assert rules["style-src"].split() == [digest(style) for _, style in found.all("style")]
    assert "unsafe" not in policy
    for attributes, text in found.all("script"):
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


def test_the_baselines_fit_and_the_page_is_the_same_each_time() -> None:
    assert len(page().encode()) < 8 * 2**20
    assert render(baselines()) == page()


def test_every_test_is_counted_once_in_the_matrix() -> None:
    data = cells("baselines")
    found = Counter((run, data["outcomes"][v[0]][0]) for _, run, verdicts in data["cells"] for v in verdicts)
    for number, one in enumerate(baselines()):
        for outcome in Outcome:
            assert found[number, outcome.value] == sum(v.outcome is outcome for v in one.verdicts)
    buttons = [a for a, _ in parsed("baselines").all("button") if "data-cell" in a]
    assert {int(a["data-cell"] or -1) for a in buttons} == set(range(len(data["cells"])))


def test_reasons_and_links_of_known_failures_are_in_the_page() -> None:
    for finding in findings(baselines()[-1]):
        assert json.dumps(finding.reason)[1:-1] in page()
        assert finding.link in page()


# ---------------------------------------------------------------- what is derived


P, F, K, U = Outcome.PASS, Outcome.FAIL, Outcome.KNOWN, Outcome.UNSUPPORTED


def test_a_failure_is_alone_where_another_that_supports_the_clause_passes() -> None:
    names = ("s.both", "s.one", "s.oracle-only", "s.two")
    records = [
        record("torch", dict(zip(names, (F, K, F, F), strict=True))),
        record("tf", dict(zip(names, (K, P, U, K), strict=True))),
        record("paddle", dict(zip(names, (U, U, U, P), strict=True))),
        record("reference", dict.fromkeys(names, P)),
    ]
    (found,) = matrix.alone(matrix.families(records))
    assert (found.row.name, found.row.alone, found.row.held_by) == ("s.one", "torch", ("tf",))
    with_the_oracle = matrix.alone(matrix.families([records[0], records[-1]]))
    assert [one.row.name for one in with_the_oracle] == list(names), "as there is no other"


def test_runs_of_one_framework_are_one() -> None:
    records = [record("paddle", {"s.x": K}), record("paddle", {"s.x": P}), record("torch", {"s.x": P})]
    (found,) = matrix.alone(matrix.families(records))
    assert [cell.run for cell in found.cells] == [0]
    assert not matrix.alone(matrix.families(records[:2]))


def test_cells_count_and_put_the_gravest_first() -> None:
    clause = {"s.x": ClauseText("MUST", "…", "", (), "s")}
    verdicts = tuple(TestVerdict(f"t{i}", "s.x", outcome) for i, outcome in enumerate(Outcome))
    ((row,),) = (family.rows for family in matrix.families([record("torch", {}, clauses=clause, verdicts=verdicts)]))
    (cell,) = row.cells
    assert tuple(verdict.outcome for verdict in cell.verdicts) == GRAVITY
    assert (cell.tally.counts[-1], cell.tally.total) == ((Outcome.PASS, 1), len(Outcome))
    assert set(matrix.SYMBOLS) == set(Outcome) == set(GRAVITY)
    assert len(set(matrix.SYMBOLS.values())) == len(Outcome)


def test_every_clause_and_run_has_an_address_of_its_own() -> None:
    anchors = [a["id"] for a, _ in parsed("baselines").all("td") if a.get("id")]
    assert len(anchors) == len(set(anchors)) == len({c for one in baselines() for c in one.clauses}) * len(baselines())
    assert {"scaling.automaton@torch-eager", "scaling.automaton@paddle-dygraph-forced-scaler"} <= set(anchors)
    assert all(re.fullmatch(r"[\w.~+-]+@[\w.~+-]+", anchor) for anchor in anchors)
    hostile = [a["id"] or "" for a, _ in parsed("infected").all("td") if a.get("id")]
    assert all(re.fullmatch(r"[\w.~+-]+@[\w.~+-]*", anchor, re.ASCII) for anchor in hostile)


def test_a_run_is_addressed_by_what_tells_it_apart() -> None:
    one = record("torch", {})

    def slugs(*records: Record) -> list[str]:
        return [run.slug for run in runs(records)]

    on_gpu = replace(one, series=replace(one.series, device="cuda"))
    newer = replace(one, variant=Variant("2+cu1"))
    assert slugs(one, record("tf", {})) == ["torch-m", "tf-m"]
    assert slugs(one, on_gpu) == ["torch-m-cpu", "torch-m-cuda"]
    assert slugs(one, newer, on_gpu) == ["torch-m-cpu-1", "torch-m-cpu-2+cu1", "torch-m-cuda"]
    assert slugs(one, one) == ["~1", "~2"]
    assert slugs(record("a b/<", {})) == ["a_b__-m"]


def test_totals_count_clauses_first_and_tests_second() -> None:
    clauses = dict.fromkeys(("s.x", "s.y"), ClauseText("MUST", "…", "", (), "s"))
    verdicts = (
        TestVerdict("t1", "s.x", P),
        TestVerdict("t2", "s.x", K),
        TestVerdict("t3", "s.y", P),
        TestVerdict("t4", "s.y", U),
    )
    (family,) = matrix.families([record("torch", {}, clauses=clauses, verdicts=verdicts)])
    (totals,) = family.totals
    assert (totals.clauses.counts, totals.clauses.total) == (((K, 1), (P, 1)), 2)
    assert (totals.tests.counts, totals.tests.total) == (((K, 1), (U, 1), (P, 2)), 4)
    assert [cell.outcome for row in family.rows for cell in row.cells] == [K, P]


def test_a_clause_has_its_word_and_is_chosen_by_it() -> None:
    records = [record("torch", {"s.x": K, "s.y": P, "s.z": P}), record("tf", {"s.x": P, "s.y": P, "s.z": U})]
    said = words(records)
    assert across.choices(said.values()) == ("broken", "differs", "portable", "broken in torch")
    ((x, y, z),) = (family.rows for family in matrix.families(records))
    assert [row.word.choices for row in (x, y, z) if row.word] == [(0, 3), (2,), (1,)]
    assert x.word is not None
    assert [(each.framework, "".join(each.version)) for each in x.word.broken] == [("torch", "1")]
    text = render(records)
    assert '<td class="across a-portable">portable</td>' in text
    assert "broken in <span" in text


def test_what_nobody_confirmed_is_marked() -> None:
    one = record("torch", {"s.x": K, "s.y": P})
    known, passed = one.verdicts
    text = render([replace(one, verdicts=(replace(known, inferred_from="0.9"), passed))])
    assert text.count("1 not confirmed in this version</span>") == 1
    assert "known failures judged in 0.9, not confirmed in this version: 1 test" in text
    assert "not confirmed in this version" not in " ".join(text for _, text in parsed("baselines").all("span"))


def test_the_rest_of_the_environment_is_folded_and_what_differs_comes_first() -> None:
    def on(packages: dict[str, str], variables: dict[str, str], sets: tuple[str, ...]) -> Record:
        return record("torch", {}, variant=Variant("1", {}, packages, variables, sets))

    runs_of_two = [on({"a": "1", "b": "1", "c": "2"}, {}, ("avx2", "fma")), on({"b": "1", "c": "3"}, {}, ("fma",))]
    packages, sets = about.folds([*runs_of_two, record("old", {})])
    assert [(fact.name, fact.values, fact.differs) for fact in packages.facts] == [
        ("a", ("1", "not installed", None), True),
        ("c", ("2", "3", None), True),
        ("b", ("1", "1", None), False),
    ]
    assert (packages.title, packages.differing, packages.left) == ("Packages", 2, 0)
    assert [(fact.name, fact.values) for fact in sets.facts] == [
        ("avx2", ("yes", "no", None)),
        ("fma", ("yes", "yes", None)),
    ]
    assert about.folds([record("old", {})]) == ()
    found = Reader(render(runs_of_two))
    assert found.wrong == []
    assert "Instruction sets of the processor " in [text for _, text in found.all("summary")]


def test_what_differs_comes_first_and_paper_defaults_before_all() -> None:
    def seen(framework: str, initial: float, mode: str) -> Record:
        observations = {
            "scaling.paper-defaults/settings/test_x": {"growth": 2.0, "initial": initial},
            "autocast.threads/format/test_y[a/b]": mode,
            "autocast.op-dtypes/float16/test_z": {"add": "float16 / float16"},
        }
        clauses = dict.fromkeys(("scaling.paper-defaults", "autocast.threads"), P)
        return record(framework, clauses, observations=observations)

    first, second, third = porting.groups([seen("torch", 1.0, "x"), seen("tf", 2.0, "y"), seen("reference", 3.0, "z")])
    assert [(line.name, line.values, line.differs) for line in first.lines] == [
        ("settings › initial", ("1", "2", "3"), True),
        ("settings › growth", ("2", "2", "2"), False),
    ]
    assert [(line.name, line.case, line.differs) for line in second.lines] == [("format", "a/b", True)]
    assert (third.folded, third.differing) == (True, 0)


def test_the_oracle_alone_makes_no_difference() -> None:
    def seen(framework: str, value: int) -> Record:
        return record(framework, {"a.b": P}, observations={"a.b/k": value})

    (group,) = porting.groups([seen("torch", 1), seen("tf", 1), seen("reference", 2)])
    assert not group.differing


def test_an_interrupted_run_and_its_notes_stand_out() -> None:
    found = Reader(render([record("torch", {}, status="interrupted", notes=("2 damaged lines were left out",))]))
    assert [text for attributes, text in found.all("strong") if attributes.get("class") == "flag"] == ["interrupted"]
    assert "2 damaged lines were left out" in [text for _, text in found.all("li")]
    assert not [attributes for attributes, _ in parsed("baselines").all("strong")]


def test_no_two_columns_are_called_the_same() -> None:
    one = record("torch", {})
    later = replace(one, started="2027-01-01")
    labels = [run.label for run in runs([one, later, later, record("tf", {})])]
    assert labels[0] == f"torch 1 m cpu, {DATE}"
    assert labels[-1] == "tf 1 m cpu"
    assert len(set(labels)) == 4
    assert len({run.short for run in runs([one, later, later, replace(one, variant=Variant("2"))])}) == 4


@pytest.mark.parametrize(
    ("link", "good"),
    [
        ("https://example.org/a?b=c#d", True),
        ("http://example.org", True),
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
    assert told({"a": [1.5, True, None, math.inf]}) == "{a: [1.5, yes, none, inf]}"


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
SEEN_ON = {"focus": ON_PAPER, "line-2": ("raised",), **{f"run-{i}": ("raised", "sunk", "band") for i in range(COLOURS)}}


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_colours_contrast(mode: int) -> None:
    style = files("results.report").joinpath("templates/style.css").read_text("utf-8")
    colours = {
        name: pair[mode]
        for name, *pair in re.findall(r"--([\w-]+): light-dark\(#([0-9a-f]{6}), #([0-9a-f]{6})\)", style)
    }
    for least, pairs in ((4.5, READ_ON), (3.0, SEEN_ON)):
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


@pytest.mark.parametrize("records", [[], [record("torch", {})]], ids=["none", "one without a test"])
def test_little_is_enough(records: list[Record], tmp_path: Path) -> None:
    report.write(records, tmp_path / "report.html")
    assert Reader((tmp_path / "report.html").read_text("utf-8")).wrong == []


def test_a_trace_that_is_cut_says_so() -> None:
    long = record("torch", {}, traces={"loss/a": {"loss": (1.0,) * 6000}, "scale/b": {"scale": (2.0,) * 5000}})
    text = render([long])
    assert "a (the first 5000 of 6000 updates)" in text
    assert "updates)" not in text.replace("a (the first 5000 of 6000 updates)", "")


def test_a_report_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"cannot be written"):
        report.write([], tmp_path / "missing" / "report.html")


def test_comparisons_are_shown_worst_first() -> None:
    old = record("torch", {"s.fixed": F, "s.broken": P, "s.same": P})
    new = record("torch", {"s.fixed": P, "s.broken": F, "s.same": P})
    pairs = (compare(old, new), compare(old, record("tf", {"s.same": P})))
    text = render([new], Comparisons(pairs, ("jax nojit cpu: only among the old records",)))
    found = Reader(text)
    assert found.wrong == []
    assert text.index("newly failing") < text.index("newly passing")
    assert "1 of 2 changes are worse" in text
    assert "another framework: torch and tf" in text
    assert "only among the old records" in text


def test_a_version_breaks_between_its_packages() -> None:
    run = Run(0, "jax", "0.10.2+flax.0.12.8.optax.0.2.8", "jit cpu", False)
    assert run.packages == ["0.10.2+", "flax.0.12.8.", "optax.0.2.8"]
    assert Run(0, "paddle", "3.3.1", "cpu", False).packages == ["3.3.1"]
