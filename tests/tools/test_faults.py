"""The catalogue of faults, their runs and their score."""

import ast
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from conformance.spec.clauses import Level, load_clauses
from frameworks.contract import Framework
from frameworks.registry import built_in, load
from results.record.reading import Outcome, TestVerdict
from tests.support.suite_runs import ROOT, run
from tools.faults import engine
from tools.faults.__main__ import main
from tools.faults.catalogue import Fault, faults
from tools.faults.engine import Baseline, Engine, Fate, RunError
from tools.faults.score import Score, must_clauses

FAULTS = faults()
RESERVED = frozenset({"example", "invalid", "localhost", "test"})
WITHOUT_LINK = 27
"""Faults of the rounds of held-out faults, half of which were not drawn from real bugs."""
FAULT = Fault("tools.faults.m:Broken", "reference", "It is.", "https://a.org/1", ("scaling.a", "scaling.b"))
BASELINE = Baseline(
    {"scaling.a": [("s.py::test_slow", 2.0), ("s.py::test_quick", 1.0)], "scaling.b": [("s.py::test_b", 0.5)]}
)
ALL_BASELINE = Baseline({**BASELINE.passed, "resume.c": [("r.py::test_c", 0.1)]})
LAW_BASELINE = Baseline({"laws.programs": [("l.py::test_law", 3.0)]})
A, B, C = "scaling.a", "scaling.b", "resume.c"
ENDS = (Outcome.ERROR, Outcome.TIMEOUT, Outcome.CRASH)
LEAK = TestVerdict(f"{A}/test", A, Outcome.PASS, leaks=("scope: off → on",))
SILENT = (Outcome.FIXED, Outcome.KNOWN, Outcome.UNSUPPORTED, Outcome.NOT_OFFERED, Outcome.ABSTAIN)
MODULES = [path.relative_to(ROOT) for path in sorted((ROOT / "tools" / "faults" / "adapters").rglob("*.py"))]


class StubBaselines:
    """Constant baselines."""

    needed = BASELINE

    def laws(self) -> Baseline:
        return LAW_BASELINE

    def all_tests(self) -> Baseline:
        return ALL_BASELINE


class StubEngine(Engine):
    """An engine whose runs give these verdicts, one list a run."""

    def __init__(self, *runs: Iterable[TestVerdict]) -> None:
        self.runs, self.selections = list(runs), []

    def run(self, *args: Any, **_: Any) -> tuple[TestVerdict, ...]:
        self.selections.append(list(args[2]))
        return tuple(self.runs.pop(0))


def verdict(clause: str, outcome: Outcome = Outcome.FAIL) -> TestVerdict:
    return TestVerdict(f"{clause}/test", clause, outcome)


def fate(*runs: Iterable[TestVerdict], fault: Fault = FAULT) -> tuple[Fate, StubEngine]:
    engine = StubEngine(*runs)
    return engine.fate(fault, StubBaselines()), engine


def is_placeholder(link: str) -> bool:
    """Whether a link's host is one that RFC 2606 reserves for examples and tests, or no name of a host at all."""
    labels = (urlsplit(link).hostname or "").split(".")
    return len(labels) < 2 or labels[-1] in RESERVED or labels[-2] == "example"


def test_faults_have_a_link_and_clauses() -> None:
    clauses = load_clauses()
    assert sum(not fault.link for fault in FAULTS) <= WITHOUT_LINK, "a new fault has the link of a real bug"
    for fault in FAULTS:
        assert not fault.link or (fault.link.startswith("https://") and not is_placeholder(fault.link)), fault.name
        assert fault.clauses, fault.name
        assert not set(fault.clauses) - clauses.keys(), fault.name
        assert all(clauses[clause].level is not Level.OBSERVATION for clause in fault.clauses), fault.name
    names = [f"{fault.framework} {fault.label}" for fault in FAULTS]
    assert sorted(names) == sorted(set(names))
    assert {fault.framework for fault in FAULTS} == {*built_in()}


