"""Versions in records and plans of sweeps, lines of versions, and what fingerprints say of each release.

A record is condensed to one short state for each test. `pass`, `fail` and `unsupported` are statements about the
framework; `abstain`, `unstable` and `not offered` are not. A sweep's `outcomes.json` lists all planned versions. It is
as untrusted as the records: file names in it are only compared with those of listed files, and never opened.

A line has the versions of one package, for one framework, mode, device, platform and seed. A line of the framework has
the companions of its time. A line of a companion has one version of the framework, and the other companions do not
change. Builds of one version (`2.6.0+cpu`, `2.6.0+cu124`) share a column, and so do several records of one version.
"""

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec import field as struct_field
from packaging.version import Version

from results.compare.changes import PASS_OUTCOMES
from results.compare.environment import COMPANIONS, LIBRARIES, OWN, parse_version_label, public
from results.compare.fingerprints import (
    SUFFIX,
    Difference,
    FingerprintComparison,
    compare_fingerprints,
    list_names,
    order_of,
)
from results.compare.fingerprints import load as load_fingerprint
from results.record.files import RecordError, one_line, read
from results.record.folders import Watch, find, list_records
from results.record.model import Outcome, parse, plain, to_line
from results.record.reading import Record, RunSetup, load, pause_collector
from results.show.clauses import FAILURE_OUTCOMES
from results.show.portability import age

CaseWord = Literal["pass", "fail", "unsupported", "abstain", "unstable", "not offered"]

GRAVITY: tuple[CaseWord, ...] = ("fail", "pass", "unsupported", "unstable", "abstain", "not offered")
"""The words of a clause, by precedence: the first one that a test of the clause has is the clause's."""

STATEMENTS: frozenset[CaseWord] = frozenset({"pass", "fail", "unsupported"})
"""Words that say something about the framework."""

_Labels = tuple[tuple[str, str], ...]
"""Packages and their versions."""

_Place = tuple[str, str, str, int]
"""Mode, device, platform, seed."""

_TOKEN = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class CaseState:
    """The result of one test.

    Attributes:
        identity: revision of its clause and hash of its setup; tests of different identities are not comparable.
        first, runs: digests of its first training run and of all of them, "" where the record has none.
        signature: of a failure.
        because: reason and web address of the finding that a failure rests on, "" where there is none.
        reason: words of the reason of a refusal or a known failure.
    """

    word: CaseWord
    identity: tuple[int, str]
    first: str = ""
    runs: str = ""
    signature: str = ""
    because: tuple[str, str] = ("", "")
    reason: frozenset[str] = frozenset()


class ClauseFacts(NamedTuple):
    """The text of a clause."""

    level: str
    family: str
    requirement: str


@dataclass(frozen=True)
class JudgedVersion:
    """One record, condensed.

    Attributes:
        platform: architecture, operating system and device kind.
        version: the framework's, without its local label.
        labels: versions of the companions that the framework's version names, by name.
        cases: state of each test, by clause and test.
    """

    framework: str
    mode: str
    device: str
    platform: str
    seed: int
    version: str
    labels: _Labels
    python: str
    started: str
    status: str
    instruction_sets: frozenset[str]
    cases: Mapping[str, Mapping[str, CaseState]]
    clauses: Mapping[str, ClauseFacts]

    @property
    def place(self) -> _Place:
        """Mode, device, platform and seed of the run."""
        return self.mode, self.device, self.platform, self.seed

    def without(self, package: str) -> _Labels:
        """Return the labels that are fixed in the line of the companion `package`."""
        return ((self.framework, self.version), *(pair for pair in self.labels if pair[0] != package))


_T = TypeVar("_T", bound=Hashable)


@cache
def _intern(value: _T) -> _T:
    """Return one shared object for equal values of many records."""
    return value


