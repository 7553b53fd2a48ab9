"""Changes between releases, from the committed histories of sweeps, and an example of a comparison of two records."""

from collections.abc import Iterator, Mapping, Sequence

from conformance.runner.baselines import BASELINES
from results.compare.comparison import Comparison, Comparisons, compare
from results.history.changes import LineHistory, by_interval, find_explanations, interval, markdown, statement
from results.history.changes import load as load_history
from results.record.folders import list_records
from results.record.reading import load
from results.show.clauses import number, source, words
from results.show.differences import to_text
from tools.docs.generate import table

SWEEPS = BASELINES.parent / "sweeps"
OLD = BASELINES.parent / "upgrades"
"""A record of an older version, which the example compares with the baseline of its series."""

LISTED = 4
"""Number of clauses, and of a framework's changes, that a row names."""


def blocks() -> Mapping[str, str]:
    """A row for each two versions with a change between them, and for each history that clauses have."""
    return {
        "upgrades": table(("package", "versions", "clauses", "for the worse", "what changed"), _upgrades()),
        "change points": "\n".join(_change_points()).strip(),
    }


def page() -> str:
    """Every change point, and what `conformance compare` prints, as one Markdown page."""
    printed = to_text(Comparisons((example(),))).strip()
    return f"# Changes\n\n{markdown(histories())}\n## A comparison of two records\n\n```text\n{printed}\n```\n"


def histories() -> tuple[LineHistory, ...]:
    """The lines of every committed history."""
    return tuple(history for path in sorted(SWEEPS.glob("*.json")) for history in load_history(path))


def example() -> Comparison:
    """The older record and its baseline."""
    old = load(list_records(OLD)[0])
    return compare(old, next(new for new in map(load, list_records(BASELINES)) if new.series.key == old.series.key))


def _upgrades() -> Iterator[tuple[str, ...]]:
    for history in histories():
        for points in by_interval(history.points):
            worse = [point.clause for point in points if point.worse]
            why = dict.fromkeys(reason for point in points for reason in find_explanations(history.line, point))
            yield (
                _title(history),
                interval(history.line, points[0]),
                str(len(points)),
                _join_texts([f"`{clause}`" for clause in worse]) or "–",
                _join_texts([f"{words(text)}{source(link)}" for text, link in why], "; ") or "*unexplained*",
            )


def _change_points() -> Iterator[str]:
    """A table for each line of versions, with a row for the clauses of one history."""
    for history in histories():
        rows: dict[str, list[str]] = {}
        for name, clause in history.clauses.items():
            if clause.points:
                rows.setdefault(statement(history.line, clause), []).append(f"`{name}`")
        judged = [column.version for column in history.line.columns if column.judged]
        none = "" if rows else " No clause changed."
        yield f"### {_title(history)}\n\n{number(len(judged), 'judged version')}: {', '.join(judged)}.{none}\n"
        if rows:
            yield table(("history", "clauses"), ((words(text), ", ".join(names)) for text, names in rows.items()))
            yield ""


def _title(history: LineHistory) -> str:
    """The name of the package, and the mode."""
    name, mode = words(history.line.name).split(", ")[:2]
    return f"{name}, `{mode}`"


def _join_texts(texts: Sequence[str], separator: str = ", ") -> str:
    more = [f"and {len(texts) - LISTED} more"] if len(texts) > LISTED else []
    return separator.join((*texts[:LISTED], *more))
