"""What a sweep will take: downloads, disk and time, as far as indexes and committed baselines say."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from conformance.runner.selection import ALL, durations, path_of, read
from conformance.sweep.cells import SweepCell
from conformance.sweep.environments import EnvironmentCache
from conformance.sweep.index import PackageIndex
from conformance.sweep.plan import SweepPlan
from frameworks.installer.distributions import Unavailable
from frameworks.installer.resolution import Lock

UNPACKED = 3.5
"""Bytes of an environment for each byte of its wheels, measured on environments of JAX and TensorFlow."""

_PAGES_AT_ONCE = 8


@dataclass(frozen=True)
class CellForecast:
    """One cell.

    Attributes:
        environment: name of its lock, "" where nothing is installed.
        download: bytes of wheels that no cell before it needs and whose size is known; 0 if its environment is there.
        unknown: packages whose size no index says.
        seconds: of the suite, None where no baseline is near.
    """

    cell: SweepCell
    environment: str = ""
    download: int = 0
    unknown: tuple[str, ...] = ()
    seconds: float | None = None
    refused: str = ""


@dataclass(frozen=True)
class SweepForecast:
    """A whole sweep.

    Attributes:
        download: bytes, each wheel once. It is more than pip takes where a wheel that uv does not see needs less.
        disk: bytes of the new environments, at most those of the cache's limit.
        free: bytes of the disk.
        seconds: of all cells one after the other, without installations.
    """

    cells: tuple[CellForecast, ...]
    download: int
    disk: int
    free: int
    seconds: float
    unknown: tuple[str, ...]


def forecast(
    plan: SweepPlan,
    cells: Sequence[SweepCell],
    locks: Mapping[str, Lock | str | None],
    index: PackageIndex,
    cache: EnvironmentCache,
    workers: int,
) -> SweepForecast:
    """What cells will take; sizes are those of wheels for this Python and platform."""
    new_locks = [lock for lock in locks.values() if isinstance(lock, Lock) and not cache.ready(lock)]
    pinned = {item for lock in new_locks for item in lock.pins.items()}
    with ThreadPoolExecutor(_PAGES_AT_ONCE) as pool:
        sizes = dict(zip(pinned, pool.map(lambda each: _size(index, *each), pinned), strict=True))
    result, counted, loaded, unpacked = [], set[str](), set[tuple[str, str]](), 0
    for cell in cells:
        lock = None if cell.outcome else locks.get(cell.key)
        if cell.outcome or isinstance(lock, str):
            result.append(CellForecast(cell, refused=cell.reason or str(lock)))
            continue
        seconds = _seconds(plan, cell, workers)
        if lock is None:
            result.append(CellForecast(cell, seconds=seconds))
            continue
        new = [] if cache.ready(lock) or lock.name in counted else lock.pins.items()
        counted.add(lock.name)
        known = {each: size for each in new if (size := sizes[each]) is not None}
        unknown = tuple(name for name, version in new if sizes[name, version] is None)
        download = sum(size for each, size in known.items() if each not in loaded)
        loaded |= known.keys()
        unpacked += sum(known.values())
        result.append(CellForecast(cell, lock.name, download, unknown, seconds))
    disk = min(int(unpacked * UNPACKED), cache.largest)
    names = tuple(sorted({name for each in result for name in each.unknown}))
    total = sum(each.seconds or 0.0 for each in result)
    download = sum(each.download for each in result)
    return SweepForecast(tuple(result), download, disk, shutil.disk_usage(_existing(cache.folder)).free, total, names)


def _size(index: PackageIndex, name: str, version: str) -> int | None:
    """Bytes of the wheel that pip would take here; None where no index says."""
    try:
        release = index.release(name, version)
    except Unavailable:
        return None
    return None if release is None else release.size


def _seconds(plan: SweepPlan, cell: SweepCell, workers: int) -> float | None:
    """Seconds of the tests of the plan's selection: their durations in the nearest baseline, at most the limit."""
    framework = cell.framework.partition(":")[0]
    named = [word.partition("=")[2] for word in plan.selection if word.startswith("--tests=")]
    selection, name = read(path_of(framework, cell.mode)), (named or [ALL])[-1]
    took = durations(framework, cell.mode, cell.device)
    functions = {test.partition("[")[0] for test in took if "[" in test}
    total = sum(seconds for test, seconds in took.items() if test not in functions and selection.has(test, name))
    return min(total / workers, plan.limit_s) if total else None


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above that exists."""
    return next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
