"""PEP 440 specifiers that match exactly the given judged versions."""

from collections.abc import Collection, Iterator, Sequence

from packaging.specifiers import SpecifierSet
from packaging.version import Version

_UPPER, _LOWER = ("<=", "<"), (">=", ">")


def contains(versions: str, version: str) -> bool:
    """Whether specifiers match a version, pre-releases included."""
    return SpecifierSet(versions).contains(version, prereleases=True)


def rewritten(versions: str, wanted: Collection[str], judged: Sequence[str]) -> str:
    """Specifiers that match the wanted judged versions and no others.

    They stay unchanged if they already do. Otherwise a bound is moved or a version excluded; failing that, the result
    is one version, or a range from the lowest to the highest.

    Raises:
        ValueError: there is no such specifier; the message is part of a sentence.
    """
    if _fits(versions, wanted, judged):
        return versions
    if not wanted:
        raise ValueError("would apply to no judged version")
    chosen, left = sorted(wanted, key=Version), [each for each in judged if each not in wanted]
    for text in (*_moved(versions, chosen, left), _anew(chosen, left)):
        if _fits(text, wanted, judged):
            return text
    raise ValueError(f"would apply to {', '.join(chosen)} but not to {', '.join(left)}, which no specifier can express")


def _moved(versions: str, chosen: Sequence[str], left: Sequence[str]) -> Iterator[str]:
    """The specifiers with a new upper bound, a new lower bound, or an excluded version."""
    first, last = Version(chosen[0]).public, Version(chosen[-1]).public
    clauses = [clause.strip() for clause in versions.split(",")]
    yield _bounded(clauses, _UPPER, f"<={last}")
    yield _bounded(clauses, _LOWER, f">={first}")
    yield ",".join([*clauses, *(f"!={each}" for each in left if contains(versions, each))])


def _bounded(clauses: Sequence[str], kinds: tuple[str, ...], bound: str) -> str:
    """The clauses with this bound in place of one of these kinds, or appended if there is none."""
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
