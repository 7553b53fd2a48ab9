"""A comparison as a terminal's table, as Markdown for a pull request, as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from results.comparison import Change, Comparison, Kind
from results.files import one_line
from results.marks import code, cut, words
from results.pairing import Comparisons, name, series
from results.values import plain

VERDICTS = {
    0: "nothing is worse",
    1: "something is worse",
    2: "no reliable comparison could be made",
}
_SHOWN = 4


@dataclass(frozen=True)
class Group:
    """Changes of one clause that are alike."""

    kind: Kind
    clause: str
    old: str
    new: str
    changes: tuple[Change, ...]

    @property
    def subjects(self) -> str:
        """The first of them, and how many more there are."""
        return self.listed(str)

    def listed(self, style: Callable[[str], str]) -> str:
        """The first of them in a style, and how many more there are."""
        shown = ", ".join(style(short(change.subject)) for change in self.changes[:_SHOWN])
        more = len(self.changes) - _SHOWN
        return f"{shown} and {more} more" if more > 0 else shown

    @property
    def step(self) -> str:
        """What stood there before and what stands there now."""
        return " → ".join((self.old or "nothing", self.new or "nothing"))

    @property
    def detail(self) -> str:
        """What is told about the first."""
        return self.changes[0].detail


def short(subject: str) -> str:
    """A test without its file, an observation without its clause."""
    if "::" in subject:
        return subject.rpartition("::")[2]
    clause, _, rest = subject.partition("/")
    return rest if rest and "." in clause else subject


def grouped(changes: Iterable[Change]) -> tuple[Group, ...]:
    """Changes that are alike together, in their order."""
    found: dict[tuple[Kind, str, str, str], list[Change]] = {}
    for change in changes:
        found.setdefault((change.kind, change.clause, change.old, change.new), []).append(change)
    return tuple(Group(*key, tuple(changes)) for key, changes in found.items())


def headline(pair: Comparison) -> str:
    """Series, both versions, and how many changes of each kind there are."""
    versions = (pair.old.variant.framework_version, pair.new.variant.framework_version)
    if pair.refusals:
        return f"{name(series(pair.new))}: {versions[0]} → {versions[1]}: not comparable"
    counts = Counter(change.kind for change in pair.changes)
    told = ", ".join(f"{counts[kind]} {kind}" for kind in Kind if counts[kind]) or "no change"
    return f"{name(series(pair.new))}: {versions[0]} → {versions[1]}: {told} ({pair.compared} tests compared)"


def environment(pair: Comparison) -> tuple[str, ...]:
    """What differs between the environments of the two runs."""
    old, new = pair.old.variant.environment, pair.new.variant.environment
    keys = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    return tuple(f"{key}: {old.get(key, 'none')} → {new.get(key, 'none')}" for key in keys)


def draw(comparisons: Comparisons, console: Console, *, brief: bool = False) -> None:
    """Prints every pair, the gravest changes first; `brief` leaves out those that make nothing worse."""
    for pair in comparisons.pairs:
        console.print(Text(one_line(headline(pair)), style="bold"))
        for line in pair.refusals:
            _indented(console, one_line(line), 2, "bold red")
        for line in environment(pair):
            _indented(console, one_line(line), 2, "dim")
        for group in grouped(change for change in pair.changes if change.kind.worse or not brief):
            _draw_group(group, console)
    for line in comparisons.unmatched:
        console.print(Text(one_line(line), style="bold red"))
    console.print(Text(VERDICTS[comparisons.status], style="bold"))


def _draw_group(group: Group, console: Console) -> None:
    style = "bold red" if group.kind.worse else "green" if group.kind is Kind.NEWLY_PASSING else "yellow"
    console.print(Padding(Text.assemble((group.kind, style), "  ", (one_line(group.clause), "bold")), (1, 0, 0, 2)))
    for told in (group.step, group.subjects, group.detail):
        if told:
            _indented(console, one_line(told, 600), 6)


def _indented(console: Console, text: str, columns: int, style: str = "") -> None:
    console.print(Padding(Text(text, style=style), (0, 0, 0, columns)))


def to_text(comparisons: Comparisons) -> str:
    """What `draw` prints, as text of 100 columns without colour."""
    console = Console(file=StringIO(), width=100, color_system=None)
    with console.capture() as captured:
        draw(comparisons, console)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def _after(group: Group) -> str:
    return f"{group.new}: {group.detail}" if group.new and group.detail else group.new or group.detail


def markdown(comparisons: Comparisons) -> str:
    """What changed, for a pull request or the summary of a CI job; it says so if it had to be cut to `marks.LIMIT`."""
    return cut(_lines(comparisons))


def _lines(comparisons: Comparisons) -> Iterator[str]:
    yield f"**Conformance: {VERDICTS[comparisons.status]}.**"
    for pair in comparisons.pairs:
        yield ""
        yield f"### {words(headline(pair))}"
        yield ""
        for line in pair.refusals:
            yield f"- {words(line)}"
        if changed := environment(pair):
            yield f"Environment: {'; '.join(words(line) for line in changed)}"
            yield ""
        groups = grouped(pair.changes)
        worse = [group for group in groups if group.kind.worse]
        others = [group for group in groups if not group.kind.worse]
        yield from _rows(worse)
        if others:
            yield f"<details><summary>{sum(len(g.changes) for g in others)} other changes</summary>"
            yield ""
            yield from _rows(others)
            yield "</details>"
    for line in comparisons.unmatched:
        yield f"- {words(line)}"


def _rows(groups: Sequence[Group]) -> Iterator[str]:
    if not groups:
        return
    yield "| change | clause | in | before | after |"
    yield "|---|---|---|---|---|"
    for group in groups:
        cells = (group.listed(code).replace("|", "\\|"), words(group.old, 200), words(_after(group), 300))
        yield f"| {group.kind} | {code(group.clause)} | {' | '.join(cells)} |"
    yield ""


def document(comparisons: Comparisons) -> dict[str, Any]:
    """The JSON document of a comparison."""
    return {
        "status": comparisons.status,
        "verdict": VERDICTS[comparisons.status],
        "pairs": [
            {
                "series": plain(pair.new.series),
                "old_version": pair.old.variant.framework_version,
                "new_version": pair.new.variant.framework_version,
                "status": pair.status,
                "compared": pair.compared,
                "refusals": list(pair.refusals),
                "environment": list(environment(pair)),
                "changes": [{**plain(change), "worse": change.kind.worse} for change in pair.changes],
            }
            for pair in comparisons.pairs
        ],
        "unmatched": list(comparisons.unmatched),
    }


def to_json(comparisons: Comparisons) -> str:
    """The JSON document as text."""
    return json.dumps(document(comparisons), indent=1, allow_nan=False) + "\n"
