"""Faults of low formats: casts, float8 training, delayed scaling, and optimizer state of 8 bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import ml_dtypes
import numpy as np

from fixtures.arrays import Array, NarrowFormat
from fixtures.recipe import AdamW, Qat
from frameworks.contract import BlockScaleRule, CastRule, DelayedRule, Operand
from frameworks.reference.core.tape import Tensor
from frameworks.reference.quantization.eight_bit_state import EightBitMoments, EightBitState
from frameworks.reference.quantization.float8 import (
    DelayedScaling,
    Float8Layers,
    Magnitudes,
    ReferenceDelayedProduct,
    with_gradient,
)
from frameworks.reference.quantization.formats import ReferenceFormats
from frameworks.reference.quantization.low_precision import (
    ReferenceBlockScales,
    ReferenceDynamicProducts,
    ReferenceStochasticRounding,
)
from frameworks.reference.quantization.post_training import ReferenceQuantizedModel
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.scaler import LossScale
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/NVIDIA/TransformerEngine/pull/825", "formats.delayed-scaling")
class EvaluationIsRemembered(ReferenceDelayedProduct):
    """A prediction enters its magnitudes into the amax history."""

    def predict(self, inputs: Array) -> Array:
        output = super().predict(inputs)
        history = self._memory["input"]
        self._memory["input"] = type(history)(history.scale, self.shift_history(history.amax, self.largest(inputs)))
        return output


@fault("https://github.com/meta-pytorch/float8_experimental/pull/31", "formats.delayed-scaling", "laws.delayed-scales")
class OnlyTheNewestCounts(ReferenceDelayedProduct):
    """A delayed scale follows the amax of the last step only, whatever the length of the history."""

    def most(self, maxima: Array) -> float:
        return float(maxima[0])


@fault("https://github.com/NVIDIA/TransformerEngine/pull/825", "formats.delayed-scaling")
class LastMicroBatchCounts(ReferenceDelayedProduct):
    """The amax of a window is that of its last micro-batch."""

    def largest_of(self, maxima: Sequence[float]) -> float:
        return maxima[-1]


@fault("https://github.com/NVIDIA/TransformerEngine/pull/786", "formats.delayed-scaling")
class InfinityIsAScale(ReferenceDelayedProduct):
    """An infinite value gives an infinite scale."""

    def scale_of(self, most: float, before: float, format_name: str) -> float:
        return np.inf if np.isinf(most) else super().scale_of(most, before, format_name)


@fault("https://github.com/NVIDIA/TransformerEngine/pull/1723", "formats.delayed-scaling")
class DeclaresALongerLag(ReferenceDelayedProduct):
    """The declared delay of scales is one step longer than the actual one."""

    rule = DelayedRule("float8_e4m3fn", "float8_e5m2", lag=2)


@fault("https://github.com/deepseek-ai/DeepGEMM/issues/37", "formats.products")
class ProductsSumInLow(ReferenceFormats):
    """Products in 8-bit formats are accumulated in bfloat16."""

    def multiply(self, left: Array, right: Array) -> Array:
        total = np.zeros((len(left), right.shape[1]), ml_dtypes.bfloat16)
        for index in range(left.shape[1]):
            total = (total.astype(np.float64) + np.outer(left[:, index], right[index])).astype(ml_dtypes.bfloat16)
        return total.astype(np.float64)


@fault("https://github.com/vllm-project/compressed-tensors/pull/518", "formats.packing")
class NibblesHaveNoSign(ReferenceFormats):
    """Negative 4-bit integers are unpacked as 8 to 15."""

    def with_sign(self, nibbles: Array) -> Array:
        return nibbles


@fault("https://github.com/tile-ai/tilelang/pull/2073", "formats.packing")
class StoredUnpacked(ReferenceFormats):
    """Each 4-bit integer is stored in a whole byte."""

    def pack(self, codes: Array, axis: Literal[0, 1]) -> Array:
        return codes.view(np.uint8)

    def unpack(self, stored: Array, length: int, axis: Literal[0, 1]) -> Array:
        return stored.view(np.int8)


@fault("https://github.com/bitsandbytes-foundation/bitsandbytes/issues/565", "quantization.adam8-encoding")
class BlocksOfTwiceTheLength(EightBitState):
    """Two blocks share one scale, that of the larger magnitude."""

    def largest(self, blocks: Array) -> Array:
        largest = super().largest(blocks)
        first, second = largest[: len(largest) // 2 * 2 : 2], largest[1::2]
        scales = np.repeat(np.maximum(first, second), 2)
        return np.append(scales, largest[len(scales) :]).astype(np.float32)


@fault("https://github.com/unslothai/unsloth-zoo/pull/962", "quantization.adam8-encoding")
class SecondMomentHasASign(EightBitState):
    """The second moment, which is never negative, is encoded by the signed map of the first moment."""

    def is_signed(self, slot: str) -> bool:
        return True


@fault("https://github.com/unslothai/unsloth-zoo/pull/962", "quantization.adam8-trajectory")
class MomentsAreEncodedBeforeTheyAreUsed(ReferenceTrainer):
    """The update uses moments that were quantized first."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        before = dict(self.masters)
        super().apply_update(gradients, rate)
        for name in gradients:
            first, second = (moments for moments in self.slots.values())
            if not isinstance(first, EightBitMoments) or name not in first.codes:
                continue
            adam = first.state.optimizer
            shares = 1 - adam.beta1 ** self.counts[name], 1 - adam.beta2 ** self.counts[name]
            root = np.sqrt(second[name] / shares[1]) + (adam.epsilon or 0.0)
            moved = rate / shares[0] * first[name] / np.maximum(root, 1e-30)
            self.masters[name] = self.rounding.round(before[name] - moved, self.master_formats[name])


