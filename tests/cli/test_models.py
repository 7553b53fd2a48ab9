"""`conformance judge-model`: workers that judge models, their record, its table, and refusals.

This module is itself the judge: `names` and `checks` take the place of those of PyTorch, and the name of a model says
whether it crashes, hangs or fails.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from conformance.models import judging
from results.record.model import Outcome
from results.record.reading import load
from tests.support.suite_runs import ROOT, call_command, run_refused

EQUAL, RESUME = "accumulation.equals-full-batch", "resume.bit-identical"
IGNORED = "forward in the model's own file calls cross_entropy itself, and ignores the count"


@dataclass(frozen=True)
class StubCheck:
    clause: str
    outcome: str = "pass"
    got: str = "4"
    want: str = "1"
    cause: str = ""
    case: str = ""


def names() -> list[str]:
    classes = ("AForMaskedLM", "BForMaskedLM", "CForMaskedLM", "ClvpForCausalLM", "CrashForCTC", "DForCTC", "EForCTC")
    return [f"transformers:{name}" for name in (*classes, "SlowForCTC")]


def checks(model: str, formats: list[str]) -> Iterator[StubCheck]:
    name = model.partition(":")[2]
    if name.startswith("Crash"):
        os._exit(3)
    if name.startswith("Slow"):
        time.sleep(60.0)
    if name.endswith("CTC"):
        raise ValueError(f"no loss: ValueError: {len(name)} is not {12 + len(formats)}")
    yield StubCheck(EQUAL, "fail" if name[0] in "AB" else "pass", cause=IGNORED if name[0] in "AB" else "", case="k")
    yield StubCheck(EQUAL, "not judged", "why", "", case="b")
    yield StubCheck(RESUME, "fail" if name.startswith("C") else "pass")


@pytest.fixture(autouse=True)
def _stub(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"torch": "2.13.0", "transformers": "5.24.0", "accelerate": "1.15.0"}
    monkeypatch.setattr(judging, "JUDGE", "tests.cli.test_models")
    monkeypatch.setattr(judging.machine, "packages", lambda: versions)


def test_judge_model_of_a_library_writes_a_record_and_a_table(tmp_path: Path) -> None:
    path, output = tmp_path / "heads.json.gz", tmp_path / "heads.md"
    completed = call_command(
        "judge-model", "--all", "transformers", "--record", path, "--output", output, "--limit", "6"
    )
    assert completed.status == 1, completed.lines
    record, text = load(path), output.read_text("utf-8")
    verdicts = {verdict.test: verdict for verdict in record.verdicts}
    failure = verdicts[f"{EQUAL}/transformers:AForMaskedLM[k]"]
    assert (failure.outcome, failure.signature, failure.finding) == (Outcome.KNOWN, IGNORED, "head-ignores-the-count")
    resumed = (verdicts[f"{RESUME}/transformers:{name}"] for name in ("CForMaskedLM", "ClvpForCausalLM"))
    assert [(verdict.outcome, verdict.finding) for verdict in resumed] == [
        (Outcome.FAIL, ""),
        (Outcome.KNOWN, "checkpointing-of-clvp-is-off"),
    ]
    untrained = {v.case.partition(":")[2]: v.reason for v in record.verdicts if v.reason not in ("", "why")}
    assert untrained.keys() == {"CrashForCTC", "DForCTC", "EForCTC", "SlowForCTC"}
    assert untrained["CrashForCTC"] == "its process ended"
    assert untrained["SlowForCTC"] == "took more than 6 s"
    assert text.startswith("# Heads of transformers 5.24.0\n\n4 of 8 classes were trained, 4 were not (torch 2.13.0, ")
    assert f"| `{EQUAL}` | 2 | 2 | 0 |" in text
    assert f"- `{EQUAL}`: {IGNORED} (2 classes, head-ignores-the-count): AForMaskedLM, BForMaskedLM" in text
    assert "- no loss: ValueError: N is not N (2 classes): DForCTC, EForCTC" in text
    assert text.splitlines()[-1] == "1 failed, 3 known, 4 passed, 8 not judged"


def test_judge_model_of_one_model_shows_its_requirement_and_source(tmp_path: Path) -> None:
    completed = call_command("judge-model", "transformers:CForMaskedLM", "--record", tmp_path / "one.json")
    assert completed.status == 1, completed.lines
    clause = load(tmp_path / "one.json").clauses[RESUME]
    assert f"  FAIL       {RESUME}: got 4, want 1" in completed.lines
    assert f"  abstain    {EQUAL}[b]: why" in completed.lines
    assert f"{RESUME} (MUST): {clause.requirement}" in completed.lines
    assert f"  source: {clause.source}" in completed.lines
    assert completed.lines[-1] == "1 failed, 1 passed, 1 not judged"


def test_compare_of_committed_records_names_the_classes_that_changed() -> None:
    old, new = (ROOT / f"results/heads/transformers-{version}.json.gz" for version in ("5.17.0", "5.24.0"))
    assert "1 failed" not in "\n".join(judging.table(load(new)))
    assert "715 of 986 classes were trained" in "\n".join(judging.table(load(new)))
    completed = call_command("compare", old, new)
    assert completed.status == 1
    assert f"newly failing  {RESUME}" in completed.output
    assert "transformers:AriaTextForCausalLM" in completed.output


def test_clauses_of_models_include_those_of_no_suite() -> None:
    assert judging.clauses()["accumulation.normalised-once"].level == "MUST"
    assert judging.clauses()["accumulation.switch-decides"].level == "SHOULD"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "name a MODEL, or give --all transformers"),
        (["x:y", "--all", "transformers"], "name a MODEL, or give --all transformers"),
        (["x:y", "--only", "Bert"], "--only and --output are for --all"),
        (["nothing"], "got 'nothing', want transformers:CLASS or PACKAGE.MODULE:FACTORY"),
        (["--all", "transformers", "--only", "Nope"], "no class of transformers 5.24.0 has Nope in its name"),
        (["transformers:DForCTC"], "transformers:DForCTC: no loss: ValueError: 7 is not 14"),
    ],
)
def test_judge_model_refuses_in_one_line(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in run_refused(capsys, "judge-model", *argv)


def test_judge_model_without_a_library_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(judging.machine, "packages", lambda: {"torch": "2.13.0"})
    assert "pip install transformers accelerate" in run_refused(capsys, "judge-model", "--all", "transformers")
    monkeypatch.setattr(judging.machine, "packages", dict)
    assert "torch not installed: pip install torch" in run_refused(capsys, "judge-model", "a:b")
