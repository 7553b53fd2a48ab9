"""The summary table, the findings and the results command."""

import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

from conformance.cli import main
from results.record import folders
from results.record.reading import ClauseText, Outcome, Record, Series, TestVerdict, Variant, write
from results.show.clauses import outcome, tally, total
from results.show.digest import markdown as digest
from results.show.findings import classed, findings
from results.show.table import CAPTION, layout, plain, troubles
from tests.support.small_record import BASE

ROOT = Path(__file__).parents[2]
FAMILIES = ("accumulation", "autocast", "quantization", "recompute", "scaling")


def record(framework: str, version: str, mode: str, *outcomes: Outcome, interrupted: bool = False) -> Record:
    """A record in which every family has one test of each outcome."""
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
    ).sorted()


P, K, U, N = Outcome.PASS, Outcome.KNOWN, Outcome.UNSUPPORTED, Outcome.NOT_OFFERED
FOUR = (
    record("torch", "2.13.0+cpu", "eager", *[P] * 21, K, K, U, U, U),
    record("tf", "2.21.0", "graph", *[P] * 3, *Outcome),
    record("paddle", "3.3.1", "dygraph", P, U, Outcome.CRASH, interrupted=True),
    record("reference", "0.1.0", "numpy", *[P] * 100),
)


def test_a_cell_counts_clauses_and_its_denominators_are_clauses_and_tests() -> None:
    text = plain(FOUR[:1], 160)
    assert re.search(r"scaling +1 known  \(1 clause, 26 tests\)\n", text)
    assert re.search(r"total +5 known  \(5 clauses, 130 tests\)\n", text)
    assert re.search(r"tests +105 pass · 10 known · 15 unsupported  \(130 tests\)\n", text)
    assert " ".join(CAPTION.split()) in " ".join(text.split())
    assert "torch 2.13.0+cpu" in text
    assert "eager cpu" in text


@pytest.mark.parametrize("width", [40, 60, 80, 120, 160, 240])
def test_nothing_is_lost_at_any_width(width: int) -> None:
    text = plain(FOUR, width)
    assert max(map(len, text.splitlines())) <= width
    words = re.sub(r"[·(),─]", " ", text).replace("not offered", "not-offered").split()
    counted = Counter(dict.fromkeys(("clause", "clauses", "tests"), 0))
    for count, word in pairwise(words):
        if count.isdigit():
            counted[word] += int(count)
    for one in Outcome:
        tests = sum(verdict.outcome is one for result in FOUR for verdict in result.verdicts)
        clauses = sum(total(result).clauses[one] for result in FOUR)
        assert counted[one.replace(" ", "-")] == 2 * clauses + tests, (
            "clauses in their family and in the total, tests once"
        )
    tests = sum(len(result.verdicts) for result in FOUR)
    assert (counted["clause"], counted["clauses"], counted["tests"]) == (20, 20, 3 * tests), "by family, and in all"
    assert "…" not in text
    assert (len(layout(FOUR, width)) == 1) is (width >= 80), "four frameworks fit an ordinary terminal"


