"""Folders that a history is made of: records, and what `conformance sweep` writes next to them.

A sweep's `outcomes.json` lists every version that was planned, with its date, whether or not it could be judged. It is
untrusted like the records: its names are compared with those of files that were listed, and never opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from results.compare.environment import COMPANIONS, LIBRARIES, OWN
from results.history.states import Condenser, JudgedVersion
from results.record.encoding import without_collecting
from results.record.files import RecordError, read
from results.record.folders import Watch, find, listed
from results.record.reading import load
from results.record.values import parse

OUTCOMES = "outcomes.json"
RECORDS = "records"

_Name = Annotated[str, Meta(max_length=200)]
_Day = Annotated[str, Meta(pattern=r"^([0-9]{4}-[0-9]{2}-[0-9]{2})?(?!\n)$")]


@dataclass(frozen=True)
class PlannedCell:
    """One version that a sweep planned.

    Attributes:
        package: the one that varies, "" for the framework. version, released: of that package.
        framework_version: "" where it is that version, or where nothing is installed.
        companions: versions of other packages that the plan asks for.
        mode: "" for the adapter's own.
        released: date of the version of `package`, or "".
        outcome: "judged", or why there is no record.
        record: name of the record's file, or "".
    """

    framework: _Name
    version: _Name
    package: _Name
    mode: _Name
    outcome: _Name
    framework_version: _Name = ""
    released: _Day = ""
    companions: Mapping[_Name, _Name] = field(default_factory=dict)
    ways: Sequence[str] = ()
    device: _Name = ""
    python: _Name = ""
    reason: Annotated[str, Meta(max_length=4000)] = ""
    record: _Name = ""

    @property
    def by(self) -> str:
        """What follows the mode in the name of its line: the ways, if it has any."""
        return f" by {', '.join(self.ways)}" if self.ways else ""

    @property
    def of_framework(self) -> bool:
        """Whether the framework itself varies."""
        if self.package in ("", self.framework, *OWN.get(self.framework, ())):
            return True
        return self.framework_version == self.version and self.package not in COMPANIONS | LIBRARIES


@dataclass(frozen=True)
class PlannedSweep:
    """The content of an `outcomes.json`."""

    version: Literal[1]
    cells: tuple[PlannedCell, ...]


@dataclass(frozen=True)
class FolderContents:
    """What the folders contain.

    Attributes:
        plain: records without a plan.
        planned: every planned cell with its record, None where there is none.
    """

    plain: tuple[JudgedVersion, ...]
    planned: tuple[tuple[PlannedCell, JudgedVersion | None], ...]


def gather(folders: Sequence[Path], watch: Watch = lambda files: files) -> FolderContents:
    """Reads records, folders of records, and folders of sweeps.

    Args:
        watch: is given the record files, and each of them as it is read.

    Raises:
        RecordError: a file cannot be read, or a folder has neither records nor a plan.
    """
    condensed = Condenser()
    sweeps = {path: _plan(path / OUTCOMES) for path in folders if (path / OUTCOMES).is_file()}
    own = {file: path for path in sweeps for file in listed(path / RECORDS)}
    others = find([path for path in folders if path not in sweeps]) if len(sweeps) < len(folders) else []
    plain: list[JudgedVersion] = []
    named: dict[tuple[Path, str], JudgedVersion] = {}
    with without_collecting():
        for file in watch([*own, *others]):
            one = condensed(load(file))
            if file in own:
                named[own[file], file.name] = one
            else:
                plain.append(one)
    planned = [pair for path, plan in sweeps.items() for pair in _matched(path, plan, named)]
    used = {(path, cell.record) for path, plan in sweeps.items() for cell in plan.cells}
    plain += [one for key, one in named.items() if key not in used]
    return FolderContents(tuple(plain), tuple(planned))


def _matched(
    path: Path, plan: PlannedSweep, named: Mapping[tuple[Path, str], JudgedVersion]
) -> Iterator[tuple[PlannedCell, JudgedVersion | None]]:
    for cell in plan.cells:
        one = named.get((path, cell.record))
        if one is not None and one.framework != cell.framework:
            problem = f"says that {cell.record} is of {cell.framework}, but its record is of {one.framework}"
            raise RecordError(path / OUTCOMES, problem, "run the sweep again")
        yield cell, None if one is None else replace(one, mode=f"{one.mode}{cell.by}")


def _plan(path: Path) -> PlannedSweep:
    content = read(path)
    try:
        plan: PlannedSweep = parse(content, PlannedSweep)
    except ValueError as error:
        raise RecordError(path, f"is no list of a sweep's outcomes ({error})", "run the sweep again") from None
    return plan
