"""The word of a clause across frameworks, for the table and its filter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from results.report.runs import packages
from results.report.text import NAME, clean
from results.show.portability import Broken, Portability, Word


@dataclass(frozen=True)
class Breakage:
    """A framework that breaks a clause, as cleaned texts.

    Attributes:
        version: in pieces between which a line may end, "since" before it where it is the first.
        where: mode and device of the runs that show it, or "".
    """

    framework: str
    version: tuple[str, ...]
    where: str


@dataclass(frozen=True)
class AcrossFrameworks:
    """The word of a clause.

    Attributes:
        owners: whose the failures are, of frameworks that train by one library.
        choices: the indices of its filter choices.
    """

    kind: str
    broken: tuple[Breakage, ...]
    owners: tuple[str, ...]
    choices: tuple[int, ...]


def choices(said: Iterable[Word]) -> tuple[str, ...]:
    """The filter choices: every kind of word, and every framework in which a clause is broken."""
    listed = list(said)
    frameworks = sorted({_broken_in(each) for word in listed for each in word.broken})
    return (*(kind.value for kind in Portability if any(word.kind is kind for word in listed)), *frameworks)


def _broken_in(broken: Broken) -> str:
    return f"broken in {clean(broken.framework, NAME)}"


def view_of(word: Word, listed: Sequence[str]) -> AcrossFrameworks:
    """A word as cleaned texts, where `listed` are the filter choices."""
    broken = tuple(
        Breakage(
            clean(each.framework, NAME),
            tuple(([f"since {first}"] if each.since else [first]) + rest),
            clean(", ".join(each.where)),
        )
        for each in word.broken
        for first, *rest in [packages(clean(each.since or each.version, NAME))]
    )
    chosen = (word.kind.value, *map(_broken_in, word.broken))
    owners = tuple(clean(str(owner), NAME) for owner in word.owners)
    return AcrossFrameworks(
        word.kind.value, broken, owners, tuple(listed.index(choice) for choice in dict.fromkeys(chosen))
    )
