"""`conformance doctor` names the step that fails: without a driver, with broken ones, with other builds and crashes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from importlib import invalidate_caches
from pathlib import Path

import pytest

from conformance.cli import main
from conformance.doctor.driver import examine
from conformance.doctor.wheels import Build, installed_build, mismatch
from frameworks.installer.distributions import DISTRIBUTIONS
from tests.support.nvidia import CRASH, first_on_paths, libcuda, write_library, write_program
from tests.support.suite_runs import run

TOY = "toy_adapter:Toy"
ADAPTER = """
from frameworks.reference import ReferenceFramework
class Toy(ReferenceFramework):
    def devices(self):
        return ("cpu", "cuda")
"""
PROGRAM = """
import os, signal, time
import numpy as np
WHAT, _, HOW = os.environ.get("TOY_BREAKS", "").partition(":")
def breaks(step):
    if step == WHAT:
        if HOW == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if HOW == "hang":
            time.sleep(600)
        raise RuntimeError("toy: out of memory")
breaks("import")
print("a framework that talks")
def version():
    return "1.0"
def gpus():
    breaks("device")
    return 0 if WHAT == "gpus" else 1
def product(device, left, right):
    breaks("compute" if device == "cpu" else "memory")
    if os.environ.get("TOY_LOCK") and device == "cuda":
        os.close(os.open(os.environ["TOY_LOCK"], os.O_CREAT | os.O_EXCL))
    return left @ right + (WHAT == "wrong" and device == "cuda")
def timed(device, left, right):
    breaks("timing")
    return 0.0 if WHAT == "time" else 1e-6
"""
SMI = "echo '| NVIDIA-SMI 580.1  Driver Version: 580.1  CUDA Version: 13.0 |'"


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A folder with an adapter whose `doctor.py` fails where TOY_BREAKS says."""
    (tmp_path / "toy_adapter.py").write_text(ADAPTER)
    (tmp_path / "doctor.py").write_text(PROGRAM)
    return tmp_path


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """A folder with a driver for CUDA 13.0 and one GPU."""
    folder = tmp_path / "driver"
    folder.mkdir()
    write_library(folder / "libcuda.so.1", libcuda())
    write_program(folder, SMI)
    return folder


Call = Callable[..., tuple[int, dict[str, tuple[str, str, str]]]]


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs the command with a folder on Python's path and with variables; status, and state, text, remedy by step."""

    def call(*words: str, folder: Path | None = None, **changes: str) -> tuple[int, dict[str, tuple[str, str, str]]]:
        if folder is not None:
            monkeypatch.syspath_prepend(folder)
            monkeypatch.setenv("PYTHONPATH", str(folder))
        for variable, value in changes.items():
            monkeypatch.setenv(variable, value)
        status = main(["doctor", *words, "--format", "json"])
        read = json.loads(capsys.readouterr().out)
        assert read["status"] == status
        return status, {each["name"]: (each["state"], each["text"], each["remedy"]) for each in read["steps"]}

    return call


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without NVIDIA's driver."""
    monkeypatch.setattr("conformance.doctor.driver.LIBRARY", "libcuda-of-nobody.so.1")
    monkeypatch.setenv("PATH", "/nowhere")


def failed(steps: Mapping[str, tuple[str, str, str]]) -> list[str]:
    """Names of the steps that failed."""
    return [name for name, (state, *_) in steps.items() if state == "failed"]


@pytest.mark.usefixtures("no_driver")
def test_without_a_gpu_its_steps_are_skipped(doctor: Call) -> None:
    status, result = doctor("reference")
    assert status == 0
    on_a_gpu = ("driver", "device", "memory", "timing", "two processes")
    assert {result[step][:2] for step in on_a_gpu} == {("skipped", "no NVIDIA driver")}
    assert result["adapter"] == ("ok", "mode emulated on cpu", "")


def test_a_cpu_alone_needs_no_driver(doctor: Call, driver: Path, toy: Path) -> None:
    write_library(driver / "libcuda.so.1", libcuda(status=999))
    status, result = doctor(TOY, "--device", "cpu", folder=toy, **first_on_paths(driver))
    assert (status, result["driver"][:2], result["memory"][:2]) == (0, *[("skipped", "of --device cpu")] * 2)
    assert result["compute"][0] == "ok"


@pytest.mark.usefixtures("no_driver")
def test_a_gpu_that_is_asked_for_needs_a_driver(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "reference", "--device", "cuda"]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if " failed " in line]
    assert line.startswith("machine    driver         failed  no NVIDIA driver: neither nvidia-smi nor libcuda")


