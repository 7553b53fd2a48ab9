"""A test's hash changes with everything that the test depends on, and with nothing else."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from conformance.test_ids import dependencies
from conformance.test_ids.dependencies import COUNTED, PROVIDED, Tree
from conformance.test_ids.inventory import code_hashes
from conformance.test_ids.syntax import Reading
from tests.support.suite_runs import ROOT, sources

SUITE = '''"""A suite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from conformance import tools
from conformance.checks.api import Subject, Verdict, clause
from conformance.search.properties import explore
from fixtures.models import scalar

if TYPE_CHECKING:
    from conformance.tools import Typed

LIMIT = 3
CASES = [1, 2]
LEVELS = pytest.mark.parametrize("level", [1, 2])


def near(a, b):
    """Whether all are near."""
    return all(abs(a[name] - b[name]) < LIMIT for name in a)


def unrelated():
    return 1


@clause("a")
def test_near(subject: Subject, verdict: Verdict, typed: Typed = None) -> None:
    verdict.holds(near(subject.run(), {}), "near")


@clause("b")
def test_tools(verdict: Verdict) -> None:
    near = 1  # a name of its own
    verdict.within(tools.far([near for near in (1, 2)]), 2)


@clause("c")
@explore(CASES, examples=4)
def test_law(subject: Subject, verdict: Verdict, case: int) -> None:
    from conformance.late import late

    verdict.holds(late(scalar(), case), "late")


@clause("d")
@LEVELS
def test_row(verdict: Verdict, row: object, level: int) -> None:
    verdict.within(float(np.abs(level)), 2)
