"""The history of a clause in a line of versions: its word in each version, runs of equal words, changes, and reasons.

Two versions are compared by the tests that both judged, with equal identity and training runs. So a test that only some
records have, or that abstains or is unstable somewhere, changes nothing; partial records count for the tests that they
judged. A version is compared with the nearest older version. If the older version lacks some of the tests, the next
older versions that have them are compared too, and a difference is a change within that wider interval.
`explanations.toml`, written by hand, has the upstream changes that explain a change.

In words it is `≤2.6.0 fail · 2.7.0–2.12.0 pass (from 2025-04-23) · 2.13.0 fail`. `≤V` is the first judged version:
what older versions do is unknown. A run names judged versions alone.

As JSON histories are compact, so that they can be committed, and whole, so that they can be read again. Versions are
numbered by their place in the line, and words have one letter (`LETTERS`). docs/history.md describes the fields.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, cached_property
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from results.history.versions import (
    STATEMENTS,
    CaseState,
    CaseWord,
    ClauseFacts,
    JudgedLine,
    JudgedVersion,
    VersionColumn,
    VersionLine,
    comparable,
    gravest,
)
from results.record.files import RecordError, read
from results.record.model import ClauseId, parse, plain, to_line
from results.show.clauses import code, cut, number, source, words
from results.show.portability import age

EXPLANATIONS = Path(__file__).with_name("explanations.toml")

VERSION = 2
"""Version of the JSON form of histories."""

_Letter = Literal["p", "f", "u", "a", "s", "n"]

LETTERS: dict[CaseWord, _Letter] = {
    "pass": "p",
    "fail": "f",
    "unsupported": "u",
    "abstain": "a",
    "unstable": "s",
    "not offered": "n",
}
_WORDS = {letter: word for word, letter in LETTERS.items()}

_START = b'{"version":'
_OTHER_TESTS = "other tests"

_GAPS = 12
"""Largest number of versions without a record that a line lists."""

_Text = Annotated[str, Meta(min_length=1)]
_Index = Annotated[int, Meta(ge=0)]

PointKind = Literal["outcome", "failure", "support"]
"""outcome: another word. failure: it fails before and after, but in other tests or with another signature. support: it
passes before and after, and a test of it became supported, or no longer is."""


@dataclass(frozen=True)
class ChangePoint:
    """A difference between two versions of a line.

    Attributes:
        before, after: indices of the versions in the line; the change came after the first and at the latest in the
            second.
        old, new: words of the clause by the compared tests.
        compared: number of tests that both versions judged.
        fails, passes, refused: tests that newly fail, newly pass, and are newly unsupported, without the clause's name.
        otherwise: tests that fail in both, with the old and the new signature.
        links: reason and web address of the findings that the failing tests of either side rest on.
    """

    clause: str
    before: int
    after: int
    kind: PointKind
    old: CaseWord
    new: CaseWord
    compared: int
    fails: tuple[str, ...] = ()
    passes: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    otherwise: tuple[tuple[str, str, str], ...] = ()
    links: tuple[tuple[str, str], ...] = ()

    @property
    def worse(self) -> bool:
        """Return whether a test newly fails or is no longer supported."""
        return bool(self.fails or self.refused)

    @property
    def steps(self) -> Iterator[tuple[str, str]]:
        """Yield each test that changed, and how."""
        yield from ((test, "fails") for test in self.fails)
        yield from ((test, "passes") for test in self.passes)
        yield from ((test, "refused") for test in self.refused)
        yield from ((test, "otherwise") for test, _, _ in self.otherwise)


@dataclass(frozen=True)
class VersionRun:
    """Neighbouring judged versions with the same word.

    Attributes:
        first, last: indices in the line.
        other_tests: whether the word differs from the one before only by tests that were not judged in both versions.
    """

    first: int
    last: int
    word: CaseWord
    other_tests: bool = False


@dataclass(frozen=True)
class ClauseHistory:
    """A clause in a line of versions.

    Attributes:
        runs: runs of the versions in which a test was judged, in order.
        points: all changes.
    """

    facts: ClauseFacts
    runs: tuple[VersionRun, ...]
    points: tuple[ChangePoint, ...]


@dataclass(frozen=True)
class LineHistory:
    """Every clause of a line, by name."""

    line: VersionLine
    clauses: Mapping[str, ClauseHistory]

    @cached_property
    def points(self) -> tuple[ChangePoint, ...]:
        """Every change of every clause, the newest version first."""
        result = [point for clause in self.clauses.values() for point in clause.points]
        return tuple(sorted(result, key=lambda point: (-point.after, not point.worse, point.clause)))


def history(line: JudgedLine) -> LineHistory:
    """Return the history of every clause that a record of the line has."""
    records = [one for column in line.records for one in column]
    facts = {name: text for one in records for name, text in one.clauses.items()}
    judged = sorted({name for one in records for name in one.cases})
    sets = frozenset[str]().union(*(one.instruction_sets for one in records))
    clauses: dict[str, ClauseHistory] = {}
    for name in judged:
        tables = [_merge_records(name, column, sets) for column in line.records]
        outcomes = [gravest(state.word for state in table.values()) if table else None for table in tables]
        points = tuple(_points(name, tables))
        clauses[name] = ClauseHistory(facts[name], tuple(_runs(outcomes, points)), points)
    return LineHistory(line, clauses)


def _merge_records(clause: str, records: Iterable[JudgedVersion], sets: frozenset[str]) -> Mapping[str, CaseState]:
    """Return the states of a clause's tests in one version; a test on which its records disagree is unstable."""
    table: dict[str, CaseState] = {}
    for one in records:
        lacking = sets - one.instruction_sets if one.instruction_sets else frozenset[str]()
        for name, state in one.cases.get(clause, {}).items():
            test = name.removeprefix(f"{clause}/")
            if lacking & state.reason:
                state = replace(state, word="abstain")
            table[test] = state if test not in table else _merge_states(table[test], state)
    return table


