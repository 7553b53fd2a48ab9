"""The matrix and the values that the report derives from records, and the sentences above them."""

from dataclasses import replace

import pytest

from results.compare.comparison import compare
from results.compare.pairing import NONE, Comparisons
from results.record.model import Variant
from results.record.reading import ClauseText, Measurement, Observation, Outcome, Record, TestVerdict, Trace
from results.report import render, values
from results.report.matrix import ALONE, Cell, Matrix, by_framework, matrix, sentences
from results.report.page import LEGEND
from results.show.clauses import GRAVITY
from tests.support.reporting import DATE, record
from tools.browser import Reader

P, F, K, U = Outcome.PASS, Outcome.FAIL, Outcome.KNOWN, Outcome.UNSUPPORTED


def clauses_of(page: Matrix, choice: str) -> list[str]:
    """The clauses that a filter choice across frameworks leaves."""
    return [row.name for row in page.rows if choice in row.choices]


def test_matrix_of_frameworks_with_several_runs_has_a_column_for_each_and_folded_runs() -> None:
    records = by_framework(
        [record("torch", {"s.x": P}), record("tf", {"s.x": P}), record("torch", {"s.x": K, "s.y": P})]
    )
    records[1] = replace(records[1], series=replace(records[1].series, mode="n"))
    page = matrix(records)
    columns = [(column.slug, column.runs, column.opened) for column in page.columns]
    assert columns == [
        ("torch", (0, 1), False),
        ("torch-m", (0,), True),
        ("torch-n", (1,), True),
        ("tf-m", (2,), False),
    ]
    x, y = page.rows
    cells = [cell and (cell.outcome, dict(cell.runs), dict(cell.tests)) for cell in x.cells]
    one, known = (P, {P: 1}, {P: 1}), (K, {K: 1}, {K: 1})
    assert cells == [(K, {P: 1, K: 1}, {P: 1, K: 1}), one, known, one]
    assert y.cells[1] is y.cells[3] is None
    assert page.families[0].totals == ({K: 1, P: 1}, {P: 1}, {K: 1, P: 1}, {P: 1})


def test_matrix_cell_counts_tests_with_the_gravest_first() -> None:
    verdicts = tuple(TestVerdict(f"s.x/t{i}", "s.x", outcome) for i, outcome in enumerate(Outcome))
    clauses = {"s.x": ClauseText("MUST", "…", "", (), "s")}
    (row,) = matrix([record("torch", {}, clauses=clauses, verdicts=verdicts)]).rows
    assert tuple(verdict.outcome for verdict in row.verdicts[0]) == GRAVITY
    (cell,) = row.cells
    assert isinstance(cell, Cell)
    assert (cell.outcome, cell.tests) == (GRAVITY[0], dict.fromkeys(Outcome, 1))
    assert set(LEGEND) == set(Outcome)
    assert len({symbol for symbol, _ in LEGEND.values()}) == len(Outcome)


def test_matrix_choice_of_a_sole_failure_needs_another_framework_that_passes() -> None:
    names = ("s.both", "s.one", "s.oracle-only", "s.two")
    records = [
        record("torch", dict(zip(names, (F, K, F, F), strict=True))),
        record("tf", dict(zip(names, (K, P, U, K), strict=True))),
        record("paddle", dict(zip(names, (U, U, U, P), strict=True))),
        record("reference", dict.fromkeys(names, P)),
    ]
    assert clauses_of(matrix(records), ALONE) == ["s.one"]
    assert clauses_of(matrix([records[0], records[-1]]), ALONE) == list(names), "as there is no other framework"
    assert clauses_of(matrix([record("torch", {"s.x": K}), record("torch", {"s.x": P})]), ALONE) == []


