"""Installing frameworks and the suite: calls of uv and pip, refusals, locks, and the wheel."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from conformance.runner import identity, jobs
from frameworks.installer import install, locks, uv
from frameworks.installer.distributions import DISTRIBUTIONS, Unavailable, bare, variable_of
from frameworks.installer.uv import INSTALLER
from results.record.reading import load
from tests.support.suite_runs import ROOT, CommandResult, run
from tests.support.wheels import serve_index, write_wheel

NUMPY, OLDER = "numpy==2.4.6", "numpy==2.3.5"
SUITE = {"numpy": "2.4.6", "scipy": "1.17.1"}
LOCKS = {
    "suite": SUITE,
    "torch": SUITE | {"torch": "2.13.0", "sympy": "1.14.0", "transformers": "5.24.0"},
    "tf": SUITE | {"tensorflow": "2.21.0", "tensorflow-cpu": "2.21.0", "keras": "3.15.1"},
    "paddle": SUITE | {"paddlepaddle": "3.3.1", "numpy": "2.3.5", "setuptools": "84.2.1"},
    "jax": SUITE | {"jax": "0.10.2", "jaxlib": "0.10.2", "flax": "0.12.8", "orbax-checkpoint": "0.12.8"},
    "frameworks": SUITE | {"torch": "2.13.0", "jax": "0.10.2", "numpy": "2.3.5"},
}
JAX = ["flax", "optax", "jmp", "orbax-checkpoint"]
TORCH_INDEX, PADDLE_INDEX = "https://download.pytorch.org/whl/", "https://www.paddlepaddle.org.cn/packages/stable/"
SMI = "#!/bin/sh\necho '| NVIDIA-SMI 570.86.15    Driver Version: 570.86.15    CUDA Version: {}     |'\n"
REFUSALS = {
    "version": ({"TORCH_VERSION": "latest"}, "TORCH_VERSION='latest' is not a version; write one such as 2.13.0"),
    "package": ({"NUMPY_VERSION": "-r x"}, "NUMPY_VERSION='-r x' is not a version; write one such as 2.4.6"),
    "option": ({"TORCH_INDEX": " -e."}, "TORCH_INDEX begins with '-', as an option does; write an address"),
    "installer": ({INSTALLER: "conda"}, "'conda' is no installer; write pip or uv"),
    "no uv": ({INSTALLER: "uv", "UV": ""}, "uv is not installed: pip install uv"),
    "old driver": ({"CUDA": "11.8", INSTALLER: "pip"}, "torch 2.13.0 cannot be installed (the driver runs CUDA 11.8, "),
    "pip": (
        {"ERRORS": "WARNING: x\nERROR: Cannot install a and b\nERROR: ResolutionImpossible: for help\n"},
        "torch 2.13.0 cannot be installed (Cannot install a and b); set TORCH_VERSION to another version",
    ),
    "uv": (
        {"ERRORS": "Using Python 3.11\nerror: No solution\n  cause: no torch==99\n"},
        "(No solution cause: no torch==99); set TORCH_VERSION",
    ),
    "silence": ({"ERRORS": " "}, "(the installer ended with status 1); set TORCH_VERSION"),
    "extra": ({"EXTRA": "warning: The package `torch` does not have an extra named `x`\n"}, "does not have an extra"),
}
UPLOADS = {
    "frame": {"1.0": "2026-01-01", "2.0": "2026-03-01"},
    "mate": {"1.0": "2026-02-01", "2.0": "2026-04-01", "3.0": "2026-05-01"},
    "numpy": {"1.0": "2025-01-01", "2.0": "2026-05-01"},
}
DECLARED = {"frame": ["numpy>=1", "mate"], "mate": [], "numpy": []}
NAMES = [locks.SUITE, locks.TOOLS, locks.ALL, *DISTRIBUTIONS]
PYTHONS = ("3.11", "3.12", "3.13")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
CLAUSE = "scaling.skip-is-atomic"
REAL_RUN = subprocess.run


@dataclass
class Installers:
    """pip and uv in the place of `subprocess.run`; every other command is run.

    Attributes:
        status, errors: how an installation ends.
        resolved: what `uv pip compile` finds, None for no solution.
        release: the pylock.toml of the next release, "" for none.
        incompatible: a pin under which no installation succeeds.
        installed: arguments of each installation behind its constraints, and its pins.
        compiled: the options and the requirements of each resolution.
        programs: the command of each installation before its constraints.
    """

    status: int = 0
    errors: str = ""
    resolved: Mapping[str, str] | None = None
    release: str = "packages = [{ wheels = [{ upload-time = 2026-04-16T12:32:11Z }] }]"
    incompatible: str = ""
    installed: list[tuple[list[str], list[str]]] = field(default_factory=list)
    compiled: list[tuple[list[str], list[str]]] = field(default_factory=list)
    programs: list[str] = field(default_factory=list)

    def __call__(self, command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        if command[1:3] == ["pip", "compile"]:
            output = Path(command[command.index("--output-file") + 1])
            self.compiled.append((command[3:], str(options["input"]).split("\n")))
            pins = "\n".join(f"{name}=={version}" for name, version in (self.resolved or {}).items())
            text = self.release if output.name == "pylock.toml" else pins
            output.write_text(text)
            return subprocess.CompletedProcess(command, 0 if text else 1, "", "" if text else "error: No solution\n")
        if "pip" not in command[1:3]:
            return REAL_RUN(command, **options)  # type: ignore[call-overload]
        index = command.index("--constraint")
        pins_of_run = Path(command[index + 1]).read_text().splitlines()
        self.programs.append(" ".join(command[:index]))
        self.installed.append((command[index + 2 :], pins_of_run))
        status = 1 if self.incompatible in pins_of_run else self.status
        return subprocess.CompletedProcess(command, status, "", self.errors)


@pytest.fixture
def present(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Versions of the packages that are installed, none at first."""
    packages: dict[str, str] = {}
    monkeypatch.setattr(locks, "installed_version", packages.get)
    monkeypatch.setattr(install, "installed", packages.get)
    return packages


