"""Fingerprints of arrays: how to take them, the distance of two, and the first differing one of several."""

import base64
import binascii
import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from results.record.model import SAMPLE, Fingerprint

_DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
"""Binary digits of a format's significand, the hidden one included."""

_SMALLEST = {"float16": -14, "bfloat16": -126, "float32": -126, "float64": -1022}
"""Exponent of a format's smallest normal number."""


def fingerprint(name: str, array: NDArray[Any]) -> Fingerprint:
    """The fingerprint of an array of any format."""
    flat = np.ascontiguousarray(array).reshape(-1)
    content = _bytes(flat)
    described = f"{array.dtype.name} {tuple(array.shape)} ".encode()
    indices = np.unique(np.linspace(0, max(flat.size - 1, 0), min(SAMPLE, flat.size)).astype(np.int64))
    return Fingerprint(
        name,
        array.dtype.name,
        tuple(int(size) for size in array.shape),
        hashlib.sha256(described + content).hexdigest()[:16],
        float(np.linalg.norm(flat.astype(np.float64))),
        base64.b64encode(_bytes(flat[indices])).decode("ascii"),
    )


def _bytes(flat: NDArray[Any]) -> bytes:
    return flat.astype(flat.dtype.newbyteorder("<")).tobytes() if flat.dtype.byteorder == ">" else flat.tobytes()


def values(tensor: Fingerprint) -> NDArray[np.float64]:
    """The sampled values.

    Raises:
        ValueError: the sample is no whole number of values of the format.
    """
    content = base64.b64decode(tensor.sample, validate=True)
    if tensor.format == "bfloat16":
        return (np.frombuffer(content, "<u2").astype("<u4") << 16).view("<f4").astype(np.float64)
    return np.frombuffer(content, np.dtype(tensor.format).newbyteorder("<")).astype(np.float64)


def ulps(old: Fingerprint, new: Fingerprint) -> float:
    """Return the largest distance of two sampled values, in ulps of the larger; NaN if only one of two is NaN.

    Raises:
        ValueError: the two are not of one format and shape.
    """
    if (old.format, old.shape) != (new.format, new.shape):
        raise ValueError(f"{old.format}{list(old.shape)} and {new.format}{list(new.shape)} are not alike")
    a, b = values(old), values(new)
    differ = ~((a == b) | (np.isnan(a) & np.isnan(b)))
    if not differ.any():
        return 0.0
    larger = np.maximum(np.abs(a), np.abs(b))[differ]
    exponents = np.maximum(np.frexp(larger)[1] - 1, _SMALLEST[old.format])
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        return float(np.max(np.abs(a - b)[differ] / np.ldexp(1.0, exponents - _DIGITS[old.format] + 1)))


def differs(old: Sequence[Fingerprint], new: Sequence[Fingerprint]) -> bool:
    """Return whether any array differs in a bit, its name or its index."""
    return [_content(one) for one in old] != [_content(one) for one in new]


def _content(tensor: Fingerprint) -> tuple[str, str, tuple[int, ...], str]:
    return tensor.name, tensor.format, tensor.shape, tensor.digest


def first_difference(old: Sequence[Fingerprint], new: Sequence[Fingerprint]) -> str:
    """Return the first differing array, in the order of `new`, and its difference; "" if none differs."""
    former = {tensor.name: tensor for tensor in old}
    for tensor in new:
        previous = former.get(tensor.name)
        if previous is None:
            return f"{tensor.name} ({tensor.format}), only in the new record"
        if _content(previous) != _content(tensor):
            return _describe_difference(previous, tensor)
    later = {tensor.name for tensor in new}
    for tensor in old:
        if tensor.name not in later:
            return f"{tensor.name} ({tensor.format}), only in the old record"
    return "the order of the same arrays" if differs(old, new) else ""


def _describe_difference(old: Fingerprint, new: Fingerprint) -> str:
    if (old.format, old.shape) != (new.format, new.shape):
        return f"{new.name}, {old.format}{list(old.shape)} before and {new.format}{list(new.shape)} now"
    name = f"{new.name} ({new.format})"
    try:
        distance = ulps(old, new)
    except (ValueError, KeyError, TypeError, binascii.Error):
        return f"{name}, with unreadable sampled values"
    if distance == 0.0:
        return f"{name}, outside the sampled values"
    if not math.isfinite(distance):
        return f"{name}, with sampled values that are finite in only one record"
    unit = "unit" if distance == 1.0 else "units"
    return f"{name}, by {distance:.6g} {unit} in the last place of its sampled values"
