"""Versions that records and plans of sweeps are about, and the lines that they form.

A record is condensed to one short state for each test. `pass`, `fail` and `unsupported` are statements about the
framework; `abstain`, `unstable` and `not offered` are none. A sweep's `outcomes.json` lists every version that was
planned. It is untrusted like the records: its names are compared with those of listed files, and never opened.

A line has the versions of one package, for one framework, mode, device, platform and seed. A line of the framework has
the companions of its time. A line of a companion has one version of the framework, and the other companions do not
change. Builds of one version (`2.6.0+cpu`, `2.6.0+cu124`) share a column, and so do several records of one version.
"""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from msgspec import Meta
from packaging.version import Version

from results.compare.changes import PASS_OUTCOMES
from results.compare.environment import COMPANIONS, LIBRARIES, OWN, labelled, public
from results.record.encoding import without_collecting
from results.record.files import RecordError, read
from results.record.folders import Watch, find, listed
from results.record.model import Outcome
from results.record.reading import Record, RunSetup, load
from results.record.values import parse, plain, to_line
from results.show.clauses import FAILURE_OUTCOMES
from results.show.portability import age

CaseWord = Literal["pass", "fail", "unsupported", "abstain", "unstable", "not offered"]

GRAVITY: tuple[CaseWord, ...] = ("fail", "pass", "unsupported", "unstable", "abstain", "not offered")
"""The words of a clause, by which of its tests' words counts."""

STATEMENTS: frozenset[CaseWord] = frozenset({"pass", "fail", "unsupported"})
"""Words that say something about the framework."""

_TOKEN = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class CaseState:
    """The result of one test.

    Attributes:
        identity: revision of its clause and hash of its setup; tests of different identities are not comparable.
        first, runs: digests of its first training run and of all of them, "" where the record has none.
        signature, finding, link: of a failure.
        reason: words of the reason of a refusal or a known failure.
    """

    word: CaseWord
    identity: tuple[int, str]
    first: str = ""
    runs: str = ""
    signature: str = ""
    finding: str = ""
    link: str = ""
    reason: frozenset[str] = frozenset()
    passed: bool = False


@dataclass(frozen=True, slots=True)
class ClauseFacts:
    """The text of a clause."""

    level: str
    requirement: str
    family: str


@dataclass(frozen=True)
class JudgedVersion:
    """One record, condensed.

    Attributes:
        platform: architecture, operating system and device kind.
        version: the framework's, without its local label.
        labels: versions of the companions that the framework's version names, by name.
        cases: state of each test, by clause and test.
        findings: the reason and the link of each finding that a failure rests on.
    """

    framework: str
    mode: str
    device: str
    platform: str
    seed: int
    version: str
    labels: Mapping[str, str]
    python: str
    started: str
    status: str
    instruction_sets: frozenset[str]
    cases: Mapping[str, Mapping[str, CaseState]]
    clauses: Mapping[str, ClauseFacts]
    findings: Mapping[str, tuple[str, str]]


_T = TypeVar("_T", bound=Hashable)


@cache
def _shared(value: _T) -> _T:
    """One object for equal values of many records."""
    return value


def condense(record: Record) -> JudgedVersion:
    """The condensed form of a record."""
    cases: dict[str, dict[str, CaseState]] = {}
    for verdict in record.verdicts:
        failed = verdict.outcome in FAILURE_OUTCOMES
        excused = verdict.outcome in (Outcome.UNSUPPORTED, Outcome.KNOWN)
        state = CaseState(
            word=word(verdict.outcome),
            identity=(record.clauses[verdict.clause].revision, verdict.setup_hash),
            first=_digest(verdict.runs[:1]),
            runs=_digest(verdict.runs),
            signature=verdict.signature if failed else "",
            finding=verdict.finding if failed else "",
            link=verdict.link if failed else "",
            reason=frozenset(_TOKEN.findall(verdict.reason)) if excused else frozenset(),
            passed=verdict.outcome in PASS_OUTCOMES,
        )
        cases.setdefault(_shared(verdict.clause), {})[_shared(verdict.test)] = _shared(state)
    facts = {name: ClauseFacts(text.level, text.requirement, text.family) for name, text in record.clauses.items()}
    environment = record.variant.environment
    return JudgedVersion(
        framework=record.series.framework,
        mode=record.series.mode,
        device=record.series.device,
        platform=platform(record),
        seed=record.seed,
        version=public(record),
        labels=labelled(record),
        python=".".join(environment.get("python", "").split(".")[:2]),
        started=record.started,
        status=record.status,
        instruction_sets=frozenset(record.variant.instruction_sets),
        cases=cases,
        clauses={_shared(name): _shared(fact) for name, fact in facts.items()},
        findings={name: (text.reason, text.link) for name, text in record.findings.items()},
    )


def _digest(runs: tuple[RunSetup, ...]) -> str:
    text = to_line(plain(_canonical(runs))) if runs else ""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16] if text else ""


def _canonical(value: object) -> object:
    """The value with integers as floats of the same value, which compare equal."""
    if isinstance(value, RunSetup):
        return {"fixture": value.fixture, "recipe": _canonical(value.recipe)}
    if isinstance(value, Mapping):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value


def word(outcome: Outcome) -> CaseWord:
    """The word of an outcome; a failure is one whether or not it was expected."""
    if outcome in PASS_OUTCOMES:
        return "pass"
    if outcome in FAILURE_OUTCOMES:
        return "fail"
    return outcome.value  # type: ignore[return-value]


def gravest(words: Iterable[CaseWord]) -> CaseWord:
    """The word of a clause by those of its tests.

    A failure counts first. A clause passes if a test passed and none failed, whatever abstained or was refused.

    Raises:
        ValueError: there is none.
    """
    return min(words, key=GRAVITY.index)


def platform(record: Record) -> str:
    """Architecture, operating system and device kind of a record's machine, such as "x86_64 linux cpu"."""
    environment = record.variant.environment
    library = environment.get("libc", "").lower()
    system = "linux" if "libc" in library or "musl" in library else library.partition(" ")[0]
    kind = record.series.device_kind or record.series.device
    return " ".join(filter(None, (environment.get("machine", ""), system, kind)))


def comparable(old: CaseState, new: CaseState) -> bool:
    """Whether two states of one test are of the same question; see `results.compare.changes`."""
    if old.word not in STATEMENTS or new.word not in STATEMENTS or old.identity != new.identity:
        return False
    if "unsupported" in (old.word, new.word):
        return True
    if old.passed and new.passed:
        return old.runs == new.runs
    return not (old.first and new.first) or old.first == new.first


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
    sweeps = {path: _plan(path / OUTCOMES) for path in folders if (path / OUTCOMES).is_file()}
    own = {file: path for path in sweeps for file in listed(path / RECORDS)}
    others = find([path for path in folders if path not in sweeps]) if len(sweeps) < len(folders) else []
    plain: list[JudgedVersion] = []
    named: dict[tuple[Path, str], JudgedVersion] = {}
    with without_collecting():
        for file in watch([*own, *others]):
            one = condense(load(file))
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