def _merge_states(old: CaseState, new: CaseState) -> CaseState:
    if new.identity != old.identity:
        return max(old, new, key=lambda state: state.identity)
    if old.word == new.word or old.word not in STATEMENTS:
        return new
    return replace(new, word="unstable") if new.word in STATEMENTS else old


def _points(clause: str, tables: Sequence[Mapping[str, CaseState]]) -> list[ChangePoint]:
    result: list[ChangePoint] = []
    for after, table in enumerate(tables):
        pending = {test for test, state in table.items() if state.word in STATEMENTS}
        for before in range(after - 1, -1, -1):
            if not pending:
                break
            pairs = {test: (tables[before][test], new) for test, new in table.items() if test in tables[before]}
            common = {test: pair for test, pair in sorted(pairs.items()) if comparable(*pair)}
            if pending.isdisjoint(common):
                continue
            pending -= common.keys()
            point = _point(clause, before, after, common)
            if point is not None and not _is_known(point, result):
                result.append(point)
    return result


def _is_known(point: ChangePoint, points: Iterable[ChangePoint]) -> bool:
    """Return whether changes inside the interval of the point already include all its differences."""
    inside = [other for other in points if point.before <= other.before and other.after <= point.after]
    known = {step for other in inside for step in other.steps}
    return all((test, how) in known or (how == "otherwise" and (test, "fails") in known) for test, how in point.steps)


def _point(
    clause: str, before: int, after: int, common: Mapping[str, tuple[CaseState, CaseState]]
) -> ChangePoint | None:
    moved = {test: pair for test, pair in common.items() if pair[0].word != pair[1].word}
    otherwise = {
        test: (old, new)
        for test, (old, new) in common.items()
        if old.word == new.word == "fail" and old.signature != new.signature
    }
    if not moved and not otherwise:
        return None
    old, new = (gravest(pair[side].word for pair in common.values()) for side in (0, 1))
    fails, passes, refused = (
        tuple(test for test, pair in moved.items() if pair[1].word == word) for word in ("fail", "pass", "unsupported")
    )
    failing = [*(common[test][1] for test in (*fails, *otherwise)), *(common[test][0] for test in passes)]
    kind: PointKind = "outcome" if old != new else "failure" if old == "fail" else "support"
    signatures = tuple((test, pair[0].signature, pair[1].signature) for test, pair in otherwise.items())
    links = tuple(dict.fromkeys(state.because for state in failing if any(state.because)))
    return ChangePoint(clause, before, after, kind, old, new, len(common), fails, passes, refused, signatures, links)


def _runs(outcomes: Sequence[CaseWord | None], points: Iterable[ChangePoint]) -> list[VersionRun]:
    changed = {point.after for point in points}
    runs: list[VersionRun] = []
    earlier: CaseWord | None = None
    for index, word in enumerate(outcomes):
        if word is None:
            continue
        if runs and (runs[-1].last, runs[-1].word) == (index - 1, word) and index not in changed:
            runs[-1] = replace(runs[-1], last=index)
            continue
        says = word in STATEMENTS
        runs.append(VersionRun(index, index, word, says and earlier not in (None, word) and index not in changed))
        earlier = word if says else earlier
    return runs


