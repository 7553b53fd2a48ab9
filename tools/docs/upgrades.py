"""What releases changed, from the committed histories of sweeps, and an example of a comparison of two records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from conformance.runner.baselines import BASELINES
from results.compare.comparison import Comparison, compare
from results.compare.pairing import Comparisons, series
from results.history.changes import LineHistory
from results.history.documents import load as load_history
from results.history.explanations import unexplained
from results.history.statements import markdown
from results.record.folders import listed
from results.record.reading import load
from results.show.clauses import number
from results.show.differences import to_text
from results.show.marks import words

SWEEPS = BASELINES.parent / "sweeps"
OLD = BASELINES.parent / "upgrades"
"""A record of an older version, which the example compares with the baseline of its series."""


def blocks() -> Mapping[str, str]:
    """A line for each series of versions, every change point, and what `conformance compare` prints."""
    result = histories()
    return {
        "upgrades": "\n".join(_counted(result)),
        "changes": markdown(result).strip(),
        "example": f"```text\n{to_text(Comparisons((example(),))).strip()}\n```",
    }


def histories() -> tuple[LineHistory, ...]:
    """The lines of every committed history."""
    return tuple(one for path in sorted(SWEEPS.glob("*.json")) for one in load_history(path))


def example() -> Comparison:
    """The older record and its baseline."""
    old = load(listed(OLD)[0])
    return compare(old, next(new for new in map(load, listed(BASELINES)) if series(new) == series(old)))


def _counted(histories: tuple[LineHistory, ...]) -> Iterator[str]:
    for one in histories:
        versions = [column.version for column in one.line.columns if column.judged]
        open_ = sum(1 for _ in unexplained(one.line, one.points))
        why = f", {open_} unexplained" if open_ else ""
        yield (
            f"- {words(one.line.name)}: {number(len(versions), 'version')}, {versions[0]} to {versions[-1]}; "
            f"{number(len(one.points), 'change')}{why}"
        )
