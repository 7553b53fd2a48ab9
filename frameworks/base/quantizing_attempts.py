"""Capabilities of formats and quantizers, and attempts of those that some framework refuses."""

from collections.abc import Callable
from functools import partial

import numpy as np

from fixtures.data import exact_batch
from fixtures.model import Model
from fixtures.models import digits_mlp, exact_linear
from fixtures.recipe import SGD, Float8, Recipe
from frameworks.contract import (
    AmaxHistories,
    Attempt,
    Capability,
    DelayedProduct,
    NumberFormats,
    PostTraining,
    Quantizers,
    Trainer,
)

KERNEL = np.full((16, 16), 0.5, np.float32)
_VALUES = np.array([[-3.0, -1.0, 0.0, 2.0], [0.5, 1.0, -1.5, -4.0]], np.float32)


def casts_of(formats: NumberFormats) -> frozenset[Capability]:
    """The capabilities of casts to integers and to each format that a framework casts to."""
    return frozenset(Capability(f"formats.{name}") for name in (*formats.casts(), "int8"))


def quantizers_of(quantizers: Quantizers) -> frozenset[Capability]:
    """The capabilities of quantizers, fake ones too."""
    return frozenset(Capability(f"quantization.{name}") for name in (*quantizers.rules(), *quantizers.fake_rules()))


def techniques_of(post_training: PostTraining) -> frozenset[Capability]:
    """The capabilities of post-training quantization."""
    return frozenset(Capability(f"quantization.{name}") for name in post_training.rules())


def delayed_attempts(factory: Callable[[], DelayedProduct]) -> dict[Capability, Attempt]:
    """An attempt of delayed scaling; `factory` creates a product with the kernel `KERNEL`."""
    return {Capability.DELAYED_SCALING: partial(_scales_late, factory)}


def quantizer_attempts(quantizers: Quantizers) -> dict[Capability, Attempt]:
    """Attempts for each offered quantizer, fake or not."""
    attempts: dict[Capability, Attempt] = {}
    for name in quantizers.rules():
        attempts[Capability(f"quantization.{name}")] = partial(_quantizes, quantizers, name)
    for name in quantizers.fake_rules():
        attempts[Capability(f"quantization.{name}")] = partial(_fakes, quantizers, name)
    return attempts


def technique_attempts(post_training: PostTraining) -> dict[Capability, Attempt]:
    """Attempts for each offered post-training quantization."""
    rules = post_training.rules()
    return {Capability(f"quantization.{name}"): partial(_quantizes_a_model, post_training, name) for name in rules}


def float8_attempts(trainer: Callable[[Model, Recipe], Trainer]) -> dict[Capability, Attempt]:
    """An attempt of float8 training."""
    return {Capability.FLOAT8_TRAINING: partial(_trains_in_eighths, trainer)}


def _trains_in_eighths(trainer: Callable[[Model, Recipe], Trainer]) -> bool:
    """Whether a window enters the amax history, and predictions have fewer distinct values than inputs."""
    run = trainer(exact_linear(), Recipe(SGD(), quantization=Float8(4)))
    run.update((exact_batch(),))
    (history,) = run.view(AmaxHistories).values()
    fine = np.repeat(np.linspace(1.0, 1.0625, 9, dtype=np.float32)[:, None], 8, axis=1)
    (outputs,) = run.predict(fine).values()
    return bool(history["input"].amax.any()) and len(np.unique(outputs[:, 0])) <= 2


def _quantizes_a_model(post_training: PostTraining, name: str) -> bool:
    """Whether a model's weights become integer codes and its predictions are finite and depend on the samples."""
    model = digits_mlp((max(8, -(-post_training.rules()[name].smallest // 64)),))
    samples = np.linspace(-1.0, 1.0, 4 * model.sample[0], dtype=np.float32).reshape(4, *model.sample)
    quantized = post_training.quantize(name, model, model.weights(0), (samples,))
    (predicted,) = quantized.predict(samples).values()
    stored = [weight for weight in quantized.weights().values() if weight is not None]
    coded = bool(stored) and all(
        weight.codes.dtype.kind == "i" and len(np.unique(weight.codes)) > 2 for weight in stored
    )
    return coded and bool(np.isfinite(predicted).all()) and bool(np.ptp(predicted, axis=0).any())


def _scales_late(factory: Callable[[], DelayedProduct]) -> bool:
    """Whether after some steps a value beyond the first scale's range is preserved."""
    product = factory()
    inputs, gradient = np.full((1, 16), 1000.0, np.float32), np.ones((1, 16), np.float32)
    outputs = [product.train((inputs, gradient))[0].output for _ in range(4)]
    exact = inputs @ KERNEL
    return bool(np.all(np.abs(outputs[-1] - exact) <= 0.1 * exact) and np.any(np.abs(outputs[0] - exact) > 0.1 * exact))


def _quantizes(quantizers: Quantizers, name: str) -> bool:
    """Whether there are several integer codes that dequantize to nearby values."""
    quantized = quantizers.quantize(name, _VALUES)
    near = np.abs(quantized.values - _VALUES) <= np.broadcast_to(quantized.scale, _VALUES.shape)
    return quantized.codes.dtype.kind == "i" and len(np.unique(quantized.codes)) > 2 and bool(near.all())


def _fakes(quantizers: Quantizers, name: str) -> bool:
    """Whether a value between two codes is moved to one of them, with a gradient."""
    axis = quantizers.fake_rules()[name].axis
    places = 1 if axis is None else _VALUES.shape[1 - axis]
    scale, zero = np.full(places, 1.0, np.float32), np.zeros(places, np.int32)
    values, gradient = quantizers.fake_quantize(name, _VALUES, scale, zero)
    return bool((values == np.trunc(values)).all()) and gradient.shape == _VALUES.shape and bool(gradient.any())