def condense(record: Record) -> JudgedVersion:
    """Return the condensed form of a record."""
    cases: dict[str, dict[str, CaseState]] = {}
    for verdict in record.verdicts:
        failed = verdict.outcome in FAILURE_OUTCOMES
        excused = verdict.outcome in (Outcome.UNSUPPORTED, Outcome.KNOWN)
        finding = record.findings.get(verdict.finding)
        because = ("", verdict.link) if finding is None else (finding.reason, verdict.link or finding.link)
        state = CaseState(
            word=word(verdict.outcome),
            identity=(record.clauses[verdict.clause].revision, verdict.setup_hash),
            first=_digest(verdict.runs[:1]),
            runs=_digest(verdict.runs),
            signature=verdict.signature if failed else "",
            because=because if failed else ("", ""),
            reason=frozenset(_TOKEN.findall(verdict.reason)) if excused else frozenset(),
        )
        cases.setdefault(_intern(verdict.clause), {})[_intern(verdict.test)] = _intern(state)
    facts = {name: ClauseFacts(text.level, text.family, text.requirement) for name, text in record.clauses.items()}
    environment = record.variant.environment
    return JudgedVersion(
        framework=record.series.framework,
        mode=record.series.mode,
        device=record.series.device,
        platform=platform(record),
        seed=record.seed,
        version=public(record),
        labels=tuple(sorted(parse_version_label(record).items())),
        python=".".join(environment.get("python", "").split(".")[:2]),
        started=record.started,
        status=record.status,
        instruction_sets=frozenset(record.variant.instruction_sets),
        cases=cases,
        clauses={_intern(name): _intern(fact) for name, fact in facts.items()},
    )


def _digest(runs: tuple[RunSetup, ...]) -> str:
    """Return a digest in which an integer equals the float of the same value."""
    if not runs:
        return ""
    text = to_line(json.loads(to_line(plain(runs)), parse_int=float))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def word(outcome: Outcome) -> CaseWord:
    """Return the word of an outcome; expected and unexpected failures are both "fail"."""
    if outcome in PASS_OUTCOMES:
        return "pass"
    if outcome in FAILURE_OUTCOMES:
        return "fail"
    return outcome.value  # type: ignore[return-value]


def gravest(outcomes: Iterable[CaseWord]) -> CaseWord:
    """Return the word of a clause, given the words of its tests.

    A failure counts first. A clause passes if a test passed and none failed; abstentions and refusals do not matter.

    Raises:
        ValueError: there are no words.
    """
    return min(outcomes, key=GRAVITY.index)


def platform(record: Record) -> str:
    """Return architecture, operating system and device kind of a record's machine, such as "x86_64 linux cpu"."""
    environment = record.variant.environment
    library = environment.get("libc", "").lower()
    system = "linux" if "libc" in library or "musl" in library else library.partition(" ")[0]
    kind = record.series.device_kind or record.series.device
    return " ".join(filter(None, (environment.get("machine", ""), system, kind)))


def comparable(old: CaseState, new: CaseState) -> bool:
    """Return whether two states of one test can be compared; see `results.compare.changes`."""
    if old.word not in STATEMENTS or new.word not in STATEMENTS or old.identity != new.identity:
        return False
    if "unsupported" in (old.word, new.word):
        return True
    if old.word == new.word == "pass":
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
        """The ways, which follow the mode in the name of the line; "" without any."""
        return f" by {', '.join(self.ways)}" if self.ways else ""

    @property
    def others(self) -> _Labels:
        """Companions that the plan asks for, next to the one that varies."""
        return tuple(sorted((name, version) for name, version in self.companions.items() if name != self.package))

    @property
    def of_framework(self) -> bool:
        """Return whether the framework itself varies."""
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
    """The records and planned cells in folders.

    Attributes:
        plain: records without a plan.
        planned: every planned cell with its record, None where there is none.
    """

    plain: tuple[JudgedVersion, ...]
    planned: tuple[tuple[PlannedCell, JudgedVersion | None], ...]


