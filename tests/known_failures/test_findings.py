"""Findings: their programs, refusals that an attempt confirms or refutes, and reports of issues."""

import ast
import sys
import textwrap
from pathlib import Path

import pytest

from conformance.checks import reproducers
from conformance.checks.outcome import conclude
from conformance.checks.reproducers import ProgramError, ProgramResult
from conformance.cli import issue, main
from conformance.cli.issue import Evidence
from conformance.known_failures.entries import Known
from conformance.known_failures.reading import load_known
from conformance.spec.clauses import load_clauses
from conformance.spec.findings import Finding
from fixtures.recipe import FLOAT16
from frameworks.contract import Attempt, Capability, Unsupported
from frameworks.reference import ReferenceFramework
from frameworks.registry import adapter_file, built_in
from results.record.model import Outcome
from results.record.values import Consequence, FindingKind, FindingText
from tests.support.suite_runs import ROOT, run_refused

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
    text = issue.draft(clause, [Evidence(finding, (), result)], None)
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
