"""Saves and restores a run's full state as named arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from fixtures.arrays import Array
from frameworks.contract import LoadOrder
from frameworks.reference.quantization.eight_bit_state import parts_of
from frameworks.reference.training.decisions import Decisions, OpenWindow

PARTS = ("model", "optimizer", "schedule", "scaler", "window")


class PartByPart(Protocol):
    """What loads a run's parts in a given order."""

    def load_part(self, part: str, arrays: dict[str, Array]) -> None:
        """Restores one of `PARTS`."""

    def make_schedule(self, applied: int = 0) -> None:
        """Makes the schedule, at its beginning or after so many applied updates."""

    def use_scaler(self) -> None:
        """Scales a loss that nothing is done with."""


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
        "seen": {name: np.array(most) for name, most in window.amax.items()},
    }
    for slot, moments in run.slots.items():
        groups |= parts_of(slot, moments)
    return arrays | {
        f"{group}/{name}": value.copy() for group, members in groups.items() for name, value in members.items()
    }


def put_back(run: Decisions, arrays: dict[str, Array], parts: Sequence[str] = PARTS) -> None:
    """Restores these parts of what `taken` returned."""
    for part in parts:
        _PUT_BACK[part](run, arrays)


def put_back_in(run: PartByPart, arrays: dict[str, Array], order: LoadOrder) -> None:
    """`put_back` for a new run, whose parts are made and loaded in this order."""
    parts = list(PARTS)
    match order:
        case "optimizer-first":
            parts.reverse()
        case "schedule-made-last" | "schedule-made-there":
            parts.remove("schedule")
        case "scaler-used":
            run.use_scaler()
    for part in parts:
        run.load_part(part, arrays)
    if order == "schedule-made-there":
        run.make_schedule(int(arrays["counters"][1]))
    elif "schedule" not in parts:
        run.make_schedule()
        run.load_part("schedule", arrays)


def _group(arrays: dict[str, Array], name: str) -> dict[str, Array]:
    return {key.partition("/")[2]: value for key, value in arrays.items() if key.startswith(f"{name}/")}


def _put_model(run: Decisions, arrays: dict[str, Array]) -> None:
    run.statistics = _group(arrays, "statistics")
    run.values = run.storage("parameters", "value", _group(arrays, "value"))
    run.averages = _group(arrays, "average")
    run.draws = int(arrays["counters"][2])


def _put_optimizer(run: Decisions, arrays: dict[str, Array]) -> None:
    run.steps = int(arrays["counters"][0])
    run.counts = dict(zip(run.counts, (int(c) for c in arrays["counts"]), strict=True))
    run.masters = run.storage("parameters", "master", _group(arrays, "master"))
    run.slots = {
        slot: run.moments(slot, {part: _group(arrays, part) for part in parts_of(slot, moments)})
        for slot, moments in run.slots.items()
    }


def _put_schedule(run: Decisions, arrays: dict[str, Array]) -> None:
    run.schedule = int(arrays["counters"][1])


def _put_scaler(run: Decisions, arrays: dict[str, Array]) -> None:
    if run.scaler is not None:
        scale, good_steps = arrays["scaler"]
        run.scaler = run.scaler.at(float(scale), int(good_steps))


def _put_window(run: Decisions, arrays: dict[str, Array]) -> None:
    run.window = _window(run.window, arrays, _group(arrays, "window"))
    run.window.amax = {name: float(most) for name, most in _group(arrays, "seen").items()}
    run.window.items, run.window.micro_batches, run.window.dropped = (int(v) for v in arrays["counters"][3:])


_PUT_BACK: Mapping[str, Callable[[Decisions, dict[str, Array]], None]] = {
    "model": _put_model,
    "optimizer": _put_optimizer,
    "schedule": _put_schedule,
    "scaler": _put_scaler,
    "window": _put_window,
}


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
