"""Upstream changes that explain change points (`explanations.toml`), written by hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from results.history.changes import ChangePoint
from results.history.lines import VersionLine
from results.show.portability import age

FILE = Path(__file__).with_suffix(".toml")

_Text = Annotated[str, Meta(min_length=1)]


class Explanation(Struct, frozen=True, forbid_unknown_fields=True):
    """An upstream change.

    Attributes:
        package: the one that changed: the framework, or a companion.
        clauses: patterns of clause ids. tests: a pattern of test ids, "*" for all.
        between: versions of the package; the change came after the one and by the other.
        link: of the change, its release notes or its issue.
    """

    framework: _Text
    package: _Text
    clauses: Annotated[tuple[_Text, ...], Meta(min_length=1)]
    between: tuple[_Text, _Text]
    text: _Text
    link: Annotated[str, Meta(pattern="^https://")]
    tests: _Text = "*"

    def explains(self, line: VersionLine, point: ChangePoint) -> bool:
        """Whether the point is about one of the clauses, and its interval of versions contains part of this one."""
        if line.framework != self.framework or not any(fnmatchcase(point.clause, each) for each in self.clauses):
            return False
        moved = (*point.fails, *point.passes, *point.refused, *(test for test, _, _ in point.otherwise))
        if not any(fnmatchcase(test, self.tests) for test in moved):
            return False
        sides = [_version(line, place, self.package) for place in (point.before, point.after)]
        after, by = self.between
        return all(sides) and age(sides[0]) < age(by) and age(after) < age(sides[1])


class _Explanations(Struct, forbid_unknown_fields=True):
    explanation: tuple[Explanation, ...] = ()


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
    try:
        return msgspec.toml.decode(path.read_bytes(), type=_Explanations).explanation
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path.name}: {error}") from None


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
