"""Other public calls of TensorFlow and Keras for a technique, by the names in `ways.toml`; "" is the default one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from fixtures.arrays import Array
from fixtures.model import Batch, Model
from fixtures.recipe import Recipe
from frameworks.contract import Capability, Unsupported
from frameworks.keras_common.layers import WEIGHTED_MEAN, BuiltNetwork, KerasNetwork, losses_of

REST, WEIGHTS = "rest.npz", "run.weights.h5"


def policy(recipe: Recipe, name: str) -> Any:
    """The global dtype policy of a run, by its name."""
    match recipe.way("autocast"):
        case "policy-object":
            return keras.DTypePolicy(name)
        case "policy-map" if recipe.quantization is None:
            return keras.dtype_policies.DTypePolicyMap(default_policy=name)
        case _:
            return name


def tape(way: str, *, persistent: bool) -> tf.GradientTape:
    """A gradient tape; in the way "watched" it watches no variable automatically."""
    if way == "watched":
        return tf.GradientTape(persistent=persistent, watch_accessed_variables=False)
    return tf.GradientTape(persistent=persistent or way == "persistent")


def gradients(way: str, tape: tf.GradientTape, target: tf.Tensor, sources: Sequence[Any]) -> list[Any]:
    """The gradients of a scalar."""
    if way == "tf-gradients":
        return list(tf.gradients(target, [getattr(source, "value", source) for source in sources]))
    return list(tape.gradient(target, sources))


def clip_gradients(limit: float, scale: tf.Tensor, gradients: list[Any]) -> list[Any]:
    """Scaled gradients, clipped so that their joint norm is at most the scaled limit."""
    result, _ = tf.clip_by_global_norm(gradients, limit * scale)
    return list(result)


def require(recipe: Recipe) -> None:
    """Refuses ways that do not support the recipe.

    Raises:
        Unsupported: CLIP, of single micro-batches.
    """
    if recipe.way("clip") and recipe.clip is not None and recipe.accumulation > 1:
        reason = "the optimizer adds up the window's gradients, so that a clip before it is one of each micro-batch"
        raise Unsupported(Capability.CLIP, reason, _clips_sums)


def _clips_sums() -> bool:
    weight = keras.Variable(0.0)
    optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    for gradient in (3.0, -1.0):
        result, _ = tf.clip_by_global_norm([tf.constant(gradient)], 1.0)
        optimizer.apply(result, [weight])
    return float(weight) == -1.0


def apply(way: str, optimizer: keras.optimizers.Optimizer, gradients: list[Any], variables: Sequence[Any]) -> None:
    """One update of the optimizer's variables."""
    match way:
        case "apply-gradients":
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        case "without-variables" if len(gradients) == len(variables):
            optimizer.apply(gradients)
        case _:
            optimizer.apply(gradients, variables[: len(gradients)])


def compile_model(recipe: Recipe, network: KerasNetwork, model: Model, optimizer: Any, compiling: Any) -> bool:
    """Compiles the model for `Model.train_on_batch`; returns False if that has no step for this run."""
    wide = any(head.format == "float64" for head in model.heads.heads)
    if recipe.way("backward") != "train-on-batch" or recipe.separate_losses or wide:
        return False
    losses = losses_of(model, WEIGHTED_MEAN)
    network.compile(optimizer=optimizer, loss=losses, auto_scale_loss=False, **compiling)
    return True


def train_on_batch(network: KerasNetwork, batch: Batch) -> float:
    """Runs one step of `Model.train_on_batch`; returns the loss."""
    weights = None if batch.mask is None else dict.fromkeys(batch.targets, batch.mask)
    logs = network.train_on_batch(batch.inputs, dict(batch.targets), weights, return_dict=True)
    return float(logs["loss"])


def write(way: str, path: Path, checkpoint: tf.train.Checkpoint) -> None:
    """Writes a checkpoint below a folder."""
    match way:
        case "manager":
            tf.train.CheckpointManager(checkpoint, path, max_to_keep=1).save()
        case "numbered":
            checkpoint.save(path / "run")
        case _:
            checkpoint.write(path / "run")


def read(way: str, path: Path, checkpoint: tf.train.Checkpoint) -> None:
    """Reads the files of `write`.

    Raises:
        Exception: files or parts of it are missing or damaged.
    """
    match way:
        case "manager":
            manager = tf.train.CheckpointManager(checkpoint, path, max_to_keep=1)
            checkpoint.restore(manager.latest_checkpoint).assert_consumed()
        case "numbered":
            checkpoint.restore(tf.train.latest_checkpoint(path)).assert_consumed()
        case _:
            checkpoint.read(path / "run").assert_consumed()


def write_files(path: Path, bound: BuiltNetwork, optimizer: keras.optimizers.Optimizer, window: Array) -> None:
    """Writes weights by `Model.save_weights`, and all other state as arrays."""
    own: dict[str, Array] = {}
    bound.network.save_weights(path / WEIGHTS)
    optimizer.save_own_variables(own)
    seeds = {name: np.array(seed.state.numpy()) for name, seed in bound.seeds.items()}
    np.savez(path / REST, window=window, **_under("optimizer", own), **_under("seeds", seeds))


def read_files(path: Path, bound: BuiltNetwork, optimizer: keras.optimizers.Optimizer) -> Array:
    """Reads the files of `write_files`; returns the open window.

    Raises:
        Exception: files or parts of them are missing or damaged.
    """
    with np.load(path / REST) as result:
        saved = dict(result)
    bound.network.load_weights(path / WEIGHTS)
    own = {
        str(index): _in_format(saved[f"optimizer/{index}"], variable.dtype)
        for index, variable in enumerate(optimizer.variables)
    }
    optimizer.load_own_variables(own)
    for name, seed in bound.seeds.items():
        seed.state.assign(saved[f"seeds/{name}"])
    window: Array = saved["window"]
    return window


def _in_format(value: Array, dtype: str) -> Array:
    """A loaded array in its format; NumPy's files keep the bytes of formats like bfloat16 without their name."""
    return value.view(dtype) if value.dtype.kind == "V" else value


def _under(prefix: str, arrays: dict[str, Array]) -> dict[str, Any]:
    return {f"{prefix}/{name}": np.asarray(value) for name, value in arrays.items()}