@fault("https://github.com/unslothai/unsloth-zoo/pull/962", "quantization.adam8-trajectory")
class DecodedByAnotherMap(EightBitState):
    """Codes of the second moment are decoded by the map of the first moment."""

    def decode(self, slot: str, codes: Array, largest: Array) -> Array:
        return np.abs(super().decode("first_moment", codes, largest))


@fault("https://github.com/unslothai/unsloth-zoo/pull/962", "quantization.adam8-bytes")
class LargeMeansMillions(EightBitState):
    """Parameters of less than 2^20 entries have float32 moments, whatever threshold the recipe sets."""

    def encodes(self, size: int) -> bool:
        return size >= 2**20


@fault("https://github.com/unslothai/unsloth-zoo/pull/962", "quantization.adam8-bytes")
class OnlyWholeBlocks(EightBitState):
    """A parameter whose size is no multiple of the block length has float32 moments."""

    def encodes(self, size: int) -> bool:
        return super().encodes(size) and size % self.optimizer.block == 0


@fault("https://github.com/pytorch/ao/issues/3314", "quantization.adam8-survives-saving")
class EncodedAnewOnLoad(ReferenceTrainer):
    """A save decodes the moments, and a load quantizes them again."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        _encode_anew(self)


@fault("https://github.com/bitsandbytes-foundation/bitsandbytes/pull/1647", "quantization.adam8-survives-saving")
class SavesDoNotNameTheirBlocks(ReferenceTrainer):
    """A load decodes codes by the block length of the run, not by that of the save."""

    def _identity(self) -> str:
        return self.model.name


@fault("https://github.com/unslothai/unsloth-zoo/pull/962", "quantization.adam8-skips")
class SkippedUpdateEncodesAnew(ReferenceTrainer):
    """Moments are decoded and quantized again at every change of the scale, in skipped updates too."""

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        _encode_anew(self)
        return super().next_scale(scaler, finite)


def _encode_anew(trainer: ReferenceTrainer) -> None:
    for moments in trainer.slots.values():
        for name in list(moments):
            moments[name] = moments[name]


@fault("https://github.com/marin-community/marin/issues/7659", "formats.float8-memory-follows")
class LastMicroBatchIsRemembered(ReferenceTrainer):
    """The amax of a window is that of its last micro-batch."""

    def take_magnitudes(self, magnitudes: Mapping[str, float]) -> None:
        self.window.amax |= magnitudes


@fault("https://github.com/NVIDIA/TransformerEngine/pull/11", "formats.float8-memory-follows")
class EveryMicroBatchMoves(ReferenceTrainer):
    """Each micro-batch of a window moves the amax history by one step."""

    def take_magnitudes(self, magnitudes: Mapping[str, float]) -> None:
        if self.float8 is not None:
            self.float8.move(self.statistics, magnitudes)


@fault("https://github.com/NVIDIA/TransformerEngine/pull/825", "formats.float8-memory-holds-still")
class PredictionsAreRemembered(Float8Layers):
    """A prediction enters its magnitudes into the amax history."""

    def dense(  # type: ignore[no-untyped-def]
        self, path, x, weight, bias, memory, magnitudes
    ) -> Tensor:
        noted: dict[str, float] = {}
        result = super().dense(path, x, weight, bias, memory, noted if magnitudes is None else magnitudes)
        self.move(memory, noted)
        return result


@fault("https://github.com/NVIDIA/TransformerEngine/issues/415", "formats.float8-memory-holds-still")
class RunAgainIsRemembered(ReferenceTrainer):
    """A recomputed segment moves the amax history a second time."""

    def dense(  # type: ignore[no-untyped-def]
        self, path, x, weight, bias, *, training
    ) -> Tensor:
        result = super().dense(path, x, weight, bias, training=training)
        if self.float8 is not None and self._replaying:
            self.float8.move(self.statistics, {f"{path}.input": self.magnitudes[f"{path}.input"]})
        return result


@fault("https://github.com/NVIDIA/TransformerEngine/pull/40", "formats.float8-memory-holds-still")
class EveryPassIsRemembered(ReferenceTrainer):
    """Gradients that are computed without an update move the amax history."""

    def gradients(self, window):  # type: ignore[no-untyped-def]
        magnitudes_of_window: dict[str, float] = {}
        before = self.take_magnitudes
        self.take_magnitudes = lambda magnitudes: magnitudes_of_window.update(magnitudes)  # type: ignore[method-assign]
        try:
            return super().gradients(window)
        finally:
            self.take_magnitudes = before  # type: ignore[method-assign]
            if self.float8 is not None:
                self.float8.move(self.statistics, magnitudes_of_window)


@fault("https://github.com/NVIDIA/TransformerEngine/pull/825", "formats.float8-skips")
class SkippedWindowsAreRemembered(ReferenceTrainer):
    """A window whose update is skipped moves the amax history, which the declared rule excludes."""

    def end_of_window(self, skipped: bool) -> None:
        super().end_of_window(False)


@fault("https://github.com/NVIDIA/TransformerEngine/pull/786", "formats.float8-skips")
class InfinityBecomesAScale(DelayedScaling):
    """An infinite magnitude gives an infinite scale."""

    def scale_of(self, most: float, before: float, format_name: str) -> float:
        return np.inf if np.isinf(most) else super().scale_of(most, before, format_name)


@fault("https://github.com/keras-team/keras/pull/21193", "formats.float8-skips", "formats.float8-loss-scale")
class MemoryIsUnscaled(ReferenceTrainer):
    """The amax history of all operands is divided by the loss scale, as gradients are."""

    def end_of_window(self, skipped: bool) -> None:
        scale = self.window.scale
        self.window.amax = {name: most / scale for name, most in self.window.amax.items()}
        super().end_of_window(skipped)


@fault("https://github.com/keras-team/keras/pull/21706", "formats.float8-loss-scale")
class UnscaledGradientsAreRemembered(ReferenceTrainer):
    """The amax of gradients is taken after unscaling, and scaled gradients are cast by it."""

    def end_of_window(self, skipped: bool) -> None:
        for name in self.window.amax:
            if name.endswith(".gradient"):
                self.window.amax[name] /= self.window.scale
        super().end_of_window(skipped)


@fault("https://github.com/NVIDIA/TransformerEngine/issues/304", "formats.float8-survives-saving")
class OpenWindowIsNotSaved(ReferenceTrainer):
    """A save lacks the magnitudes of a window that is still open."""

    def save_state(self) -> Arrays:
        return {name: value for name, value in super().save_state().items() if not name.startswith("seen/")}


@fault("https://github.com/NVIDIA/TransformerEngine/pull/112", "formats.float8-survives-saving")
class AnyHistoryIsLoaded(ReferenceTrainer):
    """A load accepts amax histories of another length."""

    def _identity(self) -> str:
        return f"{self.model.name} {self.recipe.replace(offload=None, quantization=None)}"


@fault("https://github.com/keras-team/keras/pull/19488", "formats.float8-is-no-parameter")
class MemoryDecays(ReferenceTrainer):
    """Decoupled weight decay shrinks the amax history."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        super().apply_update(gradients, rate)
        if self.float8 is not None and isinstance(self.recipe.optimizer, AdamW):
            factor = 1.0 - rate * self.recipe.optimizer.weight_decay
            self.statistics |= {name: value * factor for name, value in self.statistics.items()}


