"""Where two computations part: the first array whose fingerprints differ, and how far apart the two are."""

from __future__ import annotations

import binascii
import math
from collections.abc import Sequence

from results.record.arrays import ulps
from results.record.fingerprints import Fingerprint

KINDS = ("layers", "first")
"""What a record may hold of a test, the most telling first: every layer's arrays, or the first gradients alone."""


def differs(old: Sequence[Fingerprint], new: Sequence[Fingerprint]) -> bool:
    """Whether any array is not the same to the last bit; names and their order count."""
    return [_content(one) for one in old] != [_content(one) for one in new]


def _content(held: Fingerprint) -> tuple[str, str, tuple[int, ...], str]:
    return held.name, held.format, held.shape, held.digest


def first_difference(old: Sequence[Fingerprint], new: Sequence[Fingerprint]) -> str:
    """The first array, in the new one's order, that differs, and by how much; "" if none does."""
    former = {held.name: held for held in old}
    for held in new:
        previous = former.get(held.name)
        if previous is None:
            return f"{held.name} ({held.format}), which only the new record has"
        if _content(previous) != _content(held):
            return _apart(previous, held)
    later = {held.name for held in new}
    gone = next((held for held in old if held.name not in later), None)
    if gone is not None:
        return f"{gone.name} ({gone.format}), which only the old record has"
    return "the order of the same arrays" if differs(old, new) else ""


def _apart(old: Fingerprint, new: Fingerprint) -> str:
    if (old.format, old.shape) != (new.format, new.shape):
        return f"{new.name}, {old.format}{list(old.shape)} before and {new.format}{list(new.shape)} now"
    name = f"{new.name} ({new.format})"
    try:
        places = ulps(old, new)
    except (ValueError, KeyError, TypeError, binascii.Error):
        return f"{name}, whose sampled values cannot be read"
    if places == 0.0:
        return f"{name}, in values that are not among the sampled ones"
    if not math.isfinite(places):
        return f"{name}, of whose sampled values some are finite in one record alone"
    unit = "unit" if places == 1.0 else "units"
    return f"{name}, by {places:.6g} {unit} in the last place of its sampled values"
