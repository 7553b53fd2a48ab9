"""A run as one Orbax tree, which is compared with the tree of the restoring run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp

from frameworks.jax.keras.steps import KerasSteps, State
from frameworks.keras_common.micro_batches import COLUMNS, KerasMicroBatch, micro_batches_of, rows_of

FOLDER = "run"


def _tree(steps: KerasSteps, state: State, window: Sequence[KerasMicroBatch]) -> dict[str, Any]:
    """Every array of the run by a name, and the open window, (micro-batches, COLUMNS)."""
    named = {
        kind: {
            f"{place}-{variable.name}": value for place, (variable, value) in enumerate(zip(own, values, strict=True))
        }
        for kind, own, values in zip(State._fields, steps.variables, state, strict=True)
    }
    rows = np.zeros((steps.recipe.accumulation, COLUMNS))
    rows[: len(window)] = rows_of(window)
    nonempty = {kind: values for kind, values in named.items() if values}
    return {**nonempty, "window": {"rows": rows, "count": np.array(len(window))}}


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
    result = State(*([run[kind][name] for name in like.get(kind, ())] for kind in State._fields))
    return result, micro_batches_of(rows)
