"""The interpreters of a race's sides."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from conformance.race.processes import RaceError
from conformance.sweep.environments import EnvironmentCache, environments_folder
from frameworks.installer import request
from frameworks.installer.distributions import Unavailable
from frameworks.installer.resolution import WantedEnvironment, distribution_of, resolve


@dataclass(frozen=True)
class WantedSide:
    """A side as the user names it.

    Attributes:
        side: "old" or "new". version: of the framework, or "". python: of an environment, or None.
    """

    side: str
    framework: str
    version: str = ""
    python: Path | None = None
    device: str = "auto"
    mode: str = ""


@contextmanager
def interpreter(wanted: WantedSide) -> Iterator[Path]:
    """The Python of a side: the one that is named; of a version, that of an environment of its time, installed if it is
    missing; or this one for the new side.

    Raises:
        RaceError: there is none, or it cannot be installed.
    """
    if wanted.python is not None:
        yield wanted.python.absolute()
    elif wanted.version and distribution_of(wanted.framework) is not None:
        with _installed(wanted) as python:
            yield python
    elif wanted.side == "new":
        yield Path(sys.executable)
    else:
        want = f"--{wanted.side}, its version" if distribution_of(wanted.framework) else f"--{wanted.side}-python"
        raise RaceError(f"{wanted.side}: name {want}, or the Python of an environment with {wanted.framework}")


@contextmanager
def _installed(wanted: WantedSide) -> Iterator[Path]:
    gpu = None if wanted.device == "cpu" else request.driver()
    asked = WantedEnvironment(wanted.framework, wanted.version, wanted.mode, gpu=gpu)
    with ExitStack() as stack:
        try:
            python = stack.enter_context(EnvironmentCache(environments_folder()).using(resolve(asked)))
        except Unavailable as refusal:
            raise RaceError(f"{wanted.side}: {wanted.framework} {wanted.version}: {refusal}") from None
        yield python


def check(wanted: WantedSide, got: str) -> None:
    """Whether a side has the version that the user names.

    Raises:
        RaceError: it has another one.
    """
    if wanted.version and got.partition("+")[0] != wanted.version.partition("+")[0]:
        raise RaceError(
            f"the {wanted.side} environment has {wanted.framework} {got}, want {wanted.version}; name another Python"
        )
