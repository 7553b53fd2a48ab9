"""Snapshots of known failures: made from a record by `conformance accept`, read, and applied to results."""

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.checks.evidence import Violation
from conformance.checks.outcome import conclude, find_unmatched
from conformance.cli import main, records
from conformance.known_failures.entries import Expectation, Known, VersionSeries, explain_repair
from conformance.known_failures.reading import FILE, SNAPSHOTS, Update, UpdateError, load_known, read_known, update
from conformance.spec.clauses import Finding, load_clauses
from frameworks.reference import ReferenceFramework
from frameworks.registry import built_in
from results.record.model import Consequence, FindingKind, FindingText, Outcome, TestVerdict, Variant
from results.record.reading import Record, load, write
from tests.support.recorded import BASE
from tests.support.suite_runs import ROOT, run_refused

CLAUSE = "scaling.stays-finite"
FINDINGS = "".join(
    f'[[finding]]\nid = "{name}"\nclass = "documented"\nconsequence = "error"\nreason = "It."\nlink = "none found"\n'
    for name in ("first", "second")
)
LINES = (
    f"{CLAUSE}/test_a[x]  first  differs|another",
    f"{CLAUSE}/test_b  first  differs",
    "scaling.stays-positive/test_c  second  zero  [-avx2]",
)
HERE = "twin-2.0-cpu-eager.txt"
CLAUSES = ("scaling.stays-positive", "recompute.statistics-once")
NAME = "torch-2.13.0-cpu-eager.txt"
FINDING = """
[[finding]]
id = "scale-zero"
class = "defect"
consequence = "silent-corruption"
reason = "The scale reaches zero."
link = "https://example.org/1"
link_shows = "That it does."
"""
WORKAROUND = """
[finding.workaround]
kind = "call"
module = "trainer.py"
does = "It stops before zero."
"""
EXCLUSION = """
[[finding.exclusion]]
versions = ">=2.4,<3"
when = ["clip"]
"""
LINE = "scaling.stays-positive/overflows 400  scale-zero  not-finite|differs  [avx2, -avx512f, seed]"

