"""Keras, by .keras, .weights.h5 and tf.train.Checkpoint: AdamW with an average, a schedule and a loss scale."""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

FORMS = ("keras", "weights", "checkpoint")


def train(folder: Path, form: str, *, writes: bool) -> dict[str, list[float]]:
    """Save after two updates, or load; return the numbers after two more."""
    keras.utils.set_random_seed(0 if writes else 1)
    kinds = keras.layers
    layers = [kinds.Dense(4, "tanh", name="inner"), kinds.BatchNormalization(name="norm"), kinds.Dense(1, name="outer")]
    model = keras.Sequential([keras.Input((3,)), *layers])
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([2], [0.1, 0.05])
    inner = keras.optimizers.AdamW(schedule, weight_decay=0.1, use_ema=True, ema_momentum=0.5, name="adamw")
    optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=1024.0, dynamic_growth_steps=3, name="scaled")
    optimizer.build(model.trainable_variables)
    model.compile(optimizer, "mse", run_eagerly=True)

    def update(number: int) -> float:
        x = np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3) + 0.25 * number
        model.reset_metrics()
        return float(model.train_on_batch(x, x.sum(1, keepdims=True)))

    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    if writes:
        update(0), update(1)
        if form == "keras":
            model.save(folder / "run.keras")
        elif form == "weights":
            model.save_weights(folder / "run.weights.h5")
        else:
            checkpoint.write(str(folder / "run"))
    elif form == "keras":
        model = keras.models.load_model(folder / "run.keras")
    elif form == "weights":
        model.load_weights(folder / "run.weights.h5")
    else:
        checkpoint.read(str(folder / "run")).assert_consumed()
    losses = [update(2), update(3)]
    arrays = {"weights": model.get_weights(), "optimizer": [np.asarray(v) for v in model.optimizer.variables]}
    return {"losses": losses} | {name: np.concatenate([*map(np.ravel, a)]).tolist() for name, a in arrays.items()}
