"""Installing frameworks for a GPU: build and index by the driver, and what the user may set in their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from frameworks import install
from frameworks.installing import wishes
from frameworks.installing.distributions import DISTRIBUTIONS, variable_of
from tests.pips import Pip

SMI = "#!/bin/sh\necho '| NVIDIA-SMI 570.86.15    Driver Version: 570.86.15    CUDA Version: {}     |'\n"
PADDLE = "https://www.paddlepaddle.org.cn/packages/stable/"
TORCH = "https://download.pytorch.org/whl/"


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
    assert wishes.driver() == cuda


@pytest.mark.parametrize(
    ("framework", "version", "cuda", "index", "requirement"),
    [
        ("torch", "", "13.1", "", "torch==2.13.0"),
        ("torch", "", "", "", "torch==2.13.0"),
        ("torch", "", "12.8", f"{TORCH}cu126", "torch==2.13.0"),
        ("torch", "2.10.0", "12.4", "", "torch==2.10.0"),
        ("torch", "2.6.0", "11.8", f"{TORCH}cu118", "torch==2.6.0"),
        ("tf", "", "12.4", "", "tensorflow[and-cuda]==2.21.0"),
        ("jax", "", "12.8", "", "jax[cuda12]==0.10.2"),
        ("jax", "", "13.0", "", "jax[cuda12]==0.10.2"),
        ("paddle", "", "13.2", f"{PADDLE}cu130/", "paddlepaddle-gpu==3.3.1"),
        ("paddle", "", "12.9", f"{PADDLE}cu129/", "paddlepaddle-gpu==3.3.1"),
        ("paddle", "", "12.8", f"{PADDLE}cu126/", "paddlepaddle-gpu==3.3.1"),
        ("paddle", "", "12.2", f"{PADDLE}cu118/", "paddlepaddle-gpu==3.3.1"),
        ("paddle", "", "", f"{PADDLE}cu118/", "paddlepaddle-gpu==3.3.1"),
        ("paddle", "3.2.2", "13.0", f"{PADDLE}cu129/", "paddlepaddle-gpu==3.2.2"),
        ("paddle", "3.0.0", "12.9", f"{PADDLE}cu126/", "paddlepaddle-gpu==3.0.0"),
        ("paddle", "2.6.2", "12.2", "", "paddlepaddle-gpu==2.6.2"),
    ],
)
def test_a_gpu_chooses_build_and_index(
    pip: Pip, framework: str, version: str, cuda: str, index: str, requirement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wishes, "driver", lambda: cuda)
    monkeypatch.setenv(f"{framework.upper()}_VERSION", version)
    pip.uploads = {DISTRIBUTIONS[framework].cpu: {version or "1": "2025-01-01"}}
    assert install.main([framework]) == 0
    words = ["install", *(["--extra-index-url", index] if index else []), requirement]
    assert pip.installed.words[: len(words)] == words
    assert ("--extra-index-url" in pip.installed.words) is bool(index)


@pytest.mark.parametrize(
    ("framework", "cuda", "oldest"), [("torch", "11.8", "12.6"), ("tf", "11.8", "12.2"), ("paddle", "10.2", "11.8")]
)
def test_a_driver_that_is_too_old_is_told_in_one_line(
    pip: Pip,
    framework: str,
    cuda: str,
    oldest: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(wishes, "driver", lambda: cuda)
    assert install.main([framework]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"cannot be installed (the driver runs CUDA {cuda}, and the oldest wheel wants {oldest}); set" in line
    assert f"{framework.upper()}_INDEX" in line
    assert not any("--dry-run" not in call.words for call in pip.calls)


def test_the_index_can_be_another(pip: Pip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wishes, "driver", lambda: "12.8")
    monkeypatch.setenv("PADDLE_INDEX", "https://example.org/cu118/")
    assert install.main(["paddle"]) == 0
    words = ["install", "--extra-index-url", "https://example.org/cu118/", "paddlepaddle-gpu==3.3.1"]
    assert pip.installed.words[:4] == words


def test_an_index_can_be_named_without_a_gpu_too(pip: Pip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_INDEX", f"{TORCH}cpu")
    assert install.main(["torch"]) == 0
    assert pip.installed.words == ["install", "--extra-index-url", f"{TORCH}cpu", "torch==2.13.0"]


def test_what_is_not_on_the_index_is_one_line_that_names_the_ways_out(
    pip: Pip, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wishes, "driver", lambda: "12.8")
    pip.status, pip.errors = 1, "ERROR: No matching distribution found for paddlepaddle-gpu==3.3.1\n"
    assert install.main(["paddle"]) == 2
    assert capsys.readouterr().err == (
        "paddlepaddle-gpu 3.3.1 cannot be installed (No matching distribution found for paddlepaddle-gpu==3.3.1); "
        "set PADDLE_VERSION to another version, or PADDLE_INDEX to an index that has it\n"
    )


def test_a_packages_variable_is_its_name() -> None:
    assert variable_of("orbax-checkpoint") == variable_of("Orbax_Checkpoint") == "ORBAX_CHECKPOINT_VERSION"
