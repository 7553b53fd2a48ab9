"""Attempts of formats and quantizers, shared by all frameworks: one small experiment each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from fixtures.data import exact_batch
from fixtures.model import Model
from fixtures.models import digits_mlp, exact_linear
from fixtures.narrow import NARROW
from fixtures.recipe import SGD, Aware, Float8, Recipe
from frameworks.contract import (
    AmaxHistories,
    Attempt,
    CalibratedRanges,
    Capability,
    DelayedProduct,
    NumberFormats,
    PostTraining,
    Quantizers,
    Trainer,
)

KERNEL = np.full((16, 16), 0.5, np.float32)
_VALUES = np.array([[-3.0, -1.0, 0.0, 2.0], [0.5, 1.0, -1.5, -4.0]], np.float32)


def format_attempts(
    formats: NumberFormats, *others: Capability, delayed: Callable[[], DelayedProduct] | None = None
) -> dict[Capability, Attempt]:
    """Attempts for each offered cast, for casts to integers, and for other offered operations.

    Args:
        others: INTEGER_PRODUCTS, FLOAT8_PRODUCTS, INT4_PACKING.
        delayed: creates a delayed-scaling product with the kernel `KERNEL`, if the framework has them.
    """
    made: dict[Capability, Attempt] = {Capability.INTEGER_CASTS: partial(_casts_to_integers, formats)}
    for name in formats.casts():
        made[Capability(f"formats.{name}")] = partial(_casts, formats, name)
    made |= {capability: partial(_OTHERS[capability], formats) for capability in others}
    if delayed is not None:
        made[Capability.DELAYED_SCALING] = partial(_scales_late, delayed)
    return made


def quantizer_attempts(quantizers: Quantizers) -> dict[Capability, Attempt]:
    """Attempts for each offered quantizer, fake or not."""
    made: dict[Capability, Attempt] = {}
    for name in quantizers.rules():
        made[Capability(f"quantization.{name}")] = partial(_quantizes, quantizers, name)
    for name in quantizers.fake_rules():
        made[Capability(f"quantization.{name}")] = partial(_fakes, quantizers, name)
    return made


def technique_attempts(post_training: PostTraining) -> dict[Capability, Attempt]:
    """Attempts for each offered post-training quantization."""
    rules = post_training.rules()
    return {Capability(f"quantization.{name}"): partial(_quantizes_a_model, post_training, name) for name in rules}


def aware_attempts(trainer: Callable[[Model, Recipe], Trainer], *, converts: bool) -> dict[Capability, Attempt]:
    """Attempts for QAT, and for conversion if offered."""
    made: dict[Capability, Attempt] = {Capability.AWARE: partial(_trains_aware, trainer)}
    return made | ({Capability.CONVERT: partial(_converts, trainer)} if converts else {})


def float8_attempts(trainer: Callable[[Model, Recipe], Trainer]) -> dict[Capability, Attempt]:
    """An attempt of float8 training."""
    return {Capability.FLOAT8_TRAINING: partial(_trains_in_eighths, trainer)}


def _trains_in_eighths(trainer: Callable[[Model, Recipe], Trainer]) -> bool:
    """Whether a window enters the amax history, and predictions have fewer distinct values than inputs."""
    run = trainer(exact_linear(), Recipe(SGD(), quantization=Float8(4)))
    run.update((exact_batch(),))
    (remembered,) = run.view(AmaxHistories).values()
    fine = np.repeat(np.linspace(1.0, 1.0625, 9, dtype=np.float32)[:, None], 8, axis=1)
    (outputs,) = run.predict(fine).values()
    return bool(remembered["input"].maxima.any()) and len(np.unique(outputs[:, 0])) <= 2


def _aware(trainer: Callable[[Model, Recipe], Trainer]) -> Trainer:
    """A run after one window."""
    run = trainer(exact_linear(), Recipe(SGD(), quantization=Aware()))
    run.update((exact_batch(),))
    return run


def _trains_aware(trainer: Callable[[Model, Recipe], Trainer]) -> bool:
    """Whether ranges follow the data, and predictions have fewer distinct values than inputs."""
    run = _aware(trainer)
    (ranges,) = run.view(CalibratedRanges).values()
    fine = np.repeat(np.linspace(0.0, 0.5 * ranges.inputs.scale, 9, dtype=np.float32)[:, None], 8, axis=1)
    (outputs,) = run.predict(fine).values()
    return ranges.inputs.scale != 1.0 and len(np.unique(outputs[:, 0])) <= 2


def _converts(trainer: Callable[[Model, Recipe], Trainer]) -> bool:
    """Whether the weight has integer codes, more than one."""
    (weight,) = _aware(trainer).convert().weights().values()
    return weight is not None and weight.codes.dtype.kind == "i" and len(np.unique(weight.codes)) > 2


def _quantizes_a_model(post_training: PostTraining, name: str) -> bool:
    """Whether a model's weights become integer codes and its predictions are finite and depend on the samples."""
    model = digits_mlp((max(8, -(-post_training.rules()[name].smallest // 64)),))
    samples = np.linspace(-1.0, 1.0, 4 * model.sample[0], dtype=np.float32).reshape(4, *model.sample)
    made = post_training.quantized(name, model, model.weights(0), (samples,))
    (predicted,) = made.predict(samples).values()
    stored = [each for each in made.weights().values() if each is not None]
    coded = bool(stored) and all(each.codes.dtype.kind == "i" and len(np.unique(each.codes)) > 2 for each in stored)
    return coded and bool(np.isfinite(predicted).all()) and bool(np.ptp(predicted, axis=0).any())


def _casts_to_integers(formats: NumberFormats) -> bool:
    """Whether a cast to int8 preserves small integers."""
    codes = formats.encode(np.array([-3.0, 2.0], np.float32), "int8")
    return np.array_equal(codes.view(np.int8), [-3, 2])


def _multiplies_integers(formats: NumberFormats) -> bool:
    """Whether an int8 product can exceed the range of int8."""
    product = formats.integer_product(np.full((2, 16), 127, np.int8), np.full((16, 2), 127, np.int8))
    return bool((product == 16 * 127 * 127).all())


def _multiplies_eighths(formats: NumberFormats) -> bool:
    """Whether a product of float8_e4m3fn has a value that this format lacks."""
    codes = formats.encode(np.full((16, 16), 1.125, np.float32), "float8_e4m3fn")
    product = formats.float8_product(codes, codes, ("float8_e4m3fn", "float8_e4m3fn"))
    return product.dtype == np.float32 and bool((product == 16 * 1.125**2).all())


def _packs(formats: NumberFormats) -> bool:
    """Whether four 4-bit integers are packed into two bytes and unpacked again."""
    codes = np.array([[-8, 7, -1, 3]], np.int8)
    stored = formats.packed(codes, 1)
    return stored.nbytes == 2 and np.array_equal(formats.unpacked(stored, 4, 1), codes)


def _scales_late(made: Callable[[], DelayedProduct]) -> bool:
    """Whether after some steps a value beyond the first scale's range is preserved."""
    product = made()
    inputs, gradient = np.full((1, 16), 1000.0, np.float32), np.ones((1, 16), np.float32)
    outputs = [product.train((inputs, gradient))[0].output for _ in range(4)]
    exact = inputs @ KERNEL
    return bool(np.all(np.abs(outputs[-1] - exact) <= 0.1 * exact) and np.any(np.abs(outputs[0] - exact) > 0.1 * exact))


_OTHERS = {
    Capability.INTEGER_PRODUCTS: _multiplies_integers,
    Capability.FLOAT8_PRODUCTS: _multiplies_eighths,
    Capability.INT4_PACKING: _packs,
}


def _casts(formats: NumberFormats, name: str) -> bool:
    """Whether powers of two are preserved, and a value without a code is not."""
    exact = np.array([0.25, 0.5, 1.0, 2.0], np.float32)
    codes = formats.encode(exact, name)
    between = NARROW[name].fraction_bits + 2
    other = np.array([1.0 + 2.0**-between], np.float32)
    decoded = formats.decode(formats.encode(other, name), name)
    return codes.dtype == np.uint8 and np.array_equal(formats.decode(codes, name), exact) and decoded[0] != other[0]


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
