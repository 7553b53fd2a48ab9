"""Installing frameworks: how pip and uv are called, one line where it cannot be done, no call where all is there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from zipfile import ZipFile

import pytest

from frameworks.installer import install, locks, request, uv
from frameworks.installer.distributions import DISTRIBUTIONS, variable_of
from frameworks.installer.pip import INSTALLER
from tests.support.suite_runs import run

REAL_RUN = subprocess.run
NUMPY, OLDER = "numpy==2.4.6", "numpy==2.3.5"
SUITE = {"numpy": "2.4.6", "scipy": "1.17.1"}
LOCKS = {
    "suite": SUITE,
    "torch": SUITE | {"torch": "2.13.0", "sympy": "1.14.0"},
    "tf": SUITE | {"tensorflow": "2.21.0", "tensorflow-cpu": "2.21.0", "keras": "3.15.1"},
    "paddle": SUITE | {"paddlepaddle": "3.3.1", "numpy": "2.3.5", "setuptools": "84.2.1"},
    "jax": SUITE | {"jax": "0.10.2", "jaxlib": "0.10.2", "flax": "0.12.8", "orbax-checkpoint": "0.12.8"},
    "frameworks": SUITE | {"torch": "2.13.0", "jax": "0.10.2", "numpy": "2.3.5"},
}
JAX = ["flax", "optax", "jmp", "orbax-checkpoint"]
TORCH_INDEX, PADDLE_INDEX = "https://download.pytorch.org/whl/", "https://www.paddlepaddle.org.cn/packages/stable/"
RELEASE = "packages = [{ wheels = [{ upload-time = 2026-04-16T12:32:11Z }, { upload-time = 2026-05-01T00:00:00Z }] }]"


@dataclass
class Installers:
    """pip and uv in the place of `subprocess.run`: what they are asked, and how they end; every other command is run.

    Attributes:
        status, errors, output: how an installation ends.
        resolved: what `uv pip compile` finds, None for no solution.
        release: the pylock.toml of the next release, "" for none.
        incompatible: a pin under which no installation succeeds.
        installed: the words of each installation, from "install" on, and its pins.
        compiled: the options and the requirements of each resolution.
    """

    status: int = 0
    errors: str = ""
    output: str = ""
    resolved: Mapping[str, str] | None = None
    release: str = RELEASE
    incompatible: str = ""
    installed: list[tuple[list[str], list[str]]] = field(default_factory=list)
    compiled: list[tuple[list[str], list[str]]] = field(default_factory=list)
    programs: list[str] = field(default_factory=list)

    def __call__(self, words: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        if words[1:3] == ["pip", "compile"]:
            output = Path(words[words.index("--output-file") + 1])
            self.compiled.append((words[3:], str(options["input"]).split("\n")))
            if output.name == "pylock.toml":
                text = self.release
            else:
                assert output.read_text() == "numpy==2.4.6\nscipy==1.17.1\n"
                text = "\n".join(f"{name}=={version}" for name, version in (self.resolved or {}).items())
            output.write_text(text)
            return subprocess.CompletedProcess(words, 0 if text else 1, "", "" if text else "error: No solution\n")
        if "pip" not in words[1:3]:
            return REAL_RUN(words, **options)  # type: ignore[call-overload]
        at = words.index("--constraint")
        pins = Path(words[at + 1]).read_text().splitlines()
        self.programs.append(" ".join(words[:at]))
        self.installed.append((words[at + 2 :], pins))
        status = 1 if self.incompatible in pins else self.status
        return subprocess.CompletedProcess(words, status, self.output, self.errors)


@pytest.fixture
def pip(here: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installers:  # noqa: ARG001
    """A machine without GPU and without any framework, whose locks are `LOCKS`."""
    made = Installers()
    for variable in list(os.environ):
        if variable.endswith(("_VERSION", "_INDEX", "_REQUIREMENT")) or variable == INSTALLER:
            monkeypatch.delenv(variable)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(request, "driver", lambda: None)
    monkeypatch.setattr(uv, "program", lambda: "uv")
    monkeypatch.setattr(locks, "read", LOCKS.__getitem__)
    monkeypatch.setattr(locks, "examples", LOCKS.__getitem__)
    monkeypatch.setattr(subprocess, "run", made)
    return made


# ---------------------------------------------------------------- pinned versions, under their locks


@pytest.mark.parametrize("arguments", [[], ["nowhere"], ["torch", "torch"], ["--help"]])
def test_wrong_usage_is_one_line(pip: Installers, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert install.main(arguments) == 2
    assert capsys.readouterr().err == "usage: python -m frameworks.installer.install {torch,tf,paddle,jax} ...\n"
    assert not pip.installed


@pytest.mark.parametrize(
    ("frameworks", "requirements", "pins"),
    [
        (["torch"], ["torch==2.13.0"], [NUMPY, "scipy==1.17.1", "sympy==1.14.0"]),
        (["tf"], ["tensorflow-cpu==2.21.0", "keras"], ["keras==3.15.1", NUMPY, "scipy==1.17.1"]),
        (
            ["paddle"],
            ["paddlepaddle==3.3.1", "setuptools", "numpy<2.4"],
            [OLDER, "scipy==1.17.1", "setuptools==84.2.1"],
        ),
        (
            ["jax"],
            ["jax==0.10.2", *JAX],
            ["flax==0.12.8", "jaxlib==0.10.2", NUMPY, "orbax-checkpoint==0.12.8", "scipy==1.17.1"],
        ),
        (["torch", "jax"], ["torch==2.13.0", "jax==0.10.2", *JAX], [OLDER, "scipy==1.17.1"]),
    ],
)
def test_pinned_versions_are_installed_under_their_lock(
    pip: Installers,
    frameworks: list[str],
    requirements: list[str],
    pins: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert install.main(frameworks) == 0
    assert pip.installed == [(requirements, pins)]
    assert pip.programs == [f"{sys.executable} -m pip install"]
    assert not pip.compiled
    assert capsys.readouterr().err == ""


def test_uv_installs_where_it_is_asked_to(
    pip: Installers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(INSTALLER, "uv")
    monkeypatch.setattr(request, "driver", lambda: "12.8")
    assert install.main(["torch"]) == 0
    assert pip.programs == [f"uv pip install --python {sys.executable} --torch-backend=auto"]
    assert pip.installed[0][0] == ["torch==2.13.0"], "uv knows torch's index"
    monkeypatch.setattr(uv, "program", lambda: None)
    for asked, problem in (("uv", "uv is not installed: pip install uv"), ("conda", "'conda' is no installer")):
        monkeypatch.setenv(INSTALLER, asked)
        assert install.main(["tf"]) == 2
        assert problem in capsys.readouterr().err


# ---------------------------------------------------------------- other versions


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


# ---------------------------------------------------------------- what is there already


@pytest.mark.parametrize(("wanted", "there"), [("2.13.0", "2.13.0"), ("2.13.0", "2.13.0+cpu"), ("2.12.0", "2.12.0")])
def test_what_is_installed_is_left_alone(
    pip: Installers, here: dict[str, str], wanted: str, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_VERSION", wanted)
    here["torch"] = there
    assert install.main(["torch"]) == 0
    assert not pip.installed


@pytest.mark.parametrize("packages", [{"torch": "2.12.1"}, {"torch": "2.13.0", "numpy": "2.3.0"}])
def test_what_is_another_version_is_replaced(
    pip: Installers, here: dict[str, str], packages: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMPY_VERSION", "2.4.6")
    here.update(packages)
    assert install.main(["torch"]) == 0
    assert pip.installed[0][0] == ["torch==2.13.0"]


def test_what_was_installed_is_not_chosen_again_until_something_else_is_asked_for(
    pip: Installers, here: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here |= {"tensorflow-cpu": "2.21.0", "keras": "3.12.0", "numpy": "2.4.6"}
    monkeypatch.setenv("KERAS_VERSION", "3.13.2")
    assert install.main(["tf"]) == 0
    here["keras"] = "3.13.2"
    noted = json.loads((tmp_path / "conformance-tf.json").read_text())
    assert noted["request"]["packages"] == {"keras": "3.13.2"}
    assert install.main(["tf"]) == 0
    assert len(pip.installed) == 1, "nothing is to do"
    here["numpy"] = "2.5.0"
    assert install.main(["tf"]) == 0
    assert len(pip.installed) == 2, "NumPy moved away from the lock"
    here["numpy"] = "2.4.6"
    monkeypatch.delenv("KERAS_VERSION")
    assert install.main(["tf"]) == 0
    assert "keras==3.15.1" in pip.installed[-1][1]


def test_installed_versions_are_read_without_label_and_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    assert locks.installed_version("pytest") == pytest.__version__
    assert locks.installed_version("no-such-distribution") is None
    monkeypatch.setattr(install, "installed", {"jax": "0.10.2+local"}.get)
    assert (install.installed_version("jax"), install.installed_version("tf")) == ("0.10.2", None)


# ---------------------------------------------------------------- GPUs


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


def test_a_packages_variable_is_its_name() -> None:
    assert variable_of("orbax-checkpoint") == variable_of("Orbax_Checkpoint") == "ORBAX_CHECKPOINT_VERSION"


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("errors", "output", "problem"),
    [
        (
            "WARNING: x\nERROR: Could not find a version that satisfies the requirement torch==99 (from versions: 1)\n"
            "ERROR: No matching distribution found for torch==99\n",
            "",
            "No matching distribution found for torch==99",
        ),
        (
            "ERROR: Ignored the following versions that require a different python version: 98 Requires-Python >=3.12; "
            "99 Requires-Python >=3.13,<3.99\nERROR: No matching distribution found for torch==99\n",
            "",
            f"torch 99 wants Python >=3.13,<3.99, and this is {sys.version_info[0]}.{sys.version_info[1]}",
        ),
        (
            "ERROR: Cannot install a and b because these package versions have conflicting dependencies.\n"
            "ERROR: ResolutionImpossible: for help visit https://example.org\n",
            "\nThe conflict is caused by:\n    The user requested jax==0.9.2\n    flax 0.12.8 depends on jax>=0.10\n\n",
            "The user requested jax==0.9.2; flax 0.12.8 depends on jax>=0.10",
        ),
        (
            "error: No solution found when resolving dependencies\n  cause: Because there is no version of torch==99\n"
            "      and you require torch==99, no.\n",
            "",
            "Because there is no version of torch==99 and you require torch==99, no.",
        ),
        ("", "", "the installer gave no reason"),
    ],
)
def test_what_the_installer_refuses_is_one_line(
    pip: Installers,
    errors: str,
    output: str,
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TORCH_VERSION", "99")
    pip.status, pip.errors, pip.output = 1, errors, output
    assert install.main(["torch"]) == 2
    assert (
        capsys.readouterr().err == f"torch 99 cannot be installed ({problem}); set TORCH_VERSION to another version\n"
    )


@pytest.mark.parametrize(
    ("warning", "problem"),
    [
        ("WARNING: tensorflow 2.21.0 does not provide the extra 'and-cuda'\n", "tensorflow 2.21.0 does not provide"),
        (
            "warning: The package `tensorflow==2.21.0` does not have an extra named `and-cuda`\n",
            "does not have an extra",
        ),
    ],
)
def test_an_extra_that_is_not_there_is_a_refusal(
    pip: Installers, warning: str, problem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(request, "driver", lambda: "12.4")
    pip.errors = warning
    assert install.main(["tf"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert problem in line


def test_pip_itself_cannot_find_it() -> None:
    offline = {"PIP_NO_INDEX": "1", "UV_OFFLINE": "1"}
    ended = run([sys.executable, "-m", "frameworks.installer.install", "tf"], TF_VERSION="0.0.99", **offline)
    assert (ended.status, len(ended.lines)) == (2, 1), ended.lines
    assert "0.0.99 cannot be installed" in ended.lines[0]
    assert "TF_VERSION" in ended.lines[0]


# ---------------------------------------------------------------- uv itself, on an index of this machine


FILES = {
    "frame": {"1.0": "2026-01-01", "2.0": "2026-03-01"},
    "mate": {"1.0": "2026-02-01", "2.0": "2026-04-01", "3.0": "2026-05-01"},
    "numpy": {"1.0": "2025-01-01", "2.0": "2026-05-01"},
}
DECLARED = {"frame": ["numpy>=1", "mate"], "mate": [], "numpy": []}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An index of small wheels, with the day of each one's upload, as the only one that uv knows."""

    class Handler(SimpleHTTPRequestHandler):
        extensions_map = {".json": "application/vnd.pypi.simple.v1+json"}  # noqa: RUF012

        def do_GET(self) -> None:
            self.path += "index.json" if self.path.endswith("/") else ""
            super().do_GET()

        def log_message(self, *_: object) -> None:
            """Prints nothing."""

    for package, uploads in FILES.items():
        folder = tmp_path / "index" / package
        folder.mkdir(parents=True)
        files = []
        for version, day in uploads.items():
            name = f"{package}-{version}-py3-none-any.whl"
            declared = "".join(f"Requires-Dist: {each}\n" for each in DECLARED[package])
            info = f"{package}-{version}.dist-info"
            with ZipFile(folder / name, "w") as wheel:
                wheel.writestr(
                    f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n{declared}"
                )
                wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
                wheel.writestr(f"{info}/RECORD", "")
            files.append({"filename": name, "url": name, "hashes": {}, "upload-time": f"{day}T00:00:00Z"})
        page = {"meta": {"api-version": "1.1"}, "name": package, "files": files}
        (folder / "index.json").write_text(json.dumps(page))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path / "index")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    yield
    server.shutdown()
    server.server_close()


@pytest.mark.skipif(uv.program() is None, reason="uv is not installed")
@pytest.mark.usefixtures("index")
def test_uv_finds_companions_of_a_time_and_keeps_what_the_suite_computes_with() -> None:
    result = partial(uv.of_its_time, "frame", "1.0")
    assert result(["frame==1.0"], {}, {"numpy": "2.0"}) == {"frame": "1.0", "mate": "1.0", "numpy": "2.0"}
    assert result(["frame==1.0"], {"mate": "2.0"}, {}) == {"frame": "1.0", "mate": "2.0", "numpy": "1.0"}
    assert result(["frame==1.0", "numpy<2"], {}, {"numpy": "2.0"})["numpy"] == "1.0"
    newest = uv.of_its_time("frame", "2.0", ["frame==2.0"], {}, {})
    assert newest == {"frame": "2.0", "mate": "3.0", "numpy": "2.0"}
    with pytest.raises(install.Unavailable, match=re.compile(r"mate", re.DOTALL)):
        result(["frame==1.0", "mate==9"], {}, {})
