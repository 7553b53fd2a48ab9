"""The block of meshes by `keras.distribution.ModelParallel` on a grid of two by two devices."""

import warnings
from typing import Any

import jax
import keras
import numpy as np
from keras.distribution import DeviceMesh, LayoutMap, ModelParallel, TensorLayout, list_devices

from frameworks.contract import BlockWeights, MeshCase, MeshLayout, MeshUpdate
from frameworks.jax.meshes import read, read_axes

NAMES = ("norm.weight", "up.weight", "up.bias", "down.weight", "down.bias")
"""The parameters, in the order of the layers."""


def distribution(layout: MeshLayout, prefix: str = ".*") -> ModelParallel:
    """The distribution of a layout; `prefix` begins the patterns of its names."""
    devices = list_devices("cpu")
    grid = LayoutMap(DeviceMesh((2, 2), ("data", "model"), devices))
    grid[f"{prefix}up/kernel"] = (None, "model")
    grid[f"{prefix}up/bias"] = ("model",)
    grid[f"{prefix}down/kernel"] = ("model", None)
    if layout == "sequence":
        grid[f"{prefix}norm/output"] = ("data", "model", None)
    if layout == "two-meshes":
        grid[f"{prefix}norm/scale"] = TensorLayout(("all",), DeviceMesh((4,), ("all",), devices))
    return ModelParallel(layout_map=grid, batch_dim_name="data", auto_shard_dataset=False)


def half_square(targets: Any, outputs: Any) -> Any:
    """Half the squared errors of each row."""
    return 0.5 * keras.ops.sum((outputs - targets) ** 2, axis=(1, 2))


def make_block(weights: BlockWeights) -> keras.Model:
    """The block, in the open distribution."""
    width, hidden = weights["up.weight"].shape
    layers = (
        keras.layers.RMSNormalization(epsilon=0.0, name="norm"),
        keras.layers.Dense(hidden, "relu", name="up"),
        keras.layers.Dense(width, name="down"),
    )
    block = keras.Sequential([keras.Input((None, width)), *layers])
    block.set_weights([weights[name] for name in NAMES])
    return block


def values(block: keras.Model) -> dict[str, jax.Array]:
    """The block's weights."""
    return {name: variable.value for name, variable in zip(NAMES, block.trainable_variables, strict=True)}


def update(case: MeshCase) -> tuple[MeshUpdate, ...]:
    """Every device's view of an update; Keras reports no norm."""
    with distribution(case.layout).scope():
        block = make_block(case.weights)
        placements = {"build": read_axes(values(block))}
        block.compile(keras.optimizers.SGD(1.0, global_clipnorm=case.clip), half_square)
        block.train_on_batch(*case.samples)
        placements["update"] = read_axes(values(block))
        if case.folder is not None:
            block.save(case.folder / "block.keras")
            block = keras.models.load_model(case.folder / "block.keras", compile=False)
            placements["reload"] = read_axes(values(block))
        return tuple(MeshUpdate(read(values(block), device), None, "", placements) for device in jax.devices())


def reports_unknown_name(weights: BlockWeights) -> bool:
    """Whether a layout whose patterns match no variable raises or warns."""
    with warnings.catch_warnings(record=True) as reported, distribution("tensor", "no/such/").scope():
        warnings.simplefilter("always")
        make_block(weights).predict_on_batch(np.ones((4, 4, len(weights["down.bias"])), np.float32))
    return bool(reported)