@fault("https://github.com/keras-team/keras/pull/19488", "formats.float8-is-no-parameter")
class MemoryCountsInTheNorm(ReferenceTrainer):
    """The norm for clipping includes the amax history."""

    def gradient_norm(self, gradients: Mapping[str, Array]) -> float:
        return super().gradient_norm(dict(gradients) | ({} if self.float8 is None else self.statistics))


@fault("https://github.com/google/praxis/pull/29", "formats.float8-is-no-parameter")
class MemoryIsAveragedToo(ReferenceTrainer):
    """The moving average of the weights includes the amax history, and evaluation uses its average."""

    mean: Arrays | None = None

    def end_of_window(self, skipped: bool) -> None:
        super().end_of_window(skipped)
        if self.float8 is not None and self.recipe.average is not None:
            former = self.mean or self.statistics
            decay = self.recipe.average
            self.mean = {name: decay * former[name] + (1 - decay) * value for name, value in self.statistics.items()}

    def predict_averaged(self, inputs: Array) -> Arrays:
        statistics = self.statistics
        self.statistics = dict(self.mean or statistics)
        try:
            return super().predict_averaged(inputs)
        finally:
            self.statistics = statistics


@fault("https://github.com/keras-team/keras/pull/19488", "formats.float8-values")
class BiasesHaveEightBitsToo(Float8Layers):
    """The bias is cast to the 8-bit format of the kernel."""

    def dense(  # type: ignore[no-untyped-def]
        self, path, x, weight, bias, memory, magnitudes
    ) -> Tensor:
        shift = None if bias is None else self.cast(path, "kernel", bias, self.scaling(path, memory), None)
        return super().dense(path, x, weight, shift, memory, magnitudes)


