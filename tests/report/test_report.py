"""The report: its HTML, matrix, sentences, values and changes, hostile records, and the page in a browser."""

import base64
import gzip
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from results import report
from results.compare.changes import Change, ChangeKind
from results.compare.comparison import NONE, Comparison, Comparisons, compare
from results.compare.numbers import MovedNumbers, Movement
from results.record.model import Measurement, Observation, Tensors, TestVerdict, Trace, Variant
from results.record.reading import ClauseText, Outcome, Record, RecordError
from results.report import matrix as values
from results.report import render
from results.report.matrix import ALONE, Cell, Matrix, by_framework, matrix, sentences
from results.report.page import LEGEND
from results.report.text import clean, format_value, href, link_addresses
from results.show.clauses import GRAVITY, findings
from results.show.differences import markdown
from tests.support.recorded import (
    ARRAYS,
    BOUND,
    DATE,
    HOSTILE,
    MEGABYTES,
    baselines,
    change_verdict,
    infected_page,
    make_infected_record,
    make_timed_record,
    page,
    record,
)
from tools.browser import Browser, Reader, in_browser

P, F, K, U = Outcome.PASS, Outcome.FAIL, Outcome.KNOWN, Outcome.UNSUPPORTED
on_both_pages = pytest.mark.parametrize("name", ["baselines", "infected"])
KNOWN_AND_NEW = record("torch", {"s.known": K, "s.new": F, "s.all": P, "s.some": P})
OTHER = record("tf", {"s.known": P, "s.new": K, "s.all": P, "s.some": U})
OLD, NEW = record("torch", {"s.x": P, "s.y": K}), record("torch", {"s.x": F, "s.y": P})


@cache
def parse_page(name: str) -> Reader:
    return Reader({"baselines": page, "infected": infected_page}[name]())


def read_test_data(name: str) -> dict[str, Any]:
    (text,) = (text for attributes, text in parse_page(name).all("script") if attributes.get("id") == "tests-data")
    result: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(text, validate=True)))
    return result


@on_both_pages
def test_page_is_well_formed_and_its_links_have_targets(name: str) -> None:
    result = parse_page(name)
    assert result.wrong == []
    ids = Counter(attributes["id"] for _, attributes in result.elements if "id" in attributes)
    assert [identifier for identifier, count in ids.items() if count > 1] == []
    assert {a["aria-labelledby"] for _, a in result.elements if "aria-labelledby" in a} <= {*ids}
    links = [attributes["href"] or "" for attributes, _ in result.all("a")]
    assert {link[1:] for link in links if re.match(r"#[^?]", link)} <= set(ids)
    options = {attributes["value"] for attributes, _ in result.all("option")}
    for link in (link for link in links if link.startswith("#?")):
        for field, value in parse_qsl(link[2:], strict_parsing=True):
            assert field in ids
            assert value in options


