"""The worked example of docs/writing-a-clause.md works as it stands: the reference passes, the fault is caught."""

from __future__ import annotations

import re
from pathlib import Path

from results.record.outcomes import Outcome
from results.record.reading import load
from tests.support.suite_runs import ROOT, checkout, judge, outcomes

CLAUSE = "accumulation.order-is-free"


def blocks() -> dict[str, str]:
    """The page's three pieces of source, by what they begin with."""
    text = (ROOT / "docs" / "writing-a-clause.md").read_text("utf-8")
    result = re.findall(r"```(?:toml|python)\n(.*?)```", text, re.DOTALL)
    starts = {"clause": "[[clause]]", "test": '"""Gradient', "fault": "@fault("}
    return {name: next(block for block in result if block.startswith(start)) for name, start in starts.items()}


def test_the_example_passes_on_the_reference_and_catches_its_fault(tmp_path: Path) -> None:
    pieces = blocks()
    root = checkout(tmp_path / "checkout", accumulation_order=pieces["test"])
    for path, piece in (
        (root / "conformance" / "spec" / "accumulation.toml", pieces["clause"]),
        (root / "tools" / "faults" / "reference" / "accumulation.py", pieces["fault"]),
    ):
        path.write_text(f"{path.read_text('utf-8')}\n\n{piece}", "utf-8")
    results = {}
    for framework in ("reference", "tools.faults.reference.accumulation:FirstMicroBatchCountsTwice"):
        record = tmp_path / "record.json"
        ended = judge(f"--framework={framework}", f"--record={record}", "conformance/suites", root=root)
        results[framework] = ended.status, outcomes(load(record), CLAUSE)
        record.unlink()
    assert list(results.values()) == [(0, [Outcome.PASS]), (1, [Outcome.FAIL])]
