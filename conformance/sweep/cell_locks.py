"""The locks of a sweep's environments, resolved once and kept in its folder, so that a later run has the same ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from conformance.sweep.cells import PYTHON, SweepCell
from frameworks.installer import request
from frameworks.installer.distributions import InstallerInterrupted, Unavailable
from frameworks.installer.resolution import EnvironmentRequest, Lock, distribution_of, package_of, resolve
from results.record.files import RecordError, inside, one_line, replace

AT_ONCE = 4
"""Resolutions at the same time."""


def environment_of(cell: SweepCell, *, suite: bool = True) -> EnvironmentRequest | None:
    """What a cell's environment is asked to have; None where nothing is installed for its framework."""
    if distribution_of(cell.framework) is None:
        return None
    gpu = None if cell.device == "cpu" else request.driver()
    if gpu is None and cell.device not in ("cpu", "auto"):
        gpu = ""
    varying = "" if cell.package == package_of(cell.framework) else cell.package
    return EnvironmentRequest(cell.framework, cell.framework_version, cell.mode, cell.packages, gpu, varying, suite)


@dataclass(frozen=True)
class CellLocks:
    """Locks in a folder.

    Attributes:
        suite: whether environments have the suite's packages of their own.
    """

    folder: Path
    suite: bool = True

    def read(self, cells: Sequence[SweepCell], *, again: bool = False) -> dict[str, Lock | str | None]:
        """By the key of each cell its lock, why there is none, or None where nothing is installed.

        Args:
            again: whether environments without a solution are tried again.
        """
        wanted = {cell.key: environment_of(cell, suite=self.suite) for cell in cells}
        places = {name: each for each in wanted.values() if each is not None for name in [self._name(each)]}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            solved = dict(zip(places, pool.map(lambda each: self._one(each, again), places.values()), strict=True))
        return {key: None if each is None else solved[self._name(each)] for key, each in wanted.items()}

    def _name(self, wanted: EnvironmentRequest) -> str:
        distribution = distribution_of(wanted.framework)
        mode_packages = sorted(distribution.companions_in([wanted.mode])) if distribution else []
        parts = (wanted.framework, wanted.version, mode_packages, sorted((wanted.packages or {}).items()))
        text = repr((*parts, wanted.gpu, wanted.varying, wanted.suite, PYTHON))
        return f"{wanted.framework.replace(':', '.')}-{wanted.version}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def _one(self, wanted: EnvironmentRequest, again: bool) -> Lock | str:
        path = inside(self.folder, f"{self._name(wanted)}.json")
        try:
            known = json.loads(path.read_bytes())
            if "refused" not in known:
                return msgspec.convert(known, Lock)
            if not again:
                return str(known["refused"])
        except (OSError, ValueError, TypeError):
            pass
        lock: Lock | str
        try:
            lock = resolve(wanted)
        except InstallerInterrupted as ended:
            raise RecordError(f"{wanted.framework} {wanted.version}", str(ended), "run the command again") from None
        except Unavailable as refusal:
            lock = one_line(request.redacted(str(refusal)))
        self.folder.mkdir(parents=True, exist_ok=True)
        content = msgspec.json.encode({"refused": lock} if isinstance(lock, str) else lock)
        replace(path, msgspec.json.format(content, indent=1))
        return lock
