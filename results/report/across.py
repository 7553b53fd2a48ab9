"""The word of a clause across frameworks, made fit to be shown and to be chosen by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from results.report.runs import packages
from results.report.text import NAME, clean
from results.show.portability import Broken, Portability, Word


@dataclass(frozen=True)
class Breakage:
    """A framework that breaks a clause, made fit to be shown.

    Attributes:
        version: in pieces between which a line may end, "since" before it where it is the first.
        where: mode and device of the runs that show it, or "".
    """

    framework: str
    version: tuple[str, ...]
    where: str


@dataclass(frozen=True)
class Across:
    """What is said of a clause across frameworks; `choices` are its places among those of the filter."""

    kind: str
    broken: tuple[Breakage, ...]
    choices: tuple[int, ...]


def choices(said: Iterable[Word]) -> tuple[str, ...]:
    """What a reader may choose clauses by: every kind of word, and every framework in which one is broken."""
    listed = list(said)
    frameworks = sorted({_broken_in(each) for word in listed for each in word.broken})
    return (*(kind.value for kind in Portability if any(word.kind is kind for word in listed)), *frameworks)


def _broken_in(broken: Broken) -> str:
    return f"broken in {clean(broken.framework, NAME)}"


def shown(word: Word, listed: Sequence[str]) -> Across:
    """A word made fit to be shown, where `listed` is what a reader may choose by."""
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
    return Across(word.kind.value, broken, tuple(listed.index(choice) for choice in dict.fromkeys(chosen)))
