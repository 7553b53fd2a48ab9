"""Summaries of the committed records for README and the page results: the clauses that hold, and those that fail.

Also README's example: a clause, its test, and what the test prints for a copy of the reference with one bug.
"""

import ast
import os
import re
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain, takewhile
from pathlib import Path

from packaging.version import Version

from conformance.cli.start import BROKEN_CLAUSE, TWIN
from conformance.spec.clauses import load_clauses
from conformance.test_ids import SUITES
from results.record.model import REFUSED, Outcome
from results.record.reading import Record, TestVerdict
from results.record.values import Consequence, FindingKind, FindingText
from results.show.clauses import FAILURE_OUTCOMES, GRAVITY, by_clause, outcome, total
from tools.docs.blocks import read_committed_records
from tools.docs.generate import table

ROOT = Path(__file__).parents[2]

DEFAULT_MODES: Mapping[str, tuple[str, ...]] = {
    "torch": ("eager",),
    "tf": ("graph",),
    "paddle": ("dygraph", "static"),
    "jax": ("jit",),
}
"""The frameworks, and the modes of the tables: those of a user who sets nothing."""

TECHNIQUES: Mapping[str, str] = {
    "accumulation": "gradient accumulation",
    "autocast": "mixed precision (autocast)",
    "scaling": "loss scaling",
    "master": "float32 master weights",
    "optimizer": "optimizers and schedules",
    "recompute": "recomputation (checkpointing)",
    "resume": "saving and resuming",
    "sharding": "data parallel and sharded training",
    "offload": "offload to host or disk",
    "formats": "8-bit formats, float8 training",
    "quantization": "quantization, 8-bit Adam",
    "adapters": "low-rank adapters (LoRA)",
    "composition": "several techniques at once",
    "laws": "generated programs",
    "cost": "memory and time",
}
"""README's rows: names of the families of clauses for a new reader."""

_WIDTH = 118
"""Width of the example in characters."""
_CODE = "```"
_SILENT = (FindingKind.DEFECT, Consequence.SILENT_CORRUPTION)
_LIBRARY = re.compile(r"([a-z]+)\.(\d+(?:\.\d+)*)")


@cache
def by_framework() -> Mapping[str, Sequence[Record]]:
    """Each framework's records of its default modes on a CPU."""
    return {
        name: [
            record
            for mode in modes
            for record in read_committed_records()
            if (record.series.framework, record.series.mode, record.series.device) == (name, mode, "cpu")
        ]
        for name, modes in DEFAULT_MODES.items()
    }


def blocks() -> Mapping[str, str]:
    """README's table of techniques, and of the page results the outcomes of every record and the clauses that fail."""
    return {"techniques": _techniques(), "outcomes": _outcomes(), "failing clauses": _failing()}


def _techniques() -> str:
    cells = {name: _clauses(name) for name in DEFAULT_MODES}
    header = (
        "technique",
        *(f"{name} {_public(records[0])}" for name, records in by_framework().items()),
        "in all four",
    )
    rows = []
    for family, technique in TECHNIQUES.items():
        of_family = [
            {clause: tests for clause, tests in clauses.items() if clause.startswith(f"{family}.")}
            for clauses in cells.values()
        ]
        everywhere = set.intersection(*(_holding(clauses) for clauses in of_family))
        rows.append((technique, *map(_share, cells, of_family), str(len(everywhere))))
    failing = sorted(set.intersection(*(_find_broken(clauses) for clauses in cells.values())))
    return f"{table(header, rows)}\n\nBroken in all four: {', '.join(f'`{clause}`' for clause in failing) or 'none'}."


def _share(framework: str, clauses: Mapping[str, Sequence[TestVerdict]]) -> str:
    """The number of judged clauses that hold for a framework, and the number of the others that corrupt silently."""
    holding, failing = _holding(clauses), _find_broken(clauses)
    if not holding | failing:
        return "unsupported"
    worst = [_worst(framework, clauses[clause]) for clause in failing]
    silent = sum(text is not None and (text.kind, text.consequence) == _SILENT for text in worst)
    share = f"{len(holding)}/{len(holding | failing)}"
    return f"{share}, **{silent}\u00a0silent**" if silent else share


