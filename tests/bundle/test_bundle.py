"""`conformance bundle`: what goes into the file, on which Python, what is refused, and that it runs from there."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import stat
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from conformance.bundle import packing, wheels
from conformance.bundle.target import Target, parsed
from conformance.bundle.wheels import closure, named
from conformance.cli import main
from conformance.runner.identity import commit
from frameworks.installer import locks
from frameworks.installer.distributions import DISTRIBUTIONS
from tests.support.suite_runs import ROOT, environment
from tests.support.wheels import write_wheel

PYTHON = ".".join(platform.python_version_tuple()[:2])
SUITE = """import json, os, pathlib, sys
words = sys.argv[1:]
place = next(word.partition("=")[2] for word in words if word.startswith("--record="))
import helper
pathlib.Path(place).write_text(json.dumps([words, helper.WORD]))
sys.exit(int(os.environ.get("STATUS", 0)))
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small checkout, in whose place the suite's is, with wheels in a folder as the only index."""
    root, folder = tmp_path / "checkout", tmp_path / "index"
    (root / "conformance").mkdir(parents=True)
    folder.mkdir()
    (root / "conformance" / "__main__.py").write_text(SUITE)
    (root / "run").write_text("#!/bin/sh\n")
    (root / "run").chmod(0o755)
    (root / "link").symlink_to("run")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "all")):
        who = ("-c", "user.name=x", "-c", "user.email=x@y", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "-C", str(root), *who, *words], check=True)
    write_wheel(folder, "helper", "1.0", source="WORD = 'from a wheel'\n")
    write_wheel(folder, "torch", "2.13.0+cpu", requires=["helper", "sdk; platform_system == 'Windows'"])
    write_wheel(folder, "torch", "2.12.0", requires=["cuda-toolkit[cublas]==13.0.2"])
    for variable, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(packing, "ROOT", root)
    monkeypatch.setattr(wheels, "suite_requirements", lambda: ["helper"])
    monkeypatch.setattr("frameworks.installer.resolution.suite_requirements", lambda: ["helper"])
    monkeypatch.setattr(locks, "read", lambda *_: {"helper": "1.0"})
    monkeypatch.setitem(DISTRIBUTIONS, "torch", replace(DISTRIBUTIONS["torch"], cpu_index=""))
    monkeypatch.setattr("frameworks.installer.uv.program", lambda: None)
    monkeypatch.chdir(tmp_path)
    return root


def test_a_bundle_has_tracked_files_wheels_hashes_and_a_script(checkout: Path, tmp_path: Path) -> None:
    (checkout / "untracked").touch()
    assert main(["bundle", "torch==2.13.0"]) == 0
    stem = f"conformance-torch-2.13.0-py{PYTHON.replace('.', '')}-cpu"
    with tarfile.open(tmp_path / f"{stem}.tar") as archive:
        members = archive.getmembers()
        archive.extractall(tmp_path, filter="data")
    names = [member.name.removeprefix(f"{stem}/") for member in members]
    assert names == sorted(names)
    assert [*names] == [
        "SHA256SUMS",
        "bundle.json",
        "requirements.txt",
        "run.sh",
        "suite/COMMIT",
        "suite/conformance/__main__.py",
        "suite/link",
        "suite/run",
        "wheels/helper-1.0-py3-none-any.whl",
        "wheels/torch-2.13.0+cpu-py3-none-any.whl",
    ]
    assert {(member.mtime, member.uid, member.uname) for member in members} == {(packing.MTIME, 0, "")}
    assert [member.name for member in members if member.isfile() and member.mode == 0o755] == [
        f"{stem}/run.sh",
        f"{stem}/suite/run",
    ]
    folder = tmp_path / stem
    sums = dict(line.split("  ")[::-1] for line in (folder / "SHA256SUMS").read_text().splitlines())
    assert sums.keys() == {*names} - {"SHA256SUMS"}
    assert all(hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest for name, digest in sums.items())
    assert (folder / "requirements.txt").read_text() == "helper==1.0\ntorch==2.13.0+cpu\n"
    assert json.loads((folder / "bundle.json").read_text())["commit"] == commit(checkout) == commit(folder / "suite")


