"""The specification, findings, and what import-linter does not check: clauses, ids of tests, imports, file names."""

import ast
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from conformance.checks import reproducers
from conformance.checks.evidence import Verdict, Violation
from conformance.checks.outcome import conclude
from conformance.checks.reproducers import ProgramError, ProgramResult
from conformance.checks.subject import Subject
from conformance.cli import main, spec
from conformance.cli.spec import Evidence
from conformance.known_failures.entries import Known, Position, VersionSeries
from conformance.known_failures.reading import FILE, SNAPSHOTS, known_of, load_known
from conformance.runner.recorder import SETTINGS
from conformance.spec.clauses import SPECIFICATION, Clause, Finding, Level, load_clauses, read_clauses
from conformance.test_ids import id_of, inventory, node_of, read_inventory
from fixtures.recipe import FLOAT16
from frameworks.contract import Attempt, Capability, Unsupported
from frameworks.reference import ReferenceFramework
from frameworks.registry import adapter_file, built_in
from results.record.model import Consequence, FindingKind, FindingText, Outcome
from results.record.reading import load
from tests.support.suite_runs import ROOT, copy_checkout, environment, judge, run_refused
from tools.faults.reference import accumulation

KNOWN = load_known()
PROGRAMS = [finding for finding in KNOWN.findings if finding.program is not None]
OWN = {name: {*adapter_file(name).imports} for name in built_in()}
TEXT = FindingText(FindingKind.DEFECT, Consequence.ERROR, "The scale falls.", "https://example.org/1", "That it falls.")
_PRESENT = "import sys; print('expected: 0'); print('seen: 1'); sys.exit(1)"


def write_program(folder: Path, source: str) -> Path:
    path = folder / "program.py"
    path.write_text(source, encoding="utf-8")
    return path


def test_programs_import_their_framework_alone() -> None:
    for finding in PROGRAMS:
        tree = ast.parse(finding.program.read_text("utf-8"))
        assert ast.get_docstring(tree)
        modules = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
        modules |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        roots = {name.split(".")[0] for name in modules} - {"numpy", "ml_dtypes"} - set(sys.stdlib_module_names)
        assert roots <= OWN[finding.framework], finding.program


def test_findings_run_skips_programs_that_need_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text, source = KNOWN.findings[0].text, write_program(tmp_path, _PRESENT)
    findings = (
        Finding("needs-more", "torch", text, source, ("json", "no_such_module")),
        Finding("of-a-processor", "torch", text, source, processor="avx2, -avx512f"),
        Finding("of-a-device", "torch", text, source, device="cuda"),
        Finding("needs-nothing", "torch", text, source, ("json",)),
    )
    for name, value in {
        "load_known": lambda _: Known(findings),
        "installed_version": lambda _: "2.13.0",
        "instruction_sets": lambda: ("avx2", "avx512f"),
        "devices": lambda: ("cpu",),
    }.items():
        monkeypatch.setattr(f"conformance.cli.spec.{name}", value)
    assert main(("findings", "torch", "--run")) == 1
    printed = capsys.readouterr().out
    for reason in (
        "no_such_module is not installed",
        "it needs a processor with avx2, -avx512f",
        "it needs device cuda",
    ):
        assert f"not tried: {reason}" in printed
    assert printed.count("present: got 1, want 0") == 1


def test_findings_have_their_own_programs_and_reasons() -> None:
    programs = set((ROOT / "frameworks").glob("*/findings/*/*.py"))
    assert {Path(str(finding.program)) for finding in PROGRAMS} == programs
    assert all({*finding.needs} <= OWN[finding.framework] for finding in KNOWN.findings)
    reasons = [(finding.framework, finding.text.reason) for finding in KNOWN.findings]
    assert len(set(reasons)) == len(reasons)


