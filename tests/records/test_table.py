"""Views of records: tables, findings, digests in Markdown, comparisons and times, with hostile texts too."""

import math
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from io import StringIO
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from conformance.cli import main
from results.compare.changes import Change, ChangeKind
from results.compare.comparison import compare, compare_sets
from results.record import folders
from results.record.reading import ClauseText, Outcome, Record, Series, TestVerdict, Variant, write
from results.show import table as times
from results.show.clauses import findings, html, list_by_class, outcome, source, tally, total
from results.show.clauses import words as unlinked
from results.show.differences import draw, group_changes, headline, markdown, to_text
from results.show.table import CAPTION, digest, layout, plain, troubles
from tests.support.recorded import BASE, CLAUSE, change_verdict, make_infected_record, make_measured_record
from tests.support.suite_runs import ROOT

FAMILIES = ("accumulation", "autocast", "quantization", "recompute", "scaling")
HOSTILE_TEXT = (
    "<img src=x onerror=alert(1)> </details> | `a` **b** [c](javascript:x) @everyone\n# d\n::error::e \x1b[2J \u202e"
)
ELEMENTS = "table thead tbody tr th td h2 h3 p ul li strong code br details summary"
ADDRESSES = "https://example.org/x HTTP://example.org ftp://example.org www.example.org mailto:a@example.org"
THREADS = "#1 owner/name#23 GH-1 gh-77 @name owner/name@a1b2c3d a1b2c3d 0123456789abcdef"
REFERENCES = (*ADDRESSES.split(), *THREADS.split(), "deadbeef" * 5)
LINKED = re.compile(
    r"(?i)(?:https?|ftp|mailto|xmpp):[^\s\u200b]|www\.|@\w|#\d|\bGH-\d|(?<![`>])\b(?=[0-9]*[a-f])[0-9a-f]{7,40}\b"
)


def record(framework: str, version: str, mode: str, *outcomes: Outcome, interrupted: bool = False) -> Record:
    clauses = {f"{family}.slug": ClauseText("MUST", "…", "", (), family) for family in FAMILIES}
    verdicts = tuple(
        TestVerdict(f"{family}.slug/case-{i}", f"{family}.slug", outcome, reason="because", link="https://a.org/1")
        for family in FAMILIES
        for i, outcome in enumerate(outcomes)
    )
    return replace(
        BASE,
        series=Series(framework, "cpu", "a processor", mode),
        variant=Variant(version),
        clauses=clauses,
        verdicts=verdicts,
        status="interrupted" if interrupted else "complete",
        observations=(),
        measurements=(),
    ).sort_parts()


P, K, U, N = Outcome.PASS, Outcome.KNOWN, Outcome.UNSUPPORTED, Outcome.NOT_OFFERED
FOUR = (
    record("torch", "2.13.0+cpu", "eager", *[P] * 21, K, K, U, U, U),
    record("tf", "2.21.0", "graph", *[P] * 3, *Outcome),
    record("paddle", "3.3.1", "dygraph", P, U, Outcome.CRASH, interrupted=True),
    record("reference", "0.1.0", "numpy", *[P] * 100),
)


def test_plain_counts_clauses_and_tests() -> None:
    text = plain(FOUR[:1], 160)
    assert re.search(r"scaling +1 known  \(1 clause, 26 tests\)\n", text)
    assert re.search(r"total +5 known  \(5 clauses, 130 tests\)\n", text)
    assert re.search(r"tests +105 pass · 10 known · 15 unsupported  \(130 tests\)\n", text)
    assert " ".join(CAPTION.split()) in " ".join(text.split())
    assert "torch 2.13.0+cpu" in text
    assert "eager cpu" in text


