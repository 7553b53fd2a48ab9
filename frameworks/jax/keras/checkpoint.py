"""A run as one Orbax tree, which is compared with the tree of the restoring run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp

from frameworks.jax.keras.steps import KerasMicroBatch, KerasSteps, State

FOLDER = "run"


def _tree(steps: KerasSteps, state: State, window: Sequence[KerasMicroBatch]) -> dict[str, Any]:
    """Every array of the run by a name, and the open window, (micro-batches, fields)."""
    network, optimizer = steps.bound.network, steps.optimizer
    owners = (network.trainable_variables, network.non_trainable_variables, optimizer.variables)
    named = {
        kind: {
            f"{place}-{variable.name}": value for place, (variable, value) in enumerate(zip(own, values, strict=True))
        }
        for kind, own, values in zip(State._fields, owners, state, strict=True)
    }
    rows = np.zeros((steps.recipe.accumulation, len(fields(KerasMicroBatch))))
    for row, micro in zip(rows, window, strict=False):
        row[:] = astuple(micro)
    kept = {kind: values for kind, values in named.items() if values}
    return {**kept, "window": {"rows": rows, "count": np.array(len(window))}}


def save(steps: KerasSteps, state: State, window: Sequence[KerasMicroBatch], path: Path) -> None:
    """Writes the run and its open window below the folder `path`."""
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path.absolute() / FOLDER, _tree(steps, state, window), force=True)


def restore(steps: KerasSteps, state: State, path: Path) -> tuple[State, list[KerasMicroBatch]]:
    """The state, in the places of the present one, and the open window that `save` wrote.

    Raises:
        ValueError: the files are missing, damaged, or of a run of another kind.
    """
    folder, like = path.absolute() / FOLDER, _tree(steps, state, [])
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            run = checkpointer.restore(folder, like)
    except Exception as error:  # Orbax raises that very class for some of what it cannot read
        raise ValueError(f"{folder} cannot be restored: {' '.join(str(error).split())}") from error
    rows = run["window"]["rows"][: int(run["window"]["count"])]
    found = State(*([run[kind][name] for name in like.get(kind, ())] for kind in State._fields))
    return found, [_micro_batch(*row) for row in rows.tolist()]


def _micro_batch(
    total: float, items: float, before: float, applied: float, rate: float, after: float, good: float
) -> KerasMicroBatch:
    return KerasMicroBatch(total, int(items), before, bool(applied), rate, after, int(good))
