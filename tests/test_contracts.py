"""The contracts on imports in pyproject.toml hold, and an import in the wrong direction or a circle breaks them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.support import ROOT, Ended, run

PACKAGES = ("fixtures", "frameworks", "results", "conformance", "benchmarks", "tests")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "cache", "records", "baselines", "upgrades", "scenarios")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of every package and of the contracts."""
    folder = tmp_path_factory.mktemp("sources")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=_LEFT_OUT)
    shutil.copytree(ROOT / "conformance" / "scenarios", folder / "conformance" / "scenarios")
    shutil.copy(ROOT / "pyproject.toml", folder / "pyproject.toml")
    return folder


def lint(folder: Path, *words: str) -> Ended:
    """import-linter's verdict on a checkout."""
    program = "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()"
    return run([sys.executable, "-c", program, "--no-cache", "--no-logo", *words], folder, PYTHONPATH=str(folder))


def test_the_contracts_hold(sources: Path) -> None:
    ended = lint(sources)
    assert ended.status == 0, ended.output
    assert "0 broken" in ended.output


@pytest.mark.parametrize(
    ("contract", "module", "line", "named"),
    [
        ("packages", "frameworks/base/window.py", "import conformance.spec.clauses", "conformance.spec.clauses"),
        ("packages", "results/record/files.py", "import frameworks.registry", "frameworks.registry"),
        ("results", "results/record/files.py", "import fixtures.arrays", "fixtures.arrays"),
        ("conformance-rooms", "conformance/spec/clauses.py", "import conformance.judging.kit", "conformance.judging"),
        ("conformance-rooms", "conformance/oracle/bound.py", "import conformance.running.runs", "conformance.running"),
        ("results-rooms", "results/record/files.py", "import results.show.titles", "results.show"),
        ("adapters", "frameworks/torch/arrays.py", "import frameworks.jax.arrays", "frameworks.jax"),
        ("circles", "fixtures/layers.py", "import fixtures.model", "allowed in fixtures"),
        (
            "circles",
            "frameworks/torch/arrays.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import frameworks.torch.trainer",
            "frameworks.torch",
        ),
    ],
)
def test_an_import_in_the_wrong_direction_breaks_its_contract(
    sources: Path, contract: str, module: str, line: str, named: str
) -> None:
    path = sources / module
    before = path.read_text("utf-8")
    path.write_text(f"{before}\n{line}\n", encoding="utf-8")
    try:
        ended = lint(sources, "--contract", contract)
    finally:
        path.write_text(before, encoding="utf-8")
    assert ended.status == 1, ended.output
    assert named in ended.output