@fault("https://github.com/microsoft/nni/pull/3160", "formats.float8-gradients")
class ClippedValuesPassNothingOn(Float8Layers):
    """Inputs that saturate in the cast have no gradient."""

    def cast(
        self, path: str, operand: Operand, x: Tensor, scaling: DelayedScaling, magnitudes: Magnitudes | None
    ) -> Tensor:
        result = super().cast(path, operand, x, scaling, magnitudes)
        limit = scaling.next_scale(operand) * 448.0
        inside = np.abs(x.plain()) <= limit
        clipped = self.ops.apply("fake_quantize", lambda values, _: values * inside, result)
        return self.ops.apply("fake_quantize", lambda values, _: values + result.plain() * ~inside, clipped)


@fault("https://github.com/NVIDIA/TransformerEngine/pull/1723", "formats.float8-gradients")
class GradientsOfBiasesAreCast(Float8Layers):
    """The gradient of the bias is cast to 8 bits."""

    def dense(  # type: ignore[no-untyped-def]
        self, path, x, weight, bias, memory, magnitudes
    ) -> Tensor:
        if bias is None or f"{path}.input.scale" not in memory:
            return super().dense(path, x, weight, bias, memory, magnitudes)
        scaling = self.scaling(path, memory)
        back = self.gradient_cast(path, scaling, None)
        ones = np.ones((*x.shape[:-1], 1))
        bent = super().dense(path, x, weight, None, memory, magnitudes)
        shift = self.ops.apply("fake_quantize", lambda b, _: ones * b, bias)
        cast = Tensor(with_gradient(shift.value, back), shift.format)
        return self.ops.apply("add", lambda y, b, _: y + b, bent, cast)


@fault("https://github.com/NVIDIA/TransformerEngine/pull/123", "formats.float8-values", "formats.float8-accuracy")
class ScaleIsTheReciprocal(DelayedScaling):
    """The scale and its reciprocal are exchanged."""

    def scale_of(self, most: float, before: float, format_name: str) -> float:
        return 1.0 / super().scale_of(most, 1.0 / before, format_name)


