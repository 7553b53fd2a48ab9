"""PEP 440 specifiers of an expectation, changed so that they hold in these judged versions and in no other ones."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from packaging.specifiers import SpecifierSet
from packaging.version import Version

_UPPER, _LOWER = ("<=", "<"), (">=", ">")


def contains(versions: str, version: str) -> bool:
    """Whether specifiers hold in a version; pre-releases count."""
    return SpecifierSet(versions).contains(version, prereleases=True)


def rewritten(versions: str, wanted: Collection[str], judged: Sequence[str]) -> str:
    """Specifiers that hold in the wanted ones of the judged versions and in no other one.

    They stay as they are where they do; else a bound is moved, or a version left out; else they are one version, or a
    range from the lowest to the highest.

    Raises:
        ValueError: no specifier says it; the message is a clause of a sentence.
    """
    if _fits(versions, wanted, judged):
        return versions
    if not wanted:
        raise ValueError("would hold in no judged version")
    chosen, left = sorted(wanted, key=Version), [each for each in judged if each not in wanted]
    for text in (*_moved(versions, chosen, left), _anew(chosen, left)):
        if _fits(text, wanted, judged):
            return text
    raise ValueError(f"would hold in {', '.join(chosen)} and not in {', '.join(left)}, which no specifier says")


def _moved(versions: str, chosen: Sequence[str], left: Sequence[str]) -> Iterator[str]:
    """The specifiers with another upper bound, another lower one, or something left out."""
    first, last = Version(chosen[0]).public, Version(chosen[-1]).public
    clauses = [clause.strip() for clause in versions.split(",")]
    yield _bounded(clauses, _UPPER, f"<={last}")
    yield _bounded(clauses, _LOWER, f">={first}")
    yield ",".join([*clauses, *(f"!={each}" for each in left if contains(versions, each))])


def _bounded(clauses: Sequence[str], kinds: tuple[str, ...], bound: str) -> str:
    """The clauses with this bound in the place of the one of these kinds, behind them if there is none."""
    if not any(clause.startswith(kinds) for clause in clauses):
        return ",".join([*clauses, bound])
    return ",".join(bound if clause.startswith(kinds) else clause for clause in clauses)


def _anew(chosen: Sequence[str], left: Sequence[str]) -> str:
    publics = [Version(each).public for each in chosen]
    first, last = publics[0], publics[-1]
    if first == last:
        alike = any(Version(each).public == first for each in left)
        return ",".join(f"=={each}" for each in (chosen if alike else publics[:1]))
    text = f">={first},<={last}"
    return ",".join([text, *(f"!={each}" for each in left if contains(text, each))])


def _fits(versions: str, wanted: Collection[str], judged: Sequence[str]) -> bool:
    return all(contains(versions, each) == (each in wanted) for each in judged)