class Explanation(Struct, frozen=True, forbid_unknown_fields=True):
    """An upstream change.

    Attributes:
        package: the package that changed: the framework, or a companion.
        clauses: patterns of clause ids. tests: a pattern of test ids, "*" for all.
        between: two versions of the package; the change came after the first and at the latest in the second.
        link: address of the change, its release notes or its issue.
    """

    framework: _Text
    package: _Text
    clauses: Annotated[tuple[_Text, ...], Meta(min_length=1)]
    between: tuple[_Text, _Text]
    text: _Text
    link: Annotated[str, Meta(pattern="^https://")]
    tests: _Text = "*"

    def explains(self, line: VersionLine, point: ChangePoint) -> bool:
        """Return whether the point is about one of the clauses, and its interval of versions overlaps `between`."""
        if line.framework != self.framework or not any(fnmatchcase(point.clause, pattern) for pattern in self.clauses):
            return False
        if not any(fnmatchcase(f"{point.clause}/{test}", self.tests) for test, _ in point.steps):
            return False
        columns = line.columns[point.before], line.columns[point.after]
        versions = [{**line.fixed, **column.companions, line.package: column.version} for column in columns]
        sides = [packages.get(self.package, "") for packages in versions]
        after, by = self.between
        return all(sides) and age(sides[0]) < age(by) and age(after) < age(sides[1])


class _Explanations(Struct, forbid_unknown_fields=True):
    explanation: tuple[Explanation, ...] = ()


@cache
def explanations() -> tuple[Explanation, ...]:
    """Return the entries of `EXPLANATIONS`."""
    return msgspec.toml.decode(EXPLANATIONS.read_bytes(), type=_Explanations).explanation


def find_explanations(
    line: VersionLine, point: ChangePoint, known: Iterable[Explanation] | None = None
) -> tuple[tuple[str, str], ...]:
    """Return text and link of a point's explanations: entries of the file, else findings with a link, else none."""
    entries = explanations() if known is None else known
    listed = tuple((entry.text, entry.link) for entry in entries if entry.explains(line, point))
    return listed or tuple((text, link) for text, link in point.links if link.startswith(("http://", "https://")))


def statement(line: VersionLine, clause: ClauseHistory) -> str:
    """Return the history of a clause in one line: its runs, and the judged versions that have none of its tests."""
    points = {point.after: point for point in reversed(clause.points)}
    parts: list[str] = []
    start, first = 0, True
    for run in clause.runs:
        parts += _list_untested(line.columns[start : run.first])
        columns, point = line.columns[run.first : run.last + 1], points.get(run.first)
        says = run.word in STATEMENTS
        text = f"{'≤' if first and says else ''}{_range(columns)} {run.word}"
        if run.other_tests:
            text += " (by other tests)"
        elif point is not None and point.kind != "outcome":
            text += f" ({_difference_in_words(point)})"
        if says and not first and columns[0].released:
            text += f" (from {columns[0].released})"
        parts.append(text)
        start, first = run.last + 1, first and not says
    return " · ".join((*parts, *_list_untested(line.columns[start:])))


def _list_untested(columns: Sequence[VersionColumn]) -> Iterator[str]:
    """Yield ranges of neighbouring judged versions in which no test of the clause was judged."""
    for judged, group in groupby(columns, key=lambda column: column.judged):
        if judged:
            yield f"{_range([*group])} not tested"


def _range(columns: Sequence[VersionColumn]) -> str:
    first, last = columns[0].version, columns[-1].version
    return first if len(columns) == 1 else f"{first}–{last}"


def _difference_in_words(point: ChangePoint) -> str:
    """Return the difference of a clause with the same word before and after, in words."""
    if point.kind == "support":
        return "with other support"
    no_longer_fails = point.passes or point.refused
    if point.otherwise or bool(point.fails) == bool(no_longer_fails):
        return "otherwise"
    return "in more tests" if point.fails else "in fewer tests"


def interval(line: VersionLine, point: ChangePoint) -> str:
    """Return the two versions of a point, such as "2.6.0 → 2.13.0", with the newer version's date if it is known."""
    before, after = line.columns[point.before], line.columns[point.after]
    return f"{before.version} → {after.version}{f' ({after.released})' if after.released else ''}"


def alongside(line: VersionLine, point: ChangePoint) -> tuple[str, ...]:
    """Return the companions that differ between the two versions, such as "optax 0.2.5 → 0.2.8"."""
    before, after = line.columns[point.before], line.columns[point.after]
    names = sorted((before.companions.keys() | after.companions.keys()) - {line.package})
    steps = [(name, before.companions.get(name, "none"), after.companions.get(name, "none")) for name in names]
    return tuple(f"{name} {old} → {new}" for name, old, new in steps if old != new)


