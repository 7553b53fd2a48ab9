"""Installing a framework: one line where it cannot be done, no call of pip where nothing is to do."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from frameworks import install
from tests.support import run


@dataclass
class Pip:
    """Takes the place of `subprocess.run`: notes the calls, and answers as pip would."""

    status: int = 0
    errors: str = ""
    calls: list[list[str]] = field(default_factory=list)

    def __call__(self, words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        self.calls.append(words)
        return subprocess.CompletedProcess(words, self.status, "", self.errors)

    @property
    def requirements(self) -> list[str]:
        """What the only call asked for."""
        (words,) = self.calls
        assert words[:4] == [sys.executable, "-m", "pip", "install"]
        return [word for word in words[4:] if not word.startswith("-")]


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> Pip:
    """A machine without GPU and without any framework."""
    made = Pip()
    for distribution in install.DISTRIBUTIONS.values():
        monkeypatch.delenv(distribution.variable, raising=False)
    monkeypatch.setattr(install, "gpu_present", lambda: False)
    monkeypatch.setattr(install, "installed", {}.get)
    monkeypatch.setattr(subprocess, "run", made)
    return made


@pytest.mark.parametrize("arguments", [[], ["nowhere"], ["torch", "tf"], ["--help"]])
def test_wrong_usage_is_one_line(pip: Pip, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert install.main(arguments) == 2
    assert capsys.readouterr().err == "usage: python -m frameworks.install {torch,tf,paddle,jax}\n"
    assert not pip.calls


@pytest.mark.parametrize("version", ["latest", ">=2", "2.1; rm", "-r x", "2.1 ", "../x", "2.13.0\n"])
def test_what_is_no_version_is_refused(
    pip: Pip, version: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCH_VERSION", version)
    assert install.main(["torch"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"TORCH_VERSION={version!r} is not a version; write one such as 2.13.0"
    assert not pip.calls


@pytest.mark.parametrize(
    ("framework", "requirements"),
    [
        ("torch", ["torch==2.13.0"]),
        ("tf", ["tensorflow-cpu==2.21.0"]),
        ("paddle", ["paddlepaddle==3.3.1", "numpy<2.4", "setuptools"]),
        ("jax", ["jax==0.10.2", "flax==0.12.8", "optax==0.2.8", "jmp==0.0.4", "orbax-checkpoint==0.12.8"]),
    ],
)
def test_the_pinned_version_is_asked_for(pip: Pip, framework: str, requirements: list[str]) -> None:
    assert install.main([framework]) == 0
    assert pip.requirements == requirements


def test_the_environment_overrides_the_pinned_version(pip: Pip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADDLE_VERSION", "3.0.0rc1")
    assert install.main(["paddle"]) == 0
    assert pip.requirements == ["paddlepaddle==3.0.0rc1", "numpy<2.4", "setuptools"]


def test_an_empty_variable_asks_for_nothing(pip: Pip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_VERSION", "")
    assert install.main(["torch"]) == 0
    assert pip.requirements == ["torch==2.13.0"]


@pytest.mark.parametrize("wanted", ["2.13.0", "2.13.0+cpu"])
def test_what_is_installed_is_left_alone(pip: Pip, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_VERSION", wanted)
    monkeypatch.setattr(install, "installed", {"torch": "2.13.0"}.get)
    assert install.main(["torch"]) == 0
    assert not pip.calls


def test_another_version_is_replaced(pip: Pip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "installed", {"torch": "2.12.1"}.get)
    assert install.main(["torch"]) == 0
    assert pip.requirements == ["torch==2.13.0"]


def test_installed_versions_are_read_without_label_and_extras() -> None:
    assert install.installed("pytest") == pytest.__version__
    assert install.installed("pytest[dev]") == pytest.__version__
    assert install.installed("no-such-distribution") is None


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        (
            "WARNING: x\nERROR: No matching distribution found for torch==99\n",
            "No matching distribution found for torch==99",
        ),
        ("", "pip gave no reason"),
    ],
)
def test_a_version_that_pip_cannot_find_is_one_line(
    pip: Pip, errors: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCH_VERSION", "99")
    pip.status, pip.errors = 1, errors
    assert install.main(["torch"]) == 2
    assert capsys.readouterr().err == f"torch 99 cannot be installed ({told}); set TORCH_VERSION to another version\n"


def test_pip_itself_cannot_find_it() -> None:
    ended = run([sys.executable, "-m", "frameworks.install", "tf"], TF_VERSION="0.0.99", PIP_NO_INDEX="1")
    assert (ended.status, len(ended.lines)) == (2, 1), ended.lines
    assert "0.0.99 cannot be installed" in ended.lines[0]
    assert "TF_VERSION" in ended.lines[0]


# ---------------------------------------------------------------- GPU


@pytest.mark.parametrize(
    ("script", "present"),
    [("#!/bin/sh\necho 'GPU 0: NVIDIA'\n", True), ("#!/bin/sh\nexit 9\n", False), (None, False)],
    ids=["driver", "no-driver", "no-command"],
)
def test_a_gpu_is_there_if_the_driver_answers(
    script: str | None, present: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if script is not None:
        (tmp_path / "nvidia-smi").write_text(script)
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert install.gpu_present() is present


@pytest.mark.parametrize(
    ("framework", "package"),
    [("torch", "torch"), ("tf", "tensorflow[and-cuda]"), ("paddle", "paddlepaddle-gpu"), ("jax", "jax[cuda12]")],
)
def test_a_gpu_chooses_the_build(pip: Pip, framework: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "gpu_present", lambda: True)
    assert install.main([framework]) == 0
    assert pip.requirements[0] == f"{package}=={install.DISTRIBUTIONS[framework].pinned}"


def test_numpy_stays_below_what_paddle_breaks_on_even_if_paddle_is_there(
    pip: Pip, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "installed", {"paddlepaddle": "3.3.1", "numpy": "2.4.0"}.get)
    assert install.main(["paddle"]) == 0
    assert "numpy<2.4" in pip.requirements
