"""Records of a version confirm its known failures: ranges are written anew, and nothing else in the file changes."""

import difflib
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.cli import acceptance
from conformance.cli.main import main
from conformance.known_failures.confirm import ConfirmError, confirm
from conformance.known_failures.entries import Expectation
from conformance.known_failures.reading import load_known, read_known
from conformance.known_failures.version_ranges import contains, rewritten
from conformance.spec.clauses import load_clauses
from conformance.spec.findings import named
from results.record.model import TestVerdict, Variant
from results.record.outcomes import REFUSED, Outcome
from results.record.reading import Record, load, write
from tests.support.suite_runs import ROOT
from tests.support.twin_records import BOTH, CLAUSE, TEXT, ZERO, confirmed, failing, passing, record


def changed(path: Path, *records: Record) -> tuple[list[str], list[str]]:
    """Lines that leave the file, and lines that come in."""
    after = confirmed(path, *records).text
    lines = list(difflib.ndiff(path.read_text("utf-8").splitlines(), after.splitlines()))
    return [line[2:] for line in lines if line[0] == "-"], [line[2:] for line in lines if line[0] == "+"]


REPAIRED = passing("test_a[x]"), passing("test_b"), ZERO


@pytest.mark.parametrize(
    ("run", "comes"),
    [
        (
            record("3.1+cpu", *BOTH),
            ['cpu.eager = ["1.0", "2.0", "3.1"]  # by hand', 'versions = ">=1.0,<=3.1"', 'versions = ">=2.0,<=3.1"'],
        ),
        (
            record("1.5", passing("test_a[x]"), passing("test_b", outcome=Outcome.FIXED), ZERO),
            [
                'cpu.eager = ["1.0", "1.5", "2.0"]  # by hand',
                'versions = ">=1.0,<=2.0,!=1.5"',
                'versions = ">=1.5,<=2.0"',
            ],
        ),
    ],
    ids=["fails", "passes"],
)
def test_confirm_of_a_new_version_changes_its_ranges_alone(path: Path, run: Record, comes: list[str]) -> None:
    assert changed(path, run) == (
        ['cpu.eager = ["1.0", "2.0"]  # by hand', 'versions = ">=1.0,<=2.0"', 'versions = "==2.0"'],
        comes,
    )


@pytest.mark.parametrize(
    ("mode", "judged"),
    [("eager", '["1.0", "2.0", "3.1"]  # by hand'), ("companion", '["2.0+cpu", "3.1+cpu"]'), ("other", '["3.1+cpu"]')],
)
def test_confirm_keeps_a_local_label_where_judged_versions_have_one(path: Path, mode: str, judged: str) -> None:
    text = path.read_text("utf-8")
    path.write_text(text.replace("cpu.eager", 'cpu.companion = ["2.0+cpu"]\ncpu.eager', 1), "utf-8")
    own = record("3.1+cpu", *BOTH)
    _, come = changed(path, replace(own, series=replace(own.series, mode=mode)))
    assert f"cpu.{mode} = {judged}" in come


@pytest.mark.parametrize("reason", ["other-seeds", "kernels"])
def test_confirm_of_a_pass_keeps_what_depends_on_seeds_or_kernels(path: Path, reason: str) -> None:
    text = path.read_text("utf-8")
    path.write_text(
        text.replace('signature = "differs"\n', f'signature = "differs"\ndepends_on = "{reason}"\n'), "utf-8"
    )
    _, come = changed(path, record("3.1", passing("test_a[x]"), passing("test_b"), ZERO))
    assert 'versions = ">=1.0,<=3.1"' in come


ANOTHER = """
[[expectation]]
finding = "first"
clause = "scaling.stays-finite"
versions = ">=3.0"
cases = ["test_a[x]", "test_b"]
signature = "differs"
"""


def test_confirm_widens_no_entry_to_a_version_that_another_covers(path: Path) -> None:
    path.write_text(TEXT + ANOTHER)
    outcome = confirmed(path, record("3.0", *BOTH))
    ranges = [each["versions"] for each in tomllib.loads(outcome.text)["expectation"]]
    assert ranges == [">=1.0,<=2.0", ">=2.0,<=3.0", "==2.0", ">=3.0"]
    assert not outcome.unnamed


