"""The specification and what import-linter does not check: clauses, ids of tests, imports, portable file names."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance.checks.evidence import Verdict, Violation
from conformance.checks.subject import Subject
from conformance.runner.recorder import SETTINGS
from conformance.spec.clauses import SPECIFICATION, Clause, Level, load_clauses, read_clauses
from conformance.test_ids import id_of, inventory, node_of, read_inventory
from frameworks.reference import ReferenceFramework
from frameworks.registry import adapter_file, built_in
from tests.support.suite_runs import ROOT, environment
from tools.faults.reference import accumulation

CLAUSES = load_clauses()
BRANDS = re.compile(r"\b(?:torch|pytorch|tensorflow|tf|keras|paddle|paddlepaddle|jax|flax|optax|apex)\b", re.IGNORECASE)
SOURCED = re.compile(r"https://\S+\.\S+|arXiv:\d{4}\.\d{4,5}|doi:10\.\S+|\b(?:19|20)\d\d\b")

ENTRY = """
[[clause]]
id = "scaling.one"
level = "MUST"
requirement = "A scale is one number."
observed_by = "It is read."
source = "https://example.org/scale"
"""
INCIDENT = '{ url = "https://github.com/a/b/issues/1", what = "x" }'
CLAUSE = "accumulation.order-is-free"


def read(folder: Path, text: str, name: str = "scaling") -> dict[str, Clause]:
    (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return read_clauses(folder)


def test_load_clauses_has_every_family() -> None:
    families = {clause.family for clause in CLAUSES.values()}
    techniques = {"adapters", "autocast", "master", "scaling", "accumulation", "recompute", "resume"}
    assert (
        techniques | {"cost", "composition", "formats", "laws", "offload", "optimizer", "quantization", "sharding"}
        == families
    )
    assert families == {path.stem for path in SPECIFICATION.glob("*.toml")}


def test_clauses_are_one_sentence_without_a_brand_and_with_sources() -> None:
    for clause in CLAUSES.values():
        assert re.fullmatch(r"\S.*[^.]\.", clause.requirement), clause.requirement
        assert not re.search(r"\.\s+[A-Z]", clause.requirement), clause.requirement
        assert not re.search(r"\b(?:will|must|should|shall)\b", clause.requirement, re.IGNORECASE), clause.requirement
        assert not BRANDS.search(clause.requirement), clause.requirement
        assert not BRANDS.search(clause.observed_by), clause.observed_by
        assert all(SOURCED.search(part) for part in clause.source.split("; ")), clause.source
        for incident in clause.history:
            assert len(incident.what) > 20, incident
            assert not incident.what.startswith("the same"), incident
            assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", incident.thread), incident


def test_clauses_of_a_rule_have_a_must_clause() -> None:
    rules = [clause for clause in CLAUSES.values() if clause.id.endswith("-rule")]
    assert rules
    for rule in rules:
        assert rule.level is Level.OBSERVATION
        assert CLAUSES[rule.id.removesuffix("-rule")].level is Level.MUST


def test_read_clauses_joins_lines_and_shortens_threads(tmp_path: Path) -> None:
    text = ENTRY.replace('"A scale is one number."', '"""\nA scale is\n  one number."""')
    text += 'history = [{ url = "https://github.com/a-b/c.d/pull/7", what = "it broke" }]\n'
    clause = read(tmp_path, text)["scaling.one"]
    assert clause.requirement == "A scale is one number."
    assert [(incident.thread, incident.what) for incident in clause.history] == [("a-b/c.d#7", "it broke")]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("level", "levle", "scaling.toml: clause 1 (scaling.one): unknown key 'levle'"),
        ("MUST", "WILL", "scaling.toml: clause 1 (scaling.one): level: got 'WILL', want one of MUST, SHOULD, MAY"),
        ("scaling.one", "Scaling.One", "is not family.slug"),
        ("scaling.one", "scaling.one_two", "is not family.slug"),
        ("scaling.one", "master.one", "begins with 'master', but the family of the file is 'scaling'"),
        ('source = "https://example.org/scale"', "", "source is missing"),
        ('id = "scaling.one"', "", "scaling.toml: clause 1 (no id): id is missing"),
        ('"It is read."', "3", "observed_by: got 3, want a string"),
        ("[[clause]]", "[clause]", "clause is not an array of tables"),
        ("[[clause]]", "[[clause", "scaling.toml: not TOML"),
    ],
)
def test_read_clauses_of_a_wrong_entry_is_refused_in_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in ENTRY
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read(tmp_path, ENTRY.replace(old, new))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ('"https://github.com/a/b/issues/1"', "want an array of tables"),
        ('[{ url = "https://example.org/1", what = "x" }]', "is not the address of an issue or a pull request"),
        ('[{ url = "https://github.com/a/b/issues/1", what = "x", by = "y" }]', "history 1: unknown key 'by'"),
        (f"[{INCIDENT}, {INCIDENT}]", "names an address twice"),
        (f"[{', '.join(INCIDENT.replace('/1', f'/{n}') for n in range(5))}]", "history has 5 entries, more than 4"),
    ],
)
def test_read_clauses_of_a_wrong_history_is_refused(tmp_path: Path, history: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        read(tmp_path, f"{ENTRY}history = {history}\n")


@pytest.mark.parametrize(
    ("text", "message"), [(ENTRY + ENTRY, "clause 2 (scaling.one): duplicate id"), ("", "no clause")]
)
def test_read_clauses_of_a_wrong_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        read(tmp_path, text)


def test_id_of_and_node_of_name_the_same_test() -> None:
    for code in inventory().values():
        node = f"conformance/suites/{code.file}::{code.function}[a/b::c]"
        assert id_of(node) == f"{code.id}[a/b::c]"
        assert node_of(id_of(node)) == node
    assert node_of("scaling.stays-finite/test_of_nothing") is None
    assert id_of("tests/test_x.py::test_y") == "tests/test_x.py::test_y"


def test_read_inventory_refuses_two_tests_of_one_name(tmp_path: Path) -> None:
    folder = tmp_path / "conformance" / "suites"
    folder.mkdir(parents=True)
    for name in ("test_a.py", "test_b.py"):
        (folder / name).write_text('@clause("scaling.one")\ndef test_one(): pass\n', "utf-8")
    with pytest.raises(ValueError, match=r"test_b\.py: test_one is a test of test_a\.py too; rename one of them"):
        read_inventory(tmp_path)


def blocks() -> dict[str, str]:
    """The three blocks of source of the page, by name."""
    text = (ROOT / "docs" / "writing-a-clause.md").read_text("utf-8")
    result = re.findall(r"```(?:toml|python)\n(.*?)```", text, re.DOTALL)
    starts = {"clause": "[[clause]]", "test": '"""Gradient', "fault": "@fault("}
    return {name: next(block for block in result if block.startswith(start)) for name, start in starts.items()}


def test_example_of_the_page_catches_its_fault(tmp_path: Path) -> None:
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
