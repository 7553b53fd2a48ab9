"""One word for each clause across frameworks, and values that differ between them.

The word is about the newest version of each framework among the records, whatever libraries its local label names, and
of runs in one series about those of the newest label. The reference counts as a framework only if there is no other. A
framework's outcome for a clause is `clauses.outcome` over all its runs of that version, in any mode and on any device,
where `fixed` counts as a pass. A framework without a test of the clause, or for which it is `not offered`, is not
counted. The first word that applies is the clause's:

broken in X: a test has an outcome of `clauses.FAILURE_OUTCOMES` in X. "X since V" if the records show the first failing
    version, else "X VERSION". If only some runs of X fail, their modes and devices are in parentheses.
not judged: a framework has `abstain` or `unstable`.
not offered: no framework is counted.
unsupported: no counted framework supports it.
differs: it passes in some frameworks and is unsupported in others, or it is an OBSERVATION of which two frameworks
    observed different values.
held: it passes in the only counted framework.
portable: it passes in every one of several frameworks.

V is determined in each series (framework, kind of device, mode) separately, from its newest run back. An older run that
breaks the clause extends the stretch. An older run in which every test that fails now passed, with the same code, ends
it, and V is the oldest version of the stretch. Any other older run is ignored, and so is one without a PEP 440 version.
So V is the first recorded version that breaks the clause; there is no V if a test that fails now is newer than the
passing runs.

Where several frameworks train by one library, such as Keras on TensorFlow, JAX and PyTorch, the word also says whose
the failures are. A test that fails in every framework that trains by the library and judged the test is the library's;
one that passes in some of them belongs to the library's backends in which it fails.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import islice, pairwise

from packaging.version import InvalidVersion, Version

from results.record.files import one_line
from results.record.model import EXPLANATIONS, REFUSED, UNJUDGED, Json, Outcome, plain, walk_values
from results.record.reading import Record, TestVerdict
from results.show.clauses import FAILURE_OUTCOMES, NAME_LIMIT, by_clause, number, outcome

_PARAMETERS = re.compile(r"test_\w+(?:\[(.*)\])?", re.DOTALL)
_DEEPEST = 4
_LEAVES = 2000

Place = tuple[str, str, str, tuple[str, ...]]
"""Clause, key, the test's parameters, and the path inside the value."""


def parameters(case: str) -> str:
    """Return the text in the brackets of a parametrized test's case, "" without brackets; other cases unchanged."""
    test = _PARAMETERS.fullmatch(case)
    return test[1] or "" if test else case


def leaves(record: Record) -> Iterator[tuple[Place, Json]]:
    """Yield every observed value with its place."""
    for one in record.observations:
        case = parameters(one.case)
        for way, leaf in islice(walk_values(one.value, _DEEPEST), _LEAVES):
            yield (one.clause, one.key, case, way), leaf


def differ(location: Place, values: Iterable[tuple[str, Json]]) -> bool:
    """Return whether two frameworks observed different values at a place; explanations in words never differ.

    Args:
        values: pairs of a framework and a value that one of its runs observed.
    """
    texts: dict[str, set[str]] = {}
    for framework, value in values:
        texts.setdefault(framework, set()).add(json.dumps(plain(value), sort_keys=True))
    return (
        not EXPLANATIONS.intersection(location[3][-1:])
        and len({frozenset(variants) for variants in texts.values()}) > 1
    )


ORACLE = "reference"
"""The framework that the others are compared with; it counts only if there is no other."""

OBSERVATION = "OBSERVATION"
"""The level of clauses that record legitimate choices."""


class Portability(StrEnum):
    """The words; the module defines them."""

    BROKEN = "broken"
    NOT_JUDGED = "not judged"
    NOT_OFFERED = "not offered"
    UNSUPPORTED = "unsupported"
    DIFFERS = "differs"
    PASSES_IN_ONE = "held"
    PORTABLE = "portable"

    @property
    def meaning(self) -> str:
        """The word in a sentence, for a caption."""
        return _MEANINGS[self]


_MEANINGS = {
    Portability.BROKEN: "fails in X; since V, if an older record shows that it passed before",
    Portability.NOT_JUDGED: "a framework abstained or was unstable, and none fails it",
    Portability.NOT_OFFERED: "no adapter has a call for it, so nothing is known",
    Portability.UNSUPPORTED: "no framework supports it, among those whose adapters have a call for it",
    Portability.DIFFERS: "passes in some frameworks and is unsupported in others, or they observe different values",
    Portability.PASSES_IN_ONE: "passes in the only framework that was judged",
    Portability.PORTABLE: "passes in every framework that was judged",
}