@pytest.mark.parametrize(
    ("verdict", "counts"),
    [
        (passing("test_b", outcome=Outcome.ABSTAIN), True),
        (passing("test_b", outcome=Outcome.UNSTABLE), True),
        (passing("test_b", outcome=Outcome.UNSUPPORTED), True),
        (passing("test_b", outcome=Outcome.NOT_OFFERED), True),
        (replace(failing("test_b"), outcome=Outcome.FAIL), True),
        (failing("test_b", "otherwise"), False),
    ],
)
def test_confirm_drops_a_case_that_fails_otherwise_alone(path: Path, verdict: TestVerdict, counts: bool) -> None:
    outcome = confirmed(path, record("3.0", failing("test_a[x]"), verdict, ZERO))
    entry = tomllib.loads(outcome.text)["expectation"][0]
    assert entry["versions"] == ">=1.0,<=3.0"
    assert entry["cases"] == (["test_a[x]", "test_b"] if counts else ["test_a[x]"])


@pytest.mark.parametrize(("function", "stays"), [("test_combination_matches_oracle", True), ("test_gone", False)])
def test_confirm_keeps_a_case_that_the_record_lacks_while_its_test_exists(
    path: Path, function: str, stays: bool
) -> None:
    """Which combinations are drawn depends on what a CPU supports."""
    path.write_text(TEXT.replace("test_b", f"{function}[elsewhere]"), encoding="utf-8")
    here = record("3.0", failing("test_a[x]"), passing(f"{function}[here]"), ZERO)
    outcome = confirmed(path, here)
    entry = tomllib.loads(outcome.text)["expectation"][0]
    assert entry["versions"] == ">=1.0,<=3.0"
    assert entry["cases"] == ["test_a[x]", *([f"{function}[elsewhere]"] if stays else [])]


def test_confirm_of_failures_in_some_cases_splits_the_entry_and_lists_the_others(path: Path) -> None:
    others = replace(failing("test_d"), outcome=Outcome.FAIL), replace(failing("test_b", "x"), outcome=Outcome.FAIL)
    assert {v.case for v in confirmed(path, record("3.0", failing("test_a[x]"), *others, ZERO)).unnamed} == {
        "test_b",
        "test_d",
    }
    part = record("3.0", failing("test_a[x]"), passing("test_b"), ZERO)
    after = tomllib.loads(confirmed(path, part).text)["expectation"]
    ranges = [(entry["versions"], entry.get("cases")) for entry in after]
    assert ranges[:2] == [(">=1.0,<=3.0", ["test_a[x]"]), (">=1.0,<=2.0", ["test_b"])]
    assert len(after) == 4


EXCLUSION = """
[[exclusion]]
finding = "first"
versions = "<=2.0"
when = ["optimizer=adam"]

[[finding]]
id = "third"
class = "documented"
consequence = "error"
reason = "It does."
link = "none found"

[[expectation]]
finding = "third"
clause = "scaling.automaton"
versions = "==2.0"
mode = "another"
signature = "zero"

[[exclusion]]
finding = "third"
versions = ">=1.0,<=2.0"
when = ["optimizer=sgd"]
"""
"""An exclusion of a finding with expectations in the records' series, and one of a finding without."""


@pytest.mark.parametrize(
    ("exclusion", "run", "ranges"),
    [
        (EXCLUSION, record("3.0", *BOTH), ["<=3.0", ">=1.0,<=3.0"]),
        (EXCLUSION, record("3.0", *REPAIRED), ["<=2.0", ">=1.0,<=3.0"]),
        (
            EXCLUSION.replace('versions = "<=2.0"', 'versions = "<=2.0"\nmode = "other"', 1),
            record("3.0", *BOTH),
            ["<=2.0", ">=1.0,<=3.0"],
        ),
    ],
    ids=["fails", "passes", "another-mode"],
)
def test_confirm_moves_exclusions_with_the_expectations_of_their_finding(
    path: Path, exclusion: str, run: Record, ranges: list[str]
) -> None:
    path.write_text(TEXT + exclusion)
    outcome = confirmed(path, run)
    assert [entry["versions"] for entry in tomllib.loads(outcome.text)["exclusion"]] == ranges
    assert ("exclusion of third", ">=1.0,<=2.0", ">=1.0,<=3.0") in outcome.changes


