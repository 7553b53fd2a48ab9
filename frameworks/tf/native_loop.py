"""Native training loops in Keras and TensorFlow alone, as in Keras' guides on training loops and mixed
precision."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from fixtures.arrays import Array
from fixtures.model import Batch
from frameworks.native_loop import RATE, own, parts

MODES = ("graph",)


class LearnedPositions(keras.layers.Layer):
    """Adds a learned row to each position of a sequence."""

    def __init__(self, length: int, width: int, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.length = length
        self.rows = keras.layers.Embedding(length, width)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x + self.rows(keras.ops.arange(self.length))


def exact_gelu(x: tf.Tensor) -> tf.Tensor:
    """GELU by the error function, where Keras' default is an approximation."""
    return keras.activations.gelu(x, approximate=False)


def perceptron() -> keras.Model:
    """784-512-256-128-10 with ReLU."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((784,)),
            layers.Dense(512, activation="relu", name="0"),
            layers.Dense(256, activation="relu", name="2"),
            layers.Dense(128, activation="relu", name="4"),
            layers.Dense(10, name="6"),
        ]
    )


def encoder(width: int = 32, heads: int = 4, blocks: int = 2, length: int = 16) -> keras.Model:
    """Token ids to a score for each of four labels at every position."""
    layers = keras.layers
    ids = keras.Input((length,), dtype="int64")
    x = LearnedPositions(length, width, name="positions")(layers.Embedding(4096, width, name="tokens")(ids))
    for block in range(blocks):
        at = f"blocks.{block}"
        y = layers.LayerNormalization(epsilon=1e-5, name=f"{at}.norm1")(x)
        x = x + layers.MultiHeadAttention(heads, width // heads, name=f"{at}.attention")(y, y)
        y = layers.LayerNormalization(epsilon=1e-5, name=f"{at}.norm2")(x)
        y = layers.Dense(2 * width, activation=exact_gelu, name=f"{at}.feed.0")(y)
        x = x + layers.Dense(width, name=f"{at}.feed.2")(y)
    x = layers.LayerNormalization(epsilon=1e-5, name="norm")(x)
    return keras.Model(ids, layers.Dense(4, name="head")(x))


MODELS: dict[str, Callable[[], keras.Model]] = {"digits-mlp": perceptron, "encoder": encoder}


def start_from(model: keras.Model, fixture: str, weights: Mapping[str, Array]) -> None:
    """Copies the fixture's weights into the model, whose attention has a kernel with an axis for heads."""
    for part, path in parts(fixture).items():
        before, result, projection = part.partition(".attention.")
        layer = model.get_layer(before + ".attention" if result else part)
        if result:
            layer = getattr(layer, f"{projection}_dense")
        for variable, value in zip(layer.trainable_variables, own(weights, path).values(), strict=True):
            variable.assign(value.reshape(variable.shape))


def make(fixture: str, mixed: bool, weights: Mapping[str, Array], batch: Batch, device: str) -> Callable[[], float]:
    """A step on the batch, which returns its loss; with `mixed` under Keras' policy "mixed_float16"."""
    del device
    former = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16" if mixed else "float32")
    try:
        model = MODELS[fixture]()
    finally:
        keras.config.set_dtype_policy(former)
    start_from(model, fixture, weights)
    reduction = "sum_over_batch_size" if batch.mask is None else "mean_with_sample_weight"
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    optimizer: Any = keras.optimizers.Adam(RATE, epsilon=1e-8)
    if mixed:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)

    @tf.function
    def train(inputs: tf.Tensor, targets: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(targets, model(inputs, training=True), sample_weight=mask)
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_weights)
        optimizer.apply(gradients, model.trainable_weights)
        return loss

    def step() -> float:
        mask = None if batch.mask is None else tf.convert_to_tensor(batch.mask)
        targets = tf.convert_to_tensor(batch.targets["output"])
        return float(train(tf.convert_to_tensor(batch.inputs), targets, mask))

    return step