def gather(folders: Sequence[Path], watch: Watch = lambda files: files) -> FolderContents:
    """Read records, folders of records, and folders of sweeps.

    Args:
        watch: gets the record files and yields them one by one, for instance to show progress.

    Raises:
        RecordError: a file cannot be read, or a folder has neither records nor a plan.
    """
    sweeps = {path: _plan(path / OUTCOMES) for path in folders if (path / OUTCOMES).is_file()}
    own = {file: path for path in sweeps for file in list_records(path / RECORDS)}
    others = find([path for path in folders if path not in sweeps]) if len(sweeps) < len(folders) else []
    plain: list[JudgedVersion] = []
    named: dict[tuple[Path, str], JudgedVersion] = {}
    with pause_collector():
        for file in watch([*own, *others]):
            one = condense(load(file))
            if file in own:
                named[own[file], file.name] = one
            else:
                plain.append(one)
    planned = [pair for path, plan in sweeps.items() for pair in _match_cells(path, plan, named)]
    used = {(path, cell.record) for path, plan in sweeps.items() for cell in plan.cells}
    plain += [one for key, one in named.items() if key not in used]
    return FolderContents(tuple(plain), tuple(planned))


def _match_cells(
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


class VersionColumn(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One version of a line.

    Attributes:
        released: its date, or "".
        gap: why it was not judged, in one line; "" if it was.
        companions: versions in the newest record: of the framework, of companions that its version names, of Python.
        status: status of each record, if one of them is not complete.
    """

    version: str
    released: str = ""
    gap: str = ""
    companions: Mapping[str, str] = struct_field(default_factory=dict)
    status: tuple[str, ...] = ()

    @property
    def judged(self) -> bool:
        """Return whether there is a record of the version."""
        return not self.gap


class VersionLine(Struct, frozen=True, forbid_unknown_fields=True):
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
    fixed: Mapping[str, str]
    columns: tuple[VersionColumn, ...] = struct_field(name="versions")

    @property
    def name(self) -> str:
        """The line in words, such as "tf keras (tf 2.19.1), graph, x86_64 linux cpu"."""
        what = self.framework if self.package == self.framework else f"{self.framework} {self.package}"
        with_ = f" ({', '.join(f'{name} {version}' for name, version in self.fixed.items())})" if self.fixed else ""
        seed = f", seed {self.seed}" if self.seed else ""
        return f"{what}{with_}, {self.mode}, {self.platform or self.device}{seed}"


class JudgedLine(VersionLine, frozen=True):
    """A line with the records of each column."""

    records: tuple[tuple[JudgedVersion, ...], ...]


_Key = tuple[str, str, _Place, _Labels]
"""The line of a record: framework, package that varies, mode with device, platform and seed, and fixed versions."""

_Versions = dict[str, list[JudgedVersion]]
"""The records of a line by version."""


def lines(contents: FolderContents) -> tuple[JudgedLine, ...]:
    """Return all lines with at least one judged version, sorted by name.

    A framework's line with one judged version is left out if that version's record is in a line of a companion.
    """
    fixed_labels = [*_find_fixed_labels([cell for cell, _ in contents.planned])]
    by_key = _group_by_line(contents, fixed_labels)
    cells = [(cell, fixed) for (cell, _), fixed in zip(contents.planned, fixed_labels, strict=True)]
    return tuple(sorted(_make_lines(by_key, cells), key=lambda line: line.name))


def _group_by_line(contents: FolderContents, fixed_labels: Sequence[_Labels]) -> Mapping[_Key, _Versions]:
    """Return the records of each line by version.

    A record in which the framework varies is in the framework's line, and in a line of each companion that has several
    versions next to the same framework and other companions. `fixed_labels` has the fixed labels of each planned cell.
    """
    result: dict[_Key, _Versions] = defaultdict(lambda: defaultdict(list))
    of_framework = [one for cell, one in contents.planned if one is not None and cell.of_framework]
    groups: dict[tuple[str, _Place], list[JudgedVersion]] = defaultdict(list)
    companions: dict[_Key, _Versions] = defaultdict(lambda: defaultdict(list))
    for one in (*contents.plain, *of_framework):
        groups[one.framework, one.place].append(one)
        for package, version in one.labels:
            companions[one.framework, package, one.place, one.without(package)][version].append(one)
    for (framework, setup), members in groups.items():
        for one in _one_for_each_version(members):
            result[framework, framework, setup, ()][one.version].append(one)
    result |= {key: versions for key, versions in companions.items() if len(versions) > 1}
    for (cell, judged), fixed in zip(contents.planned, fixed_labels, strict=True):
        if judged is not None and not cell.of_framework:
            result[cell.framework, cell.package, judged.place, fixed][cell.version].append(judged)
    for one in contents.plain:
        for package, version in one.labels:
            versions = result.get((one.framework, package, one.place, one.without(package)))
            if versions is not None and all(one is not other for other in versions[version]):
                versions[version].append(one)
    return result


def _make_lines(
    by_key: Mapping[_Key, _Versions], planned: Sequence[tuple[PlannedCell, _Labels]]
) -> Iterator[JudgedLine]:
    in_companion_lines = {
        id(one)
        for (framework, package, *_), versions in by_key.items()
        if package != framework and len(versions) > 1
        for members in versions.values()
        for one in members
    }
    for (framework, package, setup, fixed), versions in by_key.items():
        mode, by, ways = setup[0].partition(" by ")
        cells = [
            cell
            for cell, others in planned
            if cell.framework == framework
            and cell.device in ("", setup[1])
            and cell.mode in ("", mode)
            and cell.by == by + ways
            and (cell.of_framework if package == framework else (cell.package, others) == (package, fixed))
        ]
        pairs = sorted(_columns(versions, cells), key=lambda pair: age(pair[0].version))
        columns, records = zip(*pairs, strict=True)
        if package == framework and len(columns) == 1 and all(id(one) in in_companion_lines for one in records[0]):
            continue
        yield JudgedLine(framework, package, *setup, dict(fixed), columns, records)


def _columns(
    versions: _Versions, cells: Sequence[PlannedCell]
) -> Iterator[tuple[VersionColumn, tuple[JudgedVersion, ...]]]:
    """Each version that was judged or planned, and its records, the newest last."""
    records: dict[Version | str, list[tuple[str, JudgedVersion]]] = defaultdict(list)
    planned: dict[Version | str, list[PlannedCell]] = defaultdict(list)
    for version, members in versions.items():
        records[_same(version)] += [(version, one) for one in members]
    for cell in cells:
        planned[_same(cell.version)].append(cell)
    for key in {**records, **planned}:
        released = next((cell.released for cell in planned[key] if cell.released), "")
        if judged := sorted(records[key], key=lambda pair: pair[1].started):
            version, newest = judged[-1]
            companions = {**dict(newest.labels), newest.framework: newest.version, "python": newest.python}
            status = tuple(one.status for _, one in judged)
            partial = status if {*status} != {"complete"} else ()
            yield VersionColumn(version, released, "", companions, partial), tuple(one for _, one in judged)
        else:
            cell = planned[key][-1]
            outcome = "its record is missing" if cell.outcome == "judged" else cell.outcome
            yield VersionColumn(cell.version, released, f"{outcome}: {cell.reason}" if cell.reason else outcome), ()


def _same(version: str) -> Version | str:
    """Return a key that is equal for texts of one version, such as 2.6, 2.6.0 and 2.6.0+cpu."""
    known, parsed, text = age(version)
    return Version(parsed.public) if known else text


def _find_fixed_labels(cells: Sequence[PlannedCell]) -> Iterator[_Labels]:
    """Yield for each cell the labels that are fixed in the line of its companion.

    If each version of a companion was planned with one version of the framework, and these versions differ, the
    framework is of the companion's time and not fixed.
    """
    planned: dict[tuple[object, ...], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    groups = [(c.framework, c.package, c.mode, tuple(c.ways), c.device, c.others) for c in cells]
    for cell, group in zip(cells, groups, strict=True):
        if not cell.of_framework:
            planned[group][cell.version].add(cell.framework_version)
    for cell, group in zip(cells, groups, strict=True):
        frameworks = planned[group].values()
        of_its_time = all(len(versions) == 1 for versions in frameworks) and len(set[str]().union(*frameworks)) > 1
        yield cell.others if of_its_time else ((cell.framework, cell.framework_version), *cell.others)


def _one_for_each_version(members: Sequence[JudgedVersion]) -> Iterator[JudgedVersion]:
    """Yield the records of each version with its most common companions; of equally common ones the newest."""
    combinations: dict[str, set[_Labels]] = defaultdict(set)
    for one in members:
        combinations[one.version].add(one.labels)
    common = Counter(labels for candidates in combinations.values() for labels in candidates)
    chosen = {
        version: max(candidates, key=lambda labels: (common[labels], [(name, age(number)) for name, number in labels]))
        for version, candidates in combinations.items()
    }
    yield from (one for one in members if chosen[one.version] == one.labels)


FOLDER = Path(__file__).parents[1] / "releases"
"""The committed releases, a file for each package."""


class Release(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The differences between two versions of a package.

    Attributes:
        packages: other packages that differ, with both versions.
        calls: numbers of calls that are identical, differ by rounding, and changed.
        changes: what changed, by difference and callable.
    """

    package: str
    old: str
    new: str
    packages: dict[str, tuple[str, str]]
    calls: tuple[int, int, int]
    changes: dict[Difference, dict[str, str]]

    def lines(self) -> Iterator[str]:
        """Yield the release with its counts, then a line for each kind of difference, the gravest first."""
        identical, rounding, changed = self.calls
        calls = f"{identical} calls identical, {rounding} rounding, {changed} changed"
        yield f"{self.package} {self.old} -> {self.new}: {calls}"
        if self.packages:
            yield "  with " + ", ".join(
                f"{name} {old or 'none'} -> {new or 'none'}" for name, (old, new) in self.packages.items()
            )
        for difference in Difference:
            if names := self.changes.get(difference):
                yield one_line(f"  {difference} ({len(names)}): {list_names(list(names.items()))}", 2000)


def find_releases(paths: Iterable[Path]) -> list[Release]:
    """Compare the neighbouring versions of each package in folders, which are searched to any depth.

    Raises:
        RecordError: a fingerprint cannot be read.
    """
    files = (file for path in paths for file in (sorted(path.rglob(f"*{SUFFIX}")) if path.is_dir() else [path]))
    files = (file for file in files if file.name.endswith(SUFFIX))
    packages: dict[str, dict[str, Path]] = {}
    for file in files:
        package, _, version = file.name.removesuffix(SUFFIX).rpartition("-")
        packages.setdefault(package, {})[version] = file
    result = []
    for _, versions in sorted(packages.items()):
        for old, new in pairwise(sorted(versions, key=order_of)):
            before, after = load_fingerprint(versions[old]), load_fingerprint(versions[new])
            result.append(_condense(compare_fingerprints(before, after)))
    return result


def _condense(comparison: FingerprintComparison) -> Release:
    changes: dict[Difference, dict[str, str]] = {}
    for change in comparison.changes:
        changes.setdefault(change.difference, {})[change.name] = change.step
    old, new = comparison.old, comparison.new
    counts = (comparison.identical, comparison.rounding, comparison.changed)
    return Release(new.package, old.version, new.version, comparison.packages, counts, changes)


def write_releases(releases: Sequence[Release]) -> dict[str, bytes]:
    """Return the content of a file for each package, a line for each release."""
    packages: dict[str, list[Release]] = {}
    for release in releases:
        packages.setdefault(release.package, []).append(release)
    return {
        f"{package}.jsonl": b"".join(msgspec.json.encode(release) + b"\n" for release in some)
        for package, some in packages.items()
    }


def load_releases(folder: Path = FOLDER) -> list[Release]:
    """Read the committed releases.

    Raises:
        RecordError: a file is damaged.
    """
    result: list[Release] = []
    for path in sorted(folder.glob("*.jsonl")):
        try:
            result += msgspec.json.Decoder(Release).decode_lines(read(path))
        except msgspec.MsgspecError as error:
            raise RecordError(path, f"has no releases ({error})", "restore it") from None
    return result