'''
TREE = {
    "suites/test_suite.py": SUITE,
    "checks/api.py": (
        "from conformance.checks.subject import Subject\nfrom conformance.checks.evidence import Verdict\n"
        "def clause(name): return name\n"
    ),
    "checks/subject.py": "class Subject:\n    seed = 0\n    def run(self): return {}\n    def walk(self): return 1\n",
    "checks/evidence.py": (
        "class Verdict:\n"
        "    def __init__(self): self.checks = []\n"
        "    def holds(self, value, what): self._add(value)\n"
        "    def within(self, value, bound): self._add(value <= bound)\n"
        "    def _add(self, value): self.checks.append(value)\n"
        "    def other(self): return None\n"
    ),
    "tools.py": (
        "class Typed: pass\nSTEP = 1\ndef far(values): return _sum(values) * STEP\ndef _sum(values): return 1\n"
    ),
    "late.py": "from conformance.oracle.automaton import Scale as A\ndef late(model, case): return A(case)\n",
    "oracle/automaton.py": "class Scale:\n    def __init__(self, case): self.case = case\n",
    "search/properties.py": "def explore(cases, examples):\n    return lambda law: law\n",
    "checks/covering_array.py": "def rows(framework): return [1]\n",
}
FIXTURES = {
    "models.py": "from fixtures.layers import Dense\ndef scalar(): return Dense(1)\ndef vector(): return Dense(2)\n",
    "layers.py": (
        "class Dense:\n    tied: bool = optional(False)\n    width: int\n    def weights(self): return 1\n"
        "class Norm:\n    def weights(self): return 1\n"
    ),
}
ALL = {"test_near", "test_tools", "test_law", "test_row"}


def tree(folder: Path, *changes: tuple[str, str, str]) -> dict[str, str]:
    """Hashes by test in a small checkout, after these changes of (file, old, new)."""
    files = {f"conformance/{name}": text for name, text in TREE.items()}
    files |= {f"fixtures/{name}": text for name, text in FIXTURES.items()}
    for name, old, new in changes:
        assert files[name].count(old) == 1, name
        files[name] = files[name].replace(old, new)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return code_hashes(folder)


@pytest.mark.parametrize(
    ("file", "old", "new", "other"),
    [
        ("conformance/suites/test_suite.py", "for name in a)", "for name in list(a)[:1])", {"test_near"}),
        ("conformance/suites/test_suite.py", "LIMIT = 3", "LIMIT = 4", {"test_near"}),
        ("conformance/suites/test_suite.py", "CASES = [1, 2]", "CASES = [1]", {"test_law"}),
        ("conformance/suites/test_suite.py", "examples=4", "examples=3", {"test_law"}),
        ("conformance/suites/test_suite.py", '"level", [1, 2]', '"level", [1]', {"test_row"}),
        ("conformance/tools.py", "return 1", "return values[0]", {"test_tools"}),
        ("conformance/tools.py", "STEP = 1", "STEP = 2", {"test_tools"}),
        ("conformance/oracle/automaton.py", "self.case = case", "self.case = 0", {"test_law"}),
        ("conformance/search/properties.py", "lambda law: law", "lambda law: print", {"test_law"}),
        ("conformance/checks/covering_array.py", "[1]", "[]", {"test_row"}),
        ("conformance/checks/evidence.py", "value <= bound", "value < bound", {"test_tools", "test_row"}),
        ("conformance/checks/evidence.py", "append(value)", "append(True)", ALL),
        ("conformance/checks/evidence.py", "self.checks = []", "self.checks = [0]", ALL),
        ("conformance/checks/subject.py", "return {}", "return {1: 1}", {"test_near"}),
        ("conformance/checks/subject.py", "seed = 0", "seed = 1", {"test_near", "test_law"}),
        ("conformance/checks/api.py", "return name", "return name.upper()", ALL),
        ("fixtures/models.py", "Dense(1)", "Dense(3)", {"test_law"}),
        ("fixtures/layers.py", "width: int\n    def weights(self): return 1", "width: int = 2", {"test_law"}),
        ("fixtures/layers.py", "optional(False)", "optional(True)", {"test_law"}),
        # what no test depends on, or what says nothing
        ("fixtures/layers.py", "width: int", "width: int\n    frozen: tuple = optional(())", set()),
        ("conformance/suites/test_suite.py", "Whether all are near.", "Are they?", set()),
        ("conformance/suites/test_suite.py", "def near(", "# nearly\n\n\ndef near(", set()),
        ("conformance/suites/test_suite.py", "return 1", "return 2", set()),
        ("conformance/suites/test_suite.py", "case: int", "case: object", set()),
        ("conformance/tools.py", "class Typed: pass", "class Typed: x = 1", set()),
        ("conformance/checks/evidence.py", "return None", "return 1", set()),
        ("conformance/checks/evidence.py", "    def other", "    def another(self): return 1\n    def other", set()),
        ("conformance/checks/subject.py", "def walk(self): return 1", "def walk(self): return 2", set()),
        ("fixtures/models.py", "Dense(2)", "Dense(3)", set()),
        ("fixtures/layers.py", "class Norm:\n    def weights(self): return 1", "class Norm: pass", set()),
    ],
)
def test_a_change_is_seen_by_the_tests_that_depend_on_it(
    tmp_path: Path, file: str, old: str, new: str, other: set[str]
) -> None:
    before, after = tree(tmp_path), tree(tmp_path, (file, old, new))
    assert before.keys() == after.keys() == ALL
    assert {name for name in before if before[name] != after[name]} == other


@pytest.mark.parametrize("named", ["Dense(1, tied=True)", "Dense(1).tied", "Dense(**{'tied': True})"])
def test_a_field_that_is_off_by_default_counts_where_it_is_named(tmp_path: Path, named: str) -> None:
    use = ("fixtures/models.py", "Dense(1)", named)
    before, after = (
        tree(tmp_path, use),
        tree(tmp_path, use, ("fixtures/layers.py", "optional(False)", "optional(None)")),
    )
    assert {name for name in before if before[name] != after[name]} == {"test_law"}


def test_an_unchanged_helper_may_move_to_another_module(tmp_path: Path) -> None:
    moved = ("conformance/late.py", "def late", "def _sum(values): return 1\ndef late")
    left = ("conformance/tools.py", "def _sum(values): return 1\n", "from conformance.late import _sum\n")
    assert tree(tmp_path) == tree(tmp_path, moved, left)


@pytest.mark.parametrize(
    ("file", "old", "new", "some", "none"),
    [
        (
            "conformance/checks/evidence.py",
            "for name in sorted(measured.keys() | expected.keys()):",
            "for name in sorted(measured.keys() | expected.keys())[:1]:",
            "test_resumed_run_matches_uninterrupted_run",
            "test_adam_epsilon_in_pure_low_precision",
        ),
        (
            "conformance/oracle/automaton.py",
            "np.float32(self.scale) * np.float32(self.growth)",
            "self.scale",
            "test_scale_and_skips_follow_automaton",
            "test_resumed_run_matches_uninterrupted_run",
        ),
        (
            "conformance/checks/subprocesses.py",
            "asked.run()))",
            "asked.run()[:1]))",
            "test_allocator_peak_matches_byte_count",
            "test_mixed_precision_is_no_slower",
        ),
        (
            "frameworks/torch/native_loop.py",
            "def make(",
            "PLANTED = print()\n\n\ndef make(",
            "test_adapter_overhead_over_native_loop",
            "test_resumed_run_matches_uninterrupted_run",
        ),
    ],
)
def test_the_suites_own_helpers_count(tmp_path: Path, file: str, old: str, new: str, some: str, none: str) -> None:
    before, path = code_hashes(sources(tmp_path)), tmp_path / file
    assert path.read_text("utf-8").count(old) == 1
    path.write_text(path.read_text("utf-8").replace(old, new), encoding="utf-8")
    after = code_hashes(tmp_path)
    changed = {name for name in before if before[name] != after[name]}
    assert some in changed
    assert none not in changed


def test_reading_the_suites_reads_each_file_and_each_definition_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    taken: list[int] = []
    parse, read = ast.parse, dependencies.read

    def noted_parse(text: str, *given: Any, **named: Any) -> Any:
        parsed.append(text)
        return parse(text, *given, **named)

    def noted_read(nodes: tuple[ast.stmt, ...]) -> Reading:
        taken.append(id(nodes[0]))
        return read(nodes)

    with monkeypatch.context() as patched:
        patched.setattr(ast, "parse", noted_parse)
        patched.setattr(dependencies, "read", noted_read)
        tests = code_hashes(ROOT)
    assert len(tests) > 200
    folders = [*COUNTED, "frameworks"]
    texts = Counter(path.read_text("utf-8") for folder in folders for path in (ROOT / folder).rglob("*.py"))
    assert len(parsed) > 50
    assert not Counter(parsed) - texts  # no text more often than there are files with it
    assert 1000 < len(taken) < 1.1 * len(set(taken))  # a statement is read once for each name that it binds


def test_what_the_plugin_gives_a_test_is_there() -> None:
    tree = Tree(ROOT)
    assert all(tree.resolve(meant) for meant in PROVIDED.values())
    plugin = (ROOT / "conformance" / "runner" / "plugin.py").read_text("utf-8")
    fixtures = re.findall(r"^@pytest.fixture.*\ndef (\w+)", plugin, re.MULTILINE)
    assert "verdict" in fixtures
    assert {*fixtures} <= PROVIDED.keys()