TEXT = FindingText(
    FindingKind.DEFECT,
    Consequence.SILENT_CORRUPTION,
    "The scale reaches zero.",
    "https://example.org/1",
    "That it does.",
)
ENTRY = Expectation(
    clause="scaling.stays-positive",
    cases=("overflows 400",),
    signature="not-finite|differs",
    finding=Finding("scale-zero", "torch", TEXT),
    series=VersionSeries("2.13.0", "cpu", "eager"),
    file=f"torch/{SNAPSHOTS}/{NAME}",
)
SNAPSHOT = f"torch/{SNAPSHOTS}/{NAME}: line "
OTHER = replace(ENTRY, signature="raises")
UNSETTLED = replace(ENTRY, inferred_from="2.12.0", may_pass=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of an adapter with two findings and one snapshot."""
    (tmp_path / "twin" / SNAPSHOTS).mkdir(parents=True)
    (tmp_path / "twin" / FILE).write_text(FINDINGS, encoding="utf-8")
    (tmp_path / "twin" / SNAPSHOTS / HERE).write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return tmp_path / "twin"


def verdict(
    case: str, outcome: Outcome = Outcome.KNOWN, signature: str = "differs", clause: str = CLAUSE
) -> TestVerdict:
    """A verdict about a test."""
    own_signature = "" if outcome in (Outcome.PASS, Outcome.ABSTAIN) else signature
    return TestVerdict(f"{clause}/{case}", clause, outcome, own_signature, seed=0)


A, B, C = verdict("test_a[x]"), verdict("test_b"), verdict("test_c", Outcome.PASS, clause="scaling.stays-positive")
NEW = verdict("test_d", Outcome.FAIL, "raises-ValueError", "scaling.skip-is-atomic")


def record(version: str, *verdicts: TestVerdict, device: str = "cpu", mode: str = "eager") -> Record:
    """A whole run of the twin on a processor with AVX2."""
    (text,) = BASE.clauses.values()
    clauses = {verdict.clause: text for verdict in verdicts}
    series = replace(BASE.series, framework="twin", device=device, mode=mode)
    variant = Variant(version, instruction_sets=("avx2",))
    return replace(BASE, series=series, variant=variant, verdicts=verdicts, clauses=clauses).sort_parts()


def make_update(folder: Path, run: Record) -> Update:
    """The snapshot of a record's series."""
    return update(run, read_known(folder, "twin"))


def lines(folder: Path, run: Record) -> list[str]:
    """The lines of that snapshot."""
    return make_update(folder, run).text.splitlines()


def test_update_of_the_same_failures_changes_nothing(folder: Path) -> None:
    result = make_update(folder, record("2.0+cpu", A, B, C))
    assert (tuple(result.text.splitlines()), result.name, [*result.changes()]) == (LINES, HERE, [])


@pytest.mark.parametrize(
    ("run", "indices"),
    [
        (record("2.0", A, verdict("test_b", Outcome.FIXED), C), [0, 2]),
        (record("2.0", A, verdict("test_b", Outcome.NOT_OFFERED), C), [0, 1, 2]),
        (record("2.0", A, verdict("test_b", Outcome.UNSUPPORTED), C), [0, 1, 2]),
        (record("2.0", A, verdict("test_b", Outcome.ABSTAIN), C), [0, 1, 2]),
        (record("2.0", A, verdict("test_b", Outcome.UNSTABLE), C), [0, 1, 2]),
        (record("2.0", A, verdict("test_b", Outcome.FAIL), C), [0, 1, 2]),
        (record("2.0", A, verdict("test_b", Outcome.FAIL, "otherwise"), C), [0, 2]),
        (record("2.0", A, C), [0, 2]),
        (record("3.0", A, B, C), [0, 1, 2]),
        (record("3.0", A, verdict("test_b", Outcome.FIXED), C), [0, 2]),
        (record("2.0", A, B, C, mode="graph"), [0, 1]),
        (record("2.0", A, verdict("test_b", Outcome.ABSTAIN), C, device="cuda"), [0]),
    ],
)
def test_update_keeps_lines_that_the_record_shows_or_cannot_tell(folder: Path, run: Record, indices: list[int]) -> None:
    assert lines(folder, run) == [LINES[index] for index in indices]
    unexplained = [verdict.case for verdict in run.verdicts if verdict.signature == "otherwise"]
    assert [verdict.case for verdict in make_update(folder, run).unexplained] == unexplained


@pytest.mark.parametrize(
    ("test", "case", "stays"),
    [
        ("test_combination_matches_oracle[elsewhere]  first  differs", "test_c", True),
        ("test_gone[elsewhere]  first  differs", "test_c", False),
        ("test_b  first  differs  [other-seeds]", "test_b", True),
        ("test_b  first  differs  [kernels]", "test_b", True),
    ],
)
def test_update_keeps_a_test_that_the_record_lacks_while_its_function_exists_and_a_condition_that_may_pass(
    folder: Path, test: str, case: str, stays: bool
) -> None:
    (folder / SNAPSHOTS / HERE).write_text(f"{CLAUSE}/{test}\n", encoding="utf-8")
    assert lines(folder, record("2.0", verdict(case, Outcome.PASS))) == ([f"{CLAUSE}/{test}"] if stays else [])


def test_update_of_a_known_verdict_names_its_finding_and_processors(folder: Path) -> None:
    (folder / FILE).write_text(FINDINGS.replace('id = "second"', 'id = "second"\nprocessor = "avx2"'), encoding="utf-8")
    known = replace(verdict("test_d"), finding="second")
    assert lines(folder, record("2.0", known, C)) == [f"{CLAUSE}/test_d  second  differs  [avx2]", LINES[2]]


@pytest.mark.parametrize(
    ("version", "mode", "name"),
    [("3.0+cpu", "eager", "twin-3.0-cpu-eager.txt"), ("3.0+k.3", "keras", "twin-3.0+k.3-cpu-keras.txt")],
)
def test_update_name_has_a_local_label_where_judged_versions_have_one(
    folder: Path, version: str, mode: str, name: str
) -> None:
    (folder / SNAPSHOTS / "twin-2.0+k.2-cpu-keras.txt").touch()
    assert make_update(folder, record(version, A, mode=mode)).name == name


OLDER = {name: replace(text, revision=text.revision + 1) for name, text in record("3.0", A).clauses.items()}


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
def test_update_of_another_record_is_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UpdateError) as caught:
        make_update(folder, replace(record("3.0", A), **changes))
    assert str(caught.value) == f"the record of twin 3.0 {message}"