def test_matrix_has_the_word_of_a_clause_and_its_choices() -> None:
    page = matrix([record("torch", {"s.x": K, "s.y": P, "s.z": P}), record("tf", {"s.x": P, "s.y": P, "s.z": U})])
    assert [row.word for row in page.rows] == ["broken in torch", "portable", "differs"]
    assert (clauses_of(page, "broken in torch"), clauses_of(page, "portable")) == (["s.x"], ["s.y"])
    assert clauses_of(page, "frameworks disagree") == ["s.x", "s.z"]
    assert clauses_of(page, "passes in one, fails in another") == ["s.x"]
    assert page.choices[-1] == "broken in torch"


def test_columns_have_names_that_no_two_share() -> None:
    one = record("torch", {})
    later, newer = replace(one, started="2027-01-01"), replace(one, variant=Variant("2+cu1"))
    on_gpu = replace(one, series=replace(one.series, device="cuda"))

    def slugs(*records: Record) -> list[str]:
        return [run.slug for run in matrix(records).runs]

    assert slugs(one, record("tf", {})) == ["torch-m", "tf-m"]
    assert slugs(one, on_gpu) == ["torch-m-cpu", "torch-m-cuda"]
    assert slugs(one, newer, on_gpu) == ["torch-m-cpu-1", "torch-m-cpu-2+cu1", "torch-m-cuda"]
    assert slugs(one, one) == ["~1", "~2"]
    assert slugs(record("a b/<", {})) == ["a_b__-m"]
    labels = [run.label for run in matrix([one, later, later, record("tf", {})]).runs]
    assert labels[0] == f"torch 1 m cpu, {DATE}"
    assert labels[-1] == "tf 1 m cpu"
    assert len(set(labels)) == 4


KNOWN_AND_NEW = record("torch", {"s.known": K, "s.new": F, "s.all": P, "s.some": P})
OTHER = record("tf", {"s.known": P, "s.new": K, "s.all": P, "s.some": U})
OLD, NEW = record("torch", {"s.x": P, "s.y": K}), record("torch", {"s.x": F, "s.y": P})


@pytest.mark.parametrize(
    ("records", "comparisons", "texts", "links"),
    [
        (
            [KNOWN_AND_NEW, OTHER],
            NONE,
            [
                "2 records of 2 frameworks: 4 clauses, 8 tests.",
                "2 clauses fail in at least one run (torch 2, tf 1); 1 clause fails unexpectedly (torch 1).",
                "The frameworks disagree on 2 clauses: 1 passes in one framework and fails in another, "
                "1 differs in support or in observed values.",
            ],
            [
                "#?outcome=any+failure",
                "#?outcome=any+failure&run=torch-m",
                "#?outcome=any+failure&run=tf-m",
                "#?outcome=unexpected+failure",
                "#?outcome=unexpected+failure&run=torch-m",
                "#?across=frameworks+disagree",
                "#?across=passes+in+one%2C+fails+in+another",
                "#?across=differs",
            ],
        ),
        (
            [record("torch", {"s.x": K}), record("tf", {"s.x": K})],
            NONE,
            [
                "2 records of 2 frameworks: 1 clause, 2 tests.",
                "1 clause fails in at least one run (torch 1, tf 1); every failure is a known one.",
                "The frameworks disagree on no clause.",
            ],
            ["#?outcome=any+failure", "#?outcome=any+failure&run=torch-m", "#?outcome=any+failure&run=tf-m"],
        ),
        ([], NONE, ["0 records of 0 frameworks: 0 clauses, 0 tests.", "No clause fails."], []),
        (
            [record("torch", {"s.x": P})],
            Comparisons((compare(OLD, NEW),)),
            [
                "1 record of 1 framework: 1 clause, 1 test.",
                "No clause fails.",
                "Since the earlier records: 1 change for the worse in 1 comparison.",
            ],
            ["#changes"],
        ),
    ],
    ids=["two frameworks", "both fail", "nothing", "compared"],
)
def test_sentences_count_and_link(
    records: list[Record], comparisons: Comparisons, texts: list[str], links: list[str]
) -> None:
    result = list(sentences(matrix(records), comparisons))
    assert ["".join(part.text for part in sentence) for sentence in result] == texts
    assert [part.href for sentence in result for part in sentence if part.href] == links