@pytest.mark.parametrize("fault", [m for m in FAULTS if m.framework == "reference"], ids=lambda m: m.label)
def test_load_of_a_fault_of_the_reference_works(fault: Fault) -> None:
    framework: Framework = load(fault.name, "cpu", fault.mode or None)
    assert framework.name == "reference"
    module, _, name = fault.name.partition(":")
    assert getattr(import_module(module), name).__doc__


@pytest.mark.parametrize(
    ("runs", "changes", "status", "clauses"),
    [
        ([[verdict(A), verdict(B)]], {}, "caught", {"broken": (A, B)}),
        ([[verdict(A), verdict(B, Outcome.PASS)], [], []], {}, "missed by", {"missed": (B,)}),
        ([[], [], [verdict(C)]], {}, "by accident", {"elsewhere": (C,)}),
        ([[], [], []], {}, "survived", {}),
        ([[LEAK], [], []], {"clauses": (A, "autocast.settings-restored")}, "missed by", {"missed": (A,)}),
        ([[verdict(A)], [replace(verdict("laws.programs"), signature=B)], []], {}, "caught", {}),
        ([[verdict(A)], [replace(verdict("laws.programs"), signature="scaling.c")], []], {}, "missed by", {}),
        *(([[verdict(A, silent), verdict(B, silent)], [], []], {}, "survived", {}) for silent in SILENT),
        *(([[verdict(A, end), verdict(B, end)], [], []], {}, "survived", {}) for end in ENDS),
        *(([[verdict(A, end), verdict(B, end)]], {"raises": True}, "caught", {}) for end in ENDS),
    ],
)
def test_fate_of_a_fault_follows_its_clauses(
    runs: list[list[TestVerdict]], changes: dict[str, Any], status: str, clauses: dict[str, tuple[str, ...]]
) -> None:
    result, engine = fate(*runs, fault=replace(FAULT, **changes))
    assert result.status == status
    assert {name: getattr(result, name) for name in clauses} == clauses
    if "clauses" in changes:
        assert result.broken == ("autocast.settings-restored",)
    else:
        assert engine.selections[0] == ["s.py::test_b", "s.py::test_quick", "s.py::test_slow"]
        assert engine.selections[1:] == [["l.py::test_law"], ["r.py::test_c"]][: len(engine.selections) - 1]


@pytest.mark.parametrize(("message", "status"), [("…: 2 (LayerNorm), output", "caught"), ("…: nothing", "not named")])
def test_fate_of_a_failure_without_its_name_is_a_problem(message: str, status: str) -> None:
    named = replace(FAULT, names="(LayerNorm), output")
    verdicts = [replace(verdict(clause), message=message) for clause in FAULT.clauses]
    result, _ = fate([*verdicts, replace(verdict(C), message="…")], fault=named)
    assert result.status == status
    problems = Score((result,), FAULT.clauses).problems()
    assert [line.split(":")[0] for line in problems] == ["not named"] * (status == "not named")
    assert all("scaling.a/test, scaling.b/test failed" in line for line in problems)


def test_score_problems_name_uncaught_faults_and_unproven_clauses() -> None:
    caught = Fate(FAULT, FAULT.clauses)
    missed = Fate(replace(FAULT, name="tools.faults.m:Sly"), (), ("resume.c",))
    perfect = Score((caught,), FAULT.clauses)
    assert perfect.problems() == []
    assert "score 100 %: 1 of 1 faults" in perfect.table(1.0)
    assert "2 of 2 MUST clauses proven" in perfect.table(1.0)
    imperfect = Score((caught, missed), (*FAULT.clauses, "scaling.z"))
    assert imperfect.problems() == [
        "by accident: tools.faults.m:Sly was not caught by scaling.a, scaling.b; resume.c failed",
        "unproven: no fault breaks scaling.z",
    ]
    assert imperfect.problems(complete=False) == imperfect.problems()[:1]
    assert "score 50 %: 1 of 2 faults" in imperfect.table(1.0)


def test_must_clauses_have_a_fault() -> None:
    named = {clause for fault in FAULTS for clause in fault.clauses}
    assert set(must_clauses(load_clauses().values())) - named == set()