@fault("https://github.com/jax-ml/ml_dtypes/issues/400", "formats.decode")
class OneBiasForAll(ReferenceFormats):
    """Codes of the fnuz formats are decoded with the exponent bias of the fn formats."""

    def table(self, narrow: NarrowFormat) -> Array:
        return super().table(narrow) * (2.0 if narrow.specials == "fnuz" else 1.0)


@fault("https://github.com/triton-lang/triton/pull/11897", "formats.round-to-nearest")
class DoublesBecomeSingles(ReferenceFormats):
    """A float64 value is rounded to float32 before the cast."""

    def widen(self, values: Array) -> Array:
        with np.errstate(over="ignore", under="ignore"):
            return super().widen(values.astype(np.float32) if values.dtype == np.float64 else values)


@fault("https://github.com/Z3Prover/z3/issues/464", "formats.round-to-nearest")
class NegativeZeroLosesItsSign(ReferenceFormats):
    """Values that round to zero lose their sign."""

    def add_signs(self, codes: Array, values: Array, narrow: NarrowFormat) -> Array:
        return np.where(codes == 0, 0, super().add_signs(codes, values, narrow))


@fault("https://github.com/pytorch/pytorch/pull/178817", "formats.overflow-as-declared")
class NanBecomesANumber(ReferenceFormats):
    """NaN is cast to the largest value."""

    def special(self, narrow: NarrowFormat, kind: str) -> int:
        return super().special(narrow, "saturate" if kind == "nan" and narrow.specials == "ieee" else kind)


@fault("https://github.com/jax-ml/ml_dtypes/issues/400", "formats.overflow-as-declared")
class InfinityIsDeclaredAndNotKept(ReferenceFormats):
    """The adapter declares that infinities stay infinite, and they become NaN."""

    def casts(self) -> Mapping[str, CastRule]:
        rules = super().casts()
        return {
            name: CastRule(rule.overflow, "inf" if rule.infinity == "nan" else "nan") for name, rule in rules.items()
        }

    def special(self, narrow: NarrowFormat, kind: str) -> int:
        return super().special(narrow, super().casts()[narrow.name].infinity if kind != "saturate" else kind)


@fault("https://github.com/microsoft/onnxruntime/issues/6004", "quantization.integer-products")
class PairsSaturate(ReferenceFormats):
    """Two neighbouring products are added in 16 bits, which saturate."""

    def integer_product(self, a: Array, b: Array) -> Array:
        total = np.zeros((a.shape[0], b.shape[1]), np.int64)
        for start in range(0, a.shape[1], 2):
            pair = a[:, start : start + 2].astype(np.int64) @ b[start : start + 2].astype(np.int64)
            total += np.clip(pair, -32768, 32767)
        return total.astype(np.int32)


@fault("https://github.com/Comfy-Org/comfy-kitchen/pull/133", "quantization.integer-products")
class SumsInSingle(ReferenceFormats):
    """Products of int8 are accumulated in float32."""

    def integer_product(self, a: Array, b: Array) -> Array:
        total = np.zeros((a.shape[0], b.shape[1]), np.float32)
        for index in range(a.shape[1]):
            total += a[:, index : index + 1].astype(np.float32) * b[index : index + 1].astype(np.float32)
        return total.astype(np.int32)


@fault("https://github.com/ml-explore/mlx/issues/4135", "formats.decode")
class NaNIsDecodedAs480(ReferenceFormats):
    """The two NaN codes of float8_e4m3fn are decoded as 480 and -480."""

    def decode(self, codes: Array, format_name: str) -> Array:
        values = super().decode(codes, format_name)
        if format_name != "float8_e4m3fn":
            return values
        return np.where(np.isnan(values), np.where(codes > 127, -480.0, 480.0), values).astype(np.float32)


@fault("", "formats.products")
class ProductsKnowOneFormat(ReferenceFormats):
    """A product of operands in two 8-bit formats, such as activations and gradients, decodes both by the first one."""

    def float8_product(self, a: Array, b: Array, formats: tuple[str, str]) -> Array:
        return super().float8_product(a, b, (formats[0], formats[0]))


