"""The parts of a record that identify the suite and the framework, and the digests of the suite's files."""

from __future__ import annotations

import ast
import hashlib
import subprocess
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.known_failures.entries import join_ways
from conformance.known_failures.reading import FILE, SNAPSHOTS
from conformance.oracle.derivation_hash import OWN, normalise
from conformance.runner import machine
from conformance.spec.clauses import load_clauses
from frameworks.installer.distributions import DISTRIBUTIONS
from frameworks.registry import folder_of, path_of
from results.record.files import one_line
from results.record.model import Series, Suite, Variant

if TYPE_CHECKING:
    from frameworks.contract import Framework

ROOT = Path(__file__).parents[2]

MEANINGS = "checks/outcome.py"
"""File that defines outcomes and demands nothing, so it is left out of the digests."""
_TESTS = ["checks", "generative", "search.py", "suites", "techniques"]
_JUDGING = ["declarations.py", "fingerprints", "known_failures", "runner", "test_ids.py", "timing.py", MEANINGS]
_CONTRACT = ["base", "native_loop.py", "contract", "keras_common", "operations.py", "ranks"]
AREAS = {
    "tests": tuple(f"conformance/{name}" for name in _TESTS),
    "judging": tuple(f"conformance/{name}" for name in _JUDGING),
    "oracle": ("conformance/oracle", "frameworks/reference"),
    "contract": tuple(f"frameworks/{name}" for name in _CONTRACT),
    "fixtures": ("fixtures",),
}
"""Folders and files of the suite by area. The judged adapter adds "adapter", its folder, and "expectations", its known
failures; "specification" is the clauses' demands."""

DEMANDS = ("specification", "tests", "fixtures")
"""Areas that define demands: clauses, checks and recipes."""

_CODE = frozenset({".py", ".toml", ".txt"})
_GIT_S = 10.0

COMMIT = "COMMIT"
"""File of a copy of the suite without git: the commit that it was made from."""


def suite_version() -> str:
    """Return the suite's version, read from its checkout."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"])


def suite(adapter: str, clauses_with_tests: tuple[str, ...], clauses_without_tests: tuple[str, ...]) -> Suite:
    """Return this suite's part of a record, for the adapter that the user named."""
    areas = suite_areas()
    files = adapter_files(adapter)
    if files:
        expectations = [path for path in files if path.name == FILE or path.parent.name == SNAPSHOTS]
        areas["adapter"] = digest(path for path in files if path not in expectations)
        areas["expectations"] = digest(expectations)
    return Suite(suite_version(), clauses_with_tests, clauses_without_tests, commit(), areas)


def suite_areas() -> dict[str, str]:
    """Return the digest of each area that does not depend on the adapter."""
    clauses = [(c.id, str(c.level), c.revision, " ".join(c.requirement.split())) for c in load_clauses().values()]
    areas = {name: digest(files_of(ROOT / path for path in places)) for name, places in AREAS.items()}
    return areas | {"specification": hashlib.sha256(repr(sorted(clauses)).encode()).hexdigest()[:16]}


def adapter_files(adapter: str) -> tuple[Path, ...]:
    """Return the files of the adapter that the user named: its folder's, or one module, and its expectations."""
    path = path_of(adapter)
    folder = folder_of(path)
    if folder is None:
        return ()
    module = folder / f"{path.partition(':')[0]}.py"
    return tuple(files_of([module, folder / FILE, folder / SNAPSHOTS] if module.is_file() else [folder]))


def files_of(places: Iterable[Path]) -> Iterator[Path]:
    """Yield the files of code and data in folders, sorted in each folder."""
    for root in places:
        paths = sorted(root.rglob("*")) if root.is_dir() else [root]
        of_folder = (path for path in paths if path == root or not path.as_posix().endswith(f"/{MEANINGS}"))
        yield from (path for path in of_folder if path.suffix in _CODE and path.is_file())


def digest(paths: Iterable[Path]) -> str:
    """Return the digest of the content of files, 16 hexadecimal digits; their location and names do not count.

    Comments, docstrings, annotations and layout of Python files do not count, nor does the module of a definition.
    """
    parts = {hashlib.sha256(part.encode()).hexdigest() for path in paths for part in _content(path) if part}
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()[:16]


def _content(path: Path) -> Iterator[str]:
    """Yield the text of a file, or the top-level statements of a module."""
    if path.suffix != ".py":
        yield path.read_text("utf-8")
        return
    tree = _WithoutOwnImports().visit(ast.parse(path.read_bytes()))
    for statement in tree.body:
        yield normalise(ast.Module([statement], []))


class _WithoutOwnImports(ast.NodeTransformer):
    """Removes imports of the suite's own modules, and module names as prefixes: `module.name` becomes `name`."""

    def __init__(self) -> None:
        self._modules: set[str] = set()

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        names = (node.module or "").split(".")
        if names[0] not in (*OWN, "__future__"):
            return node
        paths = {alias.asname or alias.name: ROOT.joinpath(*names, alias.name) for alias in node.names}
        self._modules |= {name for name, path in paths.items() if path.is_dir() or path.with_suffix(".py").is_file()}
        return ast.copy_location(ast.Pass(), node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        of_module = isinstance(node.value, ast.Name) and node.value.id in self._modules
        return ast.copy_location(ast.Name(node.attr, ast.Load()), node) if of_module else node


def commit(root: Path = ROOT) -> str:
    """Return the commit of a checkout, followed by "+" if tracked files differ from it.

    Outside of git it is the content of the file `COMMIT`, "" without one.
    """
    if (root / COMMIT).is_file():
        return one_line((root / COMMIT).read_text("utf-8", "replace").strip(), 64)
    if not (root / ".git").exists():
        return ""
    head, changed = _git(root, "rev-parse", "HEAD"), _git(root, "status", "--porcelain", "--untracked-files=no")
    return "" if not head or changed is None else f"{head}{'+' if changed else ''}"


def _git(root: Path, *arguments: str) -> str | None:
    """Return the output of git, None if it fails or is not installed."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=_GIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def series(adapter: str, framework: Framework, ways: Sequence[str] = ()) -> Series:
    """Return the series of this framework; records of one series can be compared.

    Its framework is the adapter's name, or the class that the user named instead. Its mode includes the ways of
    techniques that are not the default ones.
    """
    name = adapter.replace(":", ".") if ":" in adapter else framework.name
    kind = "cpu" if framework.device == "cpu" else framework.environment().get("device", framework.device)
    return Series(name, framework.device, kind, join_ways(framework.mode, ways))


def variant(framework: Framework) -> Variant:
    """Return the part of a record that may differ between comparable records: versions, settings and machine."""
    distribution = DISTRIBUTIONS.get(framework.name)
    origin = machine.origin(distribution.packages) if distribution else ""
    return Variant(
        framework.version(),
        machine.basics() | ({"install": origin} if origin else {}) | framework.environment(),
        machine.packages(),
        machine.variables(),
        machine.instruction_sets(),
    )


def name_of(its_series: Series, version: str) -> str:
    """Return FRAMEWORK-VERSION-DEVICE-MODE, the name of a record's file without its suffix."""
    return "-".join((its_series.framework, version, its_series.device, its_series.mode))
