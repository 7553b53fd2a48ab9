"""An adapter that lives in a package of its own, the one of docs/adapters.md, does all that a built-in one does."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest

from conformance.runner import plugin
from conformance.runner.identity import suite_version
from conformance.runner.subprocesses import VARIABLES
from frameworks import registry
from results.record.reading import Outcome, load
from tests.support.suite_runs import ROOT, TIMEOUTS, WORKERS, Ended, clauses_of, run

FLOOR = "scaling.stays-positive"
FLOOR_ENTRY, FINITE_ENTRY = (
    f'clause = "{clause}"\nversions = "==1.0"\ncases = ["{test}"]'
    for clause, test in (
        (FLOOR, "test_scale_stays_positive_after_many_backoffs"),
        ("scaling.stays-finite", "test_scale_stays_finite_after_many_growths"),
    )
)
PART = ("conformance/suites/scaling/test_scaling.py", "-k", "stays or static or defaults")


def documented() -> dict[str, str]:
    """The files of the package as the documentation shows them, by their names."""
    text = (
        (ROOT / "docs" / "adapters.md").read_text("utf-8").partition("## An adapter of your own in its own package")[2]
    )
    return dict(re.findall(r"`([\w/.]+)`[^`]*:\n\n```\w+\n(.*?)```", text, re.DOTALL))


def install(sources: dict[str, str], folder: Path) -> Path:
    """Installs a package with these files into an empty folder beside its sources, and returns that folder."""
    for name, content in sources.items():
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "source" / name).write_text(content, encoding="utf-8")
    words = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    target = folder / "installed"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *words, "--target", target, folder / "source"], check=True, timeout=100
    )
    return target


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("setuptools", minversion="70.1")
    return install({**documented(), "my_package/__init__.py": ""}, tmp_path_factory.mktemp("elsewhere"))


def judged(package: Path, record: Path) -> Ended:
    """The documented adapter judged by a part of the suites."""
    words = [*WORKERS, *TIMEOUTS, "--framework=mine", *PART, f"--record={record}"]
    return run([sys.executable, "-m", "pytest", "-q", *words], PYTHONPATH=str(package), **VARIABLES)


def conformance(package: Path, *words: str | Path) -> Ended:
    return run([sys.executable, "-m", "conformance", *map(str, words)], PYTHONPATH=str(package))


@pytest.fixture(scope="module")
def record(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The record of `conformance run`."""
    path = tmp_path_factory.mktemp("records") / "mine.json"
    words = ["run", "mine", "--", *PART, "--numprocesses=0", f"--record={path}"]
    ended = run(
        [sys.executable, "-m", "conformance", *words],
        PYTHONPATH=str(package),
        PYTEST_ADDOPTS="-p xdist.plugin -p pytest_timeout",
        **VARIABLES,
    )
    assert ended.status == 0, ended.lines
    return path


def test_the_documented_package_is_whole() -> None:
    assert set(documented()) == {"pyproject.toml", "my_package/adapter.py", "my_package/expectations.toml"}


def test_it_is_judged_and_its_own_expectation_is_met(record: Path) -> None:
    result = load(record)
    assert (result.series.framework, result.variant.framework_version, result.status) == ("mine", "1.0", "partial")
    assert clauses_of(result, {Outcome.KNOWN}) == {FLOOR}
    assert clauses_of(result, set(Outcome) - {Outcome.KNOWN, Outcome.PASS}) == set()
    assert len(clauses_of(result, {Outcome.PASS})) >= 3


def test_a_built_in_name_stands_whoever_lays_claim_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    claims = (
        ("torch", "z:T"),
        ("torch", registry.built_in()["torch"]),
        ("mine", "b:M"),
        ("mine", "a:M"),
        ("mine", "a:M"),
    )
    points = [EntryPoint(name, path, registry.GROUP) for name, path in claims]
    monkeypatch.setattr(registry, "_installed_points", lambda: sorted(points, key=lambda point: point.value))
    known = registry.known()
    assert (known["torch"], known["mine"]) == (registry.built_in()["torch"], "a:M")
    warning = "mine: adapter b:M is ignored, because a:M has the same name; rename one of them"
    assert registry.clashes("mine") == [warning]
    assert [line.split(":")[0] for line in registry.clashes()] == ["mine", "torch"]
    judging = SimpleNamespace(option=SimpleNamespace(framework="mine"), stash={plugin._FRAMEWORK: None})
    assert plugin.pytest_report_header(judging) == [warning]
    judging.stash.clear()
    assert plugin.pytest_report_header(judging) == [], "the suite's own tests judge nobody"


def test_an_adapter_that_breaks_on_import_ends_a_run_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "awkward.py").write_text("import json\njson.loads('')", encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-q", "--framework=awkward:Crooked", *PART]
    ended = run(words, PYTHONPATH=str(tmp_path))
    assert ended.status == 2
    assert len(ended.lines) == 1, ended.lines
    assert "framework 'awkward:Crooked' cannot be imported (JSONDecodeError: " in ended.lines[0]


def test_two_of_its_records_are_compared(package: Path, record: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.json"
    assert judged(package, again).status == 0
    ended = conformance(package, "compare", record, again)
    assert ended.status == 0, ended.lines
    pattern = r"mine emulated cpu: 1\.0 → 1\.0: identical \((\d+) of \1 tests compared, those of conformance/"
    assert re.match(pattern, ended.output)


def test_it_has_a_column_in_the_report(package: Path, record: Path, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    page = tmp_path / "page.html"
    baseline = ROOT / "results" / "baselines" / "reference-1-cpu-emulated.json.gz"
    assert conformance(package, "report", record, baseline, "--output", page).status == 0
    text = page.read_text("utf-8")
    for column in ("mine 1.0 emulated cpu", "reference 1 emulated cpu"):
        assert column in text


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        (("scale-zero", "another"), 1, "want 'another' for scaling.stays-positive on mine ==1.0"),
        (("==1.0", "==2.0"), 1, "[fail]"),
        ((FLOOR_ENTRY, FINITE_ENTRY), 1, "remove the entry from my_package/expectations.toml"),
        ((FLOOR, "scaling.nothing"), 2, "expectations.toml: expectation 1 (scaling.nothing): unknown clause"),
    ],
)
def test_an_expectation_of_its_own_is_held_to_what_it_says(
    change: tuple[str, str], status: int, message: str, package: Path, tmp_path: Path
) -> None:
    copied = shutil.copytree(package, tmp_path / "copied")
    path = copied / "my_package" / "expectations.toml"
    path.write_text(path.read_text("utf-8").replace(*change), encoding="utf-8")
    ended = judged(copied, tmp_path / "x.json")
    assert ended.status == status, ended.lines
    assert message in "\n".join(ended.lines)


def test_the_suites_version_is_that_of_its_checkout() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert suite_version() == project["project"]["version"]