@on_both_pages
def test_page_requests_nothing_and_runs_its_own_scripts_alone(name: str) -> None:
    result = parse_page(name)
    for tag, attributes in result.elements:
        assert not {"src", "srcset", "action", "formaction", "poster", "ping", "style"} & attributes.keys()
        assert not [attribute for attribute in attributes if attribute.startswith("on")]
        if tag == "a":
            link = attributes["href"] or ""
            assert link.startswith("#") or (href(link) and attributes["rel"] == "noopener noreferrer"), link
        elif "href" in attributes:
            assert (tag, attributes["href"]) == ("link", "data:,")
    (policy,) = [a["content"] or "" for a, _ in result.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    data = ("application/json", "application/gzip")
    assert rules["default-src"] == "'none'"
    assert rules["script-src"].split() == [
        digest(text) for a, text in result.all("script") if a.get("type") not in data
    ]
    assert rules["style-src"].split() == [digest(style) for _, style in result.all("style")]
    assert "unsafe" not in policy
    (curves,) = [text for a, text in result.all("script") if a.get("type") == "application/json"]
    assert not set("<>&\u2028\u2029") & set(curves)
    json.loads(curves)


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_page_of_hostile_records_has_no_other_elements() -> None:
    benign, hostile = ({tag for tag, _ in parse_page(name).elements} for name in ("baselines", "infected"))
    assert hostile - benign <= {"strong", "ul"}
    assert len(parse_page("infected").all("script")) == len(parse_page("baselines").all("script"))
    assert len(infected_page()) < 8 * 2**20
    texts = json.dumps(read_test_data("infected"), ensure_ascii=False)
    notices = re.findall(r"… \[([\d,]+) more characters are left out\]", texts)
    assert max(int(notice.replace(",", "")) for notice in notices) > (MEGABYTES - 1) * 2**20


def test_page_has_every_test_once_with_reasons_and_links() -> None:
    data = read_test_data("baselines")
    verdicts = [
        (int(run), test["verdict"]) for row in data["rows"] for run, tests in row["tests"].items() for test in tests
    ]
    result = Counter((run, data["verdicts"][number]["outcome"]) for run, number in verdicts)
    for run, baseline in enumerate(baselines()):
        assert {o: result[run, o.value] for o in Outcome} == {
            o: sum(v.outcome is o for v in baseline.verdicts) for o in Outcome
        }
    text = json.dumps(data)
    for finding in findings(baselines()[-1]):
        assert json.dumps(finding.reason)[1:-1] in text
        assert finding.link in text


def test_page_is_the_same_each_time_and_stays_small() -> None:
    assert render(baselines()) == page()
    assert len(parse_page("baselines").elements) < 60_000


@pytest.mark.parametrize("records", [[], [record("torch", {})]], ids=["none", "one without a test"])
def test_write_of_no_test_is_well_formed(records: list[Record], tmp_path: Path) -> None:
    report.write(records, tmp_path / "report.html")
    assert Reader((tmp_path / "report.html").read_text("utf-8")).wrong == []
    with pytest.raises(RecordError, match=r"cannot be written"):
        report.write([], tmp_path / "missing" / "report.html")


def changes_of(comparisons: Comparisons) -> str:
    text = render([pair.new for pair in comparisons.pairs], comparisons)
    assert Reader(text).wrong == []
    return text[text.index('<section id="changes"') : text.index('<section id="matrix"')]


def test_changes_show_environment_numbers_and_what_is_not_judged() -> None:
    packages = {"numpy": "2.4.6", "protobuf": "6.33.1"}
    old = replace(
        change_verdict(make_timed_record(1, 1.0), 0, checks=(replace(BOUND, measured=0.2),)),
        variant=Variant("2.13.0", {"threads": "1"}, packages),
        tensors=(Tensors("layers", "test_a", ARRAYS),),
    )
    moved = replace(ARRAYS[0], digest="0" * 16)
    new = replace(
        change_verdict(change_verdict(old, 0, checks=(replace(BOUND, measured=0.9),)), 2, setup_hash="other"),
        variant=Variant("2.13.0", {"threads": "2"}, {"numpy": "2.5.0", "protobuf": "7.0"}),
        tensors=(Tensors("layers", "test_a", (moved, ARRAYS[1])),),
        measurements=make_timed_record(2, 1.0).measurements,
    )
    text = changes_of(Comparisons((compare(old, new),)))
    for part in (
        "No regressions; 1 test drifted.",
        "companion packages, which may be the cause: numpy: 2.4.6 → 2.5.0",
        "<code>TORCH_VERSION=2.13.0 NUMPY_VERSION=2.4.6 tox -e torch</code>",
        "<li>protobuf: 6.33.1 → 7.0</li>",
        "threads: 1 → 2: sums may round differently",
        "1 timing not judged here: times of separate runs are not comparable",
        "first tensor that differs: output/a (float32), outside the sampled values",
        "<summary>1 not comparable</summary>",
        "1 drift.</li>",
    ):
        assert part in text
    text = changes_of(Comparisons((compare(old, old),)))
    assert "No regressions: the two runs are identical." in text
    assert "Tests with moved numbers" not in text
    assert "not judged here" not in text


def test_changes_are_shown_with_the_worst_first() -> None:
    old = record("torch", {"s.fixed": F, "s.broken": P, "s.same": P})
    new = record("torch", {"s.fixed": P, "s.broken": F, "s.same": P})
    pairs = (compare(old, new), compare(old, record("tf", {"s.same": P})))
    text = changes_of(Comparisons(pairs, ("jax nojit cpu: only among the old records",)))
    assert text.index("newly failing") < text.index("newly passing")
    assert "Regressions found: 1 of 2 changes." in text
    assert "different frameworks: torch and tf" in text
    assert "only among the old records" in text


def test_changes_of_hostile_records_only_show_themselves() -> None:
    pairs = []
    for text in HOSTILE:
        variant = Variant(text, {text: text}, {"numpy": text, text: text}, {text: text}, (text,))
        other = Variant(text, {text: f"{text}2"}, {"numpy": f"{text}2", text: f"{text}2"}, {text: "2"}, ("avx2",))
        changes = tuple(Change(kind, text, text, text, text, text, text) for kind in ChangeKind)
        moved = tuple(MovedNumbers(text, text, movement, text, text, text, text, text) for movement in Movement)
        old = replace(make_infected_record(text), variant=variant)
        new = replace(make_infected_record(f"{text}2"), variant=other)
        pairs.append(Comparison(old, new, changes, 1, numbers=moved))
    assert Reader(render([], Comparisons(tuple(pairs)))).wrong == []
    prose = re.sub("`[^`]*`", "", markdown(Comparisons(tuple(pairs))))
    assert not re.search(r"(?<!\\)<(?!/?(details|summary)>)", prose)


@pytest.mark.parametrize(
    ("link", "is_address"),
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
def test_href_takes_web_addresses_alone(link: str, is_address: bool) -> None:
    assert href(link) == (link if is_address else "")


def test_clean_and_linked_make_a_text_visible() -> None:
    assert clean("a\u202eb\x00\n") == "a‹U+202E›b‹U+0000›‹U+000A›"
    assert clean("a\nb", lines=True) == "a\nb"
    assert clean("\ud800") == "‹U+D800›"
    assert clean("x" * 10, 4) == "xxxx… [6 more characters are left out]"
    assert format_value({"a": [1.5, True, None, math.inf]}) == "{a: [1.5, yes, none, inf]}"
    assert format_value("x" * 1000, 10) == f"{'x' * 10}… [990 more characters are left out]"
    parts = link_addresses("a https://a.org/1, b (https://b.org) c")
    assert [(part.text, part.href) for part in parts if part.href] == [
        ("https://a.org/1", "https://a.org/1"),
        ("https://b.org", "https://b.org"),
    ]
    assert "".join(part.text for part in parts) == "a https://a.org/1, b (https://b.org) c"


def clauses_of(page: Matrix, choice: str) -> list[str]:
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
    passed, known = (P, {P: 1}, {P: 1}), (K, {K: 1}, {K: 1})
    assert cells == [(K, {P: 1, K: 1}, {P: 1, K: 1}), passed, known, passed]
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
    assert clauses_of(matrix([records[0], records[-1]]), ALONE) == list(names)
    assert clauses_of(matrix([record("torch", {"s.x": K}), record("torch", {"s.x": P})]), ALONE) == []


def test_matrix_has_the_word_of_a_clause_and_its_choices() -> None:
    page = matrix([record("torch", {"s.x": K, "s.y": P, "s.z": P}), record("tf", {"s.x": P, "s.y": P, "s.z": U})])
    assert [row.word for row in page.rows] == ["broken in torch", "portable", "differs"]
    assert (clauses_of(page, "broken in torch"), clauses_of(page, "portable")) == (["s.x"], ["s.y"])
    assert clauses_of(page, "frameworks disagree") == ["s.x", "s.z"]
    assert clauses_of(page, "passes in one, fails in another") == ["s.x"]
    assert page.choices[-1] == "broken in torch"


def test_runs_of_a_matrix_have_unique_names() -> None:
    base = record("torch", {})
    later, newer = replace(base, started="2027-01-01"), replace(base, variant=Variant("2+cu1"))
    on_gpu = replace(base, series=replace(base.series, device="cuda"))

    def slugs(*records: Record) -> list[str]:
        return [run.slug for run in matrix(records).runs]

    assert slugs(base, record("tf", {})) == ["torch-m", "tf-m"]
    assert slugs(base, on_gpu) == ["torch-m-cpu", "torch-m-cuda"]
    assert slugs(base, newer, on_gpu) == ["torch-m-cpu-1", "torch-m-cpu-2+cu1", "torch-m-cuda"]
    assert slugs(base, base) == ["~1", "~2"]
    assert slugs(record("a b/<", {})) == ["a_b__-m"]
    labels = [run.label for run in matrix([base, later, later, record("tf", {})]).runs]
    assert labels[0] == f"torch 1 m cpu, {DATE}"
    assert labels[-1] == "tf 1 m cpu"
    assert len(set(labels)) == 4


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


def test_observations_have_different_ones_first() -> None:
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


def test_costs_have_bytes_and_intervals() -> None:
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
    traces = Trace("loss", "a", {"loss": (1.0,) * 6000}), Trace("scale", "b", {"scale": (2.0,) * 5000})
    records = [record("torch", {}, traces=traces)]
    curves = values.curves(matrix(records), records)
    assert [curve["name"] for curve in curves["losses"]] == ["a (the first 5000 of 6000 updates)"]
    assert [(curve["name"], len(curve["lines"][0]["points"])) for curve in curves["scales"]] == [("b", 5000)]


def test_page_of_an_interrupted_run_shows_status_notes_and_environment() -> None:
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


pytestmark = in_browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = tmp_path_factory.mktemp("pages")
    (result / "baselines.html").write_bytes(page().encode())
    (result / "infected.html").write_bytes(infected_page().encode())
    return result


@pytest.fixture
def view(chromium: Browser, folder: Path) -> Iterator[Browser]:
    """A browser with the baselines' report; messages on the console and requests fail the test."""
    chromium.resize(1280)
    chromium.prefer("light")
    chromium.open(folder / "baselines.html")
    yield chromium
    assert chromium.console() == []
    assert chromium.requests() == []


def list_columns(browser: Browser) -> list[str]:
    """The slugs of the visible columns, if every row has exactly their cells."""
    result: list[str] = browser.run(
        """
        const isShown = (cell) => cell.checkVisibility();
        const [head, ...rows] = [...document.querySelectorAll(".matrix tr")].filter(isShown);
        const named = [...head.cells].filter((cell) => cell.dataset.slug && isShown(cell));
        const slugs = named.map((cell) => cell.dataset.slug);
        const counts = rows.map((row) => [...row.querySelectorAll("td")].filter(isShown).length);
        return counts.every((count) => count === slugs.length) ? slugs : counts;
        """
    )
    return result


def list_clauses(browser: Browser) -> set[str]:
    rows = "[...document.querySelectorAll('.clause')].filter((row) => row.checkVisibility())"
    return set(browser.run(f"return {rows}.map((row) => row.querySelector('code').textContent)"))


def read_dialog(browser: Browser) -> str:
    browser.wait("document.getElementById('cell').open")
    return " ".join(browser.run("return document.getElementById('cell').innerText").split())


def known_clauses(framework: str) -> set[str]:
    records = [record for record in baselines() if record.series.framework == framework]
    return {v.clause for record in records for v in record.verdicts if v.outcome is Outcome.KNOWN}


@pytest.mark.parametrize("width", [390, 1280])
def test_page_at_first_shows_a_column_for_each_framework(view: Browser, width: int) -> None:
    view.resize(width)
    assert [slug.partition("-")[0] for slug in list_columns(view)] == ["jax", "paddle", "reference", "tf", "torch"]
    right = "[...document.querySelectorAll('.matrix tr:not([hidden]) > *')].map((c) => c.getBoundingClientRect().right)"
    assert view.run(f"return Math.max(...{right})") <= width
    view.run("for (const fold of document.querySelectorAll('details')) fold.open = true")
    assert view.run("return document.documentElement.scrollWidth") <= width
    assert list_clauses(view) == set()
    view.run("document.querySelector('.family .open').click()")
    assert {name.partition(".")[0] for name in list_clauses(view)} == {"accumulation"}
    view.run("document.querySelector('[data-slug=paddle] .open').click()")
    assert [slug for slug in list_columns(view) if slug.startswith("paddle-")] == [
        "paddle-dygraph-forced-scaler",
        "paddle-dygraph",
        "paddle-static",
    ]
    view.wait("location.hash === '#?open=paddle'")


def test_filters_show_matching_rows_and_columns(view: Browser, folder: Path) -> None:
    view.choose("outcome", "known")
    frameworks = ("jax", "paddle", "tf", "torch")
    assert [slug.partition("-")[0] for slug in list_columns(view)] == list(frameworks), (
        "the reference has no known failure"
    )
    assert list_clauses(view) == set.union(*map(known_clauses, frameworks))
    view.choose("run", "any paddle run")
    assert list_clauses(view) == known_clauses("paddle")
    assert list_columns(view)[0] == "paddle"
    assert all(slug.startswith("paddle") for slug in list_columns(view))
    view.choose("family", "scaling")
    view.wait("location.hash === '#?outcome=known&run=paddle&family=scaling'")
    narrow = list_clauses(view)
    assert narrow == {name for name in known_clauses("paddle") if name.startswith("scaling.")}
    view.open(folder / "baselines.html", "#?family=no-such-family&outcome=known&run=paddle&family=scaling")
    assert list_clauses(view) == known_clauses("paddle")
    view.run("document.querySelector('#filters [type=reset]').click()")
    view.wait("location.hash === ''")
    assert len(list_columns(view)) == 5
    for address, text in view.run("return [...document.querySelectorAll('.lead a')].map((a) => [a.hash, a.text])"):
        view.run("document.querySelector(`.lead a[href='${arguments[0]}']`).click()", address)
        view.wait("location.hash === arguments[0]".replace("arguments[0]", f"'{address}'"))
        assert len(list_clauses(view)) == int(text.split()[0]), address


def test_search_shows_clauses_of_matching_tests(view: Browser) -> None:
    test = "test_float32_sgd_parity[digits-mlp]"
    view.driver.find_element("id", "search").send_keys(f"{test} grad")
    view.wait("!document.getElementById('filters').ariaBusy && !document.querySelector('#filters[aria-busy]')")
    named = {v.clause for record in baselines() for v in record.verdicts if test in v.test}
    assert list_clauses(view)
    assert list_clauses(view) <= named
    view.wait("location.hash.startsWith('#?search=test_float32')")


def test_cell_opens_its_tests_at_an_address(view: Browser, folder: Path) -> None:
    record = baselines()[-1]
    verdict = next(v for v in record.verdicts if v.outcome is Outcome.KNOWN and v.checks and "://" in v.link)
    view.choose("outcome", "known")
    view.run(
        "document.getElementById(`clause-${arguments[0]}`).lastElementChild.firstElementChild.click()", verdict.clause
    )
    text = read_dialog(view)
    parts = (verdict.clause, "known", verdict.reason, verdict.repro, "source", "seed 0", verdict.checks[0].what)
    for part in (*parts, f"finding {verdict.finding}"):
        assert " ".join(part.split()) in text
    assert view.run("return location.hash") == f"#{verdict.clause}@torch-eager?outcome=known"
    assert view.run("return document.getElementById('cell').contains(document.activeElement)")
    view.run("document.querySelector('#cell form button').click()")
    view.wait("location.hash === '#?outcome=known'")
    assert view.run("return document.activeElement.closest('tr').id") == f"clause-{verdict.clause}"
    view.open(folder / "baselines.html", "#accumulation.equals-full-batch@paddle")
    assert "3 runs of paddle" in read_dialog(view)
    unfold = "[...document.querySelectorAll('#cell details')].forEach((fold) => { fold.open = true; })"
    text = "document.getElementById('cell').innerText.includes('ensemble of randomly rounded reference runs')"
    view.wait(f"{unfold} || {text}")
    view.open(folder / "baselines.html", "#no.such-clause@torch-eager")
    assert not view.run("return document.getElementById('cell').open")
    view.run("document.querySelector('#findings a[href^=\"#clause-\"]').click()")
    view.wait("document.querySelector('.clause:target').checkVisibility()")


def test_curves_of_every_trace_are_drawn(view: Browser) -> None:
    for name in ("losses", "scales"):
        counts = view.run(
            """
            const select = document.getElementById(`${arguments[0]}-choice`);
            return [...select.options].slice(0, 8).map((option) => {
              select.value = option.value;
              select.dispatchEvent(new Event("change", {bubbles: true}));
              const lines = [...document.querySelectorAll(`#${arguments[0]}-chart path`)];
              return [option.textContent, lines.filter((line) => /^M.*[LHV]/.test(line.getAttribute("d"))).length];
            });
            """,
            name,
        )
        for text, count in counts:
            runs = int(text.rpartition("(")[2].split()[0])
            assert runs <= count <= runs + 1, text
    view.run("document.getElementById('losses-distance').click()")
    assert view.run("return document.querySelector('#losses-chart .oracle').getAttribute('d')")
    titles = view.run("return [...document.querySelectorAll('#losses-chart title')].map((title) => title.textContent)")
    assert titles[0] == "oracle"
    assert any(title.startswith("torch 2.13.0") for title in titles)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_has_no_serious_violation_of_axe(chromium: Browser, tmp_path: Path, scheme: str) -> None:
    outcomes = {f"s.x{i}": outcome for i, outcome in enumerate(Outcome)}
    report.write([record("torch", outcomes), record("torch", outcomes), record("tf", outcomes)], tmp_path / "page.html")
    chromium.resize(1280)
    chromium.prefer(scheme)
    chromium.open(tmp_path / "page.html", "#?open=torch&level=MUST")
    chromium.run("for (const fold of document.querySelectorAll('details')) fold.open = true")
    assert chromium.violations() == []
    chromium.run("document.querySelector('.clause .cell').click()")
    read_dialog(chromium)
    assert chromium.violations("#cell") == []


def test_page_of_hostile_records_runs_no_script(chromium: Browser, folder: Path) -> None:
    chromium.resize(1280)
    chromium.prefer("light")
    chromium.open(folder / "infected.html")
    opened = chromium.driver.execute_async_script(
        """
        const done = arguments[0];
        (async () => {
          const pause = () => new Promise((go) => setTimeout(go, 0));
          const open = () => { for (const fold of document.querySelectorAll("#cell details")) fold.open = true; };
          let opened = 0;
          for (const cell of document.querySelectorAll(".matrix .cell")) {
            cell.click();
            while (!document.getElementById("cell").open) await pause();
            open();
            await pause();
            open();
            await pause();
            opened += document.querySelectorAll("#cell .test").length;
            document.getElementById("cell").close();
            while (location.hash.includes("@")) await pause();
          }
          for (const select of document.querySelectorAll("select")) {
            for (const option of select.options) {
              select.value = option.value;
              for (const kind of ["input", "change"]) select.dispatchEvent(new Event(kind, {bubbles: true}));
            }
          }
          document.getElementById("losses-distance").click();
          setTimeout(() => done(opened), 500);
        })();
        """
    )
    assert opened >= len(Outcome) * (len(HOSTILE) + 1)
    assert chromium.run("return typeof window.canary") == "undefined"
    assert chromium.run("return document.querySelectorAll('iframe, img, base, object, embed').length") == 0
    assert chromium.run("return ({}).canary === undefined && Object.prototype.hasOwnProperty('canary') === false")
    assert chromium.console() == []
    assert chromium.requests() == []