def test_it_is_the_same_file_each_time(checkout: Path, tmp_path: Path) -> None:
    for name in ("a.tar", "b.tar"):
        assert main(["bundle", "torch", "--output", name]) == 0
        (checkout / "run").touch()
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.usefixtures("checkout")
def test_what_is_no_regular_file_is_refused_and_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert main(["bundle", "reference", "--output", "pipe"]) == 2
    assert capsys.readouterr().err == "conformance: pipe: is not a regular file; name another file\n"
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@pytest.mark.slow
@pytest.mark.usefixtures("checkout")
def test_it_runs_without_a_network(tmp_path: Path) -> None:
    assert main(["bundle", "reference", "--output", "b.tar"]) == 0
    with tarfile.open(tmp_path / "b.tar") as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.glob("conformance-reference-*")

    def run(**changes: str) -> tuple[int, list[str]]:
        other = {"PYTHONPATH": str(ROOT), "PIP_FIND_LINKS": ""}
        variables = {**environment(), "PYTHON": sys.executable, **other, **changes}
        words = ["sh", str(folder / "run.sh"), "-k", "a or b"]
        done = subprocess.run(words, env=variables, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr.splitlines()

    assert run() == (0, [])
    record = folder / "records" / "reference-default.json"
    words = ["run", "reference", f"--record={record}", "-k", "a or b"]
    assert json.loads(record.read_text()) == [words, "from a wheel"]
    assert run(STATUS="1", MODES="x y") == (1, [])
    assert (folder / "records" / "reference-y.json").is_file()
    assert run(PYTHON="no-python") == (2, [f"run.sh: no-python is not there; set PYTHON to a Python {PYTHON}"])
    (folder / "suite" / "run").write_text("damaged")
    status, errors = run()
    assert (status, errors[-1]) == (2, "run.sh: a file is damaged; unpack the bundle again")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["torch==9.9"], "no wheel for Python"),
        (["torch==2.13.0", "--cuda", "13.0"], "is the build for the CPU, and --cuda is 13.0; set TORCH_INDEX"),
        (["torch==2.12.0"], "torch-2.12.0-py3-none-any.whl is for CUDA 13.0; ask for it by --cuda 13.0, or set"),
        (["torch==2.13.0", "--cuda", "11.0"], "the driver runs CUDA 11.0, and the oldest wheel wants 12.6"),
        (["torch==2x"], "'torch==2x' names no version; write one such as torch==2.13.0"),
        (["reference==1"], "reference is part of the suite and has no other version; write reference alone"),
        (["nowhere"], "no built-in framework 'nowhere'"),
        (["torch", "--python", "3"], "--python: got '3', want a version such as 3.12"),
        (["reference", "--output", "missing/b.tar"], "missing/b.tar: cannot be written"),
    ],
)
@pytest.mark.usefixtures("checkout")
def test_what_cannot_be_packed_is_one_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bundle", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert [*tmp_path.glob("*.tar"), *tmp_path.glob(".bundle*")] == []


def test_changed_files_are_packed_only_on_request(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "run").write_text("changed")
    assert main(["bundle", "reference", "--output", "b.tar"]) == 2
    assert "has changed files; commit them, or pack them as they are with --dirty" in capsys.readouterr().err
    assert main(["bundle", "reference", "--output", "b.tar", "--dirty"]) == 0
    with tarfile.open(tmp_path / "b.tar") as archive:
        (name,) = [name for name in archive.getnames() if name.endswith("suite/COMMIT")]
        content = archive.extractfile(name)
        assert content is not None
        assert content.read().endswith(b"+\n")
    shutil.rmtree(checkout / ".git")
    assert main(["bundle", "reference"]) == 2
    assert "is no checkout of git" in capsys.readouterr().err


def test_markers_are_those_of_the_target(tmp_path: Path) -> None:
    requires = [
        "new; python_version >= '3.12'",
        "old; python_version < '3.12'",
        "more; extra == 'x'",
        "dos; os_name == 'nt'",
    ]
    write_wheel(tmp_path, "a", "1.0", requires=requires)
    for name in ("new", "old", "more", "unused"):
        write_wheel(tmp_path, name, "1.0")
    result = named(tmp_path.glob("*.whl"))
    for python, names in {"3.11": {"a", "old"}, "3.12": {"a", "new"}}.items():
        needed, lacking = closure([Requirement("a>=1")], result, Target(python).markers())
        assert (needed.keys(), lacking) == (names, [])
    assert closure([Requirement("a[x]")], result, Target("3.12").markers())[0].keys() == {"a", "new", "more"}
    _, lacking = closure([Requirement("a>=2"), Requirement("b")], result, Target("3.12").markers())
    assert sorted(map(str, lacking)) == ["a>=2", "b"]


def test_the_name_and_the_version_are_parted() -> None:
    assert (parsed("torch"), parsed("torch==2.13.0")) == (("torch", ""), ("torch", "2.13.0"))
