"""Listings and recordings in files, and what is out of scope and unused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from conformance.surface.listing import Listing, PublicCallable
from conformance.surface.scope import SurfaceScope
from results.record.files import RecordError, packed, read, replace

FOLDER = Path(__file__).parents[2] / "results" / "surface"
"""The committed recordings, FRAMEWORK.json.gz."""

NATIVE = "not written in Python: its calls cannot be recorded"


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
    return _with(listing, (line.rstrip("\n").split("\t") for line in lines))


def with_uses(listing: Listing, recordings: Iterable[Listing]) -> Listing:
    """The listing with the uses of recordings, of any version, instead of its own."""
    uses = (
        (name, parameter, value)
        for each in recordings
        for name, parameters in each.used.items()
        for parameter, values in parameters.items()
        for value in values
    )
    return _with(listing, uses)


def _with(listing: Listing, uses: Iterable[Sequence[str]]) -> Listing:
    """The listing with uses: callable, parameter and class of the value."""
    used: dict[str, dict[str, list[str]]] = {}
    for name, parameter, value in sorted({*map(tuple, uses)}):
        if name in listing.callables:
            used.setdefault(name, {}).setdefault(parameter, []).append(value)
    return msgspec.structs.replace(listing, used=used)


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
