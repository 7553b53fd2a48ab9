"""The first sentences of the report, and the columns of each framework side by side."""

from __future__ import annotations

from results.compare.comparison import compare
from results.compare.pairing import NONE, Comparisons
from results.record.reading import Outcome, Record
from results.report import matrix
from results.report.page import render
from results.report.runs import by_framework, frameworks
from results.report.summary import sentences
from tests.support.reporting import record
from tools.browser import Reader

P, F, K, U = Outcome.PASS, Outcome.FAIL, Outcome.KNOWN, Outcome.UNSUPPORTED


def summary(*records: Record, comparisons: Comparisons = NONE) -> tuple[list[str], list[str]]:
    """The sentences, and the addresses in them."""
    grouped = by_framework(records)
    tests = sum(len(each.verdicts) for each in grouped)
    result = list(sentences(matrix.families(grouped), frameworks(grouped), tests, comparisons))
    return ["".join(part.text for part in each) for each in result], [p.href for each in result for p in each if p.href]


def test_the_summary_counts_and_links() -> None:
    torch = record("torch", {"s.known": K, "s.new": F, "s.all": P, "s.some": P})
    tf = record("tf", {"s.known": P, "s.new": K, "s.all": P, "s.some": U})
    texts, links = summary(torch, tf)
    assert texts == [
        "2 records of 2 frameworks were read: 4 clauses, 8 tests.",
        "2 clauses fail in at least one run (torch 2, tf 1); 1 clause fails unexpectedly (torch 1).",
        "The frameworks disagree on 2 clauses: 1 passes in one framework and fails in another, "
        "1 differs in support or in observed values.",
    ]
    assert links == [
        "#?outcome=any+failure",
        "#?outcome=any+failure&run=torch",
        "#?outcome=any+failure&run=tf",
        "#?outcome=unexpected+failure",
        "#?outcome=unexpected+failure&run=torch",
        "#?across=frameworks+disagree",
        "#?across=passes+in+one%2C+fails+in+another",
        "#?across=differs",
    ]


def test_a_clause_that_every_framework_fails_is_no_disagreement() -> None:
    texts, _ = summary(record("torch", {"s.x": K}), record("tf", {"s.x": K}))
    assert texts[1:] == [
        "1 clause fails in at least one run (torch 1, tf 1); every failure is a known one.",
        "The frameworks disagree on no clause.",
    ]


def test_one_record_needs_no_comparison_of_frameworks() -> None:
    assert summary(record("torch", {"s.x": P}))[0] == [
        "1 record of 1 framework was read: 1 clause, 1 test.",
        "No clause fails.",
    ]
    assert summary()[0] == ["0 records of 0 frameworks were read: 0 clauses, 0 tests.", "No clause fails."]


def test_the_summary_counts_regressions() -> None:
    old, new = record("torch", {"s.x": P, "s.y": K}), record("torch", {"s.x": F, "s.y": P})
    texts, links = summary(new, comparisons=Comparisons((compare(old, new),)))
    assert texts[-1] == "Since the earlier records: 1 change for the worse in 1 comparison."
    assert links[-1] == "#changes"
    assert summary(new, comparisons=Comparisons((compare(new, new),)))[0][-1].startswith(
        "Since the earlier records: no change for the worse"
    )


def test_runs_of_a_framework_stand_under_one_head() -> None:
    records = [record("torch", {"s.x": P}), record("tf", {"s.x": P}), record("torch", {"s.x": K}, status="partial")]
    page = Reader(render(records))
    heads = [(a.get("colspan"), page.content.get(i + 1)) for i, (tag, a) in enumerate(page.elements) if "colspan" in a]
    assert heads[:2] == [("2", "torch"), ("1", "tf")]
    classes = [a.get("class") for a, _ in page.all("td") if a.get("id")]
    outcomes = [a["class"] for a, _ in page.all("button") if "data-cell" in a][: len(classes)]
    assert list(zip(outcomes, classes, strict=True)) == [
        ("cell w-pass", "start"),
        ("cell w-known", None),
        ("cell w-pass", "start"),
    ]


def test_one_legend_explains_the_outcomes() -> None:
    page = render([record("torch", {f"s.x{i}": one for i, one in enumerate(Outcome)})])
    for outcome in Outcome:
        assert page.count(f'<dt class="o-{outcome.value.replace(" ", "-")}">') == 1