@pytest.mark.parametrize(
    ("label", "clause"),
    [
        ("ScaleGrowsToInfinity", "scaling.stays-finite"),
        pytest.param("ClippingScalesUp", "accumulation.clips-only-what-is-larger", marks=pytest.mark.slow),
    ],
    ids=["a clause with one test", "a clause whose other tests are left out"],
)
def test_main_of_one_fault_runs_it(label: str, clause: str) -> None:
    result = run([sys.executable, "-m", "tools.faults", label, "--of", "reference"], PYTEST_DISABLE_PLUGIN_AUTOLOAD="")
    assert result.status == 0, result.lines
    assert f"caught      reference  {label}: {clause}" in result.output
    assert "score 100 %: 1 of 1 faults" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["NoSuchFault"], "there is no fault NoSuchFault; --list names them all"),
        (["--of", "mxnet"], "there is no fault mxnet; --list names them all"),
        (["ScaleGrowsToInfinity", "--write"], "--write takes the score of all faults"),
        (["--sample", "3", "--write"], "--write takes the score of all faults"),
        (["--sample", "0"], "--sample wants a count of faults"),
    ],
)
def test_main_refuses_in_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize(
    ("link", "body", "message"),
    [
        ("NAME", '"A."', "f.m:A: @fault takes a link, clauses and keywords, all of them literals"),
        ('"https://a.org"', "pass", "f.m:A: a docstring says what is wrong"),
    ],
)
def test_faults_without_literals_or_docstring_are_refused(link: str, body: str, message: str, tmp_path: Path) -> None:
    source = f'@fault({link}, "a.b")\nclass A:\n    {body}\n'
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "m.py").write_text(source, "utf-8")
    with pytest.raises(ValueError, match=message):
        faults(tmp_path)


def test_engine_run_beyond_its_limit_leaves_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(engine, "LIMIT_S", 0.05)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(RunError, match="did not end within"):
        Engine().run("reference", "", ["conformance/suites/scaling/test_scaling.py"])
    assert not list(tmp_path.glob("faults-*"))


def test_find_dominated_has_faults_that_are_easier_to_catch(tmp_path: Path) -> None:
    path = tmp_path / "kills.json.gz"
    assert engine.read(path) == {}
    engine.write({"m.B": ["scaling.b/test", "scaling.a/test"], "m.A": []}, path)
    assert engine.read(path) == {"m.A": [], "m.B": ["scaling.a/test", "scaling.b/test"]}
    failing = {"easy": ["a", "b", "c"], "hard": ["a"], "same": ["a"], "other": ["b", "d"]}
    assert engine.find_dominated(failing) == ["easy", "same"]


def test_kills_are_of_existing_faults() -> None:
    known = engine.read()
    assert known.keys() <= {fault.id for fault in FAULTS if fault.framework == "reference"}
    assert all(known.values())


def file_of(module: str) -> Path | None:
    path = ROOT.joinpath(*module.split("."))
    files = (path / "__init__.py", path.with_suffix(".py"))
    return next((file for file in files if file.is_file()), None)


@cache
def names_of(file: Path) -> frozenset[str]:
    known: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            known.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            known |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            known.add(node.id)
    return frozenset(known)


def find_missing_names(tree: ast.AST) -> Iterator[str]:
    """Names of this checkout that a module imports or patches and that do not exist."""
    modules: dict[str, Path] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and file_of(node.module.partition(".")[0]):
            file = file_of(node.module)
            for alias in node.names:
                inner = file_of(f"{node.module}.{alias.name}")
                if inner is not None:
                    modules[alias.asname or alias.name] = inner
                elif file is None or alias.name not in names_of(file):
                    yield f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            file = modules[node.value.id]
            if node.attr not in names_of(file):
                yield f"{file.relative_to(ROOT)}: {node.attr}"


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_faults_of_adapters_import_and_patch_existing_names(path: Path) -> None:
    assert [*find_missing_names(ast.parse((ROOT / path).read_text("utf-8")))] == []
