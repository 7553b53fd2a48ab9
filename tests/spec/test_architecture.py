"""What import-linter does not see: the core needs no framework, and every test of the suites names its clause."""

import re
import subprocess
import sys
from pathlib import Path

from conformance.runner.recorder import SETTINGS
from conformance.spec.clauses import Level, load_clauses
from conformance.test_ids.inventory import inventory
from frameworks.adapter_file import adapter_file
from frameworks.registry import built_in
from tests.support.suite_runs import ROOT, environment

ROOMS = ("fixtures", "frameworks", "conformance", "results")
ADAPTERS = tuple(built_in())
OWN = {name: {*adapter_file(name).imports} for name in ADAPTERS}
SHARED = {"keras_common": {"keras"}}
"""Packages of what adapters share that have a library, and it."""
FRAMEWORKS = frozenset().union(*OWN.values(), {"torchvision", "jaxlib", "mlx", "mindspore"})
TESTED = {code.clause for code in inventory().values()}
"""Clauses with a test in the suites, each test of which has a name of its own."""


def sources(*rooms: str) -> list[Path]:
    """Every module of these packages; PyTorch's compiler writes others to the cache."""
    result = [path for room in rooms for path in sorted((ROOT / room).rglob("*.py"))]
    return [
        path for path in result if "__pycache__" not in path.parts and ROOT / "results" / "cache" not in path.parents
    ]


def imported(path: Path) -> set[str]:
    """Every absolute module that a module names in an import, wherever the import stands."""
    return set(re.findall(r"^[ \t]*(?:from|import)[ \t]+([a-z][\w.]*)", path.read_text("utf-8"), re.MULTILINE))


def test_steps_by_hand_import_the_fixtures_alone() -> None:
    paths = sorted((ROOT / "frameworks").rglob("native_loop.py"))
    assert len(paths) > 2
    for path in paths:
        named = {name for name in imported(path) if not name.startswith("frameworks.native_loop")}
        rooms = {name.split(".")[0] for name in named} & {*ROOMS, "tests", "benchmarks"}
        assert rooms <= {"fixtures"}, f"{path.relative_to(ROOT)} imports {sorted(rooms)}"


def test_only_an_adapter_imports_its_framework() -> None:
    assert {name for name in ADAPTERS if not OWN[name]} == {"reference"}
    for path in sources(*ROOMS):
        room, part, *_ = path.relative_to(ROOT).parts
        allowed = (OWN | SHARED).get(part, set()) if room == "frameworks" else set()
        result = {name.split(".")[0] for name in imported(path)} & FRAMEWORKS
        assert result <= allowed, f"{path.relative_to(ROOT)} imports {sorted(result - allowed)}"


def test_the_core_runs_without_any_framework() -> None:
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


def test_every_test_of_the_suites_names_one_clause_that_exists() -> None:
    assert load_clauses().keys() >= TESTED
    texts = [path.read_text("utf-8") for path in sources("conformance/suites")]
    for each in (r"^@clause\(", r"^ *def test_"):
        assert sum(len(re.findall(each, text, re.MULTILINE)) for text in texts) == len(inventory())


def test_no_test_of_the_suites_hides_behind_a_skip() -> None:
    for path in sources("conformance/suites"):
        hiding = re.findall(
            r"\b(?:skip|skipif|xfail|importorskip|SkipTest)\(|mark\.(?:skip|xfail)", path.read_text("utf-8")
        )
        assert hiding == [], path.name


def test_every_binding_clause_has_a_test() -> None:
    binding = {clause.id for clause in load_clauses().values() if clause.level is Level.MUST}
    assert binding - TESTED - {SETTINGS} == set()


def test_every_file_of_the_checkout_has_a_name_that_a_shell_takes_for_a_file() -> None:
    """A command that takes `--help` for the name of its output leaves such a file."""
    output = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [name for name in output.splitlines() if re.search(r"(^|/)-|[^\w./+-]", name)] == []