def test_findings_of_one_cause_have_one_class_and_consequence() -> None:
    """Findings of one cause have one id, with the prefix `keras-` on JAX and `xla-keeps-` on TensorFlow."""
    shared: dict[str, set[tuple[str, str]]] = {}
    for finding in KNOWN.findings:
        classification = (finding.text.kind, finding.text.consequence)
        shared.setdefault(finding.id.removeprefix("keras-").removeprefix("xla-keeps-"), set()).add(classification)
    assert {name: classifications for name, classifications in shared.items() if len(classifications) > 1} == {}


@pytest.mark.parametrize(("status", "present"), [(1, True), (0, False)])
def test_run_of_a_program_reads_its_result(tmp_path: Path, status: int, present: bool) -> None:
    source = f"import sys\nprint('expected: 1')\nprint('noise')\nprint('seen: 2')\nsys.exit({status})"
    assert reproducers.run(write_program(tmp_path, source)) == ProgramResult("1", "2", present)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "raise ValueError('it broke')",
            "exited with 1, printed 0 lines `expected:`, 0 lines `seen:`: ValueError: it broke",
        ),
        ("import sys; print('expected: 1'); print('seen: 2'); sys.exit(3)", "exited with 3"),
        ("print('expected: 1'); print('expected: 1'); print('seen: 1')", "2 lines `expected:`"),
        ("import no_such_framework", "No module named 'no_such_framework'; `python -m conformance install NAME`"),
        ("import os; os.abort()", "exited with -6"),
    ],
)
def test_run_of_a_program_that_ends_otherwise_is_refused(tmp_path: Path, source: str, message: str) -> None:
    with pytest.raises(ProgramError) as caught:
        reproducers.run(write_program(tmp_path, source))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_run_of_a_program_that_dies_once_runs_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = str(tmp_path / "died")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    source = f"""
        import os, sys
        if not os.path.exists({mark!r}):
            open({mark!r}, "w").close()
            os.abort()
        print("expected: False")
        print("seen:", {str(ROOT)!r} in sys.path)
    """
    assert reproducers.run(write_program(tmp_path, textwrap.dedent(source))) == ProgramResult("False", "False", False)


def test_run_of_a_program_that_hangs_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproducers, "LIMIT_S", 0.5)
    with pytest.raises(ProgramError, match=r"did not end within 0\.5 s"):
        reproducers.run(write_program(tmp_path, "import time; time.sleep(3600)"))


def test_conclude_restores_settings_that_an_attempt_changed() -> None:
    framework = ReferenceFramework("cpu")
    opened = framework.autocast(FLOAT16)

    def leaks() -> bool:
        opened.__enter__()
        return False

    before = framework.global_state()
    conclude(framework, Unsupported(Capability.SCHEDULE, "not with this optimizer", leaks), ())
    assert framework.global_state() == before


