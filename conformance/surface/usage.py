"""Listings and recordings in files, and what is used, out of scope and unused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from conformance.surface.listing import Listing, PublicCallable
from conformance.surface.scope import SurfaceScope
from results.record.files import RecordError, packed, read, replace

FOLDER = Path(__file__).parents[2] / "results" / "surface"
"""The committed recordings, FRAMEWORK.json.gz."""

NATIVE = "not written in Python: its calls cannot be recorded"


@dataclass(frozen=True)
class Counts:
    """Callables and parameters of a technique."""

    callables: int = 0
    called: int = 0
    parameters: int = 0
    used: int = 0
    reasoned: int = 0

    @property
    def unused(self) -> int:
        """Parameters that no recording used, without a reason."""
        return self.parameters - self.used - self.reasoned

    def __add__(self, other: Counts) -> Counts:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Counts(*(own + its for own, its in pairs))


def committed(framework: str) -> Path:
    """The committed recording of a framework."""
    return FOLDER / f"{framework}.json.gz"


def load(path: Path) -> Listing:
    """A listing or recording.

    Raises:
        RecordError: the file cannot be read, or is none.
    """
    try:
        return msgspec.json.decode(read(path), type=Listing)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        remedy = "make one by `conformance surface FRAMEWORK --json` or `pytest --surface=FILE`"
        raise RecordError(path, f"is no listing of callables ({error})", remedy) from None


def to_bytes(listing: Listing) -> bytes:
    """The content of a listing's file, the same for equal listings."""
    return msgspec.json.format(msgspec.json.encode(listing, order="sorted"), indent=1) + b"\n"


def store(path: Path, listing: Listing) -> None:
    """Writes a listing; compressed if the file's name ends with .gz.

    Raises:
        RecordError: the file cannot be written.
    """
    replace(path, packed(path, to_bytes(listing)))


def from_lines(listing: Listing, lines: Iterable[str]) -> Listing:
    """The listing with the uses that `frameworks.calls` wrote, one for each line."""
    result: dict[str, dict[str, set[str]]] = {}
    for line in lines:
        name, parameter, value = line.rstrip("\n").split("\t")
        result.setdefault(name, {}).setdefault(parameter, set()).add(value)
    return _with(listing, result)


def with_uses(listing: Listing, recordings: Iterable[Listing]) -> Listing:
    """The listing with the uses of recordings, of any version, instead of its own."""
    result: dict[str, dict[str, set[str]]] = {}
    for each in recordings:
        for name, parameters in each.used.items():
            for parameter, values in parameters.items():
                result.setdefault(name, {}).setdefault(parameter, set()).update(values)
    return _with(listing, result)


def _with(listing: Listing, usage: dict[str, dict[str, set[str]]]) -> Listing:
    used = {name: {key: sorted(values) for key, values in sorted(usage[name].items())} for name in sorted(usage)}
    return msgspec.structs.replace(
        listing, used={name: each for name, each in used.items() if name in listing.callables}
    )


def counts(listing: Listing, scope: SurfaceScope) -> dict[str, Counts]:
    """What there is by technique, in the order of the scope."""
    by_technique = dict.fromkeys(scope.techniques, Counts())
    for name, entry in listing.callables.items():
        used = listing.used.get(name, {})
        parameters = [(bool(used.get(key)), bool(reason(scope, name, entry, key))) for key in entry.parameters or {}]
        taken, out = sum(one for one, _ in parameters), sum(why and not one for one, why in parameters)
        own = Counts(1, int("" in used), len(parameters), taken, out)
        by_technique[entry.technique] = by_technique.get(entry.technique, Counts()) + own
    return by_technique


def reason(scope: SurfaceScope, name: str, entry: PublicCallable, parameter: str = "") -> str:
    """Why a callable or a parameter is out of scope, "" if it is not."""
    return scope.reason(name, parameter) or ("" if entry.place else NATIVE)


def unused(listing: Listing, scope: SurfaceScope) -> Iterator[tuple[str, bool, list[str]]]:
    """Callables with something unused and no reason: name, whether it was called, its unused parameters."""
    for name, entry in listing.callables.items():
        used = listing.used.get(name, {})
        left = [key for key in entry.parameters or {} if not used.get(key) and not reason(scope, name, entry, key)]
        if left or ("" not in used and not reason(scope, name, entry)):
            yield name, "" in used, left
