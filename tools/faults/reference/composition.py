"""Faults of layers, evaluation and traces, and of techniques that meet in one run."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import autograd.numpy as anp
import numpy as np
from autograd.extend import defvjp, primitive

from fixtures.arrays import Array
from fixtures.model import Activation, Batch, Model
from fixtures.models import scalar
from fixtures.recipe import SGD, Recipe
from frameworks.contract import Attempt, Capability, LayerTrace, RecomputeCase, RecomputeResult, Update, Values
from frameworks.reference import ReferenceFramework
from frameworks.reference.core.arithmetic import Operations
from frameworks.reference.core.calls import ReferenceFunction
from frameworks.reference.core.network import Pass
from frameworks.reference.core.tape import Tensor, plain
from frameworks.reference.shipped import ReferenceFunctions, ReferenceShipped
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.forward import Moment
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/PaddlePaddle/Paddle/pull/59611", "composition.pairs")
class ClipLostUnderMasters(ReferenceTrainer):
    """Where the optimizer holds master weights, the clip setting of the inner optimizer is never used."""

    def clip(self, gradients: Arrays) -> Arrays:
        return gradients if self.recipe.precision.level == "O2" else super().clip(gradients)


@fault("https://github.com/NVIDIA-NeMo/RL/issues/3743", "composition.predicts-as-it-trains")
class PredictsFromRoundedWeights(ReferenceTrainer):
    """Predictions are made by a copy of the weights that was rounded to bfloat16."""

    def predict(self, inputs: Array) -> Arrays:
        weights = {name: Tensor(tensor.plain(), "bfloat16", owned=False) for name, tensor in self._tensors().items()}
        return self._evaluate(weights, inputs)


@fault("https://github.com/pytorch/pytorch/pull/94060", "composition.pairs")
class AdamUnscalesWhatClippingUnscaled(ReferenceTrainer):
    """Adam's step unscales gradients that were already unscaled for clipping."""

    def clip(self, gradients: Arrays) -> Arrays:
        clipped = super().clip(gradients)
        if self.scaler is None or self.recipe.clip is None or isinstance(self.recipe.optimizer, SGD):
            return clipped
        return {name: self.unscale(name, gradient) for name, gradient in clipped.items()}


@fault("https://github.com/pytorch/pytorch/issues/73784", "composition.pairs")
class RecomputedMicroBatchesOverwrite(ReferenceTrainer):
    """Under recomputation a micro-batch's gradient replaces the accumulator instead of being added to it."""

    def accumulate_gradient(self, name: str, gradient: Array) -> None:
        if self.recipe.recompute is not None:
            self.window.gradients.pop(name, None)
        super().accumulate_gradient(name, gradient)


@fault("https://github.com/keras-team/keras/pull/21233", "composition.pairs")
class StaticScaleNotUndoneInBfloat16(ReferenceTrainer):
    """In bfloat16 the loss is multiplied by a static scale that the optimizer takes for 1."""

    def unscale(self, name: str, gradient: Array) -> Array:
        assert self.scaler is not None
        low = self.recipe.precision.format == "bfloat16"
        return gradient if low and not self.scaler.dynamic else super().unscale(name, gradient)


class _Unclipped(ReferenceTrainer):
    def clip(self, gradients: Arrays) -> Arrays:
        return gradients


@fault("https://github.com/PaddlePaddle/Paddle/pull/59611", "composition.declarations-hold", "composition.pairs")
class ClipIsTakenAndNeverUsed(ReferenceFramework):
    """The clip setting is accepted and never used."""

    trainer_class = _Unclipped

    def attempts(self) -> Mapping[Capability, Attempt]:
        return {**super().attempts(), Capability.CLIP: self._clips}

    def _clips(self) -> bool:
        run = self.run(scalar(), Recipe(SGD(0.5), clip=1.0))
        run.apply_gradients({name: np.full(shape, 8.0) for name, shape in run.model.parameter_shapes().items()})
        return bool(run.parameters()["0.output.bias"][0] > -1.0)


