"""Commands start a new adapter, which loads, offers nothing, and is judged as such, and a training loop."""

import sys
from pathlib import Path

import pytest

from conformance.cli import main
from conformance.test_ids.inventory import SUITES
from results.record.model import Outcome
from results.record.reading import load
from tests.support.own_loops import SOURCE
from tests.support.suite_runs import TIMEOUTS, called, refused, run


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a new adapter, my_own."""
    folder = tmp_path_factory.mktemp("new") / "package"
    ended = called("new", "adapter", "--name", "my_own", folder)
    assert ended.status == 0, ended.lines
    assert ended.lines[-2].endswith(
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
def test_run_of_the_new_adapter_is_offered_nothing(
    suites: str, status: str, tests: int, outcomes: set[Outcome], adapter: Path, tmp_path: Path
) -> None:
    path = tmp_path / "record.json"
    words = ["--framework=my_own_conformance.adapter:MyOwnAdapter", f"--record={path}", SUITES / suites]
    ended = run([sys.executable, "-m", "pytest", "-q", *TIMEOUTS, *map(str, words)], PYTHONPATH=str(adapter))
    assert ended.status == 0, ended.lines
    record = load(path)
    assert (record.series.framework, record.status) == ("my_own_conformance.adapter.MyOwnAdapter", status)
    assert len(record.verdicts) > tests
    others = {verdict.clause for verdict in record.verdicts if verdict.outcome is not Outcome.NOT_OFFERED}
    assert others <= {"composition.coverage", "autocast.settings-restored", "cost.adapter-overhead"}
    assert {verdict.outcome for verdict in record.verdicts} == outcomes


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("torch", "adapter 'torch' exists already"),
        ("My", "name of an adapter: got"),
        ("a-b", "name of an adapter: got"),
        ("class", "name of an adapter: got"),
        ("../x", "name of an adapter: got"),
        ("", "name of an adapter: got"),
    ],
)
def test_new_adapter_of_a_wrong_name_is_refused(
    name: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert problem in refused(capsys, "new", "adapter", "--name", name, str(tmp_path / "x"))
    assert not (tmp_path / "x").exists()


def test_new_adapter_without_a_name_takes_that_of_the_folder(
    adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "adapter", str(tmp_path / "my_own")]) == 0
    assert main(["new", "adapter", "--name", "my_own", str(tmp_path / "other")]) == 0
    assert "run my_own_conformance.adapter:MyOwnAdapter" in capsys.readouterr().out
    for folder in (tmp_path / "my_own", tmp_path / "other"):
        same = (each.relative_to(adapter) for each in adapter.rglob("*") if each.suffix in (".py", ".toml"))
        assert all((folder / path).read_bytes() == (adapter / path).read_bytes() for path in same)
    assert main(["new", "adapter", str(tmp_path / "not-a-name")]) == 2
    assert "name of an adapter: got 'not-a-name'" in capsys.readouterr().err


def test_new_loop_writes_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "loop", str(tmp_path / "mine")]) == 0
    path = tmp_path / "mine" / "my_training.py"
    wrote, hint = capsys.readouterr().out.splitlines()
    assert wrote == f"wrote {path}"
    assert hint == f"judge it: cd {path.parent} && python -m conformance run my_training:Loop --tests quick"
    assert path.read_text("utf-8") == SOURCE
    for folder in (path.parent, path):
        assert main(["new", "loop", str(folder)]) == 2
        assert "exists already; choose another folder" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["loop", "adapter"])
def test_new_in_a_folder_that_is_not_new_is_refused(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes").touch()
    for folder, message in (
        (tmp_path, f"{tmp_path} is not empty; choose a new folder"),
        (tmp_path / "x" / "y", f"{tmp_path / 'x'} is not a folder; create it, or check the name"),
    ):
        assert message in refused(capsys, "new", kind, str(folder), *(["--name", "mine"] if kind == "adapter" else []))
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_new_adapter_in_a_link_to_itself_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "loop").symlink_to("loop")
    line = refused(capfd, "new", "adapter", str(tmp_path / "loop"))
    assert line == f"conformance: {tmp_path / 'loop'}: file exists; choose another place"
