"""What the report derives from records: sentences, cells, totals, words across frameworks, columns, what stands out."""

from __future__ import annotations

import re
from dataclasses import replace

from results.compare.comparison import compare
from results.compare.pairing import NONE, Comparisons
from results.record.model import Variant
from results.record.reading import ClauseText, Observation, Outcome, Record, TestVerdict, Trace
from results.report import about, matrix, porting
from results.report.page import LEGEND, render
from results.report.runs import by_framework, frameworks, runs
from results.report.summary import sentences
from results.show.clauses import GRAVITY
from results.show.portability import words
from tests.support.reporting import DATE, page, record
from tests.support.suite_runs import ROOT
from tools.browser import Reader

P, F, K, U = Outcome.PASS, Outcome.FAIL, Outcome.KNOWN, Outcome.UNSUPPORTED


def test_a_failure_is_alone_where_another_that_supports_the_clause_passes() -> None:
    names = ("s.both", "s.one", "s.oracle-only", "s.two")
    records = [
        record("torch", dict(zip(names, (F, K, F, F), strict=True))),
        record("tf", dict(zip(names, (K, P, U, K), strict=True))),
        record("paddle", dict(zip(names, (U, U, U, P), strict=True))),
        record("reference", dict.fromkeys(names, P)),
    ]
    (result,) = matrix.alone(matrix.families(records))
    assert (result.row.name, result.row.alone, result.row.passing) == ("s.one", "torch", ("tf",))
    with_the_oracle = matrix.alone(matrix.families([records[0], records[-1]]))
    assert [one.row.name for one in with_the_oracle] == list(names), "as there is no other"


def test_runs_of_one_framework_are_one() -> None:
    records = [record("paddle", {"s.x": K}), record("paddle", {"s.x": P}), record("torch", {"s.x": P})]
    (result,) = matrix.alone(matrix.families(records))
    assert [cell.run for cell in result.cells] == [0]
    assert not matrix.alone(matrix.families(records[:2]))


def test_cells_count_and_put_the_gravest_first() -> None:
    clause = {"s.x": ClauseText("MUST", "…", "", (), "s")}
    verdicts = tuple(TestVerdict(f"s.x/t{i}", "s.x", outcome) for i, outcome in enumerate(Outcome))
    ((row,),) = (family.rows for family in matrix.families([record("torch", {}, clauses=clause, verdicts=verdicts)]))
    (cell,) = row.cells
    assert tuple(verdict.outcome for verdict in cell.verdicts) == GRAVITY
    assert cell.tests == dict.fromkeys(Outcome, 1)
    assert set(LEGEND) == set(Outcome) == set(GRAVITY)
    assert len({symbol for symbol, _ in LEGEND.values()}) == len(Outcome)


def test_every_outcome_is_one_word_in_the_page() -> None:
    """Style sheets and filters know outcomes by words, and one outcome has two."""
    page = render([record("torch", {f"s.x{i}": one for i, one in enumerate(Outcome)})])
    named = {outcome.replace(" ", "-") for outcome in Outcome}
    assert set(re.findall(r'class="cell w-([^"]*)"', page)) == named
    assert set(re.findall(r'<span class="n o-([^"]*)">', page)) == named
    assert set(re.findall(r'<option value="([a-z-]+)">', page)) == named
    assert sorted(re.findall(r'<dt class="o-([^"]*)"', page)) == sorted(named)
    style = (ROOT / "results" / "report" / "templates" / "style.css").read_text("utf-8")
    assert {word for word in named if f".o-{word}" in style} == named


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
        TestVerdict("s.x/t1", "s.x", P),
        TestVerdict("s.x/t2", "s.x", K),
        TestVerdict("s.y/t3", "s.y", P),
        TestVerdict("s.y/t4", "s.y", U),
    )
    (family,) = matrix.families([record("torch", {}, clauses=clauses, verdicts=verdicts)])
    (totals,) = family.totals
    assert (totals.clauses, totals.tests) == ({K: 1, P: 1}, {K: 1, U: 1, P: 2})
    assert [cell.outcome for row in family.rows for cell in row.cells] == [K, P]


def test_a_clause_has_its_word_and_is_chosen_by_it() -> None:
    records = [record("torch", {"s.x": K, "s.y": P, "s.z": P}), record("tf", {"s.x": P, "s.y": P, "s.z": U})]
    said = words(records)
    assert matrix.choices(said.values()) == ("broken", "differs", "portable", "broken in torch")
    ((x, y, z),) = (family.rows for family in matrix.families(records))
    assert [row.word.choices for row in (x, y, z) if row.word] == [(0, 3), (2,), (1,)]
    assert x.word is not None
    assert [(framework, "".join(version)) for framework, version, _ in x.word.broken] == [("torch", "1")]
    text = render(records)
    assert '<td class="across a-portable">portable</td>' in text
    assert "broken in <span" in text