def test_observations_are_grouped_with_different_ones_first() -> None:
    def record_of(framework: str, initial: float, mode: str) -> Record:
        observations = (
            Observation("scaling.paper-defaults", "settings", "test_x", {"growth": 2.0, "initial": initial}),
            Observation("autocast.threads", "format", "test_y[a/b]", mode),
            Observation(values.FORMATS, "float16", "test_z", {"add": "float16 / float16"}),
        )
        return record(framework, {"scaling.paper-defaults": P, "autocast.threads": P}, observations=observations)

    records = [record_of("torch", 1.0, "x"), record_of("torch", 1.5, "x"), record_of("tf", 2.0, "y")]
    rules, differing, formats = values.observations(matrix(records), records)
    assert [(row["name"], row["cells"], row["differs"]) for row in rules["rows"]] == [
        ("settings › initial", [[("1", "~1"), ("1.5", "~2")], [("2", "")]], True),
        ("settings › growth", [[("2", "")], [("2", "")]], False),
    ]
    assert [(row["name"], row["case"], row["differs"]) for row in differing["rows"]] == [("format", "a/b", True)]
    assert [row["differs"] for row in formats["rows"]] == [False]
    oracle = [record_of("torch", 1.0, "x"), record_of("tf", 1.0, "x"), record_of("reference", 2.0, "y")]
    assert not any(row["differs"] for group in values.observations(matrix(oracle), oracle) for row in group["rows"])


def test_costs_show_bytes_and_spans_by_framework() -> None:
    measured = (
        Measurement("s.x", "peak", "test_x[a]", "B", (1024.0,)),
        Measurement("s.x", "t", "", "s", (0.5, 0.1, 0.2)),
    )
    records = [record("torch", {"s.x": P}, measurements=measured), record("tf", {"s.x": P})]
    rows = values.costs(matrix(records), records)
    assert [(row["name"], row["case"], row["cells"]) for row in rows] == [
        ("peak, in B", "a", [[("1,024", "")], []]),
        ("t, in s", "", [[("0.2 (0.1 to 0.5)", "")], []]),
    ]


def test_curves_that_are_cut_say_so() -> None:
    traces = Trace("loss", "a", {"loss": (1.0,) * 6000}), Trace("scale", "b", {"scale": (2.0,) * 5000})
    records = [record("torch", {}, traces=traces)]
    curves = values.curves(matrix(records), records)
    assert [one["name"] for one in curves["losses"]] == ["a (the first 5000 of 6000 updates)"]
    assert [(one["name"], len(one["lines"][0]["points"])) for one in curves["scales"]] == [("b", 5000)]


def test_page_shows_status_notes_environment_and_unconfirmed_failures() -> None:
    known, passed = record("torch", {"s.x": K, "s.y": P}).verdicts
    one = record(
        "torch",
        {"s.x": K, "s.y": P},
        status="interrupted",
        notes=("2 damaged lines were left out",),
        verdicts=(replace(known, inferred_from="0.9"), passed),
        variant=Variant("1", {"threads": "1"}, {"numpy": "2.3"}, {"TORCH_LOGS": "all"}, ("avx2",)),
    )
    text = render([one])
    result = Reader(text)
    assert result.wrong == []
    assert "interrupted" in [part for attributes, part in result.all("strong") if attributes.get("class") == "flag"]
    assert {"2 damaged lines were left out", "known failures judged in 0.9, not confirmed here: 1 test"} <= {
        part for _, part in result.all("li")
    }
    facts = zip([part for _, part in result.all("dt")], [part for _, part in result.all("dd")], strict=True)
    assert {("threads", "1"), ("numpy", "2.3"), ("TORCH_LOGS", "all"), ("avx2", "yes")} <= {*facts}
    assert text.count('<span class="doubt"') == 1
    assert not Reader(render([record("torch", {})])).all("strong")
