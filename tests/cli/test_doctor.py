"""`conformance doctor` says whether a run can work here, and names the step that fails."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.cli import main
from tests.support.suite_runs import run

TOY = "toy_adapter:Toy"
ADAPTER = """
import os, signal, time
from frameworks.reference import ReferenceFramework
from frameworks.reference.training.trainer import ReferenceTrainer

WHAT = os.environ.get("TOY_BREAKS", "")
print("a framework that talks")
if WHAT == "crash":
    os.kill(os.getpid(), signal.SIGSEGV)
if WHAT == "hang":
    time.sleep(600)

class ToyTrainer(ReferenceTrainer):
    def predict(self, inputs):
        if WHAT == "error":
            raise RuntimeError("toy: out of memory")
        return super().predict(inputs)

    def gradients(self, window):
        return {name: array * (2 if WHAT == "wrong" else 1) for name, array in super().gradients(window).items()}

class Toy(ReferenceFramework):
    trainer_class = ToyTrainer
"""
SMI = "#!/bin/sh\necho '| NVIDIA-SMI 580.1  Driver Version: 580.1  CUDA Version: 13.0 |'\n"

Doctor = Callable[..., tuple[int, str, dict[str, tuple[str, str]]]]


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Runs the command where a toy adapter can be imported: status, conclusion, and state and text by step."""
    (tmp_path / "toy_adapter.py").write_text(ADAPTER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def call(*words: str) -> tuple[int, str, dict[str, tuple[str, str]]]:
        status = main(["doctor", *words, "--format", "json"])
        document = json.loads(capsys.readouterr().out)
        assert document["status"] == status
        steps = {step["name"]: (step["state"], step["text"]) for step in document["steps"]}
        return status, document["conclusion"], steps

    return call


def write_program(folder: Path, text: str) -> None:
    (folder / "nvidia-smi").write_text(text)
    (folder / "nvidia-smi").chmod(0o755)


def test_doctor_of_a_working_adapter_checks_every_step(doctor: Doctor, tmp_path: Path) -> None:
    write_program(tmp_path, SMI)
    status, conclusion, steps = doctor(TOY, "--device", "cpu")
    assert (status, conclusion) == (0, "a run can work here")
    assert {state for state, _ in steps.values()} == {"ok"}
    assert [*steps] == ["python", "requirements", "driver", "import", "multiply", "backward"]
    assert steps["driver"][1] == "Driver Version: 580.1, CUDA Version: 13.0"
    assert steps["import"][1].endswith("mode emulated on cpu")


@pytest.mark.parametrize(
    ("breaks", "step", "text"),
    [
        ("crash", "import", "its process crashed with SIGSEGV"),
        ("hang", "import", "its process did not end within 2 s"),
        ("error", "multiply", "RuntimeError: toy: out of memory"),
        ("wrong", "backward", "ValueError: gradients of '"),
    ],
)
def test_doctor_names_the_step_that_fails(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, breaks: str, step: str, text: str
) -> None:
    monkeypatch.setenv("TOY_BREAKS", breaks)
    status, conclusion, steps = doctor(TOY, *(["--limit", "2"] if breaks == "hang" else []))
    assert (status, [name for name, (state, _) in steps.items() if state == "failed"]) == (1, [step])
    assert [*steps][-1] == step
    assert steps[step][1].startswith(text)
    assert conclusion.startswith(f"a run cannot work here: {TOY} {step}: {text}")


@pytest.mark.parametrize(
    ("script", "device", "state", "text"),
    [
        (None, "auto", "ok", "no NVIDIA driver: nvidia-smi is not on PATH"),
        (None, "cuda", "failed", "no NVIDIA driver: nvidia-smi is not on PATH"),
        ("#!/bin/sh\necho 'NVIDIA-SMI has failed'; exit 9\n", "auto", "failed", "nvidia-smi: NVIDIA-SMI has failed"),
        ("#!/bin/sh\nexit 9\n", "cpu", "ok", "no version"),
    ],
)
def test_doctor_needs_a_driver_where_a_gpu_is_asked_for(
    doctor: Doctor, tmp_path: Path, script: str | None, device: str, state: str, text: str
) -> None:
    if script is not None:
        write_program(tmp_path, script)
    assert doctor("reference", "--device", device)[2]["driver"] == (state, text)


@pytest.mark.parametrize(
    ("version", "state", "text"),
    [
        ("2.13.0", "ok", "torch 2.13.0; "),
        ("2.1.0", "ok", "torch 2.1.0; the locked version is 2.13.0"),
        ("", "failed", "not installed"),
    ],
)
def test_doctor_compares_versions_with_the_lock(
    doctor: Doctor, tmp_path: Path, version: str, state: str, text: str
) -> None:
    if version:
        folder = tmp_path / f"torch-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    status, _, steps = doctor("torch")
    assert (status, steps["versions"][0]) == (1, state)
    assert steps["versions"][1].startswith(text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere",), "unknown framework 'nowhere'"),
        (("torch", "torch"), "a framework is named twice"),
        (("--limit", "0"), "0 is not in the range"),
    ],
)
def test_doctor_refuses_bad_usage(words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *words]) == 2
    out, errors = capsys.readouterr()
    assert (out, len(errors.splitlines())) == ("", 1)
    assert message in errors


def test_a_missing_requirement_of_the_command_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise ModuleNotFoundError(\"No module named 'click'\", name='click')\n")
    ended = run([sys.executable, "-m", "conformance", "doctor"], PYTHONPATH=str(tmp_path))
    assert ended.status == 2
    assert ended.lines == [
        "conformance: click is not installed; pip install -U pip, then pip install --group suite --group run"
    ]
