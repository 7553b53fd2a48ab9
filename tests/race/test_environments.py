"""The interpreters of a race's sides: named ones, and environments of versions."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conformance.race import environments
from conformance.race.environments import WantedSide, check, interpreter
from conformance.race.processes import RaceError
from frameworks.installer.distributions import Unavailable
from frameworks.installer.resolution import Lock, WantedEnvironment


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[WantedEnvironment]:
    """What is to be resolved; nothing is installed, and no version begins with 9."""
    result: list[WantedEnvironment] = []

    def resolve(wanted: WantedEnvironment) -> Lock:
        if wanted.version.startswith("9"):
            raise Unavailable("there is no torch 9")
        result.append(wanted)
        return Lock((f"torch=={wanted.version}",), {})

    @contextmanager
    def using(cache: Any, lock: Lock) -> Iterator[Path]:  # noqa: ARG001
        yield Path(lock.requirements[0])

    monkeypatch.setattr(environments, "resolve", resolve)
    monkeypatch.setattr(environments.EnvironmentCache, "using", using)
    return result


def test_a_version_has_an_environment(asked: list[WantedEnvironment]) -> None:
    with interpreter(WantedSide("old", "torch", "2.12.1", device="cpu", mode="compile")) as python:
        assert str(python) == "torch==2.12.1"
    assert asked == [WantedEnvironment("torch", "2.12.1", "compile")]


def test_a_named_python_is_taken(asked: list[WantedEnvironment]) -> None:
    with interpreter(WantedSide("old", "torch", "2.12.1", Path("/x/python"))) as python:
        assert python == Path("/x/python")
    with interpreter(WantedSide("new", "torch")) as python:
        assert python == Path(sys.executable)
    assert asked == []


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (WantedSide("old", "torch", "9.0", device="cpu"), "old: torch 9.0: there is no torch 9"),
        (WantedSide("old", "torch"), "old: name --old, its version, or the Python of an environment with torch"),
        (WantedSide("old", "reference", "1"), "old: name --old-python, or the Python of an environment"),
    ],
)
def test_a_side_without_an_interpreter(asked: list[WantedEnvironment], wanted: WantedSide, why: str) -> None:
    with pytest.raises(RaceError, match=f"^{why}"), interpreter(wanted):
        pass
    assert asked == []


def test_another_version_than_the_named_one() -> None:
    check(WantedSide("old", "torch", "2.12.1"), "2.12.1+cpu")
    with pytest.raises(RaceError, match=r"has torch 2.13.0\+cpu, want 2.12.1"):
        check(WantedSide("old", "torch", "2.12.1"), "2.13.0+cpu")