@pytest.mark.parametrize(
    ("outcomes", "word"),
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
def test_a_clause_comes_to_its_gravest_outcome_and_is_refused_only_as_a_whole(
    outcomes: tuple[Outcome, ...], word: Outcome
) -> None:
    one = record("torch", "1", "m", *outcomes)
    assert outcome([verdict for verdict in one.verdicts if verdict.clause == "scaling.slug"]) is word
    assert total(one).clauses == {word: len(FAMILIES)}
    assert total(one).tests.total() == len(FAMILIES) * len(outcomes)


def test_known_failures_that_nobody_confirmed_are_noted() -> None:
    def inferred(verdict: TestVerdict) -> TestVerdict:
        return replace(verdict, inferred_from="2.13.0" if verdict.outcome is K else "")

    later = replace(FOUR[0], verdicts=tuple(map(inferred, FOUR[0].verdicts)))
    note = "torch 2.13.0+cpu eager cpu: known failures judged in 2.13.0, not confirmed here: 10 tests"
    assert note in plain([later], 160)
    assert note not in plain([FOUR[0]], 160)
    assert note in digest([later]).replace("\\", "")


def test_an_interrupted_record_is_marked() -> None:
    assert plain(FOUR).count("interrupted") == 1
    assert troubles(FOUR[2]) == ("5 crash", "interrupted")
    assert troubles(FOUR[0]) == ()
    assert troubles(replace(FOUR[0], verdicts=())) == ("no verdict",)


def test_a_family_that_was_not_run_is_a_dash() -> None:
    some = replace(FOUR[0], verdicts=tuple(v for v in FOUR[0].verdicts if v.clause == "scaling.slug"))
    assert re.search(r"autocast +– +\d+ pass  \(1 clause, 100 tests\)", plain([some, FOUR[3]], 160))
    assert set(tally(some)) == {"scaling"}


def test_hostile_text_stays_text() -> None:
    evil = record("[red]x[/red]\x1b[2J", "1\n2", "m" * 300, P)
    text = plain([evil], 80)
    assert "[red]x[/red]" in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn() -> str:
        console = Console(force_terminal=True, width=160, color_system="truecolor")
        with console.capture() as capture:
            console.print(*layout(FOUR, 160))
        return capture.get()

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert re.search(r"\x1b\[[0-9;]*3[1-7]m", drawn())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*3[1-7]m", drawn())


def test_findings_group_cases() -> None:
    (only,) = findings(FOUR[0])
    assert (only.reason, only.link, only.text) == ("because", "https://a.org/1", None)
    assert only.cases["accumulation.slug"] == ("case-21", "case-22")
    assert len(only.cases) == 5


def test_markdown_is_a_list_with_links_and_escapes() -> None:
    evil = replace(
        FOUR[0],
        verdicts=(
            TestVerdict("scaling.slug/`", "scaling.slug", K, reason="*a* <b> [c](d)\n# e", link="javascript:alert(1)"),
            TestVerdict("scaling.slug/", "scaling.slug", K, reason="f", link="https://a.org/x_(y)"),
        ),
    )
    assert list(classed(findings(evil))) == [
        "**Unclassified**",
        "",
        r"- \*a\* \<b\> \[c\](d) \# e `scaling.slug` (1 tests) (javascript:alert(1))",
        "- f `scaling.slug` (1 tests) ([source](https://a.org/x_%28y%29))",
    ]


# ---------------------------------------------------------------- the command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for result in FOUR:
        write(tmp_path / f"{result.series.framework}.json", result)
    return tmp_path


def test_table_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", str(folder), "--width", "160"]) == 0
    assert capsys.readouterr().out.split() == plain([FOUR[2], FOUR[3], FOUR[1], FOUR[0]], 160).split()


def test_the_word_of_every_clause_is_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", "--clauses", str(folder / "torch.json"), str(folder / "tf.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[: len(FAMILIES)] == [
        f"{f'{family}.slug':17}  broken in tf 2.21.0, torch 2.13.0+cpu" for family in FAMILIES
    ]
    assert "5 clauses: 5 broken" in lines
    assert main(["table", "--clauses", "--strict", str(folder)]) == 1
    assert "crash" in capsys.readouterr().err


def test_strict_tells_of_bad_outcomes_and_interrupted_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", "--strict", str(folder / "torch.json"), str(folder / "reference.json")]) == 0
    assert main(["table", "--strict", str(folder)]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "paddle 3.3.1 dygraph cpu: 5 crash, interrupted",
        "tf 2.21.0 graph cpu: 5 fail, 5 misdeclared, 5 fixed, 5 error, 5 timeout, 5 crash",
    ]


def test_a_folder_shows_what_is_newest(folder: Path) -> None:
    write(folder / "torch.interrupted-1.json", replace(FOUR[0], status="interrupted"))
    write(folder / "jax.interrupted-1.json", replace(FOUR[0], status="interrupted"))
    (folder / ".torch.json.1.tmp").write_bytes(b"half")
    names = [path.name for path in folders.find([folder])]
    assert names == ["jax.interrupted-1.json", "paddle.json", "reference.json", "tf.json", "torch.json"]


BAD = {
    "missing": ["table", "nowhere.json"],
    "empty folder": ["table", "."],
    "broken": ["table", "--format", "markdown", "broken.json"],
    "broken journal": ["table", "broken.jsonl"],
    "a good and a broken one": ["table", "good.json", "broken.json"],
    "no records": ["table"],
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_status_2(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folders, "LAST_RUNS", tmp_path / "records")
    if name not in ("empty folder", "no records"):
        write(tmp_path / "good.json", FOUR[0])
        for ending in ("json", "jsonl"):
            (tmp_path / f"broken.{ending}").write_bytes(b"{\n")
    assert main(BAD[name]) == 2
    assert re.fullmatch(r"conformance: .+\n", capsys.readouterr().err)


def test_table_reader_that_goes_away_is_met_with_silence(folder: Path) -> None:
    arguments = [sys.executable, "-m", "conformance", "table", str(folder)]
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_table_output_that_cannot_be_written_is_one_line(folder: Path) -> None:
    words = [sys.executable, "-m", "conformance", "table", "--format", "markdown", str(folder)]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(words, cwd=ROOT, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert re.fullmatch(rb"conformance: .+\n", done.stderr)