def test_confirm_of_a_defect_in_no_version_drops_it_with_its_exclusion(path: Path) -> None:
    path.write_text(TEXT.replace('cpu.eager = ["1.0", "2.0"]', 'cpu.eager = ["2.0"]') + EXCLUSION)
    after = tomllib.loads(confirmed(path, record("2.0", *REPAIRED)).text)
    assert [entry["finding"] for entry in after["exclusion"]] == ["third"]
    assert "first" not in {finding["id"] for finding in after["finding"]}


OLDER = {name: replace(text, revision=text.revision + 1) for name, text in record("3.0", *BOTH).clauses.items()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"status": "interrupted"}, "is of an interrupted run; run the suites to their end"),
        ({"selection": "-k scaling"}, "is of selected tests only (-k scaling); run all tests"),
        ({"status": "partial"}, "is of selected tests only (partial); run all tests"),
        ({"seed": 3}, "is of seed 3; run the suites at seed 0"),
        ({"clauses": OLDER}, "is of older revisions of clauses; run the suites again"),
    ],
)
def test_confirm_of_another_record_is_refused(path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfirmError) as caught:
        changed(path, replace(record("3.0", *BOTH), **changes))
    assert str(caught.value) == f"the record of twin 3.0 {message}"


INSIDE = 'reason = """\n[[expectation]]\nversions = "==9"\n'


@pytest.mark.parametrize(
    ("text", "run", "message"),
    [
        (
            TEXT,
            record("2.0", *BOTH[:2], passing("test_c", "scaling.stays-positive", Outcome.UNSUPPORTED)),
            r"expectation 2 \(.*\) would apply to no judged version; edit it by hand",
        ),
        (
            TEXT,
            record("3.0", *BOTH, passing("test_e", "scaling.stays-positive")),
            r"fails only in some cases \(test_c, \.\.\.\); list its cases",
        ),
        (
            TEXT.replace('versions = "==2.0"\nsig', "versions = '==2.0'\nsig"),
            record("3.0", *BOTH),
            "versions must be a string on one line",
        ),
        (TEXT.replace('reason = """\n', INSIDE), record("3.0", *BOTH), "the layout cannot be kept"),
    ],
    ids=["nowhere", "some-cases", "quotes", "layout"],
)
def test_confirm_of_what_cannot_be_written_is_refused(path: Path, text: str, run: Record, message: str) -> None:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfirmError, match=message):
        changed(path, run)


@pytest.mark.parametrize(
    ("versions", "wanted", "judged", "new"),
    [
        (">=1,<=2", {"1", "2"}, ("1", "2"), ">=1,<=2"),
        (">=1,<3", {"1", "2"}, ("1", "2"), ">=1,<3"),
        ("==1", {"1", "2"}, ("1", "2"), ">=1,<=2"),
        (">=1", {"1", "2"}, ("1", "2", "3"), ">=1,<=2"),
        (">=0.5,<=2", {"1", "2", "3"}, ("1", "2", "3"), ">=0.5,<=3"),
        (">=0.5,<1.5", {"1", "3"}, ("1", "3"), ">=0.5,<=3"),
        (">=0.5,!=0.7", {"1"}, ("1", "3"), ">=0.5,!=0.7,<=1"),
        (">=1,<=2", {"0.5", "1", "2"}, ("0.5", "1", "2"), ">=0.5,<=2"),
        (">=1,<=3", {"1", "3"}, ("1", "2", "3"), ">=1,<=3,!=2"),
        ("==1", {"2"}, ("1", "2"), "==2"),
        ("==2", {"2+k.1"}, ("2+k.1", "2+k.2"), "==2,!=2+k.2"),
        (">=1,<=2", {"1+k.1", "2+k.1"}, ("1+k.1", "2+k.1", "2+k.2"), ">=1,<=2,!=2+k.2"),
    ],
)
def test_rewritten_ranges_contain_the_wanted_versions_alone(
    versions: str, wanted: set[str], judged: tuple[str, ...], new: str
) -> None:
    assert rewritten(versions, wanted, judged) == new
    assert {each for each in judged if contains(new, each)} == wanted


