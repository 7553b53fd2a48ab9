"""Rules that import-linter and ruff do not check: imports, names of clauses in tests, and phrases."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from conformance.runner.recorder import SETTINGS
from conformance.spec.clauses import Level, load_clauses
from conformance.test_ids.inventory import inventory
from frameworks.registry import adapter_file, built_in
from tests.support.suite_runs import ROOT, environment
from tools.commands import style
from tools.style import Phrase, hits, texts

PACKAGES = ("fixtures", "frameworks", "conformance", "results")
ADAPTERS = tuple(built_in())
IMPORTS_OF = {name: {*adapter_file(name).imports} for name in ADAPTERS}
SHARED = {"keras_common": {"keras"}}
"""Libraries that code shared by adapters imports."""
FRAMEWORKS = frozenset().union(*IMPORTS_OF.values(), {"torchvision", "jaxlib", "mlx", "mindspore"})
TESTED = {code.clause for code in inventory().values()}
"""Clauses with a test in the suites."""


def sources(*packages: str) -> list[Path]:
    """Every module of these packages, without those that PyTorch's compiler writes to the cache."""
    result = [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]
    return [
        path for path in result if "__pycache__" not in path.parts and ROOT / "results" / "cache" not in path.parents
    ]


def find_imports(path: Path) -> set[str]:
    """Every module that a file imports by its absolute name."""
    return set(re.findall(r"^[ \t]*(?:from|import)[ \t]+([a-z][\w.]*)", path.read_text("utf-8"), re.MULTILINE))


def test_native_loops_import_the_fixtures_alone() -> None:
    paths = sorted((ROOT / "frameworks").rglob("native_loop.py"))
    assert len(paths) > 2
    for path in paths:
        named = {name for name in find_imports(path) if not name.startswith("frameworks.native_loop")}
        packages = {name.split(".")[0] for name in named} & {*PACKAGES, "tests", "benchmarks"}
        assert packages <= {"fixtures"}, f"{path.relative_to(ROOT)} imports {sorted(packages)}"


def test_modules_outside_an_adapter_import_no_framework() -> None:
    assert {name for name in ADAPTERS if not IMPORTS_OF[name]} == {"reference"}
    for path in sources(*PACKAGES):
        package, part, *_ = path.relative_to(ROOT).parts
        allowed = (IMPORTS_OF | SHARED).get(part, set()) if package == "frameworks" else set()
        result = {name.split(".")[0] for name in find_imports(path)} & FRAMEWORKS
        assert result <= allowed, f"{path.relative_to(ROOT)} imports {sorted(result - allowed)}"


def test_modules_of_the_core_load_no_framework() -> None:
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in sources("fixtures", "conformance", "results", "frameworks/reference")
        if "suites" not in path.parts and path.name != "__main__.py"
    ]
    program = (
        f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
        f"print(*sorted(set(sys.modules) & {set(FRAMEWORKS)!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_tests_of_the_suites_name_one_existing_clause() -> None:
    assert load_clauses().keys() >= TESTED
    texts = [path.read_text("utf-8") for path in sources("conformance/suites")]
    for pattern in (r"^@clause\(", r"^ *def test_"):
        assert sum(len(re.findall(pattern, text, re.MULTILINE)) for text in texts) == len(inventory())


def test_suites_have_no_skip() -> None:
    for path in sources("conformance/suites"):
        hiding = re.findall(
            r"\b(?:skip|skipif|xfail|importorskip|SkipTest)\(|mark\.(?:skip|xfail)", path.read_text("utf-8")
        )
        assert hiding == [], path.name


def test_must_clauses_have_a_test() -> None:
    must_clauses = {clause.id for clause in load_clauses().values() if clause.level is Level.MUST}
    assert must_clauses - TESTED - {SETTINGS} == set()


def test_files_of_the_checkout_have_portable_names() -> None:
    """A command that takes `--help` for the name of its output leaves such a file."""
    output = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [name for name in output.splitlines() if re.search(r"(^|/)-|[^\w./+-]", name)] == []


def search(folder: Path, name: str, source: str) -> list[tuple[int, str, str]]:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, "utf-8")
    return [(hit.line, hit.phrase, hit.better) for hit in hits([path], folder)]


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("a.py", 'X = f"{1} Adam in eight bits"', (1, "in eight bits", "8-bit")),
        ("a.py", '"""One.\n\nThe call was\nseen to act.\n"""', (3, "was seen to", "takes effect, was observed to")),
        ("a.py", 'raise ValueError("mend it")', (1, "mend", "fix")),
        ("a.md", "One.\n\nIt did not come true.", (3, "did not come true", "occur")),
        ("a.py", "class Shown:\n    def told(self): pass", (1, "Shown", "a verb or noun: text, view, result")),
        ("a.py", "WIDTH = 1\nNOT_KEPT: int = 2", (2, "NOT_KEPT", "what it is: selection, copies, state")),
        ("shown.py", "", (1, "shown", "a verb or noun: text, view, result")),
        ("a.toml", 'reason = """\nTold by one a process."""', (2, "Told", "reported, named")),
    ],
)
def test_hits_of_a_planted_phrase_have_its_line(
    tmp_path: Path, name: str, source: str, expected: tuple[int, str, str]
) -> None:
    assert search(tmp_path, name, source)[0] == expected


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("a.py", '"""See `told` and `worker_group.make`; told: a line; they cannot tell, or tell apart."""'),
        ("a.py", "def make(told): return screw  # mend it"),
        ("a.py", '__all__ = ["told"]'),
        ("a.md", "```text\nmend it\n```\n[page](told.md)"),
        ("a.md", "<!-- some table: begin -->\nmend it\n<!-- some table: end -->"),
        ("a.py", "def test_a_change_is_told(): pass"),
        ("a.py", "from calls import shown"),
    ],
)
def test_hits_of_names_code_and_generated_blocks_are_none(tmp_path: Path, name: str, source: str) -> None:
    assert search(tmp_path, name, source) == []


def test_style_prints_hits_and_leaves_programs_of_findings_out(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = {path.relative_to(ROOT).as_posix() for path in texts()}
    assert {"README.md", "conformance/cli/spec.py", "results/report/text.py"} - searched == set()
    assert not any("/findings/" in name for name in searched)
    for phrases in ([Phrase("a.py", 3, "mend", "fix"), Phrase("b.md", 1, "told", "reported")], []):
        monkeypatch.setattr("tools.style.hits", lambda _, phrases=phrases: phrases)
        result = CliRunner().invoke(style, standalone_mode=False)
        assert (result.return_value, result.output.splitlines()) == (1 if phrases else 0, list(map(str, phrases)))
    assert str(Phrase("a.py", 3, "mend", "fix")) == "a.py:3: 'mend': write 'fix'"