@pytest.mark.parametrize("width", [40, 60, 80, 120, 160, 240])
def test_plain_at_any_width_has_every_count(width: int) -> None:
    text = plain(FOUR, width)
    assert max(map(len, text.splitlines())) <= width
    tokens = re.sub(r"[·(),─]", " ", text).replace("not offered", "not-offered").split()
    counted = Counter(dict.fromkeys(("clause", "clauses", "tests"), 0))
    for count, label in pairwise(tokens):
        if count.isdigit():
            counted[label] += int(count)
    for kind in Outcome:
        tests = sum(verdict.outcome is kind for result in FOUR for verdict in result.verdicts)
        clauses = sum(total(result).clauses[kind] for result in FOUR)
        assert counted[kind.replace(" ", "-")] == 2 * clauses + tests
    tests = sum(len(result.verdicts) for result in FOUR)
    assert (counted["clause"], counted["clauses"], counted["tests"]) == (20, 20, 3 * tests), (
        "clauses are counted by family and in the total"
    )
    assert "…" not in text
    assert (len(layout(FOUR, width)) == 1) is (width >= 80), "four frameworks fit into 80 characters"


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ((P, P), P),
        ((P, U), P),
        ((U, U), U),
        ((N, N), N),
        ((U, N), N),
        ((P, N), P),
        ((N, Outcome.ABSTAIN), Outcome.ABSTAIN),
        ((P, K, U), K),
        ((K, Outcome.FAIL), Outcome.FAIL),
        ((P, Outcome.ABSTAIN), Outcome.ABSTAIN),
        ((U, Outcome.ABSTAIN), Outcome.ABSTAIN),
        ((Outcome.UNSTABLE, P, U), Outcome.UNSTABLE),
        ((K, Outcome.UNSTABLE), K),
        (tuple(Outcome), Outcome.CRASH),
    ],
)
def test_outcome_of_a_clause_is_its_gravest_one(outcomes: tuple[Outcome, ...], expected: Outcome) -> None:
    judged = record("torch", "1", "m", *outcomes)
    assert outcome([verdict for verdict in judged.verdicts if verdict.clause == "scaling.slug"]) is expected
    assert total(judged).clauses == {expected: len(FAMILIES)}
    assert total(judged).tests.total() == len(FAMILIES) * len(outcomes)


def test_plain_of_inferred_failures_notes_them() -> None:
    def mark_inferred(verdict: TestVerdict) -> TestVerdict:
        return replace(verdict, inferred_from="2.13.0" if verdict.outcome is K else "")

    inferred = replace(FOUR[0], verdicts=tuple(map(mark_inferred, FOUR[0].verdicts)))
    note = "torch 2.13.0+cpu eager cpu: known failures judged in 2.13.0, not confirmed here: 10 tests"
    assert note in plain([inferred], 160)
    assert note not in plain([FOUR[0]], 160)
    assert note in digest([inferred]).replace("\\", "")


def test_troubles_of_an_interrupted_record_say_so() -> None:
    assert plain(FOUR).count("interrupted") == 1
    assert troubles(FOUR[2]) == ("5 crash", "interrupted")
    assert troubles(FOUR[0]) == ()
    assert troubles(replace(FOUR[0], verdicts=())) == ("no verdict",)


def test_plain_of_a_missing_family_is_a_dash() -> None:
    only_scaling = replace(FOUR[0], verdicts=tuple(v for v in FOUR[0].verdicts if v.clause == "scaling.slug"))
    assert re.search(r"autocast +– +\d+ pass  \(1 clause, 100 tests\)", plain([only_scaling, FOUR[3]], 160))
    assert set(tally(only_scaling)) == {"scaling"}


def test_plain_of_hostile_text_shows_it() -> None:
    hostile = record("[red]x[/red]\x1b[2J", "1\n2", "m" * 300, P)
    text = plain([hostile], 80)
    assert "[red]x[/red]" in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_findings_of_a_record_group_cases() -> None:
    (finding,) = findings(FOUR[0])
    assert (finding.reason, finding.link, finding.text) == ("because", "https://a.org/1", None)
    assert finding.cases["accumulation.slug"] == ("case-21", "case-22")
    assert len(finding.cases) == 5


