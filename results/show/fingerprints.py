"""A comparison of fingerprints as text and Markdown: what changed first, then the programs that show it."""

from collections.abc import Iterable, Iterator, Sequence

from results.compare.fingerprints import CallableChange, Difference, FingerprintComparison

_LISTED = 40
"""Greatest number of callables of a line."""
_EXPLAINED = 12
"""Greatest number of callables of a line that are listed with what changed."""
_PROGRAMS = 5
"""Number of programs on a terminal."""
_COUNTED = (Difference.EXCEPTION, Difference.WARNS)
"""Differences that are only counted on a terminal."""


def to_text(comparisons: Sequence[FingerprintComparison]) -> str:
    """Return the changes of each package in a few lines, and the first programs."""
    lines = [line for comparison in comparisons for line in (*_head(comparison), *_programs(comparison, _PROGRAMS))]
    return "\n".join(lines) + "\n"


def markdown(comparisons: Sequence[FingerprintComparison]) -> str:
    """Return the changes as Markdown, with a folded program for each callable that behaves otherwise."""
    lines: list[str] = []
    for comparison in comparisons:
        title, *rest = _head(comparison)
        lines += [f"### {title}", "", *(f"- {line.strip()}" for line in rest), ""]
        for change in list_important(comparison):
            lines += [f"<details><summary>{change.name}: {change.difference}, {change.step}</summary>", ""]
            lines += ["```python", change.program.rstrip(), "```", "</details>", ""]
    return "\n".join(lines)


def _head(comparison: FingerprintComparison) -> Iterator[str]:
    """Yield the package with its counts, then one line for each kind of difference."""
    old, new = comparison.old, comparison.new
    cases = f"{comparison.identical} identical, {comparison.rounding} rounding, {comparison.changed} changed"
    yield f"{new.package} {old.version} -> {new.version}: {len(new.callables)} callables; of the calls {cases}"
    if packages := comparison.packages:
        steps = [f"{name} {before or 'none'} -> {after or 'none'}" for name, (before, after) in packages.items()]
        yield f"  other packages ({len(steps)}): {_join(steps, _EXPLAINED)}"
    if set(old.instruction_sets) != set(new.instruction_sets):
        yield "  of another processor"
    for difference in Difference:
        if changes := comparison.list_changes(difference):
            listed = list_names([(change.name, change.step) for change in changes])
            names = "" if difference in _COUNTED else f": {listed}"
            yield f"  {difference} ({len(changes)}){names}"


def list_names(changes: Sequence[tuple[str, str]]) -> str:
    """Return callables with what changed if the changes are few, otherwise those of a namespace together."""
    steps: dict[str, list[str]] = {}
    for name, step in changes:
        steps.setdefault(step or name, []).append(name)
    if len(steps) <= _EXPLAINED:
        return "; ".join(
            f"{', '.join(_group(names))}{f' ({step})' if step not in names else ''}" for step, names in steps.items()
        )
    return _join(_group(name for name, _ in changes), _LISTED)


def _group(names: Iterable[str]) -> list[str]:
    spaces: dict[str, list[str]] = {}
    for name in names:
        space, _, last = name.rpartition(".")
        spaces.setdefault(space, []).append(last)
    return [
        f"{space}.{last}" if index == 0 else last for space, rest in spaces.items() for index, last in enumerate(rest)
    ]


def _join(texts: Sequence[str], limit: int) -> str:
    more = len(texts) - limit
    return ", ".join(texts[:limit]) + (f" and {more} more" if more > 0 else "")


def list_important(comparison: FingerprintComparison) -> list[CallableChange]:
    """Return the changes that a program shows and a user must look at."""
    kinds = (Difference.BROKEN, Difference.OTHERWISE)
    return [change for change in comparison.changes if change.difference in kinds]


def _programs(comparison: FingerprintComparison, limit: int) -> Iterator[str]:
    for change in list_important(comparison)[:limit]:
        yield f"\n  {change.name} {change.difference}: {change.step}"
        yield from (f"    {line}" for line in change.program.splitlines())
