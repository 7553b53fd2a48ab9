"""Verdicts in pytest's own reports: terminal and JUnit XML."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from conformance.checks.outcome import Judgement
from conformance.runner import trained_runs
from conformance.runner.isolation import clipped
from results.record.model import RunSetup
from results.record.outcomes import UNJUDGED, Outcome

_MOST_RUNS = 3


def junit_properties(judgement: Judgement, clause: str, command: str) -> list[tuple[str, object]]:
    """Properties of the test in the report of pytest's --junitxml; empty ones are omitted."""
    texts = {"clause": clause, "outcome": judgement.outcome.value, "signature": judgement.signature}
    texts |= {"link": judgement.link, "finding": judgement.finding, "inferred_from": judgement.inferred_from}
    texts |= {"repro": command}
    return [(name, text) for name, text in texts.items() if text]


def described(judgement: Judgement, clause: str, command: str, runs: Sequence[RunSetup]) -> str:
    """A failure in a few lines: clause, message, training runs, and the command that repeats it."""
    which = f"the last of {len(runs)}: " if len(runs) > _MOST_RUNS else ""
    lines = "".join(f"run: {which}{trained_runs.described(run)}\n" for run in (runs[-1:] if which else runs))
    return f"{clause} [{judgement.outcome}] {judgement.message}\n{lines}repeat: {command}"


def show(report: pytest.TestReport, item: pytest.Item, judgement: Judgement, description: str, trace: str) -> None:
    """Sets pytest's report to the judgement, even if the test called `pytest.xfail`.

    Args:
        trace: the traceback, shown with an error.
    """
    vars(report).pop("wasxfail", None)
    if judgement.outcome is Outcome.PASS:
        report.outcome = "passed"
    elif judgement.outcome is Outcome.KNOWN:
        reason = f"{judgement.reason} ({judgement.mark})" if judgement.mark else judgement.reason
        report.outcome, report.wasxfail = "skipped", f"{judgement.signature}: {reason}"
    elif judgement.outcome in UNJUDGED:
        report.outcome = "skipped"
        path, line, _ = item.location
        report.longrepr = (path, (line or 0) + 1, f"{judgement.outcome}: {judgement.message}")
    else:
        text = f"{trace}\n{description}" if trace and judgement.outcome is Outcome.ERROR else description
        report.outcome, report.longrepr = "failed", clipped(text)
