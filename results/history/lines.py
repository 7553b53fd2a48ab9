"""Lines of versions: for one framework, mode, device and platform, the versions of the one package that varies.

A line of the framework itself has each of its versions once, with the companions of its time; which of them changed is
kept with each version. A line of a companion has one version of the framework, and the other companions do not change.
Records of different platforms or seeds are never in one line. Builds of one version (`2.6.0+cpu`, `2.6.0+cu124`) are in
one place of their line, as are several records of one version.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from packaging.version import Version

from results.history.folders import FolderContents, PlannedCell
from results.history.states import JudgedVersion
from results.show.portability import age

_Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class VersionColumn:
    """One version of a line.

    Attributes:
        released: its date, or "".
        records: none if it was not judged, or if the history was read from a file.
        gap: why it was not judged, in one line; "" if it was.
        companions: versions of the framework, of the companions that its version names, and of Python, in the newest
            record.
        partial: how each record ended, if one did not end complete.
    """

    version: str
    released: str
    records: tuple[JudgedVersion, ...] = ()
    gap: str = ""
    companions: Mapping[str, str] = field(default_factory=dict)
    partial: tuple[str, ...] = ()

    @property
    def judged(self) -> bool:
        """Whether there is a record of it."""
        return not self.gap


@dataclass(frozen=True)
class VersionLine:
    """Versions of one package, in the order of PEP 440.

    Attributes:
        package: the one that varies, the framework's name if it is the framework itself.
        fixed: versions that do not change, by package; the framework's among them in the line of a companion.
    """

    framework: str
    package: str
    mode: str
    device: str
    platform: str
    seed: int
    fixed: _Labels
    columns: tuple[VersionColumn, ...]

    @property
    def name(self) -> str:
        """The line in words, such as "tf keras (tf 2.19.1), graph, x86_64 linux cpu"."""
        what = self.framework if self.package == self.framework else f"{self.framework} {self.package}"
        with_ = f" ({', '.join(f'{name} {version}' for name, version in self.fixed)})" if self.fixed else ""
        seed = f", seed {self.seed}" if self.seed else ""
        return f"{what}{with_}, {self.mode}, {self.platform or self.device}{seed}"


_Key = tuple[str, str, str, str, str, int, _Labels]
"""Framework, package, mode, device, platform, seed, fixed."""

_Versions = dict[str, list[JudgedVersion]]


def lines(gathered: FolderContents) -> tuple[VersionLine, ...]:
    """Every line of at least one judged version, by name.

    A line of a framework with one judged version is left out if that record is in a line of a companion.
    """
    result: dict[_Key, _Versions] = defaultdict(lambda: defaultdict(list))
    cells = [cell for cell, _ in gathered.planned]
    fixed_of = _Fixed(cell for cell in cells if not cell.of_framework)
    pool = [*gathered.plain, *(one for cell, one in gathered.planned if one is not None and cell.of_framework)]
    groups: dict[tuple[str, str, str, str, int], list[JudgedVersion]] = defaultdict(list)
    for one in pool:
        groups[one.framework, one.mode, one.device, one.platform, one.seed].append(one)
    for (framework, mode, device, platform, seed), members in groups.items():
        for one in _one_for_each_version(members):
            result[framework, framework, mode, device, platform, seed, ()][one.version].append(one)
        for package, version, fixed, one in _with_other_companions(members):
            result[framework, package, mode, device, platform, seed, fixed][version].append(one)
    for cell, planned in gathered.planned:
        if planned is not None and not cell.of_framework:
            place = planned.mode, planned.device, planned.platform, planned.seed
            result[cell.framework, cell.package, *place, fixed_of(cell)][cell.version].append(planned)
    _join(result, gathered.plain)
    return tuple(sorted(_made(result, cells, fixed_of), key=lambda line: line.name))


def _join(by_key: Mapping[_Key, _Versions], plain: Iterable[JudgedVersion]) -> None:
    """Adds records without a plan to the lines of companions that a plan made."""
    for one in plain:
        for package, version in one.labels.items():
            key = one.framework, package, one.mode, one.device, one.platform, one.seed, _but(one, package)
            members = by_key.get(key)
            if members is not None and all(one is not each for each in members[version]):
                members[version].append(one)


def _made(
    by_key: Mapping[_Key, _Versions], planned: Sequence[PlannedCell], fixed_of: Callable[[PlannedCell], _Labels]
) -> Iterator[VersionLine]:
    elsewhere = {
        id(one)
        for key, versions in by_key.items()
        if key[1] != key[0] and len(versions) > 1
        for members in versions.values()
        for one in members
    }
    for key, versions in by_key.items():
        framework, package, mode, device, platform, seed, fixed = key
        cells = [
            cell
            for cell in planned
            if cell.framework == framework
            and cell.device in ("", device)
            and _in_mode(cell, mode)
            and (cell.of_framework if package == framework else (cell.package, fixed_of(cell)) == (package, fixed))
        ]
        columns = tuple(sorted(_columns(versions, cells), key=lambda column: age(column.version)))
        if package == framework and len(columns) == 1 and all(id(one) in elsewhere for one in columns[0].records):
            continue
        yield VersionLine(framework, package, mode, device, platform, seed, fixed, columns)


def _in_mode(cell: PlannedCell, mode: str) -> bool:
    name, by, ways = mode.partition(" by ")
    return cell.by == by + ways and cell.mode in ("", name)


def _columns(versions: _Versions, cells: Sequence[PlannedCell]) -> Iterator[VersionColumn]:
    records: dict[Version | str, list[tuple[str, JudgedVersion]]] = defaultdict(list)
    planned: dict[Version | str, list[PlannedCell]] = defaultdict(list)
    for version, members in versions.items():
        records[_same(version)] += [(version, one) for one in members]
    for cell in cells:
        planned[_same(cell.version)].append(cell)
    for key in {**records, **planned}:
        judged = sorted(records[key], key=lambda pair: pair[1].started)
        version = judged[-1][0] if judged else planned[key][-1].version
        released = next((cell.released for cell in planned[key] if cell.released), "")
        if judged:
            yield _column(version, released, tuple(one for _, one in judged))
        else:
            yield VersionColumn(version, released, gap=_gap(planned[key]))


def _column(version: str, released: str, records: tuple[JudgedVersion, ...]) -> VersionColumn:
    newest, statuses = records[-1], tuple(one.status for one in records)
    companions = {**newest.labels, newest.framework: newest.version, "python": newest.python}
    partial = statuses if any(status != "complete" for status in statuses) else ()
    return VersionColumn(version, released, records, companions=companions, partial=partial)


def _same(version: str) -> Version | str:
    """Equal for texts of one version, such as 2.6, 2.6.0 and 2.6.0+cpu."""
    known, parsed, text = age(version)
    return Version(parsed.public) if known else text


def _gap(planned: Sequence[PlannedCell]) -> str:
    cell = planned[-1]
    outcome = "its record is missing" if cell.outcome == "judged" else cell.outcome
    return f"{outcome}: {cell.reason}" if cell.reason else outcome


class _Fixed:
    """What is fixed in the lines of companions that were planned.

    Where each version of a companion was planned with one version of the framework, and these differ, the framework is
    of the companion's time and not fixed.
    """

    def __init__(self, cells: Iterable[PlannedCell]) -> None:
        self._with: dict[tuple[object, ...], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for cell in cells:
            self._with[self._group(cell)][cell.version].add(cell.framework_version)

    def __call__(self, cell: PlannedCell) -> _Labels:
        """Versions by package."""
        planned = self._with[self._group(cell)].values()
        of_its_time = all(len(each) == 1 for each in planned) and len(set[str]().union(*planned)) > 1
        return self._others(cell) if of_its_time else ((cell.framework, cell.framework_version), *self._others(cell))

    def _group(self, cell: PlannedCell) -> tuple[object, ...]:
        return cell.framework, cell.package, cell.mode, tuple(cell.ways), cell.device, self._others(cell)

    def _others(self, cell: PlannedCell) -> _Labels:
        return tuple(sorted((name, version) for name, version in cell.companions.items() if name != cell.package))


def _labels(one: JudgedVersion) -> _Labels:
    return tuple(sorted(one.labels.items()))


def _but(one: JudgedVersion, package: str) -> _Labels:
    """What is fixed in the line of a companion."""
    return ((one.framework, one.version), *(pair for pair in _labels(one) if pair[0] != package))


def _one_for_each_version(members: Sequence[JudgedVersion]) -> Iterator[JudgedVersion]:
    """The records of each version that have the companions most versions have; of equally common ones the newest."""
    combinations: dict[str, set[_Labels]] = defaultdict(set)
    for one in members:
        combinations[one.version].add(_labels(one))
    common = Counter(labels for each in combinations.values() for labels in each)
    chosen = {
        version: max(each, key=lambda labels: (common[labels], [(name, age(number)) for name, number in labels]))
        for version, each in combinations.items()
    }
    yield from (one for one in members if chosen[one.version] == _labels(one))


def _with_other_companions(members: Sequence[JudgedVersion]) -> Iterator[tuple[str, str, _Labels, JudgedVersion]]:
    """Package, its version, what is fixed, and the record, where only that package differs between records."""
    places: dict[tuple[str, _Labels], list[tuple[str, JudgedVersion]]] = defaultdict(list)
    for one in members:
        for package, version in one.labels.items():
            places[package, _but(one, package)].append((version, one))
    for (package, fixed), result in places.items():
        if len({version for version, _ in result}) > 1:
            yield from ((package, version, fixed, one) for version, one in result)
