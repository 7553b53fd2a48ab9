"""Rules that import-linter and ruff do not check: imports, names of clauses in tests, and portable file names."""

import re
import subprocess
import sys
from pathlib import Path

from conformance.runner.recorder import SETTINGS
from conformance.spec.clauses import Level, load_clauses
from conformance.test_ids.inventory import inventory
from frameworks.registry import adapter_file, built_in
from tests.support.suite_runs import ROOT, environment

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