@dataclass(frozen=True)
class Broken:
    """A framework in which a clause does not hold.

    Attributes:
        version: the one that the word is about.
        since: the first version known to break it, or "".
        where: mode and device of the runs that show it, none if all that judged the clause do.
    """

    framework: str
    version: str
    since: str = ""
    where: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f" ({', '.join(self.where)})" if self.where else ""
        return f"{self.framework} {f'since {self.since}' if self.since else self.version}{where}"


@dataclass(frozen=True, order=True)
class Owner:
    """The library that owns a failure; `frameworks` are the backends that fail, empty if all do."""

    library: str
    frameworks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.library} on {', '.join(self.frameworks) or 'every backend'}"


@dataclass(frozen=True)
class Word:
    """The word of a clause; `broken` and `owners` are empty for all other kinds."""

    kind: Portability
    broken: tuple[Broken, ...] = ()
    owners: tuple[Owner, ...] = ()

    def __str__(self) -> str:
        owners = f"; {', '.join(map(str, self.owners))}" if self.owners else ""
        return f"broken in {', '.join(map(str, self.broken))}{owners}" if self.broken else self.kind.value


def age(version: str) -> tuple[bool, Version, str]:
    """Return a key that sorts versions by PEP 440; a text that is not a version sorts before all versions."""
    try:
        return True, Version(version), version
    except InvalidVersion:
        return False, Version("0"), version


@dataclass(frozen=True)
class _VersionRun:
    record: Record

    @cached_property
    def verdicts(self) -> Mapping[str, Sequence[TestVerdict]]:
        return by_clause(self.record)

    @property
    def framework(self) -> str:
        return self.record.series.framework

    @property
    def version(self) -> str:
        return self.record.variant.framework_version

    @cached_property
    def age(self) -> tuple[bool, Version, str]:
        return age(self.version)

    @cached_property
    def release(self) -> tuple[bool, Version, str]:
        """Sort key of the version without its local label."""
        known, version, text = self.age
        return (True, Version(version.public), "") if known else (False, version, text)

    def revision(self, clause: str) -> int:
        return self.record.clauses[clause].revision

    def breaks(self, clause: str) -> bool:
        return any(verdict.outcome in FAILURE_OUTCOMES for verdict in self.verdicts.get(clause, ()))


def words(records: Sequence[Record]) -> dict[str, Word]:
    """Return the word of every clause that the newest runs of a framework judge, by name, in order."""
    runs = [_VersionRun(record) for record in records]
    names = {run.framework for run in runs}
    runs = [run for run in runs if run.framework in (names - {ORACLE} or names)]
    current = _current(runs)
    observed, owners_of = _collect_observations(current), owners(run.record for run in current)
    return {
        clause: _word(clause, current, runs, observed.get(clause, {}), owners_of.get(clause, ()))
        for clause in sorted({clause for run in current for clause in run.verdicts})
    }


def _current(runs: Sequence[_VersionRun]) -> list[_VersionRun]:
    """The runs of each framework's newest release, and in each series those of its newest local label."""
    newest = {run.framework: run.release for run in sorted(runs, key=lambda run: run.release)}
    released = [run for run in runs if run.release == newest[run.framework]]
    labels = {run.record.series.key: run.age for run in sorted(released, key=lambda run: run.age)}
    return [run for run in released if run.age == labels[run.record.series.key]]


def list_clauses(records: Sequence[Record]) -> Iterator[str]:
    """Yield lines with each clause and its word, the number of clauses by word, and the words' meanings."""
    word_of = words(records)
    names = {clause: one_line(clause, NAME_LIMIT) for clause in word_of}
    width = max(map(len, names.values()), default=0)
    for clause, word in word_of.items():
        yield f"{names[clause]:{width}}  {one_line(str(word))}"
    counts = Counter(word.kind for word in word_of.values())
    yield ""
    by_kind = ", ".join(f"{counts[kind]} {kind}" for kind in Portability if counts[kind])
    yield f"{number(len(word_of), 'clause')}: {by_kind or 'none judged'}"
    for kind in Portability:
        if counts[kind]:
            yield f"{'broken in X' if kind is Portability.BROKEN else kind}: {kind.meaning}"


def _word(
    clause: str,
    current: Sequence[_VersionRun],
    runs: Sequence[_VersionRun],
    observed: Mapping[Place, Sequence[tuple[str, Json]]],
    clause_owners: tuple[Owner, ...],
) -> Word:
    by_framework: dict[str, list[_VersionRun]] = {}
    for run in current:
        if clause in run.verdicts:
            by_framework.setdefault(run.framework, []).append(run)
    outcomes = [_outcome([verdict for run in own for verdict in run.verdicts[clause]]) for own in by_framework.values()]
    counted = [one for one in outcomes if one is not Outcome.NOT_OFFERED]
    broken = tuple(
        _find_break(clause, own, runs)
        for _, own in sorted(by_framework.items())
        if any(run.breaks(clause) for run in own)
    )
    if broken:
        return Word(Portability.BROKEN, broken, clause_owners)
    if Outcome.ABSTAIN in counted or Outcome.UNSTABLE in counted:
        return Word(Portability.NOT_JUDGED)
    if not counted:
        return Word(Portability.NOT_OFFERED)
    if set(counted) == {Outcome.UNSUPPORTED}:
        return Word(Portability.UNSUPPORTED)
    level = next(run.record.clauses[clause].level for own in by_framework.values() for run in own)
    is_choice = level == OBSERVATION and any(differ(location, values) for location, values in observed.items())
    if Outcome.UNSUPPORTED in counted or is_choice:
        return Word(Portability.DIFFERS)
    return Word(Portability.PASSES_IN_ONE if len(counted) == 1 else Portability.PORTABLE)


