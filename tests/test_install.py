"""Installing frameworks: the very commands of pip, one line where it cannot be done, no call where nothing is to do."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from frameworks import install
from frameworks.installing import locks
from frameworks.installing.companions import UNDATED
from frameworks.installing.distributions import DISTRIBUTIONS
from tests.pips import JAX, NUMPY, OLDER, Pip

# ---------------------------------------------------------------- pinned versions, under their locks


@pytest.mark.parametrize("arguments", [[], ["nowhere"], ["torch", "torch"], ["--help"]])
def test_wrong_usage_is_one_line(pip: Pip, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert install.main(arguments) == 2
    assert capsys.readouterr().err == "usage: python -m frameworks.install {torch,tf,paddle,jax} ...\n"
    assert not pip.calls


@pytest.mark.parametrize(
    ("framework", "requirements", "pins"),
    [
        ("torch", ["torch==2.13.0"], [NUMPY, "scipy==1.17.1", "sympy==1.14.0"]),
        ("tf", ["tensorflow-cpu==2.21.0", "keras"], ["keras==3.15.1", NUMPY, "scipy==1.17.1"]),
        (
            "paddle",
            ["paddlepaddle==3.3.1", "setuptools", "numpy<2.4"],
            [OLDER, "scipy==1.17.1", "setuptools==84.2.1"],
        ),
        (
            "jax",
            ["jax==0.10.2", *JAX],
            ["flax==0.12.8", "jaxlib==0.10.2", NUMPY, "orbax-checkpoint==0.12.8", "scipy==1.17.1"],
        ),
    ],
)
def test_the_pinned_version_is_installed_under_its_lock(
    pip: Pip, framework: str, requirements: list[str], pins: list[str]
) -> None:
    assert install.main([framework]) == 0
    assert (pip.installed.words, pip.installed.pins) == (["install", *requirements], pins)
    assert len(pip.calls) == 1


def test_several_frameworks_have_a_lock_of_their_own(pip: Pip, capsys: pytest.CaptureFixture[str]) -> None:
    assert install.main(["torch", "jax"]) == 0
    assert pip.installed.words == ["install", "torch==2.13.0", "jax==0.10.2", *JAX]
    assert pip.installed.pins == [OLDER, "scipy==1.17.1"]
    assert capsys.readouterr().err == ""


def test_without_a_lock_for_this_python_the_user_is_told(
    pip: Pip, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(locks, "read", lambda _: {})
    assert install.main(["paddle"]) == 0
    assert pip.installed.words == ["install", "paddlepaddle==3.3.1", "setuptools", "numpy<2.4"]
    assert capsys.readouterr().err == (
        "paddle: there is no lock for this Python and platform: versions are the newest that declare to go with each "
        "other\n"
    )


# ---------------------------------------------------------------- other versions


@pytest.mark.parametrize("variable", ["TORCH_VERSION", "NUMPY_VERSION"])
@pytest.mark.parametrize("version", ["latest", ">=2", "2.1; rm", "-r x", "2.1 ", "../x", "2.13.0\n", "2.x"])
def test_what_is_no_version_is_refused(
    pip: Pip, variable: str, version: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, version)
    assert install.main(["torch"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    example = {"TORCH_VERSION": "2.13.0", "NUMPY_VERSION": "2.4.6"}[variable]
    assert line == f"{variable}={version!r} is not a version; write one such as {example}"
    assert not pip.calls


def test_companions_of_another_version_are_those_of_its_time(
    pip: Pip, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAX_VERSION", "0.9.2")
    pip.uploads = {"jax": {"0.9.2": "2026-03-18", "0.10.0": "2026-04-16", "0.10.2": "2026-06-17"}}
    pip.resolved = {
        "jax": ("0.9.2", ["jaxlib==0.9.2", "numpy>=2.0", "scipy>=1.13"]),
        "jaxlib": ("0.9.2", []),
        "Flax": ("0.12.6", ["jax>=0.8.1"]),
        "numpy": ("2.4.3", []),
        "scipy": ("1.17.0", []),
    }
    assert install.main(["jax"]) == 0
    assert pip.resolving.words == [
        *("install", "--dry-run", "--ignore-installed", "--report", "--uploaded-prior-to", "2026-04-17T00:00:00Z"),
        *("jax==0.9.2", *JAX),
    ]
    assert pip.installed.words == ["install", "jax==0.9.2", *JAX]
    assert pip.installed.pins == ["flax==0.12.6", "jaxlib==0.9.2", NUMPY, "scipy==1.17.1"]
    assert capsys.readouterr().err == ""


def test_without_upload_dates_declared_requirements_decide_and_the_user_is_told(
    pip: Pip, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAX_VERSION", "0.9.2")
    pip.dated, pip.resolved = False, {"jax": ("0.9.2", []), "flax": ("0.12.7", [])}
    assert install.main(["jax"]) == 0
    assert pip.installed.pins == ["flax==0.12.7"]
    assert capsys.readouterr().err == f"jax: {UNDATED}\n"


@pytest.mark.parametrize("alias", ["ORBAX_VERSION", "ORBAX_CHECKPOINT_VERSION"])
def test_every_package_of_a_lock_can_be_overridden(pip: Pip, alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(alias, "0.12.1")
    monkeypatch.setenv("JAXLIB_VERSION", "0.10.1")
    monkeypatch.setenv("KERAS_VERSION", "3.13.2")
    monkeypatch.setenv("CUDA_VERSION", "12.8.1")
    assert install.main(["jax"]) == 0
    assert pip.installed.words == ["install", "jax==0.10.2", "flax", "optax", "jmp", "orbax-checkpoint==0.12.1"]
    assert pip.installed.pins == [
        "flax==0.12.8",
        "jaxlib==0.10.1",
        NUMPY,
        "orbax-checkpoint==0.12.1",
        "scipy==1.17.1",
    ]


def test_keras_has_its_version(pip: Pip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_VERSION", "3.13.2")
    assert install.main(["tf"]) == 0
    assert pip.installed.words == ["install", "tensorflow-cpu==2.21.0", "keras==3.13.2"]
    assert pip.installed.pins == ["keras==3.13.2", NUMPY, "scipy==1.17.1"]


def test_a_companion_of_another_version_can_be_overridden_too(pip: Pip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_VERSION", "2.20.0")
    monkeypatch.setenv("KERAS_VERSION", "3.8.0")
    pip.uploads = {"tensorflow-cpu": {"2.20.0": "2025-08-13", "2.21.0": "2026-03-06"}}
    pip.resolved = {"tensorflow-cpu": ("2.20.0", []), "keras": ("3.8.0", [])}
    assert install.main(["tf"]) == 0
    assert pip.resolving.pins == ["keras==3.8.0"]
    assert (pip.installed.words, pip.installed.pins) == (
        ["install", "tensorflow-cpu==2.20.0", "keras==3.8.0"],
        ["keras==3.8.0"],
    )


@pytest.mark.parametrize(
    ("framework", "version", "limit"),
    [("paddle", "2.6.2", "numpy<2"), ("paddle", "3.0.0rc1", "numpy<2.4"), ("torch", "2.2.2", "numpy<2")],
)
def test_what_no_package_declares_is_required_and_old_numpy_takes_what_needs_it_along(
    pip: Pip, here: dict[str, str], framework: str, version: str, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{framework.upper()}_VERSION", version)
    here["scipy"] = "1.17.1"
    package = DISTRIBUTIONS[framework].cpu
    pip.uploads = {package: {version: "2024-01-01"}}
    pip.resolved = {package: (version, []), "numpy": ("1.26.4" if limit == "numpy<2" else "2.3.5", [])}
    assert install.main([framework]) == 0
    assert limit in pip.resolving.words
    assert pip.installed.words[1:] == [f"{package}=={version}", *DISTRIBUTIONS[framework].companions, limit, "scipy"]


def test_numpy_can_be_asked_for_against_what_is_said_of_it(pip: Pip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPY_VERSION", "2.4.6")
    assert install.main(["paddle"]) == 0
    assert pip.installed.words == ["install", "paddlepaddle==3.3.1", "setuptools"]
    assert NUMPY in pip.installed.pins


def test_an_empty_variable_asks_for_nothing(pip: Pip, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("TORCH_VERSION", "NUMPY_VERSION", "TORCH_INDEX", "TORCH_REQUIREMENT"):
        monkeypatch.setenv(variable, "")
    assert install.main(["torch"]) == 0
    assert pip.installed.words == ["install", "torch==2.13.0"]
    assert NUMPY in pip.installed.pins


@pytest.mark.parametrize(
    ("requirement", "dated"),
    [
        ("wheels/torch-2.16.0.dev1+cpu-cp311-cp311-linux_x86_64.whl", True),
        ("https://example.org/a/torch-2.16.0%2Bcu132-cp311-cp311-linux_x86_64.whl?x=1", True),
        ("git+https://example.org/torch", False),
    ],
)
def test_a_framework_can_come_from_elsewhere(
    pip: Pip, requirement: str, dated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_REQUIREMENT", requirement)
    pip.uploads = {"torch": {"2.13.0": "2026-05-01"}}
    pip.resolved = {"torch": ("2.16.0", []), "sympy": ("1.15.0", [])}
    assert install.main(["torch"]) == 0
    assert pip.resolving.words[-1] == requirement
    assert any(call.words[0] == "index" for call in pip.calls) is dated
    assert (pip.installed.words, pip.installed.pins) == (["install", requirement], ["sympy==1.15.0"])


@pytest.mark.parametrize("variable", ["TORCH_REQUIREMENT", "TORCH_INDEX"])
@pytest.mark.parametrize("option", ["-r/etc/passwd", "--index-url=https://example.org", " -e.", "-"])
def test_an_option_of_pip_is_refused(
    pip: Pip, variable: str, option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, option)
    assert install.main(["torch"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{variable} begins with '-', as an option of pip does; write")
    assert not pip.calls


@pytest.mark.parametrize(
    "requirement",
    [
        "https://name:hunter2@example.org/torch-2.16.0-cp311-cp311-linux_x86_64.whl",
        "torch @ git+https://hunter2@example.org/torch@main",
        "torch @ https://name:hun@ter2@example.org/torch.zip",
    ],
)
@pytest.mark.parametrize("terminal", [True, False])
def test_a_password_is_neither_printed_nor_noted(
    pip: Pip, requirement: str, terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCH_REQUIREMENT", requirement)
    monkeypatch.setenv("TORCH_INDEX", "https://name:hunter2@example.org/simple")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    pip.resolved = {"torch": ("2.16.0", []), "sympy": ("1.15.0", [])}
    assert install.main(["torch"]) == 0
    assert pip.installed.words == [
        "install",
        "--extra-index-url",
        "https://name:hunter2@example.org/simple",
        requirement,
    ]
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
    pip: Pip, here: dict[str, str], wanted: str, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_VERSION", wanted)
    here["torch"] = there
    assert install.main(["torch"]) == 0
    assert not pip.calls


@pytest.mark.parametrize("packages", [{"torch": "2.12.1"}, {"torch": "2.13.0", "numpy": "2.3.0"}])
def test_what_is_another_version_is_replaced(
    pip: Pip, here: dict[str, str], packages: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMPY_VERSION", "2.4.6")
    here.update(packages)
    assert install.main(["torch"]) == 0
    assert pip.installed.words == ["install", "torch==2.13.0"]


def test_numpy_stays_below_what_paddle_breaks_on_even_if_paddle_is_there(pip: Pip, here: dict[str, str]) -> None:
    here |= {"paddlepaddle": "3.3.1", "setuptools": "84.2.1", "numpy": "2.4.0"}
    assert install.main(["paddle"]) == 0
    assert "numpy<2.4" in pip.installed.words


def test_what_was_installed_is_not_chosen_again_until_something_else_is_asked_for(
    pip: Pip, here: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here |= {"tensorflow-cpu": "2.21.0", "keras": "3.12.0", "numpy": "2.4.6"}
    monkeypatch.setenv("KERAS_VERSION", "3.13.2")
    assert install.main(["tf"]) == 0
    here["keras"] = "3.13.2"
    noted = json.loads((tmp_path / "conformance-tf.json").read_text())
    assert noted["wish"]["packages"] == {"keras": "3.13.2"}
    assert install.main(["tf"]) == 0
    assert len(pip.calls) == 1, "nothing is to do"
    here["numpy"] = "2.5.0"
    assert install.main(["tf"]) == 0
    assert len(pip.calls) == 2, "NumPy moved away from the lock"
    here["numpy"] = "2.4.6"
    monkeypatch.delenv("KERAS_VERSION")
    assert install.main(["tf"]) == 0
    assert "keras==3.15.1" in pip.calls[-1].pins
