"""The interpreters of a race's sides."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.version import InvalidVersion, Version

from conformance.race.processes import RaceError
from conformance.runner.adapter_info import check_mode
from conformance.sweep.cell import Commands, NotJudged, make_environment, requirements_of
from conformance.sweep.known_names import check_device
from conformance.sweep.plan import CellGroup, SweepPlan, cells_of
from conformance.sweep.releases import check_release, releases
from frameworks.installer import locks
from frameworks.installer.distributions import bare, distribution_of
from results.record.files import RecordError


@dataclass(frozen=True)
class SideRequest:
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
def interpreter(wanted: SideRequest) -> Iterator[Path]:
    """The Python of a side that `check_named` takes: the one that is named; of a version, that of an environment of its
    time, installed if it is missing; or this one.

    Raises:
        RaceError: it cannot be installed.
    """
    if wanted.python is not None:
        yield wanted.python.absolute()
    elif wanted.version:
        modes = (wanted.mode,) if wanted.mode else ()
        group = CellGroup(wanted.framework, (wanted.version,), modes=modes, devices=(wanted.device,))
        with TemporaryDirectory(prefix="conformance-race-", ignore_cleanup_errors=True) as folder:
            try:
                (cell, *_) = cells_of(SweepPlan("race", (group,)))
                python = make_environment(Path(folder, "environment"), requirements_of(cell), Commands())
            except NotJudged as refusal:
                raise RaceError(f"{wanted.side}: {wanted.framework} {wanted.version}: {refusal.args[1]}") from None
            yield python
    else:
        yield Path(sys.executable)


def _unnamed(wanted: SideRequest, why: str = "") -> RaceError:
    name = wanted.framework
    python = f"{name}@PYTHON, the Python of an environment with {name}"
    if distribution_of(name) is None:
        return RaceError(f"{wanted.side}: nothing is installed for {name}; name {python}")
    return RaceError(f"{wanted.side}: {why}name {name}==VERSION, or {python}")


def check_named(wanted: SideRequest) -> None:
    """Refuses a side that cannot run, as far as that is known before anything is resolved or installed.

    Raises:
        RaceError: version and Python are both named, or one is none.
        RecordError: no index has the version. UnknownFramework: there is no such adapter.
    """
    side, chosen = wanted.side, distribution_of(wanted.framework)
    if wanted.version and wanted.python is not None:
        raise RaceError(f"{side}: got a version and a Python, want one of them")
    try:
        check_mode(wanted.framework, wanted.mode)
        check_device(wanted.framework, wanted.device)
    except ValueError as error:
        raise RaceError(f"{side}: {error}") from None
    if wanted.python is not None:
        problem = "" if wanted.python.exists() else "no such file or directory"
        if not problem and not (wanted.python.is_file() and os.access(wanted.python, os.X_OK)):
            problem = "no program"
        if problem:
            raise RaceError(f"{side}: {wanted.python}: {problem}; name a Python that has the framework")
    elif wanted.version and chosen is not None:
        _check_version(wanted, bare(chosen.cpu))
    elif wanted.version:
        raise _unnamed(wanted)
    elif chosen is not None and not any(locks.installed_version(bare(each)) for each in (chosen.cpu, chosen.gpu)):
        raise _unnamed(wanted, f"this Python has no {wanted.framework}; ")


def _check_version(wanted: SideRequest, package: str) -> None:
    try:
        version = Version(wanted.version)
    except InvalidVersion:
        raise RaceError(f"{wanted.side}: got {wanted.version!r}, want a version such as 2.6.0") from None
    try:
        known = releases(package)
    except RecordError as refusal:
        raise RaceError(f"{wanted.side}: {refusal}") from None
    check_release(package, version, known)


def check(wanted: SideRequest, got: str) -> None:
    """Whether a side has the version that the user names.

    Raises:
        RaceError: it has another one.
    """
    if wanted.version and got.partition("+")[0] != wanted.version.partition("+")[0]:
        raise RaceError(
            f"the {wanted.side} environment has {wanted.framework} {got}, want {wanted.version}; name another Python"
        )
