"""The README's example: a clause, its test, and what the test prints for a copy of the reference with one bug."""

import ast
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from itertools import chain, takewhile
from pathlib import Path

from conformance.runner.quickstart import BROKEN_CLAUSE, TWIN
from conformance.spec.clauses import load_clauses
from conformance.test_ids.inventory import SUITES

ROOT = Path(__file__).parents[2]
WIDTH = 118
_CODE = "```"


def blocks() -> Mapping[str, str]:
    """The block "failure": the requirement, the first test of the clause, a command, and the failure that it prints.

    Raises:
        ValueError: no test of the clause fails.
    """
    path, name, source = _first_test()
    case = f"{path.relative_to(ROOT)}::{name}"
    command = ["pytest", f"--framework={TWIN}", case]
    requirement = " ".join(load_clauses()[BROKEN_CLAUSE].requirement.split())
    parts = (
        f"`{BROKEN_CLAUSE}`: {requirement}",
        f"{_CODE}python\n{source}\n{_CODE}",
        "`apply_gradients` back-propagates given gradients through the framework's own loss scaler; `spike_gradients`\n"
        "makes one of them infinite or NaN. On a copy of the reference that applies the update instead:",
        f"{_CODE}text\n$ python -m {' '.join(command)}\n{_failure(command)}\n{_CODE}",
    )
    return {"failure": "\n\n".join(parts)}


def _first_test() -> tuple[Path, str, str]:
    for path in sorted(SUITES.rglob("test_scaling_skip*.py")):
        text = path.read_text("utf-8")
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and any(
                ast.unparse(mark) == f"clause({BROKEN_CLAUSE!r})" for mark in node.decorator_list
            ):
                first = node.decorator_list[0].lineno
                return path, node.name, "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    raise ValueError(f"{BROKEN_CLAUSE} has no test")


def _failure(command: list[str]) -> str:
    """What pytest prints for the first failing case, wrapped; float64 arithmetic on exact fixtures repeats it."""
    variables = {name: text for name, text in os.environ.items() if not name.startswith(("PYTEST_", "CONFORMANCE_"))}
    argv = [sys.executable, "-m", *command, "-q", "-x", "--device=cpu", "--seed=0", "-p", "no:randomly"]
    variables["COLUMNS"] = "80"
    completed = subprocess.run(argv, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    lines = completed.stdout.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith(f"{BROKEN_CLAUSE} [fail]")), None)
    if completed.returncode != 1 or start is None:
        raise ValueError(f"{' '.join(command)} did not fail: {lines[-1:] or completed.stderr[-200:]}")
    wrapper = textwrap.TextWrapper(WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    section = takewhile(lambda line: not line.startswith("=="), lines[start:])
    return "\n".join(chain.from_iterable(map(wrapper.wrap, section)))
