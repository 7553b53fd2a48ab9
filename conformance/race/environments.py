"""The interpreters of a race's sides."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from conformance.race.processes import RaceError


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
    """The Python of a side: the one that is named, or this one for the new side.

    Raises:
        RaceError: there is none.
    """
    if wanted.python is not None:
        yield wanted.python.absolute()
    elif wanted.side == "new" and not wanted.version:
        yield Path(sys.executable)
    else:
        want = f"the Python of an environment with {wanted.framework} {wanted.version or '(any version)'}"
        raise RaceError(f"name --{wanted.side}-python, {want}")


def check(wanted: WantedSide, got: str) -> None:
    """Whether a side has the version that the user names.

    Raises:
        RaceError: it has another one.
    """
    if wanted.version and got.partition("+")[0] != wanted.version.partition("+")[0]:
        raise RaceError(
            f"the {wanted.side} environment has {wanted.framework} {got}, want {wanted.version}; name another Python"
        )
