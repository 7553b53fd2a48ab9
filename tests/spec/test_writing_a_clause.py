"""The worked example of docs/writing-a-clause.md works as it stands: the reference passes, the fault is caught."""

import re
from pathlib import Path
from typing import Any

import pytest

from conformance.checks.evidence import Verdict, Violation
from conformance.checks.subject import Subject
from conformance.spec.clauses import SPECIFICATION, read_clauses
from frameworks.reference import ReferenceFramework
from tests.support.suite_runs import ROOT
from tools.faults.reference import accumulation

CLAUSE = "accumulation.order-is-free"


def blocks() -> dict[str, str]:
    """The page's three pieces of source, by what they begin with."""
    text = (ROOT / "docs" / "writing-a-clause.md").read_text("utf-8")
    result = re.findall(r"```(?:toml|python)\n(.*?)```", text, re.DOTALL)
    starts = {"clause": "[[clause]]", "test": '"""Gradient', "fault": "@fault("}
    return {name: next(block for block in result if block.startswith(start)) for name, start in starts.items()}


def test_example_of_the_page_passes_on_the_reference_and_catches_its_fault(tmp_path: Path) -> None:
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
