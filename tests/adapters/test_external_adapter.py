"""New adapters and loops that `conformance new` writes, and the package with an adapter of the documentation."""

import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from conformance.cli import main
from conformance.runner.subprocesses import VARIABLES
from conformance.test_ids.inventory import SUITES
from frameworks import registry
from results.record.reading import Outcome, load
from tests.support.own_loops import SOURCE
from tests.support.suite_runs import ROOT, TIMEOUTS, call_command, clauses_of, run, run_refused


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a new adapter, my_own."""
    folder = tmp_path_factory.mktemp("new") / "package"
    completed = call_command("new", "adapter", "--name", "my_own", folder)
    assert completed.status == 0, completed.lines
    assert completed.lines[-2].endswith(
        f"PYTHONPATH={folder} python -m conformance run my_own_conformance.adapter:MyOwnAdapter"
    )
    return folder


def test_new_adapter_writes_a_package_with_an_entry(adapter: Path) -> None:
    written = sorted(str(path.relative_to(adapter)) for path in adapter.rglob("*") if path.is_file())
    names = ("__init__.py", "adapter.py", "findings.toml")
    assert written == [*(f"my_own_conformance/{name}" for name in names), "pyproject.toml"]
    assert not [name for name in written if "emplate" in (adapter / name).read_text("utf-8")]
    project = (adapter / "pyproject.toml").read_text("utf-8")
    assert 'name = "my-own-conformance"' in project
    assert 'my_own = "my_own_conformance.adapter:MyOwnAdapter"' in project


@pytest.mark.parametrize(
    ("suites", "status", "tests", "outcomes"),
    [
        ("scaling/test_scaling.py", "partial", 20, {Outcome.NOT_OFFERED}),
        pytest.param("", "complete", 600, {Outcome.NOT_OFFERED, Outcome.PASS, Outcome.ABSTAIN}, marks=pytest.mark.slow),
    ],
    ids=["one-file", "all"],
)
def test_run_of_a_new_adapter_is_not_offered(
    suites: str, status: str, tests: int, outcomes: set[Outcome], adapter: Path, tmp_path: Path
) -> None:
    path = tmp_path / "record.json"
    arguments = ["--framework=my_own_conformance.adapter:MyOwnAdapter", f"--record={path}", SUITES / suites]
    completed = run([sys.executable, "-m", "pytest", "-q", *TIMEOUTS, *map(str, arguments)], PYTHONPATH=str(adapter))
    assert completed.status == 0, completed.lines
    record = load(path)
    assert (record.series.framework, record.status) == ("my_own_conformance.adapter.MyOwnAdapter", status)
    assert len(record.verdicts) > tests
    judged = {verdict.clause for verdict in record.verdicts if verdict.outcome is not Outcome.NOT_OFFERED}
    assert judged <= {"composition.coverage", "autocast.settings-restored", "cost.adapter-overhead"}
    assert {verdict.outcome for verdict in record.verdicts} == outcomes


@pytest.mark.parametrize("name", ["torch", "My", "a-b", "class", "../x", ""])
def test_new_adapter_of_a_wrong_name_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem = "adapter 'torch' exists already" if name == "torch" else "name of an adapter: got"
    assert problem in run_refused(capsys, "new", "adapter", "--name", name, str(tmp_path / "x"))
    assert not (tmp_path / "x").exists()


def test_new_adapter_without_a_name_takes_that_of_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "adapter", str(tmp_path / "my_own")]) == 0
    assert "run my_own_conformance.adapter:MyOwnAdapter" in capsys.readouterr().out
    assert "name of an adapter: got 'not-a-name'" in run_refused(capsys, "new", "adapter", str(tmp_path / "not-a-name"))


def test_new_loop_writes_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "loop", str(tmp_path / "mine")]) == 0
    path = tmp_path / "mine" / "my_training.py"
    report, hint = capsys.readouterr().out.splitlines()
    assert report == f"wrote {path}"
    assert hint == f"judge it: cd {path.parent} && python -m conformance run my_training:Loop --tests quick"
    assert path.read_text("utf-8") == SOURCE
    for folder in (path.parent, path):
        assert main(["new", "loop", str(folder)]) == 2
        assert "exists already; choose another folder" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["loop", "adapter"])
def test_new_in_a_folder_that_is_not_new_is_refused(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes").touch()
    (tmp_path / "loop").symlink_to("loop")
    for folder, message in (
        (tmp_path / "loop", f"{tmp_path / 'loop'}: file exists; choose another place"),
        (tmp_path, f"{tmp_path} is not empty; choose a new folder"),
        (tmp_path / "x" / "y", f"{tmp_path / 'x'} is not a folder; create it, or check the name"),
    ):
        options = ["--name", "mine"] if kind == "adapter" else []
        assert message in run_refused(capfd, "new", kind, str(folder), *options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loop", "notes"]


def read_documented_files() -> dict[str, str]:
    """The files of the package as the documentation shows them, by their names."""
    text = (ROOT / "docs" / "adapters.md").read_text("utf-8")
    part = text.partition("## An adapter of your own in its own package")[2]
    return dict(re.findall(r"`([\w/.-]+)`[^`]*:\n\n```\w+\n(.*?)```", part, re.DOTALL))


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the documented package is installed."""
    pytest.importorskip("setuptools", minversion="70.1")
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    for name, content in {**read_documented_files(), "my_package/__init__.py": ""}.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(content, encoding="utf-8")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    argv = [sys.executable, "-m", "pip", "install", *options, "--target", target, source]
    subprocess.run(argv, check=True, timeout=100)
    return target


