"""Installing on a machine with a GPU: the driver's CUDA chooses build and index."""

from __future__ import annotations

from pathlib import Path

import pytest

from frameworks.installer import install, request
from tests.support.installers import PADDLE_INDEX, TORCH_INDEX, Installers

SMI = "#!/bin/sh\necho '| NVIDIA-SMI 570.86.15    Driver Version: 570.86.15    CUDA Version: {}     |'\n"


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