@pytest.mark.parametrize(
    "name", ["jax", "paddle", *(pytest.param(name, marks=pytest.mark.slow) for name in ("tf", "torch"))]
)
def test_update_by_the_committed_baselines_changes_nothing_and_by_a_new_version_explains_all(name: str) -> None:
    known, present = load_known([name]), load_clauses()
    for path in sorted((ROOT / "results" / "baselines").glob(f"{name}-*-cpu-*.json.gz")):
        run = load(path)
        clauses = {name: replace(text, revision=present[name].revision) for name, text in run.clauses.items()}
        run = replace(run, clauses=clauses)
        result = update(run, known)
        assert ([*result.changes()], result.unexplained) == ([], ()), path.name
        newer = replace(run, variant=replace(run.variant, framework_version="99.0+keras.9"))
        assert not update(newer, known).unexplained, path.name


@pytest.fixture
def command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command that accepts a run with a failure that no line names."""
    monkeypatch.setattr(records, "_adapter_folder", lambda *_: folder)
    write(folder / "run.json", record("3.0", A, B, C, NEW))
    return ["accept", str(folder / "run.json")]


def test_accept_writes_the_snapshot_and_lists_failures_without_a_finding(
    folder: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 1
    output = capsys.readouterr().out
    assert f"twin/{SNAPSHOTS}/twin-3.0-cpu-eager.txt has 3 known failures of 3.0 cpu eager, 3 lines change" in output
    assert f"  + {LINES[0]}" in output
    assert "1 failures need a finding: add them to one with `--finding ID`" in output
    assert "  scaling.skip-is-atomic test_d fail (raises-ValueError)" in output
    path = folder / SNAPSHOTS / "twin-3.0-cpu-eager.txt"
    assert tuple(path.read_text("utf-8").splitlines()) == LINES
    assert main([*command, "--finding", "second"]) == 0
    assert "scaling.skip-is-atomic/test_d  second  raises-ValueError\n" in path.read_text("utf-8")
    assert main(command) == 0
    assert ", no change" in capsys.readouterr().out


def test_accept_of_a_dry_run_prints_its_changes_and_writes_nothing(
    folder: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--finding", "second", "--dry-run"]) == 0
    assert "+scaling.skip-is-atomic/test_d  second  raises-ValueError\n" in capsys.readouterr().out
    assert [path.name for path in (folder / SNAPSHOTS).iterdir()] == [HERE]


def test_accept_of_repairs_names_unused_findings(
    folder: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    repaired = [verdict(case, Outcome.FIXED) for case in ("test_a[x]", "test_b")]
    write(folder / "run.json", record("2.0", *repaired, C))
    assert main(command) == 0
    output = capsys.readouterr().out
    assert f"  - {LINES[1]}" in output
    assert f"no known failure rests on first any more; remove it from twin/{FILE}" in output


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--clause", CLAUSE), "needs --finding"),
        (("--finding", "third"), "the finding 'third' does not exist; add it to findings.toml"),
        (("--finding", "first", "--clause", "scaling.automaton"), "no failure needs this finding; omit --finding"),
    ],
)
def test_accept_of_a_wrong_finding_is_refused_and_changes_nothing(
    arguments: tuple[str, ...], problem: str, folder: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert problem in run_refused(capsys, *command, *arguments)
    assert (folder / FILE).read_text("utf-8") == FINDINGS
    assert [path.name for path in (folder / SNAPSHOTS).iterdir()] == [HERE]


@pytest.fixture
def unregistered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A record of an adapter that can be imported and is not registered."""
    package = tmp_path / "elsewhere"
    package.mkdir()
    (package / "__init__.py").write_text("from pathlib import Path\nPath(__file__).with_name('imported').touch()\n")
    (package / "adapter.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    run = record("3.0", NEW, verdict("test_a[x]", Outcome.PASS))
    write(tmp_path / "run.json", replace(run, series=replace(run.series, framework="elsewhere.adapter:Adapter")))
    yield package
    sys.modules.pop("elsewhere", None)


@pytest.mark.parametrize("arguments", [(), ("--framework", "torch")])
def test_accept_of_a_record_imports_nothing_and_takes_no_folder_from_it(
    arguments: tuple[str, ...], unregistered: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(unregistered.iterdir())
    line = run_refused(capsys, "accept", str(unregistered.parent / "run.json"), *arguments)
    assert "is of 'elsewhere.adapter:Adapter', " in line
    assert sorted(unregistered.iterdir()) == before
    assert "elsewhere" not in sys.modules


def test_accept_for_an_adapter_that_the_user_names_writes_its_files(
    unregistered: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["accept", str(unregistered.parent / "run.json"), "--framework", "elsewhere.adapter:Adapter"]
    assert main(arguments) == 1
    assert "1 failures need a finding" in capsys.readouterr().out
    texts = 'class = "documented"\nconsequence = "cost"\nreason = "It does."\nlink = "none found"\n'
    (unregistered / FILE).write_text(f'[[finding]]\nid = "a"\n{texts}')
    assert main([*arguments, "--finding", "a"]) == 0
    (path,) = (unregistered / SNAPSHOTS).iterdir()
    assert path.name == "elsewhere.adapter.Adapter-3.0-cpu-eager.txt"
    assert path.read_text("utf-8") == "scaling.skip-is-atomic/test_d  a  raises-ValueError\n"
    assert len(read_known(unregistered, "elsewhere.adapter:Adapter").expectations) == 1


def make_known(folder: Path, findings: str = FINDING, lines: str = LINE, name: str = NAME) -> Known:
    """The content of an adapter's folder with these texts and the program of the finding."""
    for inner in ("findings", SNAPSHOTS):
        (folder / "torch" / inner).mkdir(parents=True, exist_ok=True)
    for path in ("trainer.py", "findings/scale_zero.py"):
        (folder / "torch" / path).touch()
    (folder / "torch" / FILE).write_text(findings, encoding="utf-8")
    (folder / "torch" / SNAPSHOTS / name).write_text(lines, encoding="utf-8")
    return read_known(folder / "torch", "torch", CLAUSES)


def test_read_known_of_a_line_is_the_entry_that_it_says(tmp_path: Path) -> None:
    (entry,) = make_known(tmp_path).expectations
    assert (entry.line, entry.file) == (LINE, ENTRY.file)
    plain = replace(entry, finding=ENTRY.finding)
    assert plain == replace(ENTRY, processor="avx2, -avx512f", depends_on="seed")
    assert replace(ENTRY, processor="*").line == LINE.partition("  [")[0]


def test_read_known_of_comments_or_of_no_files_is_nothing(tmp_path: Path) -> None:
    assert read_known(tmp_path / "none", "torch") == Known()
    assert make_known(tmp_path, "# nothing yet\n", "").judged == {"torch": (VersionSeries("2.13.0", "cpu", "eager"),)}


def test_read_known_of_a_workaround_and_an_exclusion_has_their_finding(tmp_path: Path) -> None:
    content = make_known(tmp_path, FINDING.replace('"defect"', '"defect"\ndevice = "cuda"') + WORKAROUND + EXCLUSION)
    (workaround,), (exclusion,) = content.workarounds, content.exclusions
    assert (workaround.kind, workaround.module, workaround.mode) == ("call", "trainer.py", "")
    assert workaround.finding == exclusion.finding == content.findings[0]
    assert (exclusion.versions, exclusion.device, exclusion.when) == (">=2.4,<3", "cuda", ("clip",))


def test_load_known_of_the_committed_files_has_no_idle_finding_and_sorted_snapshots() -> None:
    loaded = load_known()
    assert {entry.clause for entry in loaded.expectations} <= load_clauses().keys()
    assert {finding.framework for finding in loaded.findings} == built_in().keys() - {"reference"}
    failing = {entry.finding for entry in loaded.expectations}
    named = {entry.finding for entry in (*loaded.workarounds, *loaded.exclusions)}
    assert all(finding in failing | named or finding.causes for finding in loaded.findings)
    assert all(finding in failing or finding.program for finding in loaded.findings)
    sets = {finding.id: set(re.findall(r"\w+", finding.processor)) for finding in loaded.findings}
    assert [f.id for f in loaded.findings if sets[f.id] - set(re.findall(r"\w+", f.text.reason))] == []
    lines: dict[str, list[str]] = {}
    for entry in loaded.expectations:
        lines.setdefault(entry.file, []).append(entry.line)
    assert all(entries == sorted(entries) for entries in lines.values())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('reason = "The scale reaches zero."', "", "reason is missing"),
        ("https://example.org/1", "somewhere", "link: got 'somewhere', want an address or 'none found'"),
        ('"defect"', '"bug"', "class: got 'bug', want one of defect, documented, numerics, limitation"),
        ('"defect"', '"defect"\nprocessor = "AVX-512"', "processor 'AVX-512' is not a list such as"),
        ('"defect"', '"defect"\ndevice = "gpu"', "device: got 'gpu', want 'cpu' or 'cuda'"),
        ('"defect"', '"defect"\nspoils_process = 1', "spoils_process: got 1, want true or false"),
        ('"defect"', '"numerics"', "the consequence of the class numerics is last-bits, not silent-corruption"),
        ('id = "scale-zero"', 'id = "Scale zero"', "finding 1 (Scale zero): the id is not a slug"),
        ('id = "scale-zero"', 'id = "scale-one"', "a defect needs a program that shows it, findings/scale_one.py"),
        (FINDING, FINDING + FINDING, "finding 2 (scale-zero): duplicate id"),
        ("trainer.py", "none.py", "no module 'none.py'"),
        ("[[finding]]", "[[found]]", "findings.toml: unknown key 'found'"),
        ("[[finding]]", "[[finding", "findings.toml: not TOML"),
        (">=2.4,<3", "one", "versions: got 'one', want a PEP 440 specifier"),
    ],
)
def test_read_known_of_a_wrong_finding_is_refused_in_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = FINDING + WORKAROUND + EXCLUSION
    assert old in text
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        make_known(tmp_path, text.replace(old, new))
    assert str(caught.value).startswith(f"torch/{FILE}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("files", "start", "message"),
    [
        ({"lines": "scaling.automaton f s"}, SNAPSHOT, "line 1: got 'scaling.automaton f s', want "),
        ({"lines": LINE.replace("positive", "put")}, SNAPSHOT, "line 1: unknown clause 'scaling.stays-put'"),
        ({"lines": LINE.replace("scale-zero", "other")}, SNAPSHOT, "unknown finding 'other'; add it to findings.toml"),
        ({"lines": LINE.replace("avx2", "AVX-2")}, SNAPSHOT, "got [AVX-2, -avx512f, seed], want instruction sets such"),
        ({"lines": f"{LINE}\n{LINE}\n"}, SNAPSHOT, "line 2: another line has the same test and finding"),
        ({"name": "notes.txt"}, "torch/expected: ", "got a file 'notes.txt', want FRAMEWORK-VERSION-DEVICE-MODE.txt"),
        ({"name": "torch-2.x-cpu-eager.txt"}, "torch", "version '2.x' is not a PEP 440 version"),
    ],
)
def test_read_known_of_a_wrong_line_or_name_is_refused_in_one_line(
    tmp_path: Path, files: dict[str, str], start: str, message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        make_known(tmp_path, **files)
    assert str(caught.value).startswith(start)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("processor", "instructions", "applies"),
    [
        ("avx2", ("avx", "avx512f"), False),
        ("avx2, -avx512f", ("avx2",), True),
        ("avx2, -avx512f", ("avx2", "avx512f"), False),
        ("avx2, -avx512f", (), False),
        ("-avx512f", ("asimd",), True),
    ],
)
def test_applying_compares_instruction_sets(processor: str, instructions: tuple[str, ...], applies: bool) -> None:
    entry = replace(ENTRY, processor=processor)
    content = Known(expectations=(entry,), judged={"torch": (entry.series,)})
    assert content.applying("torch", entry.series, 0, instructions).expectations == ((entry,) if applies else ())


def test_applying_of_a_version_that_cannot_be_compared_is_an_error() -> None:
    with pytest.raises(ValueError, match="torch: version 'nightly build' is not a PEP 440 version"):
        Known().applying("torch", VersionSeries("nightly build", "cpu", "eager"))


@pytest.mark.parametrize(
    ("signature", "matching", "outcome", "series"),
    [
        ("not-finite", (), Outcome.FAIL, ""),
        ("not-finite", (ENTRY,), Outcome.KNOWN, ""),
        ("differs", (OTHER, ENTRY), Outcome.KNOWN, ""),
        ("raises", (ENTRY,), Outcome.FAIL, ""),
        (None, (ENTRY,), Outcome.FIXED, ""),
        (None, (UNSETTLED, ENTRY), Outcome.FIXED, ""),
        (None, (UNSETTLED,), Outcome.PASS, ""),
        ("differs", (UNSETTLED,), Outcome.KNOWN, "2.12.0"),
        (None, (), Outcome.PASS, ""),
    ],
)
def test_conclude_of_a_result_and_its_entries_gives_an_outcome_by_the_entry_that_applies(
    signature: str | None, matching: tuple[Expectation, ...], outcome: Outcome, series: str
) -> None:
    error = None if signature is None else Violation(signature, "Wrong.")
    judgement = conclude(ReferenceFramework("cpu"), error, matching)
    assert (judgement.outcome, judgement.inferred_from) == (outcome, series)
    assert judgement.finding == ("scale-zero" if outcome in (Outcome.KNOWN, Outcome.FIXED) else "")
    differs = outcome is Outcome.FAIL and bool(matching)
    assert (f"signature differs: got {signature!r}, want 'not-finite|differs'" in judgement.message) == differs


def test_explain_repair_names_the_remedy_and_where_the_failure_occurs() -> None:
    assert f"did not occur; remove its line from {ENTRY.file}" in explain_repair(ENTRY)
    assert "did not occur, unlike in 2.12.0; " in explain_repair(UNSETTLED)


def test_find_unmatched_has_entries_without_a_test() -> None:
    assert find_unmatched([ENTRY], [("scaling.stays-positive", "overflows 400")]) == ()
    assert find_unmatched([ENTRY], [("scaling.stays-positive", "overflows 40")]) == (ENTRY,)
    assert find_unmatched([ENTRY], [("scaling.stays-finite", "overflows 400")]) == (ENTRY,)