@pytest.mark.parametrize(
    ("library", "text", "remedy"),
    [
        (None, "libcuda.so.1 cannot be loaded", "reinstall the driver"),
        (libcuda(status=803), "libcuda.so.1 cuInit returned 803", "of different versions"),
        (libcuda(status=999), "libcuda.so.1 cuInit returned 999", "reinstall the driver"),
        (libcuda(gpus=0), "libcuda.so.1 runs CUDA 13.0, 0 GPUs", "CUDA_VISIBLE_DEVICES"),
        (libcuda() | {"cuInit": CRASH}, "libcuda.so.1 crashed with SIGILL", "reinstall the driver"),
    ],
)
def test_a_broken_library_is_named(
    driver: Path, monkeypatch: pytest.MonkeyPatch, library: dict[str, bytes] | None, text: str, remedy: str
) -> None:
    if library is None:
        (driver / "libcuda.so.1").write_text("no library")
    else:
        write_library(driver / "libcuda.so.1", library)
    for variable, value in first_on_paths(driver).items():
        monkeypatch.setenv(variable, value)
    result = examine("auto")
    smi, library_step = result.steps
    assert (smi.state, library_step.state, result.problem) == ("ok", "failed", "step driver failed")
    assert library_step.text.startswith(text)
    assert remedy in library_step.remedy


def test_after_a_broken_driver_steps_on_a_gpu_are_skipped(doctor: Call, driver: Path) -> None:
    (driver / "libcuda.so.1").write_text("no library")
    status, result = doctor("reference", **first_on_paths(driver))
    assert (status, failed(result)) == (1, ["driver"])
    assert result["memory"] == ("skipped", "step driver failed", "")


def test_a_broken_nvidia_smi_is_named(doctor: Call, driver: Path) -> None:
    write_program(driver, "echo 'NVIDIA-SMI has failed'; exit 9")
    status, result = doctor("reference", **first_on_paths(driver))
    assert (status, failed(result)) == (1, ["nvidia-smi"])
    assert result["nvidia-smi"][1] == "ended with status 9: NVIDIA-SMI has failed"
    assert result["driver"][0] == "ok"


def test_on_a_gpu_every_step_is_made(doctor: Call, driver: Path, toy: Path) -> None:
    (driver / "nvidia-smi").unlink()
    status, result = doctor(TOY, "--device", "cuda", folder=toy, **first_on_paths(driver))
    assert status == 0
    assert result["nvidia-smi"][0] == "skipped"
    assert result.pop("import")[1].startswith("1.0 in ")
    assert [*result][2] == "nvidia-smi"
    assert [(step, text) for step, (_, text, _) in result.items()][3:] == [
        ("driver", "libcuda.so.1 runs CUDA 13.0, 1 GPU"),
        ("compute", "a product of 64 x 64 is right on cpu"),
        ("device", "1 GPU"),
        ("memory", "a product of 64 x 64 is right on cuda"),
        ("timing", "a product took 1 us"),
        ("two processes", "a second process multiplies on the same GPU"),
        ("adapter", "mode emulated on cuda"),
    ]


@pytest.mark.parametrize(
    ("breaks", "step", "text"),
    [
        ("import:crash", "import", "the process crashed with SIGSEGV"),
        ("import:hang", "import", "the process did not end within 2 s"),
        ("gpus", "device", "the framework sees no GPU"),
        ("memory:crash", "memory", "the process crashed with SIGSEGV"),
        ("memory:error", "memory", "RuntimeError: toy: out of memory"),
        ("wrong", "memory", "product of matrices: got "),
        ("time", "timing", "time of a product: got 0 s, want more than 0"),
    ],
)
def test_the_step_that_fails_is_named(doctor: Call, driver: Path, toy: Path, breaks: str, step: str, text: str) -> None:
    limit = ("--limit", "2") if breaks.endswith("hang") else ()
    status, result = doctor(TOY, *limit, folder=toy, TOY_BREAKS=breaks, **first_on_paths(driver))
    assert (status, failed(result)) == (1, [step])
    _, message, remedy = result[step]
    assert message.startswith(text)
    assert remedy
    assert result["adapter"] == ("skipped", f"step {step} failed", "")


def test_a_gpu_for_one_process_alone_is_named(doctor: Call, driver: Path, toy: Path, tmp_path: Path) -> None:
    lock = str(tmp_path / "lock")
    status, result = doctor(TOY, folder=toy, TOY_LOCK=lock, **first_on_paths(driver))
    assert (status, failed(result)) == (1, ["two processes"])
    assert result["two processes"][1].startswith("a second process, next to this one: FileExistsError")