def _outcome(verdicts: Sequence[TestVerdict]) -> Outcome:
    """Return a framework's outcome; `fixed` counts as a pass."""
    return outcome([verdict for verdict in verdicts if verdict.outcome is not Outcome.FIXED] or [verdicts[0]])


def _collect_observations(runs: Sequence[_VersionRun]) -> dict[str, dict[Place, list[tuple[str, Json]]]]:
    """Return the values that each framework observed, by clause and place."""
    values: dict[str, dict[Place, list[tuple[str, Json]]]] = {}
    for run in runs:
        for location, value in leaves(run.record):
            values.setdefault(location[0], {}).setdefault(location, []).append((run.framework, value))
    return values


def _find_break(clause: str, judged: Sequence[_VersionRun], runs: Sequence[_VersionRun]) -> Broken:
    """The framework whose `judged` runs of the clause break it, in some or all of them."""
    failing = [run for run in judged if run.breaks(clause)]
    supporting = [run for run in judged if outcome(run.verdicts[clause]) not in REFUSED]
    first_breaks = [_first_break(clause, run, runs) for run in failing]
    settings = dict.fromkeys(run.record.series.mode_and_device for run in failing)
    where = tuple(settings) if len(failing) < len(supporting) else ()
    first = min((run for run in first_breaks if run), key=lambda run: run.age) if all(first_breaks) else None
    return Broken(failing[0].framework, failing[0].version, first.version if first else "", where)


def _first_break(clause: str, newest: _VersionRun, runs: Sequence[_VersionRun]) -> _VersionRun | None:
    """The oldest run of the stretch in which the clause is broken up to `newest`, None if no run before it held."""
    failing = {(v.test, newest.revision(clause)) for v in newest.verdicts[clause] if v.outcome in FAILURE_OUTCOMES}
    same_series = (run for run in runs if run.record.series.key == newest.record.series.key)
    older = [run for run in same_series if run.age < newest.age and run.age[0]]
    first = newest
    for run in sorted(older, key=lambda run: run.age, reverse=True):
        passed = {(v.test, run.revision(clause)) for v in run.verdicts.get(clause, ()) if v.outcome is Outcome.PASS}
        if run.breaks(clause):
            first = run
        elif failing <= passed:
            return first
    return None


def libraries(version: str) -> frozenset[str]:
    """Libraries that a framework's version names in its local label: keras in "2.13.0+cpu.keras.3.15.1"."""
    try:
        parts = (Version(version).local or "").split(".")
    except InvalidVersion:
        return frozenset()
    return frozenset(name for name, number in pairwise(parts) if name.isalpha() and number.isdigit())


def owners(records: Iterable[Record]) -> dict[str, tuple[Owner, ...]]:
    """Owners of the failures of each clause, by its name; a library that one framework trains by owns none."""
    sharing: dict[str, list[Record]] = {}
    for record in records:
        for library in libraries(record.variant.framework_version):
            sharing.setdefault(library, []).append(record)
    result: dict[str, set[Owner]] = {}
    for library, runs in sharing.items():
        for clause, owner in _failing_clauses(library, runs):
            result.setdefault(clause, set()).add(owner)
    return {clause: tuple(sorted(clause_owners)) for clause, clause_owners in result.items()}


def _failing_clauses(library: str, runs: Sequence[Record]) -> Iterable[tuple[str, Owner]]:
    """Clauses of the tests that fail under a library, each with its owner."""
    judged: dict[tuple[str, str], set[str]] = {}
    failing: dict[tuple[str, str], set[str]] = {}
    for run in runs:
        for verdict in run.verdicts:
            key, framework = (verdict.clause, verdict.test), run.series.framework
            if verdict.outcome not in UNJUDGED:
                judged.setdefault(key, set()).add(framework)
            if verdict.outcome in FAILURE_OUTCOMES:
                failing.setdefault(key, set()).add(framework)
    for key, frameworks in failing.items():
        if len(judged.get(key, ())) > 1:
            yield key[0], Owner(library, () if frameworks == judged[key] else tuple(sorted(frameworks)))
