"""What DeepSpeed's ranks need is made ready once, before any test, whoever was killed in the middle of it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from frameworks.torch.distributed import deepspeed_start

FOLDER = "deepspeed_shm_comm"


class Builds:
    """Stands for the compiler: counts its runs, and leaves what a build leaves unless it is told to fail."""

    def __init__(self, root: Path) -> None:
        self.count = 0
        self.failure: Exception | None = None
        self._root = root

    def run(self, *args: Any, **kwargs: Any) -> None:
        self.count += 1
        if self.failure is not None:
            raise self.failure
        folder = self._root / FOLDER
        folder.mkdir(exist_ok=True)
        (folder / f"{FOLDER}.so").touch()


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Builds:
    made = Builds(tmp_path)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(deepspeed_start, "version", {"deepspeed": "1.0", "torch": "1.0"}.get)
    monkeypatch.setattr(subprocess, "run", made.run)
    return made


def test_the_operation_is_compiled_once(builds: Builds) -> None:
    deepspeed_start._prepare()
    deepspeed_start._prepare()
    assert builds.count == 1


def test_another_version_compiles_anew(builds: Builds, monkeypatch: pytest.MonkeyPatch) -> None:
    deepspeed_start._prepare()
    monkeypatch.setattr(deepspeed_start, "version", {"deepspeed": "1.1", "torch": "1.0"}.get)
    deepspeed_start._prepare()
    assert builds.count == 2


def test_the_lock_of_a_build_that_was_killed_is_removed(builds: Builds, tmp_path: Path) -> None:
    lock = tmp_path / FOLDER / "lock"
    lock.parent.mkdir()
    lock.touch()
    deepspeed_start._prepare()
    assert builds.count == 1
    assert not lock.exists()


@pytest.mark.parametrize(
    "failure",
    [
        subprocess.TimeoutExpired("build", deepspeed_start.BUILD_S),
        subprocess.CalledProcessError(1, "build", stderr="no compiler"),
        OSError("no processes left"),
    ],
    ids=["too-long", "fails", "does-not-start"],
)
def test_a_build_that_fails_is_reported_and_tried_again(builds: Builds, failure: Exception) -> None:
    builds.failure = failure
    with pytest.raises(RuntimeError, match="could not be compiled"):
        deepspeed_start._prepare()
    builds.failure = None
    deepspeed_start._prepare()
    assert builds.count == 2


def test_where_deepspeed_is_missing_its_ranks_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepspeed_start, "installed", lambda: False)
    deepspeed_start.problem.cache_clear()
    try:
        with pytest.raises(RuntimeError, match=r"pip install --no-build-isolation --group deepspeed"):
            deepspeed_start.require()
    finally:
        deepspeed_start.problem.cache_clear()
