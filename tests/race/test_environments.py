"""The interpreters of a race's sides: named ones, and environments of versions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from packaging.version import Version

from conformance.cli.main import main
from conformance.race import environments
from conformance.race.environments import SideRequest, check, check_named, interpreter
from conformance.race.processes import RaceError
from conformance.sweep import plan
from conformance.sweep.cell import Commands, NotJudged, Requirements
from conformance.sweep.releases import Release
from results.record.files import RecordError
from tests.support.suite_runs import ROOT


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Requirements]:
    """The environments that are made; nothing is installed, and no version begins with 9."""
    result: list[Requirements] = []

    def make(folder: Path, wanted: Requirements, commands: Commands) -> Path:  # noqa: ARG001
        if wanted.names[0].startswith("torch==9"):
            raise NotJudged("no solution", "there is no torch 9")
        result.append(wanted)
        return Path(wanted.names[0])

    monkeypatch.setattr(environments, "make_environment", make)
    for module in (environments, plan):
        monkeypatch.setattr(module, "releases", known)
    return result


def known(package: str) -> dict[Version, Release]:
    """The releases of torch on the only index."""
    if package != "torch":
        raise RecordError(package, "its releases cannot be listed", "correct the name")
    return {Version(text): Release() for text in ("2.6.0", "2.12.1", "2.13.0")}


def test_a_version_has_an_environment(asked: list[Requirements]) -> None:
    with interpreter(SideRequest("old", "torch", "2.12.1", device="cpu", mode="accelerate")) as python:
        assert str(python) == "torch==2.12.1"
    assert asked[0].names[:2] == ("torch==2.12.1", "accelerate")


def test_a_named_python_is_taken(asked: list[Requirements]) -> None:
    with interpreter(SideRequest("old", "torch", "2.12.1", Path("/x/python"))) as python:
        assert python == Path("/x/python")
    with interpreter(SideRequest("new", "torch")) as python:
        assert python == Path(sys.executable)
    assert asked == []


def test_a_version_that_cannot_be_installed(asked: list[Requirements]) -> None:
    wanted = SideRequest("old", "torch", "9.0", device="cpu")
    with pytest.raises(RaceError, match=r"^old: torch 9\.0: there is no torch 9"), interpreter(wanted):
        pass
    assert asked == []


def test_another_version_than_the_named_one() -> None:
    check(SideRequest("old", "torch", "2.12.1"), "2.12.1+cpu")
    with pytest.raises(RaceError, match=r"has torch 2.13.0\+cpu, want 2.12.1"):
        check(SideRequest("old", "torch", "2.12.1"), "2.13.0+cpu")


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (SideRequest("old", "torch", "2.6.0", Path(sys.executable)), "old: got a version and a Python, want one of"),
        (SideRequest("old", "torch", python=Path("/x/python")), "old: /x/python: no such file or directory; name a"),
        (SideRequest("new", "torch", python=ROOT), f"new: {ROOT}: no program; name a Python"),
        (SideRequest("old", "torch", "abc"), "old: got 'abc', want a version such as 2.6.0"),
        (SideRequest("old", "torch", "2.5"), "torch 2.5: no index has it; the next one is 2.6.0"),
        (SideRequest("new", "torch", "99.0"), "torch 99.0: no index has it; the next one is 2.13.0"),
        (SideRequest("new", "jax", "0.9"), "new: jax: its releases cannot be listed"),
        (SideRequest("new", "torch"), "new: this Python has no torch; name torch==VERSION, or torch@PYTHON, the Py"),
        (SideRequest("new", "reference", "2"), "new: nothing is installed for reference; name reference@PYTHON, the"),
        (
            SideRequest("old", "torch", "2.6.0", mode="eagr"),
            "old: got mode 'eagr', want a mode of torch, such as eager",
        ),
        (
            SideRequest("old", "torch", "2.6.0", device="cpuu"),
            "old: got device 'cpuu', want cpu, auto or an accelerator",
        ),
    ],
)
def test_a_side_that_cannot_run_is_refused_at_once(
    asked: list[Requirements], wanted: SideRequest, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments.locks, "installed_version", lambda _: None)
    with pytest.raises((RaceError, RecordError)) as refused:
        check_named(wanted)
    assert str(refused.value).startswith(why)
    assert asked == []


@pytest.mark.usefixtures("asked")
def test_sides_that_may_run_are_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments.locks, "installed_version", lambda _: "2.13.0")
    for wanted in (
        SideRequest("old", "torch", "2.6.0"),
        SideRequest("old", "torch", "2.6.0+cpu", mode="compile"),
        SideRequest("new", "torch"),
        SideRequest("new", "reference"),
        SideRequest("old", "reference", python=Path(sys.executable)),
    ):
        check_named(wanted)


def test_both_sides_are_looked_at_before_one_is_installed(
    asked: list[Requirements], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["race", "torch==2.6.0", "torch@/x/python"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("conformance: new: /x/python: no such file or directory; name a Python")
    assert asked == []
