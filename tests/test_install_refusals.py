"""Installing frameworks that cannot be had: one line that names what and why."""

from __future__ import annotations

import sys

import pytest

from frameworks import install
from frameworks.installing import locks, wishes
from tests.pips import Pip
from tests.support import run


def test_installed_versions_are_read_without_label_and_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    assert locks.installed_version("pytest") == pytest.__version__
    assert locks.installed_version("no-such-distribution") is None
    monkeypatch.setattr(install, "installed", {"jax": "0.10.2+local"}.get)
    assert (install.installed_version("jax"), install.installed_version("tf")) == ("0.10.2", None)


@pytest.mark.parametrize(
    ("errors", "output", "told"),
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
        ("", "", "pip gave no reason"),
    ],
)
def test_what_pip_refuses_is_one_line(
    pip: Pip, errors: str, output: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCH_VERSION", "99")
    pip.status, pip.errors, pip.output = 1, errors, output
    assert install.main(["torch"]) == 2
    assert capsys.readouterr().err == f"torch 99 cannot be installed ({told}); set TORCH_VERSION to another version\n"


def test_an_extra_that_is_not_there_is_a_refusal(
    pip: Pip, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wishes, "driver", lambda: "12.4")
    pip.errors = "WARNING: tensorflow 2.21.0 does not provide the extra 'and-cuda'\n"
    assert install.main(["tf"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "(tensorflow 2.21.0 does not provide the extra 'and-cuda')" in line


def test_pip_itself_cannot_find_it() -> None:
    ended = run([sys.executable, "-m", "frameworks.install", "tf"], TF_VERSION="0.0.99", PIP_NO_INDEX="1")
    assert (ended.status, len(ended.lines)) == (2, 1), ended.lines
    assert "0.0.99 cannot be installed" in ended.lines[0]
    assert "TF_VERSION" in ended.lines[0]
