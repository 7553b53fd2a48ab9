"""Installing other versions than the pinned ones, and builds for GPUs: companions of their time, limits, indexes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from frameworks.installer import install, request, uv
from frameworks.installer.distributions import DISTRIBUTIONS, variable_of
from tests.support.installers import JAX, LOCKS, NUMPY, PADDLE_INDEX, SUITE, TORCH_INDEX, Installers

SMI = "#!/bin/sh\necho '| NVIDIA-SMI 570.86.15    Driver Version: 570.86.15    CUDA Version: {}     |'\n"


@pytest.mark.parametrize("variable", ["TORCH_VERSION", "NUMPY_VERSION"])
@pytest.mark.parametrize("version", ["latest", ">=2", "2.1; rm", "-r x", "2.1 ", "../x", "2.13.0\n", "2.x"])
def test_what_is_no_version_is_refused(
    pip: Installers, variable: str, version: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, version)
    assert install.main(["torch"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    example = {"TORCH_VERSION": "2.13.0", "NUMPY_VERSION": "2.4.6"}[variable]
    assert line == f"{variable}={version!r} is not a version; write one such as {example}"
    assert not pip.installed


def test_companions_of_another_version_are_those_of_its_time(
    pip: Installers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAX_VERSION", "0.9.2")
    monkeypatch.setenv("ORBAX_VERSION", "0.12.1")
    pip.resolved = {"jax": "0.9.2", "jaxlib": "0.9.2", "Flax": "0.12.6", "numpy": "2.4.6", "orbax-checkpoint": "0.12.1"}
    assert install.main(["jax"]) == 0
    (_, release), (options, requirements) = pip.compiled
    companions = [*JAX[:-1], "orbax-checkpoint==0.12.1"]
    assert release == ["jax>0.9.2"]
    assert requirements == ["jax==0.9.2", *companions, "orbax-checkpoint==0.12.1"]
    assert options[options.index("--exclude-newer") + 1] == "2026-04-16T12:32:11+00:00"
    newer = {name for name in (*SUITE, *JAX) if any(f"--exclude-newer-package={name}=" in word for word in options)}
    assert newer == {*SUITE, "orbax-checkpoint"}
    pins = ["flax==0.12.6", "jaxlib==0.9.2", NUMPY, "orbax-checkpoint==0.12.1"]
    assert pip.installed == [(["jax==0.9.2", *companions], pins)]
    assert capsys.readouterr().err == ""


def test_the_newest_version_has_the_newest_companions(pip: Installers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_VERSION", "0.11.0")
    pip.release, pip.resolved = "", {"jax": "0.11.0", "flax": "0.13.0"}
    assert install.main(["jax"]) == 0
    assert not any("exclude-newer" in word for word in pip.compiled[-1][0])
    assert pip.installed[0][1] == ["flax==0.13.0"]


@pytest.mark.parametrize("there", [True, False])
def test_without_a_resolution_declared_requirements_decide_and_the_user_is_informed(
    pip: Installers, there: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAX_VERSION", "0.9.2")
    monkeypatch.setenv("FLAX_VERSION", "0.12.6")
    if not there:
        monkeypatch.setattr(uv, "program", lambda: None)
    assert install.main(["jax"]) == 0
    assert pip.installed == [(["jax==0.9.2", "flax==0.12.6", *JAX[1:]], ["flax==0.12.6"])]
    why = "No solution" if there else "uv is not installed"
    assert capsys.readouterr().err == f"jax: {install.NEWEST} ({why})\n"


def test_every_package_of_a_lock_can_be_overridden(pip: Installers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORBAX_CHECKPOINT_VERSION", "0.12.1")
    monkeypatch.setenv("JAXLIB_VERSION", "0.10.1")
    monkeypatch.setenv("KERAS_VERSION", "3.13.2")
    monkeypatch.setenv("CUDA_VERSION", "12.8.1")
    assert install.main(["jax"]) == 0
    pins = ["flax==0.12.8", "jaxlib==0.10.1", NUMPY, "orbax-checkpoint==0.12.1", "scipy==1.17.1"]
    assert pip.installed == [(["jax==0.10.2", *JAX[:-1], "orbax-checkpoint==0.12.1"], pins)]
    assert install.main(["tf"]) == 0
    pins = ["keras==3.13.2", NUMPY, "scipy==1.17.1"]
    assert pip.installed[1] == (["tensorflow-cpu==2.21.0", "keras==3.13.2"], pins)


def test_a_lock_that_another_version_does_not_go_with_leaves_what_the_suite_computes_with(
    pip: Installers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(LOCKS, "torch", LOCKS["torch"] | {"transformers": "5.24.0"})
    monkeypatch.setenv("TRANSFORMERS_VERSION", "5.17.0")
    pip.incompatible = "sympy==1.14.0"
    assert install.main(["torch"]) == 0
    assert [pins for _, pins in pip.installed] == [
        [NUMPY, "scipy==1.17.1", "sympy==1.14.0", "transformers==5.17.0"],
        [NUMPY, "scipy==1.17.1", "transformers==5.17.0"],
    ]
    assert capsys.readouterr().err == f"torch: {install.AROUND}\n"


@pytest.mark.parametrize(
    ("framework", "version", "limit"),
    [("paddle", "2.6.2", "numpy<2"), ("paddle", "3.0.0rc1", "numpy<2.4"), ("torch", "2.2.2", "numpy<2")],
)
def test_what_no_package_declares_is_required_and_old_numpy_takes_what_needs_it_along(
    pip: Installers, here: dict[str, str], framework: str, version: str, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{framework.upper()}_VERSION", version)
    here["scipy"] = "1.17.1"
    package = DISTRIBUTIONS[framework].cpu
    pip.resolved = {package: version, "numpy": "1.26.4"}
    assert install.main([framework]) == 0
    assert limit in pip.compiled[-1][1]
    assert pip.installed[0][0] == [f"{package}=={version}", *DISTRIBUTIONS[framework].companions, limit, "scipy"]


def test_numpy_can_be_asked_for_against_its_limit(pip: Installers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPY_VERSION", "2.4.6")
    monkeypatch.setenv("PADDLE_VERSION", "")
    assert install.main(["paddle"]) == 0
    assert pip.installed[0][0] == ["paddlepaddle==3.3.1", "setuptools"]
    assert NUMPY in pip.installed[0][1]


@pytest.mark.parametrize("variable", ["TORCH_REQUIREMENT", "TORCH_INDEX"])
@pytest.mark.parametrize("option", ["-r/etc/passwd", "--index-url=https://example.org", " -e.", "-"])
def test_an_option_of_pip_is_refused(
    pip: Installers, variable: str, option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, option)
    assert install.main(["torch"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{variable} begins with '-', as an option of pip does; write")
    assert not pip.installed


@pytest.mark.parametrize(
    "requirement",
    [
        "https://name:hunter2@example.org/torch-2.16.0-cp311-cp311-linux_x86_64.whl",
        "torch @ git+https://hunter2@example.org/torch@main",
        "torch @ https://name:hun@ter2@example.org/torch.zip",
    ],
)
@pytest.mark.parametrize("terminal", [True, False])
def test_a_framework_from_elsewhere_and_a_password_is_neither_printed_nor_noted(
    pip: Installers,
    requirement: str,
    terminal: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TORCH_REQUIREMENT", requirement)
    monkeypatch.setenv("TORCH_INDEX", "https://name:hunter2@example.org/simple")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert install.main(["torch"]) == 0
    assert pip.installed == [(["--extra-index-url", "https://name:hunter2@example.org/simple", requirement], [])]
    noted = install._marker(["torch"]).read_text("utf-8")
    assert "https://***@example.org/simple" in noted
    pip.status, pip.errors = 1, f"ERROR: Invalid requirement: {requirement!r}\n"
    monkeypatch.setenv("TORCH_INDEX", "")
    assert install.main(["torch"]) == 2
    said = capsys.readouterr()
    assert "://***@example.org/torch" in said.err
    assert not [text for text in (said.out, said.err, noted) if "hunter2" in text or "ter2" in text]


def test_a_packages_variable_is_its_name() -> None:
    assert variable_of("orbax-checkpoint") == variable_of("Orbax_Checkpoint") == "ORBAX_CHECKPOINT_VERSION"


# ---------------------------------------------------------------- GPUs: the driver chooses build and index


@pytest.mark.parametrize(
    ("script", "cuda"),
    [
        (SMI.format("12.8"), "12.8"),
        (SMI.format("13.0").replace("CUDA Version", "CUDA UMD Version"), "13.0"),
        ("#!/bin/sh\necho 'GPU 0: NVIDIA'\n", ""),
        ("#!/bin/sh\nexit 9\n", None),
        (None, None),
    ],
    ids=["driver", "newer-words", "says-nothing", "no-driver", "no-command"],
)
def test_the_driver_says_which_cuda_it_runs(
    script: str | None, cuda: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if script is not None:
        (tmp_path / "nvidia-smi").write_text(script)
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin" if script else str(tmp_path))
    assert request.driver() == cuda


@pytest.mark.parametrize(
    ("framework", "version", "cuda", "index", "requirement"),
    [
        ("torch", "", "13.1", "", "torch==2.13.0"),
        ("torch", "", "", "", "torch==2.13.0"),
        ("torch", "", "12.8", f"{TORCH_INDEX}cu126", "torch==2.13.0"),
        ("torch", "2.10.0", "12.4", "", "torch==2.10.0"),
        ("torch", "2.6.0", "11.8", f"{TORCH_INDEX}cu118", "torch==2.6.0"),
        ("tf", "", "12.4", "", "tensorflow[and-cuda]==2.21.0"),
        ("jax", "", "12.8", "", "jax[cuda12]==0.10.2"),
        ("jax", "", "13.0", "", "jax[cuda12]==0.10.2"),
        ("paddle", "", "13.2", f"{PADDLE_INDEX}cu130/", "paddlepaddle-gpu==3.3.1"),
        ("paddle", "", "12.9", f"{PADDLE_INDEX}cu129/", "paddlepaddle-gpu==3.3.1"),
        ("paddle", "", "12.8", f"{PADDLE_INDEX}cu126/", "paddlepaddle-gpu==3.3.1"),
        ("paddle", "", "12.2", f"{PADDLE_INDEX}cu118/", "paddlepaddle-gpu==3.3.1"),
        ("paddle", "", "", f"{PADDLE_INDEX}cu118/", "paddlepaddle-gpu==3.3.1"),
        ("paddle", "3.2.2", "13.0", f"{PADDLE_INDEX}cu129/", "paddlepaddle-gpu==3.2.2"),
        ("paddle", "3.0.0", "12.9", f"{PADDLE_INDEX}cu126/", "paddlepaddle-gpu==3.0.0"),
        ("paddle", "2.6.2", "12.2", "", "paddlepaddle-gpu==2.6.2"),
    ],
)
def test_a_gpu_chooses_build_and_index(
    pip: Installers,
    framework: str,
    version: str,
    cuda: str,
    index: str,
    requirement: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request, "driver", lambda: cuda)
    monkeypatch.setenv(f"{framework.upper()}_VERSION", version)
    assert install.main([framework]) == 0
    words = [*(["--extra-index-url", index] if index else []), requirement]
    assert pip.installed[0][0][: len(words)] == words
    assert ("--extra-index-url" in pip.installed[0][0]) is bool(index)


@pytest.mark.parametrize(
    ("framework", "cuda", "oldest"), [("torch", "11.8", "12.6"), ("tf", "11.8", "12.2"), ("paddle", "10.2", "11.8")]
)
def test_a_driver_that_is_too_old_is_refused_in_one_line(
    pip: Installers,
    framework: str,
    cuda: str,
    oldest: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(request, "driver", lambda: cuda)
    assert install.main([framework]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"cannot be installed (the driver runs CUDA {cuda}, and the oldest wheel wants {oldest}); set" in line
    assert f"{framework.upper()}_INDEX" in line
    assert not pip.installed


@pytest.mark.parametrize("cuda", ["12.8", None])
def test_the_index_can_be_another(pip: Installers, cuda: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "driver", lambda: cuda)
    monkeypatch.setenv("PADDLE_INDEX", "https://example.org/cu118/")
    assert install.main(["paddle"]) == 0
    package = "paddlepaddle-gpu==3.3.1" if cuda else "paddlepaddle==3.3.1"
    assert pip.installed[0][0][:3] == ["--extra-index-url", "https://example.org/cu118/", package]