def change(point: ChangePoint) -> str:
    """Return a change in words: the clause's words, and the number of compared tests that changed."""
    same = {"pass": "passes", "fail": "fails", "unsupported": "unsupported"}.get(point.new, point.new)
    step = f"{point.old} → {point.new}" if point.kind == "outcome" else f"{same} {_difference_in_words(point)}"
    parts = [
        f"{len(tests)} newly {what}"
        for tests, what in ((point.fails, "failing"), (point.passes, "passing"), (point.refused, "unsupported"))
        if tests
    ]
    if point.otherwise:
        parts.append(f"{len(point.otherwise)} with another signature")
    return f"{step}: {', '.join(parts)} of {number(point.compared, 'test')}"


def summary(one: LineHistory) -> str:
    """Return the judged versions of a line, and the number of clauses that changed."""
    judged = [column.version for column in one.line.columns if column.judged]
    changed = sum(bool(clause.points) for clause in one.clauses.values())
    counted = f"{changed} of {number(len(one.clauses), 'clause')} changed"
    return f"{number(len(judged), 'judged version')} ({', '.join(judged)}), {counted}"


def rows(one: LineHistory, *, unchanged: bool = False) -> Iterator[tuple[str, str, str]]:
    """Yield clause, history and explanations of its changes, for each clause that changed.

    Args:
        unchanged: whether clauses that did not change get a row too.
    """
    for name, clause in sorted(one.clauses.items()):
        if clause.points or unchanged:
            reasons = dict.fromkeys(reason for point in clause.points for reason in find_explanations(one.line, point))
            texts = [f"{text} {link}".strip() for text, link in reasons]
            yield (name, statement(one.line, clause), "; ".join(texts) or ("unexplained" if clause.points else ""))


def markdown(histories: Sequence[LineHistory]) -> str:
    """Return Markdown with the versions of each line of several versions, and its changes, the newest first.

    Texts of records are escaped.
    """
    several = [one for one in histories if len(one.line.columns) > 1]
    single = len(histories) - len(several)
    remark = [f"{number(single, 'line')} with one version: nothing to compare."] if single else []
    return cut([line for one in several for line in (*_section(one), "")] + remark)


def _section(one: LineHistory) -> Iterator[str]:
    """Yield the versions and the changes of one line."""
    line = one.line
    judged = [column.version for column in line.columns if column.judged]
    yield f"## {words(line.name)}"
    yield ""
    yield f"{number(len(judged), 'judged version')}: {words(', '.join(judged))}."
    gaps = [f"{column.version} ({column.gap})" for column in line.columns if not column.judged]
    if gaps:
        more = f" and {len(gaps) - _GAPS} more" if len(gaps) > _GAPS else ""
        yield f"Not judged: {words(', '.join(gaps[:_GAPS]))}{more}."
    yield ""
    if not one.points:
        yield "No change point." if len(judged) > 1 else "Nothing to compare."
        return
    for points in by_interval(one.points):
        worse = sum(point.worse for point in points)
        counted = f"{number(len(points), 'clause')} changed, {worse} for the worse."
        yield f"**{words(interval(line, points[0]))}**: {counted}"
        if inside := [column.version for column in line.columns[points[0].before + 1 : points[0].after]]:
            yield f"(versions between that cannot decide: {words(', '.join(inside))})"
        if also := alongside(line, points[0]):
            yield f"(with {words(', '.join(also))})"
        yield ""
        yield from (f"- {_item(one, point)}" for point in points)
        yield ""


def by_interval(points: Iterable[ChangePoint]) -> list[list[ChangePoint]]:
    """Return the changes grouped by their two versions, the newest first."""

    def place(point: ChangePoint) -> tuple[int, int]:
        return -point.after, -point.before

    return [list(group) for _, group in groupby(sorted(points, key=place), place)]


def _item(one: LineHistory, point: ChangePoint) -> str:
    signatures = dict.fromkeys(f"{old or 'none'} → {new or 'none'}" for _, old, new in point.otherwise)
    text = "; ".join((change(point), *signatures))
    why = find_explanations(one.line, point)
    because = "; ".join(f"{words(text)}{source(link)}" for text, link in why) if why else "*unexplained*"
    history = words(statement(one.line, one.clauses[point.clause]))
    return f"{code(point.clause)} {words(text)}. History: {history}. {because}"


