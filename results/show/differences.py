"""A comparison as a terminal's table, and as Markdown for a pull request."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from results.compare.changes import LEAST, Change, ChangeKind
from results.compare.comparison import Comparison, Comparisons, series_name
from results.compare.environment import Environment
from results.compare.numbers import MovedNumbers, Movement, counts
from results.compare.verdicts import NOT_JUDGED
from results.record.files import one_line
from results.show.clauses import code, cut, number, words

VERDICTS = {0: "nothing is worse", 1: "something is worse", 2: "cannot be judged"}
UNSET = "unset"
"""Text for a side that has no value."""

_MAX_LISTED = 4
_REASONED = frozenset({ChangeKind.NOT_COMPARABLE, ChangeKind.BOUND_CHANGED, ChangeKind.ALTERED})
"""Counted kinds whose details are listed."""

_ONLY_IN_NUMBERS = frozenset({ChangeKind.DRIFT, ChangeKind.NOT_JUDGED})
"""Kinds that a headline counts apart from the others."""


@dataclass(frozen=True)
class ChangeGroup:
    """Changes of one clause with the same kind, old value and new value."""

    kind: ChangeKind
    clause: str
    old: str
    new: str
    changes: tuple[Change, ...]

    @property
    def subjects(self) -> str:
        """The first of them, and how many more there are."""
        return self.list_subjects(str)

    def list_subjects(self, style: Callable[[str], str]) -> str:
        """The first of them in a style, and how many more there are."""
        text = ", ".join(style(short(change.subject)) for change in self.changes[:_MAX_LISTED])
        more = len(self.changes) - _MAX_LISTED
        return f"{text} and {more} more" if more > 0 else text

    @property
    def step(self) -> str:
        """The old value and the new one."""
        return " → ".join((self.old or UNSET, self.new or UNSET)) if self.kind.listed else ""

    @property
    def detail(self) -> str:
        """The detail of the first."""
        return self.changes[0].detail


def short(subject: str) -> str:
    """A test or an observation without its clause."""
    clause, _, rest = subject.partition("/")
    return rest if rest and "." in clause else subject


def group_changes(changes: Iterable[Change]) -> tuple[ChangeGroup, ...]:
    """Equal changes together, in their order; kinds that are only counted are grouped by clause."""
    alike: dict[tuple[ChangeKind, str, str, str], list[Change]] = {}
    for change in changes:
        sides = (change.old, change.new) if change.kind.listed else ("", "")
        alike.setdefault((change.kind, change.clause, *sides), []).append(change)
    return tuple(ChangeGroup(*key, tuple(changes)) for key, changes in alike.items())


def verdict(comparisons: Comparisons) -> str:
    """The result in a few words."""
    pairs, text = comparisons.pairs, VERDICTS[comparisons.status]
    if comparisons.status == 2 and (reasons := _why_not(comparisons)):
        text += f": {'; '.join(reasons)}"
    if comparisons.status == 0:
        drifted = sum(pair.drifted for pair in pairs)
        if drifted:
            text += f", {number(drifted, 'test')} drifted"
        elif all(pair.identical for pair in pairs):
            text += ": identical"
    uncompared = sum(pair.of - pair.compared for pair in pairs if not pair.refusals)
    if uncompared and comparisons.status < 2:
        text += f", {uncompared} of {sum(pair.of for pair in pairs)} tests were not compared"
    areas = sorted({area for pair in pairs for area in pair.suite.areas})
    return f"{text}; the suite itself differs: {', '.join(areas)}" if areas else text


def _why_not(comparisons: Comparisons) -> list[str]:
    """Return why records cannot be compared, and how many have no partner."""
    reasons = list(dict.fromkeys(line for pair in comparisons.pairs for line in pair.refusals))
    count = len(comparisons.unmatched)
    return [*reasons, f"records without a partner: {count}"] if count else reasons


def headline(pair: Comparison) -> str:
    """Series, both versions, the number of changes of each kind, and the movements of the numbers."""
    return f"{title(pair)}: {summary(pair)}"


def title(pair: Comparison) -> str:
    """Series and both versions."""
    versions = (pair.old.variant.framework_version, pair.new.variant.framework_version)
    return f"{series_name(pair.new.series.key)}: {versions[0]} → {versions[1]}"


def summary(pair: Comparison) -> str:
    """The number of changes of each kind, the movements of the numbers, and the number of compared tests."""
    if pair.refusals:
        return "not comparable"
    selection = " and ".join(dict.fromkeys(filter(None, (pair.old.selection, pair.new.selection))))
    tests = f"({pair.compared} of {pair.of} tests compared{f', those of {selection}' if selection else ''})"
    if not pair.judged:
        return f"{pair.share:.0%} of the tests that the old record judged are comparable, want {LEAST:.0%} {tests}"
    if pair.identical:
        return f"identical {tests}"
    kinds = Counter(change.kind for change in pair.changes)
    counted = ", ".join(f"{kinds[kind]} {kind}" for kind in ChangeKind if kinds[kind] and kind not in _ONLY_IN_NUMBERS)
    unmoved = all(one.movement is Movement.IDENTICAL for one in pair.numbers)
    numbers = f"numbers: {moved}" if (moved := movements(pair.numbers)) else ""
    parts = (counted or ("no change" if unmoved else ""), numbers, not_judged(kinds[ChangeKind.NOT_JUDGED]))
    return f"{'; '.join(filter(None, parts))} {tests}"


def movements(numbers: Sequence[MovedNumbers]) -> str:
    """The number of tests of each movement; "" for no test."""
    return ", ".join(f"{count} {movement}" for movement, count in counts(numbers).items())


def not_judged(count: int) -> str:
    """The number of timings that are not judged; "" for none."""
    return f"{number(count, 'timing')} {ChangeKind.NOT_JUDGED}" if count else ""


def draw(comparisons: Comparisons, console: Console, *, brief: bool = False) -> None:
    """Prints every pair: its environment, then its changes, the gravest first.

    Args:
        brief: show only regressions, drifts and unstable tests.
    """
    for pair in comparisons.pairs:
        console.print(Text(one_line(headline(pair)), style="bold"))
        for line in pair.refusals:
            _print_indented(console, one_line(line), 2, "bold red")
        for line in pair.suite.lines():
            _print_indented(console, one_line(line), 2, "bold yellow")
        _draw_environment(pair.environment, console)
        kinds = {
            kind for kind in ChangeKind if kind.worse or not brief or kind in (ChangeKind.DRIFT, ChangeKind.UNSTABLE)
        }
        for group in group_changes(change for change in pair.changes if change.kind in kinds and change.kind.listed):
            _draw_group(group, console)
        for kind in (kind for kind in ChangeKind if kind in kinds and not kind.listed):
            _draw_counted(kind, [change for change in pair.changes if change.kind is kind], console)
    for line in comparisons.unmatched:
        console.print(Text(one_line(line), style="bold red"))
    console.print(Text(one_line(verdict(comparisons)), style="bold"))


def _draw_environment(different: Environment, console: Console) -> None:
    for line in different.versions():
        _print_indented(console, one_line(line, 1000), 2, "dim")
    if different.crossing:
        _print_indented(console, f"{different.crossed}:", 2, "dim")
        console.print(Text(f"    {one_line(different.crossing, 1000)}"), soft_wrap=True)
    for line in different.settings():
        _print_indented(console, one_line(line, 1000), 2, "dim")


def _draw_counted(kind: ChangeKind, changes: Sequence[Change], console: Console) -> None:
    if not changes:
        return
    timed = kind is ChangeKind.NOT_JUDGED
    label = not_judged(len(changes)) if timed else f"{len(changes)} {kind}"
    summary = NOT_JUDGED if timed else ChangeGroup(kind, "", "", "", tuple(changes)).subjects
    _print_indented(console, "", 0)
    text = Text.assemble((label, "bold red" if kind.worse else "yellow"), ": ", one_line(summary, 600))
    console.print(Padding(text, (0, 0, 0, 2)))
    for line in _reasons(changes):
        _print_indented(console, one_line(line), 6)


def _reasons(changes: Sequence[Change]) -> list[str]:
    """The details of changes of a kind in `_REASONED`, with their counts, the most frequent first."""
    details = Counter(change.detail for change in changes if change.kind in _REASONED and change.detail)
    return [f"{count}: {detail}" for detail, count in details.most_common()]


def _draw_group(group: ChangeGroup, console: Console) -> None:
    style = "bold red" if group.kind.worse else "green" if group.kind is ChangeKind.NEWLY_PASSING else "yellow"
    console.print(Padding(Text.assemble((group.kind, style), "  ", (one_line(group.clause), "bold")), (1, 0, 0, 2)))
    for text in (group.step, group.subjects, group.detail):
        if text:
            _print_indented(console, one_line(text, 600), 6)


def _print_indented(console: Console, text: str, columns: int, style: str = "") -> None:
    console.print(Padding(Text(text, style=style), (0, 0, 0, columns)))


def to_text(comparisons: Comparisons) -> str:
    """Return the output of `draw` as text of 100 columns without colour."""
    console = Console(file=StringIO(), width=100, color_system=None)
    with console.capture() as captured:
        draw(comparisons, console)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def markdown(comparisons: Comparisons) -> str:
    """The changes, for a pull request or the summary of a CI job, cut to `clauses.LIMIT` with a notice."""
    return cut(_lines(comparisons))


def _lines(comparisons: Comparisons) -> Iterator[str]:
    yield f"**Conformance: {words(verdict(comparisons))}.**"
    for pair in comparisons.pairs:
        yield ""
        yield from section(pair)
    for line in comparisons.unmatched:
        yield f"- {words(line)}"


def section(pair: Comparison) -> Iterator[str]:
    """One pair in Markdown: environment, regressions and drifts, then everything else folded."""
    yield f"### {words(title(pair))}"
    yield ""
    yield words(summary(pair), 1000)
    yield ""
    yield from (f"- {words(line)}" for line in (*pair.refusals, *pair.suite.lines()))
    yield ""
    yield from _environment(pair)
    listed = [change for change in pair.changes if change.kind.listed]
    yield from _rows(group_changes(change for change in listed if change.kind.worse or change.kind is ChangeKind.DRIFT))
    for kind in ChangeKind:
        if not kind.listed:
            yield from _folded_list(kind, [change for change in pair.changes if change.kind is kind])
    others = [change for change in listed if not change.kind.worse and change.kind is not ChangeKind.DRIFT]
    yield from _fold_lines(f"{len(others)} other changes", list(_rows(group_changes(others))))
    yield from _numbers(pair)


def _fold_lines(summary: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield f"<details><summary>{summary}</summary>"
        yield ""
        yield from lines
        yield "</details>"
        yield ""


def _environment(pair: Comparison) -> Iterator[str]:
    different = pair.environment
    lines = [f"- {words(line, 1000)}" for line in different.versions()]
    if different.crossing:
        lines.append(f"- {words(different.crossed)}: {code(different.crossing, 1000)}")
    lines += [f"- {words(line, 1000)}" for line in different.settings()]
    if lines:
        yield from ("Environment:", "", *lines, "")
    others = ", ".join(words(step.line, 200) for step in different.packages)
    yield from _fold_lines("Other packages", [others, ""] if others else [])


def _folded_list(kind: ChangeKind, changes: Sequence[Change]) -> Iterator[str]:
    if kind is ChangeKind.NOT_JUDGED and changes:
        yield f"{not_judged(len(changes))}: {words(NOT_JUDGED)}."
        yield ""
    if kind in (ChangeKind.ADDED, ChangeKind.NOT_JUDGED):
        return
    rows = [f"- {words(line)}" for line in _reasons(changes)]
    rows += [
        f"- {code(group.clause)}, {len(group.changes)}: {group.list_subjects(code)}" for group in group_changes(changes)
    ]
    yield from _fold_lines(f"{len(changes)} {kind}", [*rows, ""] if rows else [])


def _numbers(pair: Comparison) -> Iterator[str]:
    different = [one for one in pair.numbers if one.movement is not Movement.IDENTICAL]
    if different:
        lines = ["| numbers | clause | in | what differs | first tensor that differs |", "|---|---|---|---|---|"]
        for one in different:
            cells = code(short(one.test)).replace("|", "\\|"), words(one.detail, 300), words(one.tensor, 200)
            lines.append(f"| {one.movement} | {code(one.clause)} | {' | '.join(cells)} |")
        yield from _fold_lines(f"Numbers: {movements(pair.numbers)}", [*lines, ""])


def _rows(groups: Sequence[ChangeGroup]) -> Iterator[str]:
    if not groups:
        return
    yield "| change | clause | in | before | after |"
    yield "|---|---|---|---|---|"
    for group in groups:
        after = ": ".join(filter(None, (group.new, group.detail)))
        cells = (group.list_subjects(code).replace("|", "\\|"), words(group.old, 200), words(after, 300))
        yield f"| {group.kind} | {code(group.clause)} | {' | '.join(cells)} |"
    yield ""