def _outcomes() -> str:
    default_records = list(chain.from_iterable(by_framework().values()))
    records = [*default_records, *(record for record in read_committed_records() if record not in default_records)]
    counts = [total(record) for record in records]
    columns = [kind for kind in reversed(GRAVITY) if any(count.clauses[kind] for count in counts)]
    rows = (
        (
            f"{record.series.framework} {_describe_version(record)}",
            f"`{record.series.mode}`" if record.series.device == "cpu" else f"`{record.series.mode}`, GPU",
            *(str(count.clauses[kind] or "") for kind in columns),
            str(count.tests.total()),
            record.finished[:10].replace("-", "\u2011"),
        )
        for record, count in zip(records, counts, strict=True)
    )
    return table(("version", "mode", *columns, "tests", "judged on"), rows)


def _failing() -> str:
    """The clauses that fail somewhere, those of the worst consequence and of most frameworks first."""
    cells = {name: _clauses(name) for name in DEFAULT_MODES}
    worst: dict[str, list[int]] = {}
    for name, clauses in cells.items():
        for clause in _find_broken(clauses):
            text = _worst(name, clauses[clause])
            worst.setdefault(clause, []).append(len(Consequence) if text is None else text.consequence.rank)
    order = sorted(worst, key=lambda clause: (min(worst[clause]), -len(worst[clause]), clause))
    rows = (
        (f"`{clause}`", *(_cell(name, clauses.get(clause, ())) for name, clauses in cells.items())) for clause in order
    )
    return table(("clause", *cells), rows)


def _cell(framework: str, verdicts: Sequence[TestVerdict]) -> str:
    if not verdicts:
        return ""
    if (kind := outcome(verdicts)) not in FAILURE_OUTCOMES:
        return "–" if kind in REFUSED else "holds" if kind is Outcome.PASS else str(kind)
    judged = Counter(verdict.outcome in FAILURE_OUTCOMES for verdict in verdicts if verdict.outcome not in REFUSED)
    text = _worst(framework, verdicts)
    documented = "\\*" if text is not None and text.kind is FindingKind.DOCUMENTED else ""
    result = str(kind) if text is None else text.consequence.removeprefix("silent-")
    return f"{result}{documented} {judged[True]}/{judged.total()}"


def _clauses(framework: str) -> dict[str, list[TestVerdict]]:
    """A framework's verdicts by clause, over all of its default modes."""
    result: dict[str, list[TestVerdict]] = {}
    for record in by_framework()[framework]:
        for clause, verdicts in by_clause(record).items():
            result.setdefault(clause, []).extend(verdicts)
    return result


def _holding(clauses: Mapping[str, Sequence[TestVerdict]]) -> set[str]:
    return {clause for clause, verdicts in clauses.items() if outcome(verdicts) is Outcome.PASS}


def _find_broken(clauses: Mapping[str, Sequence[TestVerdict]]) -> set[str]:
    return {clause for clause, verdicts in clauses.items() if outcome(verdicts) in FAILURE_OUTCOMES}


def _worst(framework: str, verdicts: Sequence[TestVerdict]) -> FindingText | None:
    """The worst finding by which a clause fails, a defect before others of its consequence; None if there is none."""
    texts = {name: text for record in by_framework()[framework] for name, text in record.findings.items()}
    findings = (texts[verdict.finding] for verdict in verdicts if verdict.finding in texts)
    return min(findings, key=lambda text: (text.consequence.rank, text.kind is not FindingKind.DEFECT), default=None)


def _public(record: Record) -> str:
    return Version(record.variant.framework_version).public


def _describe_version(record: Record) -> str:
    """The version with that of the first library in its local label."""
    library = _LIBRARY.search(Version(record.variant.framework_version).local or "")
    return f"{_public(record)}, {library[1]} {library[2]}" if library else _public(record)


def failure() -> Mapping[str, str]:
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
    """The wrapped output of pytest for the first failing case, reproducible by float64 arithmetic on exact fixtures."""
    variables = {name: text for name, text in os.environ.items() if not name.startswith(("PYTEST_", "CONFORMANCE_"))}
    argv = [sys.executable, "-m", *command, "-q", "-x", "--device=cpu", "--seed=0", "-p", "no:randomly"]
    variables["COLUMNS"] = "80"
    completed = subprocess.run(argv, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    lines = completed.stdout.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith(f"{BROKEN_CLAUSE} [fail]")), None)
    if completed.returncode != 1 or start is None:
        raise ValueError(f"{' '.join(command)} did not fail: {lines[-1:] or completed.stderr[-200:]}")
    wrapper = textwrap.TextWrapper(_WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    section = takewhile(lambda line: not line.startswith("=="), lines[start:])
    return "\n".join(chain.from_iterable(map(wrapper.wrap, section)))