def test_list_by_class_escapes_texts_and_links_sources() -> None:
    hostile = replace(
        FOUR[0],
        verdicts=(
            TestVerdict("scaling.slug/`", "scaling.slug", K, reason="*a* <b> [c](d)\n# e", link="javascript:alert(1)"),
            TestVerdict("scaling.slug/", "scaling.slug", K, reason="f", link="https://a.org/x_(y)"),
        ),
    )
    assert list(list_by_class(findings(hostile))) == [
        "**Unclassified**",
        "",
        r"- \*a\* \<b\> \[c\](d) \# e `scaling.slug` (1 tests) (javascript:alert(1))",
        "- f `scaling.slug` (1 tests) ([source](https://a.org/x_%28y%29))",
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for result in FOUR:
        write(tmp_path / f"{result.series.framework}.json", result)
    return tmp_path


def test_table_prints_the_records_of_a_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["table", str(folder)]) == 0
    assert capsys.readouterr().out.split() == plain([FOUR[2], FOUR[3], FOUR[1], FOUR[0]], 160).split()


def test_table_clauses_lists_the_word_of_every_clause(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", "--clauses", str(folder / "torch.json"), str(folder / "tf.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[: len(FAMILIES)] == [
        f"{f'{family}.slug':17}  broken in tf 2.21.0, torch 2.13.0+cpu" for family in FAMILIES
    ]
    assert "5 clauses: 5 broken" in lines


def test_find_in_a_folder_leaves_out_interrupted_runs_of_complete_ones(folder: Path) -> None:
    write(folder / "torch.interrupted-1.json", replace(FOUR[0], status="interrupted"))
    write(folder / "jax.interrupted-1.json", replace(FOUR[0], status="interrupted"))
    (folder / ".torch.json.1.tmp").write_bytes(b"half")
    names = [path.name for path in folders.find([folder])]
    assert names == ["jax.interrupted-1.json", "paddle.json", "reference.json", "tf.json", "torch.json"]


@pytest.mark.parametrize("arguments", ["nowhere.json", "empty", "--format markdown good.json broken.json", ""])
def test_table_of_bad_input_is_refused_in_one_line(
    arguments: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folders, "LAST_RUNS", tmp_path / "records")
    (tmp_path / "empty").mkdir()
    write(tmp_path / "good.json", FOUR[0])
    (tmp_path / "broken.json").write_bytes(b"{\n")
    assert main(["table", *arguments.split()]) == 2
    assert re.fullmatch(r"conformance: .+\n", capsys.readouterr().err)


def test_table_into_a_closed_pipe_prints_no_error(folder: Path) -> None:
    arguments = [sys.executable, "-m", "conformance", "table", str(folder)]
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_table_into_a_full_device_is_refused_in_one_line(folder: Path) -> None:
    command = [sys.executable, "-m", "conformance", "table", "--format", "markdown", str(folder)]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert re.fullmatch(rb"conformance: .+\n", done.stderr)


def test_digest_counts_outcomes_and_lists_actions() -> None:
    verdict = replace(
        BASE.verdicts[0], outcome=Outcome.FAIL, message="the scale is inf", repro="python -m pytest 'a b'"
    )
    record = replace(BASE, verdicts=(verdict,), observations=(), measurements=())
    text = digest([record, FOUR[0]])
    assert text.startswith("## Conformance: 1 of 6 clauses need action (1 of 131 tests)\n")
    assert "| clauses | torch 2.13.0 eager cpu | torch 2.13.0+cpu eager cpu |\n" in text
    assert "| scaling | **1 fail** (1 clause, 1 test) | 1 known (1 clause, 26 tests) |\n" in text
    assert "| **total** | **1 fail** (1 clause, 1 test) | 5 known (5 clauses, 130 tests) |\n" in text
    assert "| tests | **1 fail** (1 test) | 105 pass · 10 known · 15 unsupported (130 tests) |\n" in text
    (line,) = (line for line in text.splitlines() if line.startswith("- **fail**"))
    for part in ("`scaling.stays-finite/test_a`", "the scale is inf", "`python -m pytest 'a b'`"):
        assert part in line
    assert "<summary>torch 2.13.0+cpu eager cpu: 10 known failures, findings: 1</summary>" in text


def test_digest_without_failures_needs_no_action() -> None:
    assert digest(FOUR[:1]).startswith("## Conformance: no action needed in 5 clauses (130 tests)\n")
    assert "Needs action" not in digest(FOUR[:1])
    unfinished = replace(FOUR[0], status="interrupted")
    assert digest([unfinished]).startswith("## Conformance: 1 of 1 runs did not finish\n")


@pytest.mark.parametrize(
    "text", [HOSTILE_TEXT, "<b>", "|" * 50, "`" * 50, "\\", "--- \n\n---", "</summary></details><script>"]
)
def test_digest_of_hostile_text_adds_no_element(text: str) -> None:
    infected = make_infected_record(text)
    verdicts = tuple(replace(verdict, seed=2**1000, duration_s=1e308) for verdict in infected.verdicts)
    hostile_record = replace(infected, started=BASE.started, finished=BASE.finished, verdicts=verdicts, observations=())
    html = str(MarkdownIt("commonmark", {"html": True}).enable("table").render(digest([hostile_record])))
    tags = set(re.findall(r"</?([a-zA-Z0-9]+)", html))
    assert tags == {*ELEMENTS.split()}
    assert html.count("<details>") == html.count("</details>") == 1
    assert html.count("<table>") == 1
    assert {row.count("<td") + row.count("<th") for row in html.split("<tr>")[1:]} == {2}
    assert "@everyone" not in re.sub(r"<code>.*?</code>", "", html), "a name outside of code notifies somebody"
    assert "\x1b" not in html


@pytest.mark.parametrize("outcome", [Outcome.ERROR, K], ids=["in the list", "in a fold"])
def test_digest_that_is_too_long_is_cut(outcome: Outcome) -> None:
    first = BASE.verdicts[0]
    tests = {number: f"{CLAUSE}/{number:04}" for number in range(2000)}
    verdicts = (
        replace(first, test=test, outcome=outcome, message="é" * 400, reason=f"{n} {'é' * 400}")
        for n, test in tests.items()
    )
    text = digest([replace(BASE, verdicts=tuple(verdicts)), FOUR[0]])
    assert len(text.encode()) < 300 * 1024
    assert re.search(r"\nCut at 256 KiB: \d+ more lines are left out\.\n$", text)
    assert text.count("<details>") == text.count("</details>") == (outcome is K)


def test_table_markdown_writes_a_file_or_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "torch.json"
    write(path, BASE)
    assert main(["table", str(path), "--format", "markdown", "--output", str(tmp_path / "out.md")]) == 0
    assert (tmp_path / "out.md").read_text("utf-8") == digest([BASE])
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out.md", "torch.json"]
    capsys.readouterr()
    assert main(["table", str(path), "--format", "markdown"]) == 0
    assert capsys.readouterr().out == digest([BASE])


@pytest.mark.parametrize("login", ["name:hunter2@", "name@", ":@"])
def test_source_of_an_address_with_a_password_is_no_link(login: str) -> None:
    assert source("https://example.org/@a") == " ([source](https://example.org/@a))"
    assert not re.search(r"\]\(|https?://", source(f"https://{login}example.org/a"))


@pytest.mark.parametrize("text", REFERENCES)
def test_words_and_html_of_a_reference_are_no_link(text: str) -> None:
    assert LINKED.search(text), "GitHub links it"
    for result in (unlinked(text), html(text)):
        assert not LINKED.search(result.replace("\\", ""))
        assert re.sub(r"[\u200b\\`]|</?code>", "", result) == text


def test_draw_brief_leaves_out_what_is_not_worse() -> None:
    old = change_verdict(BASE, 0, outcome=Outcome.FAIL)
    result = compare_sets([old], [change_verdict(change_verdict(BASE, 0), 2, outcome=Outcome.FAIL)])
    console = Console(width=100, record=True, file=StringIO())
    draw(result, console, brief=True)
    brief, full = console.export_text(), to_text(result)
    assert ("test_a" in full, "test_a" in brief) == (True, False)
    assert ("test_b[2]" in full, "test_b[2]" in brief) == (True, True)


def test_group_changes_counts_equal_ones() -> None:
    changes = [Change(ChangeKind.NEWLY_FAILING, CLAUSE, f"{CLAUSE}/test_c[{i}]", "pass", "fail") for i in range(6)]
    (group,) = group_changes(changes)
    assert group.subjects == "test_c[0], test_c[1], test_c[2], test_c[3] and 2 more"


def test_comparison_in_each_format_has_the_same_content() -> None:
    new = change_verdict(BASE, 0, outcome=Outcome.FAIL, message="a | <b>@you</b> `c`", link="javascript:alert(1)")
    result = compare_sets([BASE], [replace(new, variant=Variant("2.14.0", {"numpy": "2.4"}))])
    for text in (to_text(result), markdown(result)):
        assert "2.13.0 → 2.14.0" in text
        assert "1 newly failing" in text
        assert "companion packages, which may be the cause: numpy: 2.3 → 2.4" in " ".join(text.split())
        assert "TORCH_VERSION=2.14.0 NUMPY_VERSION=2.3 tox -e torch" in text
        assert "test_a" in text
    assert "<b>" not in markdown(result)
    assert "@you" not in markdown(result)
    assert "](javascript" not in markdown(result)


def test_headline_counts_tests_that_are_not_comparable() -> None:
    result = compare(BASE, change_verdict(BASE, 0, setup_hash="d"))
    assert "1 not comparable" in headline(result)
    assert "1: different training setups" in to_text(compare_sets([BASE], [result.new]))
    uncounted = compare(BASE, make_measured_record({"bytes/test_a": (math.nan,)}))
    assert "1 not comparable" in headline(uncounted)


def timed_run(**durations: float) -> Record:
    names = {name: f"{name.partition('_')[0]}.slug" for name in durations}
    clauses = {clause: ClauseText("MUST", "…", "", (), clause.partition(".")[0]) for clause in names.values()}
    verdicts = tuple(
        TestVerdict(f"{clause}/{name}", clause, Outcome.PASS, duration_s=durations[name])
        for name, clause in names.items()
    )
    changes = {"clauses": clauses, "verdicts": verdicts, "observations": (), "measurements": ()}
    return replace(BASE, series=Series("some", "cpu", "", "eager"), variant=Variant("1.0"), **changes).sort_parts()


RUNS = timed_run(scaling_a=0.5, scaling_b=0.25, resume_a=2.0), timed_run(scaling_a=3.0)


def test_table_times_prints_the_slowest_tests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(tmp_path / f"{number}.json") for number in range(2)]
    for path, run, mode in zip(paths, RUNS, "ab", strict=True):
        write(Path(path), replace(run, series=replace(run.series, mode=mode)))
    assert main(["table", *paths]) == 0
    assert "Slowest" not in capsys.readouterr().out
    assert main(["table", "--times", *paths]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert {"resume 2.00 –", "scaling 0.75 3.00", "total 2.75 3.00"} <= {*lines}
    start = lines.index("Slowest tests of some 1.0 a cpu:")
    assert lines[start + 1 : start + 3] == ["2.00 resume.slug/resume_a", "0.50 scaling.slug/scaling_a"]


def test_slowest_has_at_most_ten_tests() -> None:
    result = times.slowest(timed_run(**{f"scaling_{n}": float(n % 7) for n in range(12)}))
    assert [verdict.duration_s for verdict in result] == [6.0, 5.0, 4.0, 4.0, 3.0, 3.0, 2.0, 2.0, 1.0, 1.0]


def test_list_times_has_the_longest_first_and_all_sums() -> None:
    assert times.list_times(RUNS, times.seconds_by_clause, most=1).splitlines() == [
        "| seconds | some eager | some eager |",
        "|---|--:|--:|",
        "| scaling.slug | 0.75 | 3.00 |",
        "| all tests | 2.75 | 3.00 |",
        "| the whole run | 1.00 | 1.00 |",
    ]
    assert "| resume | 2.00 | – |" in times.list_times(RUNS, times.seconds)


def test_digest_of_references_has_no_link() -> None:
    text = " ".join(REFERENCES)
    comment = digest([change_verdict(BASE, 0, outcome=Outcome.FAIL, message=text)])
    without_code = re.sub(r"`[^`]*`", "", comment).replace("\\", "")
    assert "example" in without_code
    assert not LINKED.search(without_code)
