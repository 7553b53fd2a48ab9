"""A result as a structure and numbers: a digest of all bits, and two sketches of each array."""

import base64
import enum
import hashlib
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.fingerprints.cases import shorten
from results.compare.fingerprints import LEAVES, ROUNDINGS

DEPTH = 8
GOLDEN_ANGLE = math.pi * (3 - math.sqrt(5))
"""Step of the weights' angle, in radians: the cosines of its multiples never repeat."""
_COUNTER = re.compile(r"_\d+(?=$|/|\.)")


@dataclass(frozen=True)
class Leaf:
    """An array or a text of a result: its path, its format and shape or its text, its values, [] for a text."""

    path: str
    form: str
    values: NDArray[np.float64]


def flatten(value: Any, path: str = "", depth: int = 0) -> Iterator[Leaf]:
    """Yield the leaves of nested containers; objects of unknown types become their types' names."""
    none = np.zeros(0)
    if value is None or isinstance(value, (str, bytes, bool, enum.Enum, type)):
        yield Leaf(path, shorten(str(value)), none)
    elif isinstance(value, (int, float, complex)):
        yield Leaf(path, type(value).__name__, _to_float64(np.asarray(value)))
    elif (array := _to_array(value)) is not None:
        form, values = array
        yield Leaf(path, form, values)
    elif depth == DEPTH:
        yield Leaf(path, type(value).__name__, none)
    elif isinstance(value, Mapping) or (hasattr(value, "items") and hasattr(value, "keys")):
        for name, item in sorted(
            ((shorten(_COUNTER.sub("", str(key))), item) for key, item in value.items()), key=_first
        ):
            yield from flatten(item, f"{path}/{name}", depth + 1)
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for name in value._fields:
            yield from flatten(getattr(value, name), f"{path}/{name}", depth + 1)
    elif isinstance(value, (Sequence, set, frozenset)) or hasattr(value, "__next__"):
        for index, item in enumerate(sorted(value, key=str) if isinstance(value, (set, frozenset)) else value):
            yield from flatten(item, f"{path}/{index}", depth + 1)
    else:
        yield Leaf(path, type(value).__name__, none)


def _first(pair: tuple[str, Any]) -> str:
    return pair[0]


def _to_array(value: Any) -> tuple[str, NDArray[np.float64]] | None:
    """Return an array's format with its shape and its flat values, None for something else."""
    if not (hasattr(value, "dtype") and hasattr(value, "shape")):
        return None
    form = str(value.dtype).removeprefix("torch.").removeprefix("paddle.").removeprefix("<dtype: '").removesuffix("'>")
    try:
        shape = "x".join(map(str, value.shape))
        if hasattr(value, "detach"):
            value = value.detach()
        if hasattr(value, "dequantize") and getattr(value, "is_quantized", False):
            value = value.dequantize()
        if form == "bfloat16" or form.startswith("float8"):
            source = value if hasattr(value, "float") or hasattr(value, "astype") else value.numpy()
            value = source.float() if hasattr(source, "float") else source.astype("float32")
        if hasattr(value, "cpu"):
            value = value.cpu()
        return f"{form}[{shape}]", _to_float64(value.numpy() if hasattr(value, "numpy") else np.asarray(value))
    except Exception as error:
        return f"{form}[{type(error).__name__}]", np.zeros(0)


def _to_float64(array: Any) -> NDArray[np.float64]:
    array = np.asarray(array).ravel()
    if array.dtype.kind == "c":
        array = np.concatenate([array.real, array.imag])
    if array.dtype.kind in "OSUVM" and array.dtype.names is not None:
        return np.zeros(0)
    return np.asarray(array, dtype=np.float64)


def _encode(number: float) -> str:
    """Encode a number with 16 significant bits as four characters."""
    with np.errstate(over="ignore"):
        return base64.b64encode(struct.pack(">f", np.float32(number))[:3]).decode()


def _sketch(values: NDArray[np.float64]) -> str:
    """Return the root mean square of the finite values and their mean with weights of both signs, encoded."""
    finite = np.where(np.isfinite(values), values, 0.0)
    weights = np.cos(GOLDEN_ANGLE * np.arange(finite.size))
    with np.errstate(over="ignore", invalid="ignore"):
        size = float(np.sqrt(np.mean(finite**2)))
        mean = float(np.mean(finite * weights))
    return _encode(size) + _encode(mean)


def describe(result: Any, warnings: Sequence[str] = ()) -> tuple[str, str]:
    """Return the structure and the numbers of a result, as `results.compare.fingerprints` describes them."""
    parts, arrays, letters, digest = [], [], "", hashlib.blake2b(digest_size=3)
    for leaf in flatten(result):
        special = ""
        if leaf.values.size:
            nans, infinities = int(np.isnan(leaf.values).sum()), int(np.isinf(leaf.values).sum())
            special = (f" nan={nans}" if nans else "") + (f" inf={infinities}" if infinities else "")
            arrays.append(leaf.values)
            letters += _letter(leaf.form)
            digest.update(np.where(np.isnan(leaf.values), np.nan, leaf.values).tobytes())
        parts.append(f"{leaf.path} {leaf.form}{special}".strip())
    if len(arrays) > LEAVES:
        arrays[LEAVES - 1 :] = [np.concatenate(arrays[LEAVES - 1 :])]
        letters = letters[: LEAVES - 1] + max(letters[LEAVES - 1 :], key=lambda letter: ROUNDINGS[letter])
    structure = "; ".join(parts) + "".join(f" !{category}" for category in sorted(set(warnings)))
    sketches = map(_sketch, arrays)
    numbers = base64.b64encode(digest.digest()).decode()
    return structure, numbers + "".join(letter + sketch for letter, sketch in zip(letters, sketches, strict=True))


def _letter(form: str) -> str:
    """Return the letter of a format, a key of `ROUNDINGS`."""
    starts = {"int": "w", "uint": "w", "bool": "w", "bfloat16": "b", "float16": "h", "float8": "8"}
    return next((letter for start, letter in starts.items() if form.startswith(start)), "f")
