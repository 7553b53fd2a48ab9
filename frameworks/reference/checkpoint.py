"""A run's whole state as named arrays, and one checkpoint file of them.

The file has the SHA-256 of what follows, that of what the run is, and an .npz of the arrays.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fixtures.arrays import Array
from frameworks.reference.decisions import Decisions, OpenWindow
from frameworks.reference.eight_bit_state import parts_of

FILE = "reference.run"
_DIGEST = 64


def write(folder: Path, arrays: Mapping[str, Array], identity: str) -> None:
    """Writes the run's arrays below `folder`; the file appears whole or not at all."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    content = hashlib.sha256(identity.encode()).hexdigest().encode() + buffer.getvalue()
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{FILE}.{os.getpid()}.partial"
    with partial.open("wb") as file:
        file.write(hashlib.sha256(content).hexdigest().encode() + content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(folder / FILE)


def read(folder: Path, identity: str, like: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays that `write` wrote for a run of the same identity.

    Raises:
        ValueError: the file is missing, cut short, changed, or another run's.
    """
    path = folder / FILE
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    digest, content = content[:_DIGEST], content[_DIGEST:]
    if hashlib.sha256(content).hexdigest().encode() != digest:
        raise ValueError(f"{path}: not a whole checkpoint of the reference: its checksum differs")
    if content[:_DIGEST] != hashlib.sha256(identity.encode()).hexdigest().encode():
        raise ValueError(f"{path}: the checkpoint of another model or recipe")
    try:
        with np.load(io.BytesIO(content[_DIGEST:]), allow_pickle=False) as saved:
            arrays = {name: saved[name] for name in saved.files}
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path}: cannot be decoded: {error}") from error
    missing = [name for name in like if name not in arrays and not name.startswith("window/")]
    if missing:
        raise ValueError(f"{path}: holds no {missing[0]}")
    return arrays


def taken(run: Decisions) -> dict[str, Array]:
    """Copies of everything that the rest of the run depends on."""
    window = run.window
    arrays: dict[str, Array] = {
        "counters": np.array([run.steps, run.schedule, run.draws, window.items, window.micro_batches, window.dropped]),
        "counts": np.array(list(run.counts.values())),
        "scaler": np.array([] if run.scaler is None else [run.scaler.scale, run.scaler.good_steps], np.float64),
        "window_scale": np.array(window.scale),
        "window_flags": np.array([window.unscaled, window.latched is not None]),
        "window_latched": np.array(sorted(window.latched or ()), np.int64),
        "window_scaled_overflow": np.array(sorted(window.scaled_overflow), np.int64),
        "window_losses": np.array([loss for loss, _ in window.losses], np.float64),
        "window_loss_items": np.array([items for _, items in window.losses], np.int64),
    }
    groups: dict[str, Mapping[str, Array]] = {
        "value": run.values,
        "master": run.masters,
        "average": run.averages,
        "statistics": run.statistics,
        "window": window.gradients,
    }
    for slot, moments in run.slots.items():
        groups |= parts_of(slot, moments)
    return arrays | {f"{group}/{name}": value.copy() for group, held in groups.items() for name, value in held.items()}


def put_back(run: Decisions, arrays: dict[str, Array]) -> None:
    """Goes back to what `taken` returned."""

    def group(name: str) -> dict[str, Array]:
        return {key.partition("/")[2]: value for key, value in arrays.items() if key.startswith(f"{name}/")}

    steps, schedule, draws, items, micro_batches, dropped = (int(v) for v in arrays["counters"])
    run.steps, run.schedule, run.draws = steps, schedule, draws
    run.counts = dict(zip(run.counts, (int(c) for c in arrays["counts"]), strict=True))
    if run.scaler is not None:
        scale, good_steps = arrays["scaler"]
        run.scaler = run.scaler.at(float(scale), int(good_steps))
    run.statistics = group("statistics")
    run.values, run.masters = (run.held("parameters", name, group(name)) for name in ("value", "master"))
    run.averages = group("average")
    run.slots = {
        slot: run.moments(slot, {part: group(part) for part in parts_of(slot, moments)})
        for slot, moments in run.slots.items()
    }
    run.window = _window(run.window, arrays, group("window"))
    run.window.items, run.window.micro_batches, run.window.dropped = items, micro_batches, dropped


def _window(former: OpenWindow, arrays: dict[str, Array], gradients: dict[str, Array]) -> OpenWindow:
    unscaled, latched = (bool(flag) for flag in arrays["window_flags"])
    losses = zip(arrays["window_loss_items"], arrays["window_losses"], strict=True)
    return type(former)(
        gradients=gradients,
        losses=[(float(loss), int(count)) for count, loss in losses],
        scale=float(arrays["window_scale"]),
        unscaled=unscaled,
        scaled_overflow=frozenset(int(i) for i in arrays["window_scaled_overflow"]),
        latched=frozenset(int(i) for i in arrays["window_latched"]) if latched else None,
    )