def test_conformance_run_of_the_documented_package_meets_its_expectation(package: Path, tmp_path: Path) -> None:
    assert set(read_documented_files()) == {
        "pyproject.toml",
        "my_package/adapter.py",
        "my_package/findings.toml",
        "my_package/expected/mine-1.0-cpu-emulated.txt",
    }
    selection = ("conformance/suites/scaling/test_scaling.py", "-k", "stays or static or defaults")
    options = ("--numprocesses=0", f"--record={tmp_path / 'mine.json'}")
    completed = run(
        [sys.executable, "-m", "conformance", "run", "mine", "--", *selection, *options],
        PYTHONPATH=str(package),
        PYTEST_ADDOPTS="-p xdist.plugin -p pytest_timeout",
        **VARIABLES,
    )
    assert completed.status == 0, completed.lines
    result = load(tmp_path / "mine.json")
    assert (result.series.framework, result.variant.framework_version, result.status) == ("mine", "1.0", "partial")
    assert clauses_of(result, {Outcome.KNOWN}) == {"scaling.stays-positive"}
    assert clauses_of(result, set(Outcome) - {Outcome.KNOWN, Outcome.PASS}) == set()
    assert len(clauses_of(result, {Outcome.PASS})) >= 3


def test_find_adapters_of_one_name_takes_the_built_in_or_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [("torch", "z:T"), ("torch", registry.built_in()["torch"])]
    entries += [("mine", path) for path in ("b:M", "a:M", "a:M")]
    points = [EntryPoint(name, path, registry.GROUP) for name, path in entries]
    monkeypatch.setattr(registry, "_installed_points", lambda: sorted(points, key=lambda point: point.value))
    known = registry.find_adapters()
    assert (known["torch"], known["mine"]) == (registry.built_in()["torch"], "a:M")
    assert registry.clashes("mine") == [
        "mine: adapter b:M is ignored, because a:M has the same name; rename one of them"
    ]
    assert [line.split(":")[0] for line in registry.clashes()] == ["mine", "torch"]


def test_load_of_an_adapter_that_breaks_on_import_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "awkward.py").write_text("import json\njson.loads('')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        registry.UnknownFramework, match=r"'awkward:Crooked' cannot be imported \(JSONDecodeError: "
    ) as refusal:
        registry.load("awkward:Crooked")
    assert len(str(refusal.value).splitlines()) == 1
