"""The first array whose fingerprints differ between two computations, and by how much."""

from __future__ import annotations

import binascii
import math
from collections.abc import Sequence

from results.record.arrays import ulps
from results.record.fingerprints import Fingerprint

KINDS = ("layers", "first")
"""Kinds of fingerprints of a test, the most informative first: every layer's arrays, or only the first gradients."""


def differs(old: Sequence[Fingerprint], new: Sequence[Fingerprint]) -> bool:
    """Whether any array differs in a bit, a name or its place."""
    return [_content(one) for one in old] != [_content(one) for one in new]


def _content(tensor: Fingerprint) -> tuple[str, str, tuple[int, ...], str]:
    return tensor.name, tensor.format, tensor.shape, tensor.digest


def first_difference(old: Sequence[Fingerprint], new: Sequence[Fingerprint]) -> str:
    """The first array, in the new one's order, that differs, and by how much; "" if none does."""
    former = {tensor.name: tensor for tensor in old}
    for tensor in new:
        previous = former.get(tensor.name)
        if previous is None:
            return f"{tensor.name} ({tensor.format}), only in the new record"
        if _content(previous) != _content(tensor):
            return _apart(previous, tensor)
    later = {tensor.name for tensor in new}
    gone = next((tensor for tensor in old if tensor.name not in later), None)
    if gone is not None:
        return f"{gone.name} ({gone.format}), only in the old record"
    return "the order of the same arrays" if differs(old, new) else ""


def _apart(old: Fingerprint, new: Fingerprint) -> str:
    if (old.format, old.shape) != (new.format, new.shape):
        return f"{new.name}, {old.format}{list(old.shape)} before and {new.format}{list(new.shape)} now"
    name = f"{new.name} ({new.format})"
    try:
        places = ulps(old, new)
    except (ValueError, KeyError, TypeError, binascii.Error):
        return f"{name}, with unreadable sampled values"
    if places == 0.0:
        return f"{name}, outside the sampled values"
    if not math.isfinite(places):
        return f"{name}, with sampled values that are finite in only one record"
    unit = "unit" if places == 1.0 else "units"
    return f"{name}, by {places:.6g} {unit} in the last place of its sampled values"