@fault("https://github.com/Lightning-AI/pytorch-lightning/issues/6988", "composition.library-adds-nothing")
class DrawsBeforeTheFirstBatch(ReferenceTrainer):
    """A validation pass before the first update advances the random state."""

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        if not self.draws:
            self.draws += 1
        return super().draw_mask(shape, rate)


@fault("https://github.com/AI-Hypercomputer/torchprime/pull/286", "composition.library-adds-nothing")
class ClipsByDefault(ReferenceTrainer):
    """Gradients are clipped at a norm of 1 where the recipe asks for no clipping."""

    def clip(self, gradients: Arrays) -> Arrays:
        norm = self.gradient_norm(gradients)
        if self.recipe.clip is not None or norm <= 1.0:
            return super().clip(gradients)
        return {name: gradient * np.float32(1.0 / norm) for name, gradient in gradients.items()}


@fault("https://github.com/huggingface/accelerate/issues/1050", "composition.two-runs-in-a-process")
class StepsOfTheLastRun(ReferenceTrainer):
    """All runs of a process use the accumulation steps of the newest run."""

    last_steps = 1

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        type(self).last_steps = self.recipe.accumulation

    def normalise(self, loss: Tensor, batch_items: int, window_items: int) -> Tensor:
        return super().normalise(loss, batch_items, window_items * self.last_steps // self.recipe.accumulation)


@fault("https://github.com/pytorch/pytorch/issues/164929", "composition.ways")
class OtherNormForgetsParts(ReferenceTrainer):
    """The alternative norm computation returns the norm of the largest part."""

    def gradient_norm(self, gradients: Mapping[str, Array]) -> float:
        norm = super().gradient_norm
        if self.recipe.way("clip") != "by-parts":
            return norm(gradients)
        return max(norm({name: gradient}) for name, gradient in gradients.items())


@fault("https://github.com/anemoi-labs/anemoi-core/issues/1373", "composition.ways")
class CompressedFileHasNoMoments(ReferenceTrainer):
    """The alternative save leaves out the optimizer's moments, and a load uses zeros."""

    def save_state(self) -> Arrays:
        state = super().save_state()
        if self.recipe.way("save") != "compressed":
            return state
        return {name: value * 0 if name.startswith("slot.") else value for name, value in state.items()}


@fault("https://github.com/deepspeedai/DeepSpeed/issues/8224", "composition.ways")
class OtherNormIsNotChosen(ReferenceTrainer):
    """The option for the alternative norm computation is accepted and ignored."""

    def gradient_norm(self, gradients: Mapping[str, Array]) -> float:
        recipe = self.recipe
        self.recipe = recipe.replace(ways=())
        try:
            return super().gradient_norm(gradients)
        finally:
            self.recipe = recipe


@fault("https://github.com/huggingface/accelerate/issues/2828", "laws.programs")
class SkipIsReportedForGood(ReferenceTrainer):
    """After a skip every later update of a window of several micro-batches is reported as skipped."""

    _skipped = False

    def apply(self) -> Update:
        several = self.window.micro_batches > 1
        update = super().apply()
        self._skipped = update.skipped or (several and self._skipped)
        return replace(update, skipped=self._skipped)


@fault("https://github.com/allenai/OLMo-core/pull/828", "laws.recomputation")
class MasksOfTheFirstMicroBatch(ReferenceTrainer):
    """The random state is captured once a window, so later micro-batches replay the masks of the first one."""

    _draws_of_first: int | None = None
    _draws_at_start = 0

    def accumulate(self, batch: Batch, items: int) -> float:
        self._draws_at_start = self.draws
        if self._draws_of_first is None or not self.window.micro_batches:
            self._draws_of_first = self.draws
        return super().accumulate(batch, items)

    def recompute_segment(self, moment: Moment) -> AbstractContextManager[Any]:
        draws = self._draws_at_start if self._draws_of_first is None else self._draws_of_first
        return super().recompute_segment(replace(moment, draws=moment.draws - self._draws_at_start + draws))


@fault("https://github.com/tensorflow/tensorflow/pull/55310", "laws.scales")
class ReciprocalIsHeldLow(ReferenceTrainer):
    """Unscaling multiplies by the reciprocal of the scale in float16, which is zero from a scale of 2^15 on."""

    def unscale(self, name: str, gradient: Array) -> Array:
        assert self.scaler is not None
        reciprocal = 1.0 / self.scaler.scale
        return self.rounding.round(
            gradient * (reciprocal if reciprocal >= 2.0**-14 else 0.0), self.accumulator_format(name)
        )


@fault("https://github.com/m2lines/Samudra/pull/313", "laws.restores")
class AverageIsOfTheReceiver(ReferenceTrainer):
    """A load does not restore the moving average."""

    def load_state(self, arrays: Arrays) -> None:
        before = dict(self.averages)
        super().load_state(arrays)
        self.averages = before


@fault("https://github.com/ClickHouse/ClickHouse/issues/98637", "laws.programs")
class LoadedZerosArePositive(ReferenceTrainer):
    """A sparse checkpoint restores negative zeros as positive ones."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state({name: value + 0.0 if value.dtype.kind == "f" else value for name, value in arrays.items()})


@fault("https://github.com/mala-project/mala/issues/374", "laws.second-run")
class EveryRunScalesTheRate(ReferenceTrainer):
    """The learning rate of a run grows with the number of runs before it in the process."""

    _runs: ClassVar[list[int]] = []

    def learning_rate(self) -> float:
        if self.steps == 0 and id(self) not in self._runs:
            self._runs.append(id(self))
        return super().learning_rate() * (1.0 + 2.0**-6 * self._runs.index(id(self)) if id(self) in self._runs else 1.0)


@fault("https://github.com/ml-explore/mlx-lm/pull/1413", "laws.windows")
class ItemsCountedInWholeBatches(ReferenceTrainer):
    """A micro-batch has the weight of the first one of its window, however many items it holds."""

    _items_of_first = 1

    def accumulate(self, batch: Batch, items: int) -> float:
        if not self.window.micro_batches:
            self._items_of_first = max(1, batch.items)
        return super().accumulate(batch, items)

    def normalise(self, loss: Tensor, batch_items: int, window_items: int) -> Tensor:
        result = super().normalise(loss, batch_items, window_items)
        return Tensor(result.value * self._items_of_first / max(1, batch_items), result.format)


@fault("https://github.com/pytorch/pytorch/issues/37874", "laws.calls")
class RefusesAfterAFailure(ReferenceFramework):
    """The flag of a recomputation in progress stays set after a failure, so later ones are refused."""

    under_way = False

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        if type(self).under_way:
            raise RuntimeError("a recomputation is under way already")
        type(self).under_way = True
        result = super().recompute(case, x, w, variant)
        type(self).under_way = False
        return result


@fault("https://github.com/pytorch/pytorch/pull/14253", "laws.processes")
class StreamOfTheProcess(ReferenceTrainer):
    """A run's random stream begins where the previous run of the process ended."""

    _process: ClassVar[list[int]] = [0]

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        if self.draws == 0:
            self.draws = self._process[0]
        mask = super().draw_mask(shape, rate)
        self._process[0] = self.draws
        return mask


@fault("https://github.com/jax-ml/jax/issues/37830", "laws.programs")
class GivenWeightsAreNotCopied(ReferenceTrainer):
    """Until its first update a run reads the caller's weights without copying them."""

    def __init__(self, model: Model, recipe: Recipe, *args: Any) -> None:
        super().__init__(model, recipe, *args)
        self._given: Mapping[str, Array] | None = args[-1]

    def accumulate(self, batch: Batch, items: int) -> float:
        for name, value in (self._given or {}).items() if self.steps == 0 else ():
            self.values[name] = self.rounding.round(value.astype(np.float64), self.formats[name])
        return super().accumulate(batch, items)

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self._given = None


@fault("https://github.com/WenjieDu/PyPOTS/issues/667", "laws.programs")
class OutputsAreReused(ReferenceTrainer):
    """An evaluation overwrites the outputs that an earlier one with as many samples returned."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._returned: dict[tuple[str, int], Array] = {}

    def predict(self, inputs: Array) -> Arrays:
        outputs = super().predict(inputs)
        for name, value in outputs.items():
            self._returned.setdefault((name, len(inputs)), value)[...] = value
        return {name: self._returned[name, len(inputs)] for name in outputs}


@primitive
def _dropout(x: Array, mask: Array, rate: float) -> Array:
    return np.where(mask, x / (1.0 - rate), 0.0)


def _by_blocks(_ans: Array, _x: Array, mask: Array, rate: float) -> Callable[[Array], Array]:
    flat = mask.reshape(-1).copy()
    rest = flat.size % 4
    if 0 < rest < flat.size:
        flat[-rest:] = flat[:rest]
    return lambda gradient: np.where(flat.reshape(mask.shape), gradient / (1.0 - rate), 0.0)


defvjp(_dropout, _by_blocks, None, None)


@fault("https://github.com/PaddlePaddle/Paddle/pull/29813", "laws.masks")
class BackwardMaskGoesByFours(Operations):
    """The backward pass reads the mask in blocks of four, and for the remainder the start of the mask."""

    def dropout(self, x: Tensor, mask: Array, rate: float) -> Tensor:
        return self.apply("dropout", lambda a, _: _dropout(a, mask, rate), x)


@fault("https://github.com/rwth-i6/returnn/issues/366", "laws.masks")
class SamplesShareAMask(ReferenceTrainer):
    """The mask of a micro-batch's first sample is broadcast over the others."""

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        mask = super().draw_mask(shape, rate)
        return np.broadcast_to(mask[:1], shape)


@fault("https://github.com/Oneflow-Inc/oneflow/pull/6055", "autocast.evaluation-parity")
class RunningStatisticsSwapMomentum(ReferenceTrainer):
    """Running statistics use one minus the momentum in place of the momentum."""

    def update_running_statistics(self, path: str, mean: Array, variance: Array, count: int, momentum: float) -> None:
        super().update_running_statistics(path, mean, variance, count, 1.0 - momentum)


@fault("https://github.com/HomericIntelligence/Odyssey/issues/5532", "autocast.evaluation-parity")
class EvaluationOfStartingStatistics(ReferenceTrainer):
    """Evaluation normalises by the initial running statistics."""

    def running_statistics(self, path: str) -> tuple[Array, Array]:
        start = self.model.buffers()
        return start[f"{path}.mean"].astype(np.float64), start[f"{path}.variance"].astype(np.float64)


@fault("https://github.com/wkentaro/pytorch-fcn/pull/56", "accumulation.evaluation-changes-nothing")
class StaysInEvaluationMode(ReferenceTrainer):
    """Training after an evaluation stays in evaluation mode."""

    evaluated = False

    def predict(self, inputs: Array) -> Arrays:
        self.evaluated = True
        return super().predict(inputs)

    def _pass(self, parameters: Mapping[str, Tensor], training: bool) -> Pass:
        return super()._pass(parameters, training and not self.evaluated)


@fault("https://github.com/piergiaj/pytorch-i3d/issues/57", "accumulation.evaluation-changes-nothing")
class EvaluationEmptiesTheAccumulator(ReferenceTrainer):
    """Switching to evaluation clears the accumulated gradients."""

    def predict(self, inputs: Array) -> Arrays:
        self.window.gradients = {name: np.zeros_like(g) for name, g in self.window.gradients.items()}
        return super().predict(inputs)


@fault("https://github.com/keras-team/keras-hub/issues/642", "autocast.float32-parity", names="(LayerNorm), output")
class LayerNormWithAnotherEpsilon(Operations):
    """Layer norm uses a hundred times its epsilon."""

    def layer_norm(self, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float) -> Tensor:
        return super().layer_norm(x, scale, shift, 100.0 * epsilon)


@fault(
    "https://github.com/lucidrains/vit-pytorch/issues/65", "autocast.float32-parity", names="(SelfAttention), output"
)
class AttentionScaledByAnotherWidth(Operations):
    """Attention divides its scores by the root of the head width plus one."""

    def attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        width = query.shape[-1]
        return super().attention(replace(query, value=query.value * np.sqrt(width / (width + 1.0))), key, value)


@primitive
def _turned_backwards(weight: Array) -> Array:
    """The weight (size, size, C, F) as it is; the gradient that comes back has its first two axes exchanged."""
    return weight


defvjp(_turned_backwards, lambda _ans, _weight: lambda gradient: np.swapaxes(gradient, 0, 1))


@fault(
    "https://github.com/nntrainer/nntrainer/issues/705",
    "autocast.float32-parity",
    names="(Convolution), gradient of weight",
)
class FilterGradientHasItsSidesExchanged(Operations):
    """The gradient of a convolution's filters has height and width exchanged."""

    def convolution(self, x: Tensor, weight: Tensor, *args: Any) -> Tensor:
        return super().convolution(x, replace(weight, value=_turned_backwards(weight.value)), *args)


@fault("https://github.com/NVIDIA/TransformerEngine/pull/2014", "autocast.dropout-scales-what-it-keeps")
class DropoutComparesBytes(ReferenceTrainer):
    """Random bytes decide what is dropped, which cuts the rate to 1/256; kept values are divided by the exact share."""

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        return super().draw_mask(shape, math.floor(256.0 * rate) / 256.0)


@fault("https://github.com/tensorflow/tensorflow/issues/28090", "accumulation.repeated-rows")
class RepeatedRowsCountOnce(Operations):
    """The gradient of an embedding row is that of its last use in the batch."""

    def embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        flat = ids.value.reshape(-1)
        last_uses = {int(row): index for index, row in enumerate(flat)}
        counts = np.array([last_uses[int(row)] == index for index, row in enumerate(flat)]).reshape(ids.value.shape)

        def rows(i: Array, t: Any, _: Any) -> Any:
            return anp.where(counts[..., None], t[i], plain(t)[i])

        return self.apply("embedding", rows, ids, table)


@fault("https://github.com/meta-pytorch/captum/issues/156", "composition.trace-is-the-pass")
class ShowsWhatTheActivationLeft(ReferenceTrainer):
    """A layer's traced output is that of the activation after it."""

    def trace(self, batch: Batch) -> LayerTrace:
        trace = super().trace(batch)
        layers = list(enumerate(self.model.layers))
        activations = {str(i): str(i - 1) for i, layer in layers if isinstance(layer, Activation)}
        overwritten = {before: trace.outputs[path] for path, before in activations.items()}
        return replace(trace, outputs=trace.outputs | overwritten)


@fault("https://github.com/wandb/wandb/issues/4369", "composition.trace-is-the-pass")
class ShowsScaledGradients(ReferenceTrainer):
    """Traced gradients of layers' outputs are multiplied by the loss scale."""

    def trace(self, batch: Batch) -> LayerTrace:
        trace = super().trace(batch)
        scale = 1.0 if self.scaler is None else self.scaler.scale
        return replace(trace, gradients={path: scale * gradient for path, gradient in trace.gradients.items()})


@fault("https://github.com/paiml/entrenar/issues/314", "composition.shared-weights")
class TiedHeadGivesNoGradient(Operations):
    """The gradient of a tied embedding table lacks the part of the head."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super().linear(x, weight if bias is not None else replace(weight, value=weight.plain()), bias)


@fault("https://github.com/pytorch/pytorch/issues/193279", "composition.user-function")
class UserBackwardPassIsDropped(Operations):
    """A user's function is differentiated automatically, without its own backward pass."""

    def user_function(self, x: Tensor) -> Tensor:
        return self.apply("user_function", lambda a, _: a * a, x, keep="operands")


@fault("https://github.com/PaddlePaddle/Paddle/issues/62979", "composition.user-function")
class RecomputedFunctionsNeedNoGradient(ReferenceFunction):
    """A recomputed user's function is told that no input needs a gradient."""

    def needs(self, needs: tuple[bool, bool, bool], *, recomputed: bool) -> tuple[bool, bool, bool]:
        return (False, False, False) if recomputed else needs


@fault("https://github.com/karpathy/micrograd/issues/2", "composition.user-function")
class EarlierUsesCountAgain(ReferenceFunction):
    """The gradient of each use of a user's function includes those of earlier uses."""

    def sum_gradients(self, gradients: list[Array]) -> Array:
        return super().sum_gradients([count * gradient for count, gradient in enumerate(reversed(gradients), 1)])


@fault("https://github.com/pytorch/pytorch/issues/193671", "composition.shipped-parts")
class RecomputedNoiseIsNew(ReferenceShipped):
    """An operation that is recomputed draws other random numbers than in the forward pass."""

    @contextmanager
    def replay(self) -> Iterator[None]:
        yield


@fault("https://github.com/PaddlePaddle/Paddle/issues/52836", "composition.shipped-parts")
class FirstInputAloneHasNoGradient(ReferenceShipped):
    """Where only one of several inputs has a gradient, all of them get that of the first input."""

    def of_each(self, function: Callable[..., Any], leaves: Sequence[Array]) -> Values:
        result = super().of_each(function, leaves)
        return dict.fromkeys(result, result["gradient/0"])


@fault("https://github.com/PaddlePaddle/Paddle/issues/79630", "composition.shipped-gradients")
class ActivationOverflowsFarFromZero(ReferenceShipped):
    """The gradient of an activation is computed by an exponential that overflows."""

    def at(self, name: str, *points: Array) -> tuple[Array, ...]:
        value, *gradients = super().at(name, *points)
        if points[0].dtype == np.float32:
            gradients[0][np.abs(points[0]) > 88.0] = np.nan
        return value, *gradients


@fault("https://github.com/pytorch/pytorch/issues/195075", "composition.shipped-gradients")
class RestOfAVectorHasAnotherGradient(ReferenceShipped):
    """The last elements of an array, which fill no vector register, have a gradient of 0."""

    def at(self, name: str, *points: Array) -> tuple[Array, ...]:
        value, *gradients = super().at(name, *points)
        gradients[0][len(points[0]) // 8 * 8 :] = 0.0
        return value, *gradients


@fault("https://github.com/tensorflow/tensorflow/issues/119476", "composition.shipped-gradients")
class GradientIsMaskedAtZero(ReferenceShipped):
    """The gradient of a product by its first factor is 0 where that factor is 0."""

    def at(self, name: str, *points: Array) -> tuple[Array, ...]:
        value, *gradients = super().at(name, *points)
        if len(points) == 2:
            gradients[0][points[0] == 0.0] = 0.0
        return value, *gradients


@fault("https://github.com/PaddlePaddle/Paddle/issues/79146", "composition.control-flow")
class RecomputedLoopEndsEarlier(ReferenceFunctions):
    """A recomputed loop makes one iteration fewer than in the forward pass."""

    @contextmanager
    def replay(self) -> Iterator[None]:
        self.steps -= 1
        try:
            with super().replay():
                yield
        finally:
            self.steps += 1