@pytest.mark.parametrize(
    ("attempt", "outcome", "message"),
    [
        (lambda: True, Outcome.MISDECLARED, "but a direct call succeeded"),
        (lambda: False, Outcome.UNSUPPORTED, "(tried)"),
        (None, Outcome.MISDECLARED, "but refuses it: not with this optimizer"),
    ],
)
def test_conclude_of_a_declared_capability_believes_the_attempt_of_the_refusal(
    attempt: Attempt | None, outcome: Outcome, message: str
) -> None:
    refusal = Unsupported(Capability.SCHEDULE, "not with this optimizer", attempt)
    result = conclude(ReferenceFramework("cpu"), refusal, ())
    assert (result.outcome, result.signature) == (outcome, "optimizer.schedule")
    assert result.message.endswith(message)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (ProgramResult("1.0", "0.0", True), "it shows the failure:"),
        (ProgramResult("1.0", "1.0", False), "it does not show the failure:"),
        ("there is no torch here", "Not run just now: there is no torch here"),
    ],
)
def test_report_has_program_clause_and_result(tmp_path: Path, result: ProgramResult | str, message: str) -> None:
    clause = load_clauses()["scaling.stays-positive"]
    finding = Finding("falls", "torch", TEXT, write_program(tmp_path, "print('a program')"))
    text = spec.draft(clause, [Evidence(finding, (), result)], None)
    for part in ("# The scale falls.", "print('a program')", clause.requirement, clause.source, TEXT.link, message):
        assert part in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("issue", "scaling.stays-put", "--framework", "torch"), "no clause 'scaling.stays-put'; similar: scaling."),
        (("issue", "scaling.stays-positive", "--framework", "caffe"), "no built-in adapter 'caffe': one of reference,"),
        (("issue", "scaling.detects-inf", "--framework", "torch"), "no known failure of torch in scaling.det"),
        (("issue", "formats.decode", "--framework", "torch"), "torch in formats.decode; it has some in: a"),
        (
            ("issue", "scaling.automaton", "--framework", "reference"),
            "no known failure of reference in scaling.automaton; it has no known failure in any clause; `",
        ),
        (("findings", "caffe"), "no built-in adapter 'caffe'"),
    ],
)
def test_issue_and_findings_of_a_wrong_name_are_refused_in_one_line(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in run_refused(capsys, *arguments)


@pytest.mark.parametrize("arguments", [("findings", "reference"), ("findings", "reference", "--run")])
def test_findings_of_a_framework_without_any_says_so(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    assert capsys.readouterr().out == "reference has no findings\n"


TORCH = tuple(VersionSeries(version, "cpu", "eager") for version in ("2.6.0", "2.13.0", "2.15.0"))
KERAS = tuple(VersionSeries(f"2.{version}", "cpu", "eager") for version in ("20.0+keras.3.11.3", "21.0+keras.3.15.1"))
JAX = (VersionSeries("0.10.2", "cpu", "eager"),)
SERIES = tuple(
    VersionSeries(*line.split())
    for line in (
        "2.6.0 cpu eager",
        "2.13.0 cpu eager",
        "2.13.0 cpu compile",
        "2.13.0 cpu ddp",
        "2.11.0 cuda eager",
        "2.14.0 xpu compile",
    )
)
FINDING = (
    '[[finding]]\nid = "f"\nclass = "documented"\nconsequence = "error"\nreason = "It does."\nlink = "none found"\n'
)
SUITE = """
from conformance.checks.api import Subject, Verdict, clause

@clause("scaling.automaton")
def test_it_fails(subject: Subject, verdict: Verdict) -> None:
    verdict.equal(1, 2, "numbers")

@clause("scaling.automaton")
def test_it_passes(subject: Subject, verdict: Verdict) -> None:
    verdict.equal(1, 1, "numbers")
"""


@pytest.mark.parametrize(
    ("judged", "series", "nearest"),
    [
        (TORCH, "2.13.0+cpu cpu eager", ""),
        (TORCH, "2.13.0.dev20260101 cpu eager", "2.6.0"),
        (TORCH, "2.13.1+cpu cpu eager", "2.13.0"),
        (TORCH, "2.2.0 cpu eager", "2.6.0"),
        (TORCH, "2.14.1 cpu eager", "2.13.0"),
        (KERAS, "2.21.0+keras.3.13.2 cpu eager", "2.21.0+keras.3.15.1"),
        (KERAS, "2.19.1+keras.3.8.0 cpu eager", "2.20.0+keras.3.11.3"),
        (JAX, "0.10.2+flax.0.12.8.optax.0.2.8.jmp.0.0.4 cpu eager", ""),
        ((), "1.0 cpu eager", ""),
        (SERIES, "2.13.0+cpu cpu eager+optimizer.fused", ""),
        (SERIES, "2.13.0 cuda eager", "2.11.0"),
        (SERIES, "2.13.0 cuda compile", "2.13.0 cpu compile"),
        (SERIES, "2.14.1 cuda compile", "2.13.0 cpu compile"),
        (SERIES, "2.11.0 xpu eager", "2.11.0 cuda eager"),
        (SERIES, "2.14.0 xpu fsdp", "2.14.0 xpu compile"),
        (SERIES, "2.15.0 tpu fsdp", "2.13.0 cpu eager"),
    ],
)
def test_position_nearest_is_the_closest_judged(judged: tuple[VersionSeries, ...], series: str, nearest: str) -> None:
    version, device, mode = series.split()
    position = Position(Version(version), device, mode, judged, ("eager", "compile", "ddp", "fsdp"))
    assert position.confirmed is (nearest == "")
    assert position.confirmed or position.label(position.sources[0]) == nearest


def test_position_nearest_of_an_unknown_mode_is_of_the_mode_of_most_versions() -> None:
    nearest = Position(Version("2.13.0"), "cpu", "loop", SERIES, ("loop",)).sources[0]
    assert str(nearest) == "2.13.0 cpu eager"


class Twin(ReferenceFramework):
    """The reference with a version of choice."""

    name = "reference"
    chosen = "1"

    def version(self) -> str:
        return self.chosen


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an adapter with a finding, its program and a module."""
    for inner in ("findings", SNAPSHOTS):
        (tmp_path / inner).mkdir()
    for name in ("findings/f.py", "trainer.py"):
        (tmp_path / name).touch()
    (tmp_path / FILE).write_text(FINDING, encoding="utf-8")
    monkeypatch.setattr("conformance.known_failures.reading._built_in", lambda _: [tmp_path])
    monkeypatch.setattr("conformance.known_failures.reading.files", lambda _: tmp_path)
    return tmp_path


def snapshot(folder: Path, series: str, *tests: str, suffix: str = "") -> None:
    """Writes the snapshot of a series in which these tests of a clause fail."""
    lines = "".join(f"scaling.automaton/{test}  f  differs{suffix}\n" for test in tests)
    (folder / SNAPSHOTS / f"reference-{series}.txt").write_text(lines, encoding="utf-8")


def applying(version: str, seed: int = 0, mode: str = "emulated") -> list[tuple[str, str, bool]]:
    """Test, origin and leniency of each entry that applies to a run."""
    twin = Twin("cpu", mode)
    twin.chosen = version
    return [(entry.cases[0], entry.inferred_from, entry.may_pass) for entry in known_of(twin, seed).expectations]


def test_known_of_an_unjudged_version_is_inferred(folder: Path) -> None:
    assert applying("1") == []
    snapshot(folder, "1-cpu-emulated", "a", "b")
    snapshot(folder, "2-cpu-emulated", "a", "c")
    assert applying("1.0") == [("a", "", False), ("b", "", False)]
    assert applying("2.0+cpu") == [("a", "", False), ("c", "", False)]
    assert applying("3.0") == [("a", "2", False), ("c", "2", False)]
    assert applying("1.5") == [("a", "1", False), ("b", "1", True), ("c", "2", True)]


@pytest.mark.parametrize(
    ("condition", "series"), [('device = "cpu"', "1-cpu-emulated"), ('versions = ">=2"', "2-cuda-ranks")]
)
def test_known_of_an_unjudged_series_has_the_findings_of_its_device_or_version(
    folder: Path, condition: str, series: str
) -> None:
    other, conditional = FINDING.replace('"f"', '"g"'), FINDING.replace('"error"', f'"error"\n{condition}')
    (folder / FILE).write_text(other + conditional, encoding="utf-8")
    (folder / SNAPSHOTS / "reference-1-cpu-ranks.txt").write_text("scaling.automaton/b  g  differs\n")
    snapshot(folder, series, "a")
    assert applying("2", mode="ranks") == [("b", "1", False), ("a", series.replace("-", " "), True)]


def test_known_of_an_unjudged_mode_has_every_test_of_the_clauses_of_a_finding(folder: Path) -> None:
    text = FINDING.replace('"error"', '"error"\nclauses = ["scaling.automaton"]')
    (folder / FILE).write_text(text, encoding="utf-8")
    snapshot(folder, "1-cpu-ranks", "a[x-1]", "a[x-2]")
    (entry,) = known_of(Twin("cpu", "emulated")).expectations
    assert (entry.covers("scaling.automaton", "a[y]"), entry.covers("scaling.floor", "a[y]")) == (True, False)
    assert (entry.may_pass, entry.inferred_from) == (True, "1 cpu ranks")
    snapshot(folder, "0-cpu-emulated", "a[x-1]")
    (entry,) = known_of(Twin("cpu", "emulated")).expectations
    assert (entry.covers("scaling.automaton", "a[x-1]"), entry.covers("scaling.automaton", "a[y]")) == (True, False)


def test_known_of_an_unjudged_mode_has_exclusions_and_workarounds_of_the_nearest(folder: Path) -> None:
    text = "".join(
        FINDING.replace('"f"', f'"{name}"').replace('"documented"', f'"{kind}"')
        + f'[finding.workaround]\nkind = "call"\nmodule = "trainer.py"\ndoes = "It."\nmode = "{mode}"\n'
        + f'[[finding.exclusion]]\nversions = "==1"\ndevice = "cuda"\nmode = "{mode}"\nwhen = ["clip"]\n'
        for name, mode, kind in (("f", "eager", "documented"), ("g", "graph", "limitation"))
    )
    (folder / "findings" / "g.py").touch()
    (folder / FILE).write_text(text, encoding="utf-8")
    snapshot(folder, "1-cuda-eager")
    known = known_of(Twin("cpu"))
    assert [entry.mode for entry in (*known.exclusions, *known.workarounds)] == ["eager", "eager"]


def test_known_of_a_workaround_without_a_mode_is_of_the_default_mode_alone(folder: Path) -> None:
    workaround = '[finding.workaround]\nkind = "call"\nmodule = "trainer.py"\ndoes = "It."\n'
    (folder / FILE).write_text(FINDING + workaround, encoding="utf-8")
    for mode, count in (("emulated", 1), ("ranks", 0)):
        (folder / SNAPSHOTS / f"reference-1-cpu-{mode}.txt").write_text(
            "composition.plain-way/test_it[f]  f  differs\n"
        )
        known = known_of(Twin("cpu", mode))
        assert (len(known.workarounds), len(known.expectations)) == (count, count)


@pytest.mark.parametrize(
    ("depends_on", "at_0", "at_3"),
    [
        ("seed", [("a", "", False)], [("a", "", True)]),
        ("other-seeds", [], [("a", "", True)]),
        ("kernels", [("a", "", True)], [("a", "", True)]),
    ],
)
def test_known_of_an_entry_that_depends_on_seeds_or_kernels_may_pass(
    folder: Path, depends_on: str, at_0: list[tuple[str, str, bool]], at_3: list[tuple[str, str, bool]]
) -> None:
    snapshot(folder, "1-cpu-emulated", "a", suffix=f"  [{depends_on}]")
    assert (applying("1", 0), applying("1", 3)) == (at_0, at_3)


@pytest.mark.parametrize(
    ("version", "expected"), [("1", True), ("2", False), ("1.5", True), ("3", False), ("0.5", True)]
)
def test_known_expected_of_a_version_follows_the_judged_modes(folder: Path, version: str, expected: bool) -> None:
    snapshot(folder, "1-cpu-emulated", "a")
    snapshot(folder, "2-cpu-emulated")
    known = load_known(["reference"])
    assert known.is_expected(known.findings[0], version) is expected


def test_run_of_an_unjudged_version_marks_inferred_failures_and_ends_in_0(tmp_path: Path) -> None:
    root = copy_checkout(tmp_path, some=SUITE)
    folder = root / "frameworks" / "reference"
    (folder / SNAPSHOTS).mkdir(exist_ok=True)
    (folder / FILE).write_text(FINDING, encoding="utf-8")
    snapshot(folder, "0.9-cpu-emulated", "test_gone", "test_it_fails")
    completed = judge("-rx", f"--record={tmp_path / 'r.json'}", "--junitxml", str(tmp_path / "junit.xml"), root=root)
    assert (tmp_path / "r.json").is_file(), completed.output
    verdicts = {verdict.case: verdict for verdict in load(tmp_path / "r.json").verdicts}
    failed = verdicts["test_it_fails"]
    assert (failed.outcome, failed.inferred_from, failed.finding) == (Outcome.KNOWN, "0.9", "f")
    assert "differs: It does. (not confirmed here, expected as in 0.9)" in " ".join(completed.output.split())
    assert (
        "reference 1 on cpu in mode emulated has not been judged yet: 1 known failures are expected as in 0.9, not "
        "confirmed here; 1 of its expectations matched no test"
    ) in completed.output
    assert 'name="inferred_from" value="0.9"' in (tmp_path / "junit.xml").read_text("utf-8")
    assert (completed.status, verdicts["test_it_passes"].inferred_from) == (0, "")


CLAUSES = load_clauses()
BRANDS = re.compile(r"\b(?:torch|pytorch|tensorflow|tf|keras|paddle|paddlepaddle|jax|flax|optax|apex)\b", re.IGNORECASE)
SOURCED = re.compile(r"https://\S+\.\S+|arXiv:\d{4}\.\d{4,5}|doi:10\.\S+|\b(?:19|20)\d\d\b")

ENTRY = """
[[clause]]
id = "scaling.one"
level = "MUST"
requirement = "A scale is one number."
observed_by = "It is read."
source = "https://example.org/scale"
"""
INCIDENT = '{ url = "https://github.com/a/b/issues/1", what = "x" }'
CLAUSE = "accumulation.order-is-free"


def read(folder: Path, text: str, name: str = "scaling") -> dict[str, Clause]:
    (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return read_clauses(folder)


def test_load_clauses_has_every_family() -> None:
    families = {clause.family for clause in CLAUSES.values()}
    techniques = {"adapters", "autocast", "master", "scaling", "accumulation", "recompute", "resume"}
    assert (
        techniques | {"cost", "composition", "formats", "laws", "offload", "optimizer", "quantization", "sharding"}
        == families
    )
    assert families == {path.stem for path in SPECIFICATION.glob("*.toml")}


def test_clauses_are_one_sentence_without_a_brand_and_with_sources() -> None:
    for clause in CLAUSES.values():
        assert re.fullmatch(r"\S.*[^.]\.", clause.requirement), clause.requirement
        assert not re.search(r"\.\s+[A-Z]", clause.requirement), clause.requirement
        assert not re.search(r"\b(?:will|must|should|shall)\b", clause.requirement, re.IGNORECASE), clause.requirement
        assert not BRANDS.search(clause.requirement), clause.requirement
        assert not BRANDS.search(clause.observed_by), clause.observed_by
        assert all(SOURCED.search(part) for part in clause.source.split("; ")), clause.source
        for incident in clause.history:
            assert len(incident.what) > 20, incident
            assert not incident.what.startswith("the same"), incident
            assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", incident.thread), incident


def test_clauses_of_a_rule_have_a_must_clause() -> None:
    rules = [clause for clause in CLAUSES.values() if clause.id.endswith("-rule")]
    assert rules
    for rule in rules:
        assert rule.level is Level.OBSERVATION
        assert CLAUSES[rule.id.removesuffix("-rule")].level is Level.MUST


def test_read_clauses_joins_lines_and_shortens_threads(tmp_path: Path) -> None:
    text = ENTRY.replace('"A scale is one number."', '"""\nA scale is\n  one number."""')
    text += 'history = [{ url = "https://github.com/a-b/c.d/pull/7", what = "it broke" }]\n'
    clause = read(tmp_path, text)["scaling.one"]
    assert clause.requirement == "A scale is one number."
    assert [(incident.thread, incident.what) for incident in clause.history] == [("a-b/c.d#7", "it broke")]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("level", "levle", "scaling.toml: clause 1 (scaling.one): unknown key 'levle'"),
        ("MUST", "WILL", "scaling.toml: clause 1 (scaling.one): level: got 'WILL', want one of MUST, SHOULD, MAY"),
        ("scaling.one", "Scaling.One", "is not family.slug"),
        ("scaling.one", "scaling.one_two", "is not family.slug"),
        ("scaling.one", "master.one", "begins with 'master', but the family of the file is 'scaling'"),
        ('source = "https://example.org/scale"', "", "source is missing"),
        ('id = "scaling.one"', "", "scaling.toml: clause 1 (no id): id is missing"),
        ('"It is read."', "3", "observed_by: got 3, want a string"),
        ("[[clause]]", "[clause]", "clause is not an array of tables"),
        ("[[clause]]", "[[clause", "scaling.toml: not TOML"),
    ],
)
def test_read_clauses_of_a_wrong_entry_is_refused_in_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in ENTRY
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read(tmp_path, ENTRY.replace(old, new))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ('"https://github.com/a/b/issues/1"', "want an array of tables"),
        ('[{ url = "https://example.org/1", what = "x" }]', "is not the address of an issue or a pull request"),
        ('[{ url = "https://github.com/a/b/issues/1", what = "x", by = "y" }]', "history 1: unknown key 'by'"),
        (f"[{INCIDENT}, {INCIDENT}]", "names an address twice"),
        (f"[{', '.join(INCIDENT.replace('/1', f'/{n}') for n in range(5))}]", "history has 5 entries, more than 4"),
    ],
)
def test_read_clauses_of_a_wrong_history_is_refused(tmp_path: Path, history: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        read(tmp_path, f"{ENTRY}history = {history}\n")


@pytest.mark.parametrize(
    ("text", "message"), [(ENTRY + ENTRY, "clause 2 (scaling.one): duplicate id"), ("", "no clause")]
)
def test_read_clauses_of_a_wrong_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        read(tmp_path, text)


def test_id_of_and_node_of_name_the_same_test() -> None:
    for code in inventory().values():
        node = f"conformance/suites/{code.file}::{code.function}[a/b::c]"
        assert id_of(node) == f"{code.id}[a/b::c]"
        assert node_of(id_of(node)) == node
    assert node_of("scaling.stays-finite/test_of_nothing") is None
    assert id_of("tests/test_x.py::test_y") == "tests/test_x.py::test_y"


def test_read_inventory_refuses_two_tests_of_one_name(tmp_path: Path) -> None:
    folder = tmp_path / "conformance" / "suites"
    folder.mkdir(parents=True)
    for name in ("test_a.py", "test_b.py"):
        (folder / name).write_text('@clause("scaling.one")\ndef test_one(): pass\n', "utf-8")
    with pytest.raises(ValueError, match=r"test_b\.py: test_one is a test of test_a\.py too; rename one of them"):
        read_inventory(tmp_path)


def blocks() -> dict[str, str]:
    """The three blocks of source of the page, by name."""
    text = (ROOT / "docs" / "writing-a-clause.md").read_text("utf-8")
    result = re.findall(r"```(?:toml|python)\n(.*?)```", text, re.DOTALL)
    starts = {"clause": "[[clause]]", "test": '"""Gradient', "fault": "@fault("}
    return {name: next(block for block in result if block.startswith(start)) for name, start in starts.items()}


def test_example_of_the_page_catches_its_fault(tmp_path: Path) -> None:
    pieces = blocks()
    family = (SPECIFICATION / "accumulation.toml").read_text("utf-8")
    (tmp_path / "accumulation.toml").write_text(f"{family}\n\n{pieces['clause']}", "utf-8")
    assert CLAUSE in read_clauses(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(pieces["test"], "test", "exec"), names)
    (test,) = (value for name, value in names.items() if name.startswith("test_"))
    assert [mark.args for mark in test.pytestmark] == [(CLAUSE,)]
    test(Subject(ReferenceFramework("cpu")), Verdict())
    faults = dict(vars(accumulation))
    exec(compile(pieces["fault"], "fault", "exec"), faults)
    with pytest.raises(Violation):
        test(Subject(faults["FirstMicroBatchCountsTwice"]("cpu")), Verdict())


PACKAGES = ("fixtures", "frameworks", "conformance", "results")
ADAPTERS = tuple(built_in())
IMPORTS_OF = {name: {*adapter_file(name).imports} for name in ADAPTERS}
SHARED = {"keras_common": {"keras"}}
"""Libraries that code shared by adapters imports."""
FRAMEWORKS = frozenset().union(*IMPORTS_OF.values(), {"torchvision", "jaxlib", "mlx", "mindspore"})
TESTED = {code.clause for code in inventory().values()}
"""Clauses with a test in the suites."""


def sources(*packages: str) -> list[Path]:
    """Every module of these packages, without those that PyTorch's compiler writes to the cache."""
    result = [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]
    return [
        path for path in result if "__pycache__" not in path.parts and ROOT / "results" / "cache" not in path.parents
    ]


def find_imports(path: Path) -> set[str]:
    """Every module that a file imports by its absolute name."""
    return set(re.findall(r"^[ \t]*(?:from|import)[ \t]+([a-z][\w.]*)", path.read_text("utf-8"), re.MULTILINE))


def test_native_loops_import_the_fixtures_alone() -> None:
    paths = sorted((ROOT / "frameworks").rglob("native_loop.py"))
    assert len(paths) > 2
    for path in paths:
        named = {name for name in find_imports(path) if not name.startswith("frameworks.native_loop")}
        packages = {name.split(".")[0] for name in named} & {*PACKAGES, "tests", "benchmarks"}
        assert packages <= {"fixtures"}, f"{path.relative_to(ROOT)} imports {sorted(packages)}"


def test_modules_outside_an_adapter_import_no_framework() -> None:
    assert {name for name in ADAPTERS if not IMPORTS_OF[name]} == {"reference"}
    for path in sources(*PACKAGES):
        package, part, *_ = path.relative_to(ROOT).parts
        allowed = (IMPORTS_OF | SHARED).get(part, set()) if package == "frameworks" else set()
        result = {name.split(".")[0] for name in find_imports(path)} & FRAMEWORKS
        assert result <= allowed, f"{path.relative_to(ROOT)} imports {sorted(result - allowed)}"


def test_modules_of_the_core_load_no_framework() -> None:
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in sources("fixtures", "conformance", "results", "frameworks/reference")
        if "suites" not in path.parts and path.name != "__main__.py"
    ]
    program = (
        f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
        f"print(*sorted(set(sys.modules) & {set(FRAMEWORKS)!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_tests_of_the_suites_name_one_existing_clause() -> None:
    assert load_clauses().keys() >= TESTED
    texts = [path.read_text("utf-8") for path in sources("conformance/suites")]
    for pattern in (r"^@clause\(", r"^ *def test_"):
        assert sum(len(re.findall(pattern, text, re.MULTILINE)) for text in texts) == len(inventory())


def test_suites_have_no_skip() -> None:
    for path in sources("conformance/suites"):
        hiding = re.findall(
            r"\b(?:skip|skipif|xfail|importorskip|SkipTest)\(|mark\.(?:skip|xfail)", path.read_text("utf-8")
        )
        assert hiding == [], path.name


def test_must_clauses_have_a_test() -> None:
    must_clauses = {clause.id for clause in load_clauses().values() if clause.level is Level.MUST}
    assert must_clauses - TESTED - {SETTINGS} == set()


def test_files_of_the_checkout_have_portable_names() -> None:
    """A command that takes `--help` for the name of its output leaves such a file."""
    output = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [name for name in output.splitlines() if re.search(r"(^|/)-|[^\w./+-]", name)] == []