def test_what_nobody_confirmed_is_marked() -> None:
    one = record("torch", {"s.x": K, "s.y": P})
    known, passed = one.verdicts
    text = render([replace(one, verdicts=(replace(known, inferred_from="0.9"), passed))])
    assert text.count("1 not confirmed here</span>") == 1
    assert "known failures judged in 0.9, not confirmed here: 1 test" in text
    assert "not confirmed here" not in " ".join(text for _, text in Reader(page()).all("span"))


def test_the_rest_of_the_environment_is_folded_and_what_differs_comes_first() -> None:
    def on(packages: dict[str, str], variables: dict[str, str], sets: tuple[str, ...]) -> Record:
        return record("torch", {}, variant=Variant("1", {}, packages, variables, sets))

    runs_of_two = [on({"a": "1", "b": "1", "c": "2"}, {}, ("avx2", "fma")), on({"b": "1", "c": "3"}, {}, ("fma",))]
    packages, sets = about.folds([*runs_of_two, record("old", {})])
    assert [(fact["name"], fact["cells"], fact["differs"]) for fact in packages["facts"]] == [
        ("a", ("1", "not installed", None), True),
        ("c", ("2", "3", None), True),
        ("b", ("1", "1", None), False),
    ]
    assert (packages["title"], packages["differing"], packages["left"]) == ("Packages", 2, 0)
    assert [(fact["name"], fact["cells"]) for fact in sets["facts"]] == [
        ("avx2", ("yes", "no", None)),
        ("fma", ("yes", "yes", None)),
    ]
    assert about.folds([record("old", {})]) == []
    result = Reader(render(runs_of_two))
    assert result.wrong == []
    assert "Instruction sets of the processor " in [text for _, text in result.all("summary")]


def test_what_differs_comes_first_and_paper_defaults_before_all() -> None:
    def record_of(framework: str, initial: float, mode: str) -> Record:
        observations = (
            Observation("scaling.paper-defaults", "settings", "test_x", {"growth": 2.0, "initial": initial}),
            Observation("autocast.threads", "format", "test_y[a/b]", mode),
            Observation("autocast.op-dtypes", "float16", "test_z", {"add": "float16 / float16"}),
        )
        clauses = dict.fromkeys(("scaling.paper-defaults", "autocast.threads"), P)
        return record(framework, clauses, observations=observations)

    first, second, third = porting.groups(
        [record_of("torch", 1.0, "x"), record_of("tf", 2.0, "y"), record_of("reference", 3.0, "z")]
    )
    assert [(line["name"], line["cells"], line["differs"]) for line in first["lines"]] == [
        ("settings › initial", ["1", "2", "3"], True),
        ("settings › growth", ["2", "2", "2"], False),
    ]
    assert [(line["name"], line["case"], line["differs"]) for line in second["lines"]] == [("format", "a/b", True)]
    assert (third["folded"], third["differing"]) == (True, 0)


def test_the_oracle_alone_makes_no_difference() -> None:
    def record_of(framework: str, value: int) -> Record:
        return record(framework, {"a.b": P}, observations=(Observation("a.b", "k", "", value),))

    (group,) = porting.groups([record_of("torch", 1), record_of("tf", 1), record_of("reference", 2)])
    assert not group["differing"]


def test_an_interrupted_run_and_its_notes_stand_out() -> None:
    result = Reader(render([record("torch", {}, status="interrupted", notes=("2 damaged lines were left out",))]))
    assert [text for attributes, text in result.all("strong") if attributes.get("class") == "flag"] == ["interrupted"]
    assert "2 damaged lines were left out" in [text for _, text in result.all("li")]
    assert not Reader(render([record("torch", {})])).all("strong")


def test_no_two_columns_are_called_the_same() -> None:
    one = record("torch", {})
    later = replace(one, started="2027-01-01")
    labels = [run.label for run in runs([one, later, later, record("tf", {})])]
    assert labels[0] == f"torch 1 m cpu, {DATE}"
    assert labels[-1] == "tf 1 m cpu"
    assert len(set(labels)) == 4
    assert len({run.short for run in runs([one, later, later, replace(one, variant=Variant("2"))])}) == 4


def test_a_trace_that_is_cut_says_so() -> None:
    traces = Trace("loss", "a", {"loss": (1.0,) * 6000}), Trace("scale", "b", {"scale": (2.0,) * 5000})
    long = record("torch", {}, traces=traces)
    text = render([long])
    assert "a (the first 5000 of 6000 updates)" in text
    assert "updates)" not in text.replace("a (the first 5000 of 6000 updates)", "")


def test_comparisons_are_shown_worst_first() -> None:
    old = record("torch", {"s.fixed": F, "s.broken": P, "s.same": P})
    new = record("torch", {"s.fixed": P, "s.broken": F, "s.same": P})
    pairs = (compare(old, new), compare(old, record("tf", {"s.same": P})))
    text = render([new], Comparisons(pairs, ("jax nojit cpu: only among the old records",)))
    result = Reader(text)
    assert result.wrong == []
    assert text.index("newly failing") < text.index("newly passing")
    assert "Regressions found: 1 of 2 changes." in text
    assert "different frameworks: torch and tf" in text
    assert "only among the old records" in text


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
