"""Widens or narrows the judged series of an entry, by its versions, devices and modes or by another entry."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from conformance.known_failures.entries import Expectation
from conformance.known_failures.judged_series import Judged, every_version
from conformance.known_failures.toml_edit import Part
from conformance.known_failures.version_ranges import contains, rewritten
from conformance.spec.findings import named


def means(device: str, mode: str, where: tuple[str, str]) -> bool:
    """Whether an entry names this device and mode."""
    return named(device, where[0]) and named(mode, where[1])


def versions_of(judged: Judged, device: str, mode: str) -> tuple[str, ...]:
    """Judged versions on an entry's devices in its modes."""
    return every_version({where: versions for where, versions in judged.items() if means(device, mode, where)})


def judged_elsewhere(
    device: str, mode: str, version: str, here: Collection[tuple[str, str]], before: Judged
) -> list[str]:
    """Other series of an entry in which a version was judged before."""
    return [
        " ".join(where)
        for where, versions in before.items()
        if where not in here and version in versions and means(device, mode, where)
    ]


def alone(version: str, where: tuple[str, str], judged: Judged, cases: tuple[str, ...] | None) -> Part:
    """An entry for a single series."""
    return Part(rewritten(f"=={version}", {version}, judged[where]), cases, *where)


def widened(
    entry: Expectation, versions: str, version: str, new: Sequence[tuple[str, str]], judged: Judged
) -> Part | None:
    """The entry, widened to a version on more devices or in more modes; None if this would add another judged series.

    Args:
        versions: the entry's versions on its present devices, in its present modes.
        new: the further devices and modes.
        judged: every judged series, the new ones among them.
    """
    device, mode = entry.device, entry.mode
    for each in new:
        device, mode = _with(device, each[0]), _with(mode, each[1])
    wanted = _judged(judged, entry.device, entry.mode, versions) | {(where, version) for where in new}
    try:
        text = rewritten(versions, {each for _, each in wanted}, versions_of(judged, device, mode))
    except ValueError:
        return None
    changed = device if device != entry.device else None, mode if mode != entry.mode else None
    return Part(text, None, *changed) if _judged(judged, device, mode, text) == wanted else None


def narrowed(entry: Expectation, version: str, gone: Sequence[tuple[str, str]], judged: Judged) -> Part | None:
    """The entry, narrowed to exclude these devices and modes at a version; None if neither its devices nor its modes
    can express this."""
    wanted = _judged(judged, entry.device, entry.mode, entry.versions) - {(where, version) for where in gone}
    devices = ", ".join(dict.fromkeys(where[0] for where in judged if where in {each for each, _ in wanted}))
    modes = ", ".join(dict.fromkeys(where[1] for where in judged if where in {each for each, _ in wanted}))
    for part in (Part(entry.versions, device=devices), Part(entry.versions, mode=modes)):
        if _judged(judged, part.device or entry.device, part.mode or entry.mode, entry.versions) == wanted:
            return part
    return None


def _judged(judged: Judged, device: str, mode: str, versions: str) -> set[tuple[tuple[str, str], str]]:
    """The judged series in which an entry applies."""
    meant = ((where, each) for where, every in judged.items() if means(device, mode, where) for each in every)
    return {(where, each) for where, each in meant if contains(versions, each)}


def _with(words: str, name: str) -> str:
    return words if named(words, name) else f"{words}, {name}"
