"""The shared suites catch implementations that are one line from being right, and blame nothing else."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.test_ids.inventory import SUITES
from results.record.outcomes import Outcome
from results.record.reading import load
from tests.support.suite_runs import ROOT, clauses_of, environment, judge, outcomes

BAD = {outcome for outcome in Outcome if outcome.bad}


def family(clause: str) -> str:
    """The first half of a clause's id."""
    return clause.split(".", 1)[0]


@pytest.mark.parametrize(
    ("twin", "selection", "named"),
    [
        ("AppliesOverflow", "test_scaling_skip", "scaling.skip-is-atomic"),
        pytest.param("MeanOfMeans", "test_accumulation", "accumulation.weighs-items", marks=pytest.mark.slow),
        pytest.param("RedrawsDropout", "test_recompute", "recompute.replays-dropout", marks=pytest.mark.slow),
    ],
)
def test_a_twin_fails_what_its_fault_breaks_and_nothing_else(
    twin: str, selection: str, named: str, tmp_path: Path
) -> None:
    files = [path for name in (selection, "test_resume") for path in sorted(SUITES.rglob(f"{name}*.py"))]
    quick = ("-k", "not adam and not envelope and not encoder", f"--record={tmp_path / 'twin.json'}")
    ended = judge(f"--framework=frameworks.broken:{twin}", *quick, *files)
    assert ended.status == 1, ended.output
    record = load(tmp_path / "twin.json")
    assert record.status == "partial"
    assert Outcome.FAIL in outcomes(record, named)
    passed, bad = clauses_of(record, {Outcome.PASS}), clauses_of(record, BAD)
    assert {family(clause) for clause in bad} == {family(named)}
    assert len([clause for clause in passed - bad if family(clause) == "resume"]) >= 5


def test_a_failure_says_what_was_seen_in_which_run_and_its_command_repeats_it(tmp_path: Path) -> None:
    selection = (SUITES / "scaling/test_scaling_skip.py", "-k", "skipped_update_is_atomic and nan")
    ended = judge("--framework=frameworks.broken:AppliesOverflow", *selection, f"--record={tmp_path / 'twin.json'}")
    runs = [line for line in ended.lines if line.startswith("run: ")]
    assert runs
    assert all(" under " in line and "scaling=DynamicScaling(" in line for line in runs)
    verdicts = load(tmp_path / "twin.json").verdicts
    result = [v for v in verdicts if v.clause == "scaling.skip-is-atomic" and v.outcome is Outcome.FAIL]
    for verdict in result:
        assert verdict.signature
        assert not verdict.checks[-1].passed
        assert re.search(r"got .+, want ", verdict.message)
        assert verdict.test == f"{verdict.clause}/{verdict.case}"
    first, *command = shlex.split(result[0].repro)
    assert first == "python"
    again = subprocess.run([sys.executable, *command], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert again.returncode == 1
    assert "1 failed" in again.stdout
    assert result[0].message[:60] in again.stdout
