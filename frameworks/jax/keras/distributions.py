"""Keras' distribution of a recipe's ranks: `DataParallel`, or `ModelParallel` with a layout for each variable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import keras
from keras.distribution import DataParallel, DeviceMesh, LayoutMap, ModelParallel

from fixtures.recipe import Ranks

Distribution: TypeAlias = DataParallel | ModelParallel

BATCH, MODEL = "batch", "model"
"""Axes of the mesh, as Keras' documentation names them: copies of the model, and the parts of one copy."""


def distribution_of(ranks: Ranks, shapes: Mapping[str, tuple[int, ...]]) -> Distribution:
    """The distribution of so many of the CPU's devices, in rows of those that share a copy.

    Args:
        shapes: of the variables that are sharded, by path; one of which the ranks divide no axis evenly lies whole on
            each, for a `TensorLayout` takes no other.
    """
    devices = keras.distribution.list_devices("cpu")[: ranks.count]
    if ranks.level == "replicated":
        return DataParallel(devices=devices)
    mesh = DeviceMesh((ranks.replicas, ranks.shards), (BATCH, MODEL), devices)
    layouts = LayoutMap(mesh)
    for path, axes in divided(shapes, ranks.shards).items():
        layouts[path] = axes
    return ModelParallel(layout_map=layouts, batch_dim_name=BATCH)


def divided(shapes: Mapping[str, tuple[int, ...]], parts: int) -> dict[str, tuple[str | None, ...]]:
    """The axes of the mesh that each axis of a variable is divided over, for those that can be divided at all."""
    result = {}
    for path, shape in shapes.items():
        axis = next((place for place, size in enumerate(shape) if size and size % parts == 0), None)
        if axis is not None:
            result[path] = tuple(MODEL if place == axis else None for place in range(len(shape)))
    return result


def shapes_of(variables: Iterable[keras.Variable]) -> dict[str, tuple[int, ...]]:
    """Shape of each variable by the path that a `LayoutMap` knows it by."""
    return {variable.path: tuple(variable.shape) for variable in variables}