@pytest.mark.parametrize(
    ("version", "requires", "runs", "message"),
    [
        ("2.13.0", "cuda-toolkit[cublas]==13.0.2", "12.4", "torch 2.13.0 is for CUDA 13.0, and the driver runs 12.4"),
        ("2.13.0+cu130", "", "12.4", "torch 2.13.0+cu130 is for CUDA 13.0, and the driver runs 12.4"),
        ("2.13.0+cu126", "", "12.4", ""),
        ("2.9.0", "nvidia-cudnn-cu12==9.1", "11.8", "torch 2.9.0 is for CUDA 12, and the driver runs 11.8"),
        ("2.9.0", "nvidia-cudnn-cu12==9.1", "13.0", ""),
        ("2.13.0+cpu", "", "13.0", "torch 2.13.0+cpu is a build for the CPU"),
        ("2.13.0", "nvidia-cudnn-cu12==9.1; sys_platform == 'nowhere'", "13.0", "torch 2.13.0 is a build for the CPU"),
    ],
)
def test_a_build_for_another_cuda_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, requires: str, runs: str, message: str
) -> None:
    _install(tmp_path, "torch", version, requires)
    monkeypatch.syspath_prepend(tmp_path)
    build = installed_build(DISTRIBUTIONS["torch"])
    assert build is not None
    text, remedy = mismatch(DISTRIBUTIONS["torch"], build, runs)
    assert text == message
    assert not message or "pip install 'torch==2." in remedy or "update the driver" in remedy


def test_after_a_build_for_another_cuda_steps_on_a_gpu_are_skipped(doctor: Call, driver: Path, tmp_path: Path) -> None:
    write_library(driver / "libcuda.so.1", libcuda(version=12040))
    _install(tmp_path, "torch", "2.13.0+cu130", "")
    status, result = doctor("torch", folder=tmp_path, **first_on_paths(driver))
    assert status == 1
    assert result["installed"][1].startswith("torch 2.13.0+cu130, as pinned")
    assert result["build"][0] == "failed"
    assert "--index-url https://download.pytorch.org/whl/cu126" in result["build"][2]
    assert result["import"][:2] == ("failed", "ModuleNotFoundError: No module named 'torch'")
    assert result["memory"] == ("skipped", "step build failed", "")


def test_a_requirement_of_an_extra_counts_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    _install(tmp_path, "jax", "0.10.2", 'jax-cuda12-plugin[with-cuda]==0.10.2 ; extra == "cuda12"')
    assert installed_build(DISTRIBUTIONS["jax"]) == Build("jax", "0.10.2", "")
    _install(tmp_path, "jax_cuda12_plugin", "0.10.2", "")
    invalidate_caches()
    assert installed_build(DISTRIBUTIONS["jax"]) == Build("jax", "0.10.2", "12")


def test_what_is_installed_is_compared_with_what_is_pinned(doctor: Call, tmp_path: Path) -> None:
    _install(tmp_path, "torch", "2.1.0", "")
    _, result = doctor("torch", folder=tmp_path)
    assert result["installed"][:2] == ("ok", "torch 2.1.0; pinned is 2.13.0, so its known failures may differ")


def test_a_framework_that_is_not_installed_is_named(doctor: Call) -> None:
    status, result = doctor("jax")
    assert (status, failed(result)) == (1, ["installed"])
    assert result["installed"][2] == "`conformance install jax` installs it"


@pytest.mark.parametrize("words", [("nowhere",), ("torch", "torch"), ("--device", "tpu"), ("--limit", "0")])
def test_bad_usage_is_one_line(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *words]) == 2
    out, errors = capsys.readouterr()
    assert (out, len(errors.splitlines())) == ("", 1)


def test_a_missing_requirement_of_the_suite_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise ModuleNotFoundError(\"No module named 'click'\", name='click')\n")
    ended = run([sys.executable, "-m", "conformance", "doctor"], PYTHONPATH=str(tmp_path))
    assert ended.status == 2
    assert ended.lines == [
        "conformance: click is not installed; pip install -U pip, then pip install --group suite --group run"
    ]


def _install(folder: Path, name: str, version: str, requires: str) -> None:
    """Writes metadata of a package."""
    place = folder / f"{name}-{version}.dist-info"
    place.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {requires}"] if requires else []
    (place / "METADATA").write_text("\n".join(lines) + "\n")