@pytest.fixture
def pip(present: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Installers:  # noqa: ARG001
    """A machine without GPU and without any framework, whose locks are `LOCKS`."""
    installers = Installers()
    for variable in list(os.environ):
        if variable.endswith(("_VERSION", "_INDEX", "_REQUIREMENT")) or variable == INSTALLER:
            monkeypatch.delenv(variable)
    monkeypatch.setattr(install, "driver", lambda: None)
    monkeypatch.setattr(uv, "program", lambda: "uv")
    monkeypatch.setattr(locks, "read", LOCKS.__getitem__)
    monkeypatch.setattr(locks, "examples", LOCKS.__getitem__)
    monkeypatch.setattr(subprocess, "run", installers)
    return installers


@pytest.mark.parametrize(
    ("frameworks", "requirements", "pins"),
    [
        (["torch"], ["torch==2.13.0"], [NUMPY, "scipy==1.17.1", "sympy==1.14.0", "transformers==5.24.0"]),
        (["tf"], ["tensorflow-cpu==2.21.0", "keras"], ["keras==3.15.1", NUMPY, "scipy==1.17.1"]),
        (
            ["paddle"],
            ["paddlepaddle==3.3.1", "setuptools", "numpy<2.4"],
            [OLDER, "scipy==1.17.1", "setuptools==84.2.1"],
        ),
        (["torch", "jax"], ["torch==2.13.0", "jax==0.10.2", *JAX], [OLDER, "scipy==1.17.1"]),
    ],
)
def test_install_takes_locked_versions_by_uv(
    pip: Installers, frameworks: list[str], requirements: list[str], pins: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert install.main(frameworks) == 0
    assert pip.installed == [(requirements, pins)]
    assert pip.programs == [f"uv pip install --python {sys.executable} --torch-backend=auto"]
    assert not pip.compiled
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("variable", "has_uv"), [("pip", True), ("", False)])
def test_install_falls_back_to_pip(
    pip: Installers, variable: str, has_uv: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(INSTALLER, variable)
    monkeypatch.setattr(uv, "program", lambda: "uv" if has_uv else None)
    assert install.main(["torch"]) == 0
    assert pip.programs == [f"{sys.executable} -m pip install --no-compile"]


@pytest.mark.parametrize(
    ("version", "packages", "installed"),
    [
        ("", {"torch": "2.13.0"}, False),
        ("", {"torch": "2.13.0+cpu"}, False),
        ("2.12.0", {"torch": "2.12.0"}, False),
        ("", {"torch": "2.12.1"}, True),
        ("", {"torch": "2.13.0", "numpy": "2.3.0"}, True),
        ("", {"torch": "2.13.0", "sympy": "1.13"}, True),
    ],
)
def test_install_replaces_other_versions_alone(
    pip: Installers,
    present: dict[str, str],
    version: str,
    packages: dict[str, str],
    installed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCH_VERSION", version)
    present.update(packages)
    assert install.main(["torch"]) == 0
    assert [requirements for requirements, _ in pip.installed] == [["torch==2.13.0"]] * installed


@pytest.mark.parametrize(
    ("modules", "packages", "modes", "problem"),
    [
        ([], {}, [""], "torch is not installed; install it with pip, or the pinned one by `conformance install torch`"),
        (["torch"], {}, [""], ""),
        (["torch"], {"torch": "2.12.1"}, ["eager", "accelerate"], "not installed: accelerate; pip install accelerate"),
    ],
)
def test_run_without_packages_names_them_and_installs_nothing(
    pip: Installers,
    present: dict[str, str],
    modules: list[str],
    packages: dict[str, str],
    modes: list[str],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    present |= packages
    monkeypatch.setattr(install, "find_spec", lambda name: name if name in modules else None)
    monkeypatch.setattr(jobs, "judge", lambda *_: 2)
    monkeypatch.setattr(jobs, "_find_refusal", lambda *_: "")
    assert jobs.job("torch", modes, "cpu", []) == 2
    assert capsys.readouterr().err == (f"conformance: {problem}\n" if problem else "")
    assert not pip.installed


def test_install_of_another_version_takes_companions_of_its_time(
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


@pytest.mark.parametrize("has_uv", [True, False])
def test_install_without_a_resolution_takes_declared_requirements(
    pip: Installers, has_uv: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAX_VERSION", "0.9.2")
    monkeypatch.setenv("FLAX_VERSION", "0.12.6")
    if not has_uv:
        monkeypatch.setattr(uv, "program", lambda: None)
    assert install.main(["jax"]) == 0
    assert pip.installed == [(["jax==0.9.2", "flax==0.12.6", *JAX[1:]], ["flax==0.12.6"])]
    reason = "No solution" if has_uv else "uv is not installed"
    assert capsys.readouterr().err == f"jax: {install.NEWEST} ({reason})\n"


def test_install_with_version_variables_overrides_the_lock(
    pip: Installers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert variable_of("orbax-checkpoint") == variable_of("Orbax_Checkpoint") == "ORBAX_CHECKPOINT_VERSION"
    monkeypatch.setenv("JAXLIB_VERSION", "0.10.1")
    monkeypatch.setenv("CUDA_VERSION", "12.8.1")
    assert install.main(["jax"]) == 0
    pins = ["flax==0.12.8", "jaxlib==0.10.1", NUMPY, "orbax-checkpoint==0.12.8", "scipy==1.17.1"]
    assert pip.installed.pop() == (["jax==0.10.2", *JAX], pins)
    monkeypatch.setenv("TRANSFORMERS_VERSION", "5.17.0")
    pip.incompatible = "sympy==1.14.0"
    assert install.main(["torch"]) == 0
    assert pip.installed[-1][1] == [NUMPY, "scipy==1.17.1", "transformers==5.17.0"]
    assert capsys.readouterr().err == f"torch: {install.AROUND}\n"


@pytest.mark.parametrize(
    ("framework", "version", "limit"),
    [("paddle", "2.6.2", "numpy<2"), ("paddle", "3.0.0rc1", "numpy<2.4"), ("torch", "2.2.2", "numpy<2")],
)
def test_install_of_an_old_version_requires_undeclared_limits(
    pip: Installers, present: dict[str, str], framework: str, version: str, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{framework.upper()}_VERSION", version)
    present["scipy"] = "1.17.1"
    package = DISTRIBUTIONS[framework].cpu
    pip.resolved = {package: version, "numpy": "1.26.4"}
    assert install.main([framework]) == 0
    assert limit in pip.compiled[-1][1]
    assert pip.installed[0][0] == [f"{package}=={version}", *DISTRIBUTIONS[framework].companions, limit, "scipy"]


@pytest.mark.parametrize(
    "requirement", ["https://name:hunter2@example.org/torch.whl", "torch @ https://name:hun@ter2@example.org/torch.zip"]
)
def test_install_from_another_source_prints_no_password(
    pip: Installers, requirement: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCH_REQUIREMENT", requirement)
    monkeypatch.setenv("TORCH_INDEX", "https://name:hunter2@example.org/simple")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert install.main(["torch"]) == 0
    assert pip.installed == [(["--extra-index-url", "https://name:hunter2@example.org/simple", requirement], [])]
    pip.status, pip.errors = 1, f"ERROR: Invalid requirement: {requirement!r}\n"
    assert install.main(["torch"]) == 2
    text = "".join(capsys.readouterr())
    assert "://***@example.org/torch" in text
    assert "ter2" not in text


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
def test_driver_is_the_cuda_version_of_nvidia_smi(
    script: str | None, cuda: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if script is not None:
        (tmp_path / "nvidia-smi").write_text(script)
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin" if script else str(tmp_path))
    assert install.driver() == cuda


@pytest.mark.parametrize(
    ("framework", "version", "cuda", "index", "requirement"),
    [
        ("torch", "", "13.1", "", "torch==2.13.0"),
        ("torch", "", "12.8", f"{TORCH_INDEX}cu126", "torch==2.13.0"),
        ("torch", "2.10.0", "12.4", "", "torch==2.10.0"),
        ("torch", "2.6.0", "11.8", f"{TORCH_INDEX}cu118", "torch==2.6.0"),
        ("tf", "", "12.4", "", "tensorflow[and-cuda]==2.21.0"),
        ("jax", "", "13.0", "", "jax[cuda12]==0.10.2"),
        ("paddle", "", "13.2", f"{PADDLE_INDEX}cu130/", "paddlepaddle-gpu==3.3.1"),
        ("paddle", "", "12.8", f"{PADDLE_INDEX}cu126/", "paddlepaddle-gpu==3.3.1"),
        ("paddle", "", "", f"{PADDLE_INDEX}cu118/", "paddlepaddle-gpu==3.3.1"),
        ("paddle", "3.0.0", "12.9", f"{PADDLE_INDEX}cu126/", "paddlepaddle-gpu==3.0.0"),
        ("paddle", "2.6.2", "12.2", "", "paddlepaddle-gpu==2.6.2"),
        ("paddle", "example.org", "12.8", "https://example.org/cu118/", "paddlepaddle-gpu==3.3.1"),
        ("paddle", "example.org", None, "https://example.org/cu118/", "paddlepaddle==3.3.1"),
    ],
)
@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_install_on_a_driver_selects_build_and_index(
    pip: Installers,
    framework: str,
    version: str,
    cuda: str,
    index: str,
    requirement: str,
    installer: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(INSTALLER, installer)
    monkeypatch.setattr(install, "driver", lambda: cuda)
    if version == "example.org":
        monkeypatch.setenv(f"{framework.upper()}_INDEX", index)
    else:
        monkeypatch.setenv(f"{framework.upper()}_VERSION", version)
    assert install.main([framework]) == 0
    by_backend = (installer, framework) == ("uv", "torch")
    arguments = [*(["--extra-index-url", index] if index and not by_backend else []), requirement]
    assert pip.installed[0][0][: len(arguments)] == arguments
    assert ("--extra-index-url" in pip.installed[0][0]) is (bool(index) and not by_backend)


@pytest.mark.parametrize("name", REFUSALS)
def test_install_refuses_in_one_line(
    name: str, pip: Installers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, message = REFUSALS[name]
    for variable, value in settings.items():
        monkeypatch.setenv(variable, value)
    if "UV" in settings:
        monkeypatch.setattr(uv, "program", lambda: None)
    monkeypatch.setattr(install, "driver", lambda: settings.get("CUDA"))
    pip.status, pip.errors = int("ERRORS" in settings), settings.get("ERRORS", settings.get("EXTRA", ""))
    assert install.main(["torch"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_install_of_a_version_that_no_index_has_is_refused(installer: str) -> None:
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull, "UV_OFFLINE": "1"}
    command = [sys.executable, "-m", "conformance", "install", "tf"]
    completed = run(command, TF_VERSION="0.0.99", **offline, **{INSTALLER: installer})
    assert (completed.status, len(completed.lines)) == (2, 1), completed.lines
    assert "0.0.99 cannot be installed" in completed.lines[0]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An index of small wheels, with the day of each one's upload, as the only one that uv knows."""
    files = {
        package: [
            {
                "filename": write_wheel(tmp_path / package, package, version, requires=DECLARED[package]).name,
                "upload-time": f"{day}T00:00:00Z",
            }
            for version, day in uploads.items()
        ]
        for package, uploads in UPLOADS.items()
    }
    with serve_index(tmp_path, files) as address:
        for name, value in (("DEFAULT_INDEX", address), ("CACHE_DIR", str(tmp_path / "cache")), ("NO_CONFIG", "1")):
            monkeypatch.setenv(f"UV_{name}", value)
        yield


@pytest.mark.skipif(uv.program() is None, reason="uv is not installed")
@pytest.mark.usefixtures("index")
def test_companions_of_a_version_are_of_its_time() -> None:
    resolve = partial(uv.companions, "frame", "1.0")
    assert resolve(["frame==1.0"], {}, {"numpy": "2.0"}) == {"frame": "1.0", "mate": "1.0", "numpy": "2.0"}
    assert resolve(["frame==1.0"], {"mate": "2.0"}, {}) == {"frame": "1.0", "mate": "2.0", "numpy": "1.0"}
    assert resolve(["frame==1.0", "numpy<2"], {}, {"numpy": "2.0"})["numpy"] == "1.0"
    newest = uv.companions("frame", "2.0", ["frame==2.0"], {}, {})
    assert newest == {"frame": "2.0", "mate": "3.0", "numpy": "2.0"}
    with pytest.raises(Unavailable, match="mate"):
        resolve(["frame==1.0", "mate==9"], {}, {})


def pins_of(name: str, python: str) -> dict[str, str]:
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "platform_machine": "x86_64",
    }
    lines = [Requirement(line) for line in lock_text(name).splitlines() if not line.startswith("#")]
    pins = [line for line in lines if line.marker is None or line.marker.evaluate(environment)]
    assert len({canonicalize_name(line.name) for line in pins}) == len(pins)
    return {canonicalize_name(line.name): str(line.specifier).removeprefix("==") for line in pins}


def lock_text(name: str) -> str:
    return (locks.FOLDER / f"{name}.txt").read_text("utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_lock_has_versions_alone(name: str) -> None:
    generated, command, *lines = lock_text(name).splitlines()
    assert generated.startswith("# This file was autogenerated by uv")
    assert command == "#    python -m tools lock"
    for line in lines:
        assert re.fullmatch(r"[a-z0-9-]+==[\w.]+( ; [\w .'<>!=()]+)?", line), line


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("framework", DISTRIBUTIONS)
def test_locks_of_a_framework_have_its_pinned_version(framework: str, python: str) -> None:
    chosen = DISTRIBUTIONS[framework]
    for name in (framework, locks.ALL):
        versions = pins_of(name, python)
        assert versions[canonicalize_name(bare(chosen.cpu))] == chosen.pinned
        assert locks.names(chosen.companions) <= versions.keys()
        for limit in map(Requirement, chosen.limits_of(chosen.pinned)):
            assert limit.specifier.contains(versions[limit.name])


@pytest.mark.parametrize("python", PYTHONS)
def test_locks_meet_the_requirements_of_the_suite(python: str) -> None:
    suite = pins_of(locks.SUITE, python)
    for name in NAMES:
        versions = pins_of(name, python)
        different = {package for package, version in versions.items() if suite.get(package, version) != version}
        assert different <= ({"numpy"} if name in ("paddle", locks.ALL) else set()), name
    groups = PROJECT["dependency-groups"]
    for name in (locks.SUITE, locks.TOOLS):
        versions = pins_of(name, python)
        for group in ("suite", *locks.GROUPS.get(name, ("run",))):
            for requirement in map(Requirement, groups[group]):
                assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), requirement


def test_deviations_are_those_of_installed_packages() -> None:
    versions = {"pytest": "0.1", "packaging": locks.installed_version("packaging") or "", "no-such-distribution": "1"}
    assert locks.deviations(versions) == [f"pytest {pytest.__version__}, not 0.1"]
    if "TOX_ENV_NAME" in os.environ:
        assert locks.deviations(locks.read(locks.TOOLS)) == []


def test_lock_without_uv_is_read_and_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(locks, "FOLDER", tmp_path)
    (tmp_path / "x.txt").write_text("# comment\nNumPy==2.4.6\nnew==1 ; python_version < '3'\n")
    assert locks.read("x") == {"numpy": "2.4.6"}
    assert locks.examples("x") == {"numpy": "2.4.6", "new": "1"}
    versions = (("2.13.0", "2.13.0"), ("2.13.0+cpu", "2.13.0"), ("2.13.0", "2.13.0+cpu"), ("2.1", "2.0"))
    assert [locks.same(*pair) for pair in versions] == [True, True, False, False]
    monkeypatch.setattr(uv, "program", lambda: None)
    assert locks.main(["jax"]) == 2
    assert capsys.readouterr().err == "jax cannot be locked (uv is not installed)\n"
    assert [path.name for path in tmp_path.iterdir()] == ["x.txt"]


def test_lock_of_a_framework_resolves_cpu_and_gpu_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[list[str], Path, Path, list[str]]] = []
    monkeypatch.setattr(locks, "FOLDER", tmp_path / "locks")
    monkeypatch.setattr(
        uv, "solve", lambda requirements, path, *options, folder: calls.append((requirements, path, folder, [*options]))
    )
    assert locks.main(["--upgrade", "jax"]) == 0
    ((requirements, path, folder, options),) = calls
    assert requirements == ["jax==0.10.2", "jax[cuda12]==0.10.2", *DISTRIBUTIONS["jax"].companions]
    assert (path, folder) == (tmp_path / "locks" / "jax.txt", tmp_path)
    assert {"--universal", "--upgrade", "--group=run", "pyproject.toml"} <= set(options)


def test_tox_names_every_lock() -> None:
    named = set(re.findall(r"-c locks/(\S+)\.txt", (ROOT / "tox.ini").read_text("utf-8")))
    assert named == set(NAMES) - {locks.SUITE}
    groups = PROJECT["dependency-groups"]
    assert [*groups["suite"], *groups["run"]] == PROJECT["project"]["dependencies"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder, which cannot be written, with the installed wheel of the suite."""
    folder = tmp_path_factory.mktemp("site")
    build = "from hatchling.build import build_wheel; import sys; build_wheel(sys.argv[1])"
    run([sys.executable, "-c", build, str(folder)])
    (wheel,) = folder.iterdir()
    with ZipFile(wheel) as archive:
        archive.extractall(folder)
    assert wheel.stat().st_size < 8 * 2**20
    wheel.unlink()
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555)
    yield folder
    for path in (folder, *filter(Path.is_dir, folder.rglob("*"))):
        path.chmod(0o755)
    shutil.rmtree(folder)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose packages have the names of those of the suite and cannot be imported."""
    for name in ("fixtures", "frameworks", "results", "locks"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the project is imported')\n")
    return tmp_path


def call_wheel(site: Path, project: Path, *arguments: str) -> CommandResult:
    variables = {"PYTHONPATH": str(site), "XDG_CACHE_HOME": str(project / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    return run([sys.executable, *arguments], project, PYTEST_DISABLE_PLUGIN_AUTOLOAD="", **variables)


def test_wheel_has_one_importable_name_and_knows_the_suite(site: Path, project: Path) -> None:
    names = {path.name for path in site.iterdir()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"conformance"}
    program = (
        "from conformance.cli import main; assert main(['spec', 'list']) == 0;"
        "from conformance.runner.identity import suite; print(suite('torch', (), ()).areas);"
    )
    completed = call_wheel(site, project, "-c", program)
    assert (completed.status, completed.errors) == (0, "")
    assert CLAUSE in completed.output
    assert completed.output.endswith(f"\n{identity.suite('torch', (), ()).areas}\n")
    program = "import importlib.util as u; print(*[n for n in ('fixtures', 'frameworks', 'results') if u.find_spec(n)])"
    assert call_wheel(site, project / "locks", "-c", program).output == "\n"


def test_run_of_the_wheel_writes_into_its_folder_alone(site: Path, project: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in site.rglob("*")}
    arguments = ("-m", "conformance", "run", "reference", "--record=mine/record.json", "conformance/suites/scaling")
    completed = call_wheel(site, project, *arguments, "--numprocesses=0", "-k", f"{CLAUSE} and nan")
    assert completed.status == 0, completed.lines
    record = load(project / "mine" / "record.json")
    assert {verdict.clause for verdict in record.verdicts} == {CLAUSE}
    assert record.verdicts[0].repro.startswith("conformance run reference --device=cpu --mode=emulated --seed=0 ")
    assert record.suite.commit == ""
    written = {path.name for path in project.iterdir()} - {"fixtures", "frameworks", "results", "locks"}
    assert written <= {"mine", "cache"}
    assert {path: path.stat().st_mtime_ns for path in site.rglob("*")} == before
