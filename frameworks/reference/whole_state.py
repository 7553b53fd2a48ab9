"""Saves and restores a run's full state as named arrays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fixtures.arrays import Array
from frameworks.reference.decisions import Decisions, OpenWindow
from frameworks.reference.eight_bit_state import parts_of


def taken(run: Decisions) -> dict[str, Array]:
    """Copies of the full state."""
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
        "seen": {name: np.array(most) for name, most in window.maxima.items()},
    }
    for slot, moments in run.slots.items():
        groups |= parts_of(slot, moments)
    return arrays | {f"{group}/{name}": value.copy() for group, held in groups.items() for name, value in held.items()}


def put_back(run: Decisions, arrays: dict[str, Array]) -> None:
    """Restores what `taken` returned."""

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
    run.window.maxima = {name: float(most) for name, most in group("seen").items()}
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