class _Point(Struct, forbid_unknown_fields=True, omit_defaults=True):
    between: tuple[_Index, _Index]
    kind: PointKind
    words: tuple[_Letter, _Letter]
    compared: int
    explained: tuple[tuple[str, str], ...]
    fails: tuple[str, ...] = ()
    passes: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()
    otherwise: tuple[tuple[str, str, str], ...] = ()
    alongside: tuple[str, ...] = msgspec.field(default=(), name="with")


class _Clause(Struct, forbid_unknown_fields=True, omit_defaults=True):
    runs: tuple[tuple[Any, ...], ...]
    points: tuple[_Point, ...] = ()


class _Line(VersionLine, frozen=True, forbid_unknown_fields=True):
    clauses: dict[ClauseId, _Clause]


class _Document(Struct, forbid_unknown_fields=True):
    version: Literal[2]
    words: dict[str, str]
    clauses: dict[ClauseId, ClauseFacts]
    lines: tuple[_Line, ...]


def compact(histories: Sequence[LineHistory]) -> str:
    """Return all histories as one JSON document, with one text line for each clause so that diffs are short."""
    facts = {name: clause.facts for one in histories for name, clause in one.clauses.items()}
    texts = ",\n".join(f"{_encode(name)}:{_encode(fact)}" for name, fact in sorted(facts.items()))
    lines = ",\n".join(_encode_line(one) for one in histories)
    return f'{{"version":{VERSION},"words":{to_line(_WORDS)},"clauses":{{\n{texts}\n}},"lines":[\n{lines}\n]}}\n'


def _encode_line(one: LineHistory) -> str:
    head = _encode(VersionLine(*(getattr(one.line, name) for name in VersionLine.__struct_fields__)))[:-1]
    clauses = ",\n".join(
        f"{_encode(name)}:{_encode(_encode_clause(one.line, clause))}" for name, clause in sorted(one.clauses.items())
    )
    return f'{head},"clauses":{{\n{clauses}\n}}}}'


def _encode(part: object) -> str:
    return to_line(plain(msgspec.to_builtins(part)))


def _encode_clause(line: VersionLine, clause: ClauseHistory) -> _Clause:
    runs = tuple(
        (run.first, run.last, LETTERS[run.word], *([_OTHER_TESTS] if run.other_tests else [])) for run in clause.runs
    )
    return _Clause(runs, tuple(_encode_point(line, point) for point in clause.points))


def _encode_point(line: VersionLine, point: ChangePoint) -> _Point:
    return _Point(
        between=(point.before, point.after),
        kind=point.kind,
        words=(LETTERS[point.old], LETTERS[point.new]),
        compared=point.compared,
        explained=find_explanations(line, point),
        fails=point.fails,
        passes=point.passes,
        unsupported=point.refused,
        otherwise=point.otherwise,
        alongside=alongside(line, point),
    )


def is_history(path: Path) -> bool:
    """Return whether a path is a file that begins like the output of `compact`; no record begins so."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(len(_START)) == _START


def load(path: Path) -> tuple[LineHistory, ...]:
    """Return the histories in a file made by `compact`; explanations are those known now, else the file's.

    Raises:
        RecordError: the file cannot be read, or is no history.
    """
    content = read(path)
    try:
        whole: _Document = parse(content, _Document)
        return tuple(_read_line(one, whole.clauses) for one in whole.lines)
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(path, f"is no history ({error})", "make it again by `conformance history`") from None


def _read_line(line: _Line, facts: Mapping[str, ClauseFacts]) -> LineHistory:
    count, clauses = len(line.columns), {}
    for name, clause in line.clauses.items():
        points = tuple(_read_point(name, point, count) for point in clause.points)
        clauses[name] = ClauseHistory(facts[name], tuple(_read_run(run, count) for run in clause.runs), points)
    return LineHistory(line, clauses)


def _read_run(run: tuple[Any, ...], count: int) -> VersionRun:
    first, last, letter, *rest = run
    if not 0 <= first <= last < count:
        raise ValueError(f"a run from version {first} to {last} of {count}")
    return VersionRun(first, last, _WORDS[letter], rest == [_OTHER_TESTS])


def _read_point(clause: str, point: _Point, count: int) -> ChangePoint:
    before, after = point.between
    if not before < after < count:
        raise ValueError(f"{clause} changes between versions {before} and {after} of {count}")
    old, new = (_WORDS[letter] for letter in point.words)
    moved = point.fails, point.passes, point.unsupported, point.otherwise
    return ChangePoint(clause, before, after, point.kind, old, new, point.compared, *moved, point.explained)
