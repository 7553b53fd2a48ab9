"""Upstream changes that explain change points (`explanations.toml`), written by hand."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from results.history.changes import ChangePoint
from results.history.lines import VersionLine, age

FILE = Path(__file__).with_suffix(".toml")

_KEYS = {"framework", "package", "clauses", "between", "text", "link"}


@dataclass(frozen=True)
class Explanation:
    """An upstream change.

    Attributes:
        package: the one that changed: the framework, or a companion.
        clauses: patterns of clause ids. tests: a pattern of test ids, "*" for all.
        after, by: versions of the package; the change came after the one and by the other.
        link: of the change, its release notes or its issue.
    """

    framework: str
    package: str
    clauses: tuple[str, ...]
    after: str
    by: str
    text: str
    link: str
    tests: str = "*"

    def explains(self, line: VersionLine, point: ChangePoint) -> bool:
        """Whether the point is about one of the clauses, and its interval of versions contains part of this one."""
        if line.framework != self.framework or not any(fnmatchcase(point.clause, each) for each in self.clauses):
            return False
        moved = (*point.fails, *point.passes, *point.refused, *(test for test, _, _ in point.otherwise))
        if not any(fnmatchcase(test, self.tests) for test in moved):
            return False
        sides = [_version(line, place, self.package) for place in (point.before, point.after)]
        return all(sides) and age(sides[0]) < age(self.by) and age(self.after) < age(sides[1])


def _version(line: VersionLine, place: int, package: str) -> str:
    column = line.columns[place]
    return (
        column.version if package == line.package else column.companions.get(package, dict(line.fixed).get(package, ""))
    )


@cache
def explanations(path: Path = FILE) -> tuple[Explanation, ...]:
    """The entries of a file.

    Raises:
        ValueError: an entry lacks a key, has another, or a value of another kind.
    """
    table = tomllib.loads(path.read_text("utf-8"))
    if table.keys() - {"explanation"}:
        raise ValueError(f"{path.name}: got {', '.join(sorted(table))}, want [[explanation]] alone")
    return tuple(_entry(path.name, number, each) for number, each in enumerate(table.get("explanation", ()), 1))


def _entry(name: str, number: int, entry: dict[str, object]) -> Explanation:
    where = f"{name}: entry {number}"
    if not entry.keys() >= _KEYS or entry.keys() - _KEYS - {"tests"}:
        raise ValueError(
            f"{where}: got {', '.join(sorted(entry))}, want {', '.join(sorted(_KEYS))}, and tests if needed"
        )
    clauses, between = _list(entry["clauses"]), _list(entry["between"])
    if not clauses or len(between) != 2:
        raise ValueError(f"{where}: clauses and between are lists of texts, between of two versions")
    texts = {key: str(entry.get(key, "*") or "") for key in ("framework", "package", "text", "link", "tests")}
    if not all(texts.values()):
        raise ValueError(f"{where}: {', '.join(texts)} are texts that are not empty")
    if not texts["link"].startswith("https://"):
        raise ValueError(f"{where}: link: got {texts['link']!r}, want an https address")
    return Explanation(clauses=clauses, after=between[0], by=between[1], **texts)


def _list(value: object) -> tuple[str, ...]:
    """The texts of a list; none if it is anything else."""
    texts = isinstance(value, list) and all(isinstance(each, str) and each for each in value)
    return tuple(value) if isinstance(value, list) and texts else ()


def explained(
    line: VersionLine, point: ChangePoint, known: Iterable[Explanation] | None = None
) -> tuple[tuple[str, str], ...]:
    """Text and link of what explains a point: entries of the file, else findings with a link; none if nothing does."""
    entries = explanations() if known is None else known
    listed = tuple((each.text, each.link) for each in entries if each.explains(line, point))
    return listed or tuple((text, link) for text, link in point.links if link.startswith(("http://", "https://")))


def unexplained(line: VersionLine, points: Sequence[ChangePoint]) -> Iterator[ChangePoint]:
    """The points that nothing explains."""
    return (point for point in points if not explained(line, point))
