"""Fingerprints of arrays, and the distance of two arrays by their fingerprints."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from results.record.fingerprints import SAMPLE, Fingerprint

_DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
"""Binary digits of a format's significand, the hidden one included."""

_SMALLEST = {"float16": -14, "bfloat16": -126, "float32": -126, "float64": -1022}
"""Exponent of a format's smallest normal number."""


def fingerprint(name: str, array: NDArray[Any]) -> Fingerprint:
    """The fingerprint of an array of any format."""
    flat = np.ascontiguousarray(array).reshape(-1)
    content = _bytes(flat)
    described = f"{array.dtype.name} {tuple(array.shape)} ".encode()
    places = np.unique(np.linspace(0, max(flat.size - 1, 0), min(SAMPLE, flat.size)).astype(np.int64))
    return Fingerprint(
        name,
        array.dtype.name,
        tuple(int(size) for size in array.shape),
        hashlib.sha256(described + content).hexdigest()[:16],
        float(np.linalg.norm(flat.astype(np.float64))),
        base64.b64encode(_bytes(flat[places])).decode("ascii"),
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
    """Largest distance of two sampled values, in units of the last place of the larger; NaN if one alone is NaN.

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
