"""An adapter is one folder and one entry: what the suite has to know of it stands in its own folder."""

import tomllib
from pathlib import Path

import pytest

from conformance.cli import main
from conformance.runner import jobs
from conformance.runner.identity import suite_version
from frameworks.adapter_file import FILE, AdapterFile, adapter_file
from frameworks.contract import Capability
from frameworks.installer import locks
from frameworks.installer.distributions import DISTRIBUTIONS, read_distribution
from frameworks.registry import GROUP, UnknownFramework, built_in
from tests.support.suite_runs import ROOT, refused

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an adapter's module, `other_adapter:Other`, that nobody imports."""
    (tmp_path / "other_adapter.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    adapter_file.cache_clear()
    return tmp_path


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """The arguments of every job that a command starts; none of them runs."""
    given: list[tuple[object, ...]] = []
    monkeypatch.setattr(jobs, "job", lambda *words: given.append(words) or 0)
    monkeypatch.delenv("CONFORMANCE_MODES", raising=False)
    return given


def test_built_in_adapters_are_the_entry_points() -> None:
    assert built_in() == PROJECT["project"]["entry-points"][GROUP]
    assert list(built_in()) == ["reference", "torch", "tf", "paddle", "jax"]
    assert suite_version() == PROJECT["project"]["version"]


@pytest.mark.parametrize("name", [name for name in built_in() if name != "reference"])
def test_a_built_in_adapter_is_complete(name: str) -> None:
    folder = ROOT / "frameworks" / name
    assert built_in()[name].startswith(f"frameworks.{name}:")
    assert {FILE, "native_loop.py", "findings.toml", "expected", "findings"} <= {path.name for path in folder.iterdir()}
    assert adapter_file(name).imports
    assert all(map(Capability, (word for each in adapter_file(name).absent for word in each.capabilities)))
    assert DISTRIBUTIONS[name].pinned in locks.examples(name).values()
    assert f"[testenv:{name}]" in (ROOT / "tox.ini").read_text("utf-8")
    contracts = {contract["id"]: contract for contract in PROJECT["tool"]["importlinter"]["contracts"]}
    assert f"frameworks.{name}" in contracts["adapters"]["modules"]
    assert f"frameworks.{name}.*" in PROJECT["tool"]["mypy"]["overrides"][0]["module"]


def test_run_without_a_mode_takes_those_of_the_adapter_file(judged: list[tuple[object, ...]]) -> None:
    assert [main(["run", name]) for name in ("paddle", "torch", "reference")] == [0, 0, 0]
    assert [(name, modes) for name, modes, *_ in judged] == [
        ("paddle", ["dygraph", "static", "dygraph-forced-scaler"]),
        ("torch", [""]),
        ("reference", [""]),
    ]
    assert [adapter_file(name).serial for name in ("paddle", "torch", "reference")] == [("static",), (), ()]
    assert main(["run", "reference", "--mode", "emulated,ranks,emulated"]) == 0
    assert judged[-1][1] == ["emulated", "ranks"]


def test_adapter_file_of_an_outside_adapter_is_read_without_its_import(
    stranger: Path, judged: list[tuple[object, ...]]
) -> None:
    for path in ("other_adapter:Other", "no_such_module:Other", "no_such_package.module:Other"):
        assert adapter_file(path) == AdapterFile()
    adapter_file.cache_clear()
    (stranger / FILE).write_text('modes = ["a", "b"]\nserial = ["b"]\n', encoding="utf-8")
    assert adapter_file("other_adapter:Other") == AdapterFile(modes=("a", "b"), serial=("b",))
    assert main(["run", "other_adapter:Other"]) == 0
    assert judged[0][:2] == ("other_adapter:Other", ["a", "b"])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("modes = [", "Invalid value"),
        ('modes = "a"', "modes: want a list of names"),
        ("serial = [1]", "serial: want a list of names"),
        ("mode = []", "unexpected keyword argument 'mode'"),
        ('[[absent]]\ncapabilities = ["a"]', "absent: reason: want one sentence"),
        ('[[absent]]\nreason = "b"\ncapabilities = "a"', "absent: capabilities: want a list of names"),
        ('[[absent]]\nreason = "b"\ncapabilities = ["a"]\nplaces = ["c"]', "absent: want words or names"),
        ("\udcff", "can't decode"),
    ],
)
def test_run_with_a_wrong_adapter_file_is_refused(
    stranger: Path, text: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (stranger / FILE).write_bytes(text.encode("utf-8", "surrogateescape"))
    line = refused(capsys, "run", "other_adapter:Other")
    assert problem in line
    assert str(stranger / FILE) in line


@pytest.mark.parametrize(
    "table", ['pin = "1"', 'pinned = "1"', 'pinned = "1"\ncpu = "a"\ngpu = "a"\nwheels = [{ version = "1" }]']
)
def test_a_distribution_of_other_keys_is_refused(stranger: Path, table: str) -> None:
    (stranger / FILE).write_text(f"[distribution]\n{table}\n", encoding="utf-8")
    with pytest.raises(UnknownFramework, match="argument"):
        read_distribution("other_adapter:Other")
