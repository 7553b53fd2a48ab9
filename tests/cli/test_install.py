"""Installing frameworks: how pip and uv are called, one line where it cannot be done, no call where all is there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from conformance.runner import jobs
from frameworks.installer import install, locks, request, uv
from frameworks.installer.pip import INSTALLER
from tests.support.installers import JAX, NUMPY, OLDER, Installers
from tests.support.suite_runs import run

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
    pip: Installers, frameworks: list[str], requirements: list[str], pins: list[str], capsys: pytest.CaptureFixture[str]
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


# ---------------------------------------------------------------- a run installs nothing


@pytest.mark.parametrize(
    ("modules", "packages", "modes", "problem"),
    [
        ([], {}, [""], "torch is not installed; install it with pip, or the pinned one by `conformance install torch`"),
        (["torch"], {}, [""], ""),
        (["torch"], {"torch": "2.12.1"}, ["eager", "accelerate"], "not installed: accelerate; pip install accelerate"),
    ],
)
def test_a_run_names_what_is_missing_and_installs_nothing(
    pip: Installers,
    here: dict[str, str],
    modules: list[str],
    packages: dict[str, str],
    modes: list[str],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    here |= packages
    monkeypatch.setattr(install, "find_spec", lambda name: name if name in modules else None)
    monkeypatch.setattr(jobs, "judge", lambda *_: 2)
    monkeypatch.setattr(jobs, "_refused", lambda *_: "")
    assert jobs.job("torch", modes, "cpu", []) == 2
    assert capsys.readouterr().err == (f"conformance: {problem}\n" if problem else "")
    assert not pip.installed


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
