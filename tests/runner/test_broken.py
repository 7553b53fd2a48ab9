"""The shared suites catch an implementation that is one line from being right, and blame nothing else."""

import re
import shlex
from pathlib import Path

import pytest

from conformance.test_ids.inventory import SUITES
from results.record.model import Outcome
from results.record.reading import load
from tests.support.suite_runs import clauses_of, judge, outcomes

CLAUSE = "scaling.skip-is-atomic"
BAD = {outcome for outcome in Outcome if outcome.bad}


def test_judge_broken_twin_fails_its_family_alone_and_says_what_was_seen(tmp_path: Path) -> None:
    files = [path for name in ("test_scaling_skip", "test_resume") for path in sorted(SUITES.rglob(f"{name}*.py"))]
    quick = ("-k", "not adam and not envelope and not encoder", f"--record={tmp_path / 'twin.json'}")
    ended = judge("--framework=frameworks.broken:AppliesOverflow", *quick, *files)
    assert ended.status == 1, ended.output
    record = load(tmp_path / "twin.json")
    assert record.status == "partial"
    bad = clauses_of(record, BAD)
    assert {clause.partition(".")[0] for clause in bad} == {"scaling"}
    holding = clauses_of(record, {Outcome.PASS}) - bad
    assert len([clause for clause in holding if clause.startswith("resume.")]) >= 5
    runs = [line for line in ended.lines if line.startswith("run: ")]
    assert runs
    assert all(" under " in line and "scaling=DynamicScaling(" in line for line in runs)
    failures = [v for v in record.verdicts if v.clause == CLAUSE and v.outcome is Outcome.FAIL]
    for verdict in failures:
        assert verdict.signature
        assert not verdict.checks[-1].passed
        assert re.search(r"got .+, want ", verdict.message)
        assert verdict.test == f"{verdict.clause}/{verdict.case}"
    python, option, module, *words = shlex.split(failures[0].repro)
    assert (python, option, module) == ("python", "-m", "pytest")
    again = judge(*words)
    assert again.status == 1
    assert "1 failed" in again.output
    assert failures[0].message[:60] in again.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("twin", "selection", "clause"),
    [
        ("MeanOfMeans", "test_accumulation", "accumulation.weighs-items"),
        ("RedrawsDropout", "test_recompute", "recompute.replays-dropout"),
    ],
)
def test_judge_other_broken_twins_fail_their_family_alone(
    twin: str, selection: str, clause: str, tmp_path: Path
) -> None:
    files = [path for name in (selection, "test_resume") for path in sorted(SUITES.rglob(f"{name}*.py"))]
    quick = ("-k", "not adam and not envelope and not encoder", f"--record={tmp_path / 'twin.json'}")
    ended = judge(f"--framework=frameworks.broken:{twin}", *quick, *files)
    assert ended.status == 1, ended.output
    record = load(tmp_path / "twin.json")
    assert record.status == "partial"
    assert Outcome.FAIL in outcomes(record, clause)
    bad = clauses_of(record, BAD)
    assert {name.partition(".")[0] for name in bad} == {clause.partition(".")[0]}
    holding = clauses_of(record, {Outcome.PASS}) - bad
    assert len([name for name in holding if name.startswith("resume.")]) >= 5