def test_accept_writes_the_file_and_says_what_changed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(acceptance, "_known_failures_file", lambda *_: path)
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    write(good, record("3.0", *BOTH))
    assert main(["accept", "--known", str(good)]) == 0
    output = capsys.readouterr().out
    assert "twin/expectations.toml: 3.0 cpu eager is judged; changed expectations: 2" in output
    assert "  >=1.0,<=2.0 → >=1.0,<=3.0: scaling.stays-finite (1)" in output
    assert read_known(path.parent, "twin").judged == {"twin": {("cpu", "eager"): ("1.0", "2.0", "3.0")}}
    text = path.read_text("utf-8")
    assert main(["accept", "--known", str(good)]) == 0
    assert "no change" in capsys.readouterr().out
    write(bad, record("3.0", *BOTH, replace(failing("test_d"), outcome=Outcome.FAIL)))
    assert main(["accept", "--known", str(bad)]) == 1
    assert f"{CLAUSE} test_d fail (differs)" in capsys.readouterr().out
    write(bad, record("4.0", *BOTH, passing("test_e", "scaling.stays-positive")))
    assert main(["accept", "--known", str(bad)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("conformance: twin/expectations.toml: expectation 2 (")
    assert path.read_text("utf-8") == text


def of_present_tests(record: Record, version: str) -> Record:
    """A record as it would be of the present tests and another version."""
    present = load_clauses()
    clauses = {name: replace(text, revision=present[name].revision) for name, text in record.clauses.items()}
    variant = Variant(version, instruction_sets=record.variant.instruction_sets)
    return replace(record, variant=variant, clauses=clauses)


@pytest.mark.parametrize(
    "name", ["jax", "paddle", pytest.param("tf", marks=pytest.mark.slow), pytest.param("torch", marks=pytest.mark.slow)]
)
def test_confirm_of_the_committed_files_widens_what_applies_and_keeps_their_layout(name: str) -> None:
    baselines = [load(path) for path in sorted((ROOT / "results" / "baselines").glob(f"{name}-*-cpu-*.json.gz"))]
    version = baselines[0].variant.framework_version
    newer = [of_present_tests(each, "99.0+keras.9" if name == "tf" else "99.0") for each in baselines]
    path = ROOT / "frameworks" / name / "expectations.toml"
    text = path.read_text("utf-8")
    outcome = confirm(newer, load_known([name]), text)
    assert not outcome.unnamed
    before, after = text.splitlines(), outcome.text.splitlines()
    assert len(before) == len(after)
    apart = [line for former, line in zip(before, after, strict=True) if former != line]
    assert all(line.startswith(("versions = ", "cpu.")) for line in apart)

    def applies(entry: Expectation) -> bool:
        """At the version of the records, or nowhere if they are of other series, or have nothing but refusals of its
        cases, as where a module is not installed."""
        own = [each for each in newer if named(entry.device, "cpu") and named(entry.mode, each.series.mode)]
        meant = [
            {verdict.outcome for verdict in record.verdicts if entry.covers(verdict.clause, verdict.case)}
            for record in own
            if entry.means(record.variant.instruction_sets)
        ]
        refused = bool(meant) and all(outcomes and outcomes <= REFUSED for outcomes in meant)
        return bool(own) and not refused and contains(entry.versions, version)

    known = load_known([name])
    applying = [entry for entry in known.expectations if applies(entry)]
    excluding = [
        each
        for each in known.exclusions
        if contains(each.versions, version)
        and any(named(each.device, "cpu") and named(each.mode, record.series.mode) for record in newer)
    ]
    assert sum(line.startswith("versions = ") for line in apart) == len(applying) + len(excluding)
    assert all("<=99.0" in line for line in apart if line.startswith("versions = "))