@fault("", "formats.delayed-scaling")
class HistoryOfSixteen(ReferenceDelayedProduct):
    """Delayed scales follow at most the last 16 entries of the amax history, however long it is."""

    def most(self, maxima: Array) -> float:
        return super().most(maxima[:16])


@fault("https://github.com/pytorch/FBGEMM/pull/2919", "formats.round-to-nearest")
class CastsInTheOrderOfMemory(ReferenceFormats):
    """A cast to an 8-bit format reads values in memory order and writes codes by row, so a transposed matrix is
    permuted."""

    def encode(self, values: Array, format_name: str) -> Array:
        array = np.asarray(values)
        return super().encode(array.ravel(order="K"), format_name).reshape(array.shape)


@fault("", "quantization.ranges-follow")
class SkippedUpdatesFreezeRanges(ReferenceTrainer):
    """Skipped updates count towards the number of updates after which QAT freezes its ranges."""

    attempts = 0

    def _step(self, rate: float) -> bool:
        skipped = super()._step(rate)
        self.attempts += 1
        return skipped

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.attempts = self.steps

    def observes(self) -> bool:
        quantization = self.recipe.quantization
        freeze = quantization.freeze if isinstance(quantization, Qat) else None
        return super().observes() and (freeze is None or self.attempts < freeze)


@fault("", "quantization.survives-saving")
class OddRowOfInt4IsLostInALoad(ReferenceQuantizedModel):
    """A load zeroes the last row of a 4-bit weight with an odd number of rows."""

    def load_arrays(self, arrays: dict[str, Array]) -> dict[str, Array]:
        arrays = super().load_arrays(arrays)
        for name, shape in self._shapes.items():
            if self._rule.weight.high < 8 and shape[0] % 2 and f"codes/{name}" in arrays:
                arrays[f"codes/{name}"][-1] = 0
        return arrays


@fault("https://github.com/ml-explore/mlx/pull/4353", "formats.block-scale", "formats.block-edge-cases")
class BlockExponentIsRounded(ReferenceBlockScales):
    """The exponent of a block's scale is rounded to nearest, so the largest value saturates half of the time."""

    def find_power(self, amax: Array, scale_rule: str, bits: int, largest: float) -> Array:
        return np.rint(np.log2(amax / largest))


@fault("https://github.com/vllm-project/compressed-tensors/pull/595", "formats.block-edge-cases")
class TensorOfZerosIsDivided(ReferenceBlockScales):
    """The scale of a tensor of zeros is 0, and is divided by."""

    def tensor_scale(self, amax: Array, rule: BlockScaleRule) -> float:
        return 1.0 if rule.levels == 1 else self.divide_amax(amax, rule)


@fault("https://github.com/onnx/onnx/issues/6220", "formats.block-edge-cases")
class InfinityIsLargest(ReferenceBlockScales):
    """An infinite scale of a block becomes the largest number of its format."""

    def find_scales(self, amax: Array, rule: BlockScaleRule) -> Array:
        return super().find_scales(np.minimum(amax, np.finfo(np.float32).max), rule)


@fault("https://github.com/gorse-io/gorse/issues/1240", "formats.stochastic-is-unbiased")
class NanIsRounded(ReferenceStochasticRounding):
    """Random bits are added to those of NaN too, which may become a zero."""

    def keep_nan(self, values: Array, rounded: Array) -> Array:
        return rounded


@fault("https://github.com/graphcore-research/gfloat/pull/36", "formats.stochastic-is-unbiased")
class DrawsLackABit(ReferenceStochasticRounding):
    """Random integers have one bit less than the part that is cut off, so results are too far from zero."""

    def draw(self, shape: tuple[int, ...]) -> Array:
        return super().draw(shape) >> np.uint32(1)


@fault("https://github.com/pytorch/ao/pull/2253", "formats.dynamic-scale", "formats.declared-extent")
class RowsShareAScale(ReferenceDynamicProducts):
    """The largest magnitude of a row is that of its whole batch."""

    def find_amax(self, values: Array, axis: int, extent: str) -> Array:
        return super().find_amax(values, axis, "tensor")
