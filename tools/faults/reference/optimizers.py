"""Faults of optimizers, masters, averages, clipping and schedules."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from fixtures.arrays import Array
from fixtures.optimizers import SGD, Adagrad, Adam, AdamW
from fixtures.recipe import FormatName, Precision
from fixtures.schedules import Chained, CosineRestarts, Joined, OneCycle, PlateauRule
from frameworks.reference.shipped import ReferenceOptimizers
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.optimizers import (
    EPSILON,
    RULES,
    AdafactorRule,
    AdagradRule,
    AdamRule,
    Arithmetic,
    MuonRule,
    RMSpropRule,
    SGDRule,
    Shape,
    Slots,
    UpdateRule,
    optimizer_of,
)
from frameworks.reference.training.scaler import LossScale
from frameworks.reference.training.trainer import ReferenceLoop, ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/HomebrewML/HeavyBall/issues/72", "accumulation.clips-only-what-is-larger")
class ClippingScalesUp(ReferenceTrainer):
    """Gradients below the clipping norm are scaled up to it."""

    def clip(self, gradients: Arrays) -> Arrays:
        if self.recipe.clip is None:
            return gradients
        factor = self.recipe.clip / max(self.gradient_norm(gradients), 1e-30)
        return {name: g * factor for name, g in gradients.items()}


@fault("https://github.com/NVIDIA/apex/pull/1512", "scaling.unscales-before-clipping", "scaling.is-transparent")
class ClipCoefficientIsUnscaledToo(ReferenceTrainer):
    """The clip coefficient is divided by the scale once more."""

    def clip(self, gradients: Arrays) -> Arrays:
        clipped = super().clip(gradients)
        return clipped if clipped is gradients else {name: self.unscale(name, g) for name, g in clipped.items()}


@fault("https://github.com/catalyst-team/catalyst/issues/1319", "scaling.reports-true-loss")
class ReportsTheScaledNorm(ReferenceTrainer):
    """The gradient norm is that of the scaled gradients."""

    def gradient_norm(self, gradients: Mapping[str, Array]) -> float:
        return super().gradient_norm(gradients) * (1.0 if self.scaler is None else self.scaler.scale)


@fault("https://github.com/Skovorp/feral/pull/16", "accumulation.clip-off-is-off")
class ClipsAtInfinityToLogTheNorm(ReferenceTrainer):
    """Without a bound gradients are multiplied by the least of 1 and infinity over their norm, which may be NaN."""

    def clip(self, gradients: Arrays) -> Arrays:
        if self.recipe.clip is not None or self.scaler is not None:
            return super().clip(gradients)
        factor = np.minimum(np.float32(np.inf) / np.float32(self.gradient_norm(gradients)), np.float32(1.0))
        return {name: gradient * factor for name, gradient in gradients.items()}


@fault("https://github.com/pytorch/torchtitan/pull/3886", "optimizer.frozen")
class LoadFreezesNothing(ReferenceTrainer):
    """A load makes every parameter trainable."""

    _loaded = False

    def trains(self, name: str) -> bool:
        return self._loaded or super().trains(name)

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self._loaded = True
        self.counts = {name: self.counts.get(name, 0) for name in self.masters}
        for moments in self.slots.values():
            moments.update({name: np.zeros_like(self.masters[name]) for name in self.recipe.frozen})


@fault("https://github.com/ahrefs/ocannl/issues/673", "optimizer.frozen")
class DecaysWhatIsFrozen(ReferenceTrainer):
    """Decoupled weight decay shrinks parameters that have no gradient."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        super().apply_update(gradients, rate)
        decay = float(getattr(self.recipe.optimizer, "weight_decay", 0.0))
        for name in self.recipe.frozen:
            self.masters[name] = self.masters[name] * (1.0 - rate * decay)


@fault("https://github.com/ahrefs/ocannl/issues/673", "optimizer.frozen")
class ClipsByTheNormOfAll(ReferenceTrainer):
    """The norm for clipping includes the weights that are not trained."""

    def gradient_norm(self, gradients: Mapping[str, Array]) -> float:
        constants = {name: self.masters[name] for name in self.recipe.frozen}
        return super().gradient_norm({**gradients, **constants})


@fault("https://github.com/pytorch/pytorch/issues/192202", "optimizer.frozen-later")
class LoadDropsTheMomentsOfConstants(ReferenceTrainer):
    """A load leaves out the moments of parameters that are frozen at the time."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        for moments in self.slots.values():
            moments.update({n: np.zeros_like(value) for n, value in moments.items() if not self.trains(n)})


@fault("https://github.com/neuralmagic/sparseml/issues/965", "optimizer.frozen-later")
class FreezingHasNoEffect(ReferenceTrainer):
    """A parameter that is frozen during a run is still updated."""

    def freeze(self, names: Collection[str]) -> None:
        del names


@fault("https://github.com/X-GenGroup/Flow-Factory/pull/186", "master.average-is-evaluated")
class AverageMeetsStaleCasts(ReferenceTrainer):
    """At O1 an evaluation with the average reuses the casts of the evaluation without it."""

    evaluated_at = -1

    def predict(self, inputs: Array) -> Arrays:
        self.evaluated_at = self.steps
        return super().predict(inputs)

    def predict_averaged(self, inputs: Array) -> Arrays:
        if self.recipe.precision.level == "O1" and self.recipe.average is not None and self.evaluated_at == self.steps:
            return super().predict(inputs)
        return super().predict_averaged(inputs)


@fault("", "master.decay-of-nobody")
class SecondGroupDecaysAll(ReferenceTrainer):
    """A second group with its own weight decay applies it to excluded parameters too."""

    def rule_of(self, name: str) -> UpdateRule:
        rule = super().rule_of(name)
        if self.group_of(name) == 1 and self.recipe.second_decay is not None:
            rule.decay = self.recipe.second_decay
        return rule


@fault("", "optimizer.schedules")
class MomentumCyclesInTheFirstGroupAlone(ReferenceTrainer):
    """A schedule that cycles the momentum or beta1 changes that of the first group only."""

    def rule_of(self, name: str) -> UpdateRule:
        rule = super().rule_of(name)
        if self.group_of(name) == 1 and isinstance(self.recipe.schedule, OneCycle):
            rule.optimizer = self.recipe.of_groups[1]
        return rule


@fault("https://github.com/microsoft/hi-ml/issues/611", "optimizer.schedules")
class SecondGroupFollowsTheFirstPart(ReferenceTrainer):
    """Of a join or product of schedules, the rate of a second group with a rate of its own follows the first part."""

    def rate_of(self, name: str, rate: float) -> float:
        group_rate, schedule = self.recipe.of_groups[self.group_of(name)].learning_rate, self.recipe.schedule
        if group_rate == self.recipe.optimizer.learning_rate or not isinstance(schedule, Joined | Chained):
            return super().rate_of(name, rate)
        return group_rate * schedule.parts[0].factor(self.schedule)


class _DampeningFromTheRunsStart(SGDRule):
    after_first_update = False

    def joining(self, g: Array, count: int) -> Array:
        return super().joining(g, 2 if self.after_first_update else count)


@fault("", "optimizer.options")
class LateParametersAreDampenedAtOnce(ReferenceTrainer):
    """The first gradient of a parameter that had none in the run's first update is dampened."""

    rules = MappingProxyType({**RULES, SGD: _DampeningFromTheRunsStart})

    def rule_of(self, name: str) -> UpdateRule:
        rule = super().rule_of(name)
        if isinstance(rule, _DampeningFromTheRunsStart):
            rule.after_first_update = self.steps > 0
        return rule


@fault("https://github.com/pytorch/ao/pull/1124", "master.small-update-survives", "master.decay-survives")
class UpdatesTheLowWeights(ReferenceTrainer):
    """The weights that are updated have the low format, so that small updates are rounded away."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        super().apply_update(gradients, rate)
        if self.scope.active:
            low = self.recipe.precision.format
            self.masters = {name: self.rounding.round(value, low) for name, value in self.masters.items()}


@fault("https://github.com/stillwater-sc/universal/issues/1133", "master.model-is-cast-of-master")
class ModelIsTruncated(ReferenceTrainer):
    """The model's weights are the masters with their low bits cut off instead of rounded."""

    def sync_masters(self) -> None:
        super().sync_masters()
        if self.recipe.precision.level == "O2":
            for name, value in self.masters.items():
                over = np.abs(self.values[name]) > np.abs(value)
                inner = self.rounding.round(value - (self.values[name] - value), self.formats[name])
                self.values[name] = np.where(over, inner, self.values[name])


@fault("https://github.com/PaddlePaddle/Paddle/pull/39121", "master.masters-survive-load", "resume.bit-identical")
class MastersAreRebuiltFromTheModel(ReferenceTrainer):
    """A checkpoint has no masters, and a load derives them from the model's low-precision weights."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.masters = dict(self.values)


@fault("https://github.com/NVIDIA/apex/issues/480", "master.model-is-cast-of-master", "master.masters-survive-load")
class LoadsTheModelAlone(ReferenceTrainer):
    """A load restores the model's weights and not the masters."""

    def load_state(self, arrays: Arrays) -> None:
        masters = self.masters
        super().load_state(arrays)
        self.masters = masters


@fault(
    "https://github.com/huggingface/pytorch-image-models/pull/2790",
    "optimizer.implementations-agree",
    "optimizer.options",
)
class SmallUpdatesAreEnlarged(AdafactorRule):
    """Adafactor divides an update by the smaller of one and its RMS, so small updates grow."""

    def clip(self, update: Array) -> Array:
        return self.r(update / min(1.0, self.rms(update) / self.optimizer.threshold))


@fault(
    "https://github.com/huggingface/pytorch-image-models/pull/2749",
    "optimizer.implementations-agree",
    "optimizer.options",
)
class RowsOfTallMatricesDoNotCount(AdafactorRule):
    """Adafactor's estimate for a matrix with more rows than columns is that of its columns alone."""

    def root(self, means: Mapping[str, Array]) -> Array:
        rows = means.get("rows", np.ones(1))
        tall = "rows" in means and len(rows) > means["columns"].shape[-1]
        return super().root({**means, "rows": np.ones_like(rows)} if tall else means)


@fault(
    "https://github.com/kozistr/pytorch_optimizer/issues/371", "optimizer.implementations-agree", "optimizer.options"
)
class RateIsAdjustedTwice(MuonRule):
    """Muon's rate follows the ratio of a matrix's sides in addition to the adjustment to AdamW's RMS."""

    def factor(self, shape: Shape) -> float:
        return super().factor(shape) * max(1.0, shape[1] / shape[0]) ** 0.5


@fault("https://github.com/deepspeedai/DeepSpeed/pull/8442", "optimizer.implementations-agree", "optimizer.options")
class MatricesAreNotOrthogonalised(MuonRule):
    """Muon normalises the velocity without any Newton-Schulz iteration."""

    def iterate(self, x: Array) -> Array:
        return x


class _EpsilonIsRounded(Arithmetic):
    def epsilon(self, value: float) -> float:
        return float(self.rounding.round(np.array(value), self.format))


@fault("https://github.com/google-deepmind/optax/issues/1754", "master.adam-epsilon-survives")
class EpsilonIsRoundedToZero(ReferenceTrainer):
    """Adam's epsilon is rounded to the weights' format, where 1e-8 is zero if that is float16."""

    def arithmetic_of(self, name: str) -> Arithmetic:
        return _EpsilonIsRounded(self.rounding, self.master_formats[name])


@fault("https://github.com/nntrainer/nntrainer/pull/3565", "master.decay-survives", "autocast.float32-parity")
class DecayIsCoupled(ReferenceTrainer):
    """Weight decay joins the gradient before Adam normalises it."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        recipe = self.recipe
        if isinstance(recipe.optimizer, AdamW):
            share = recipe.optimizer.weight_decay
            gradients = {name: g + share * self.masters[name] for name, g in gradients.items()}
            self.recipe = recipe.replace(optimizer=replace(recipe.optimizer, weight_decay=0.0))
        super().apply_update(gradients, rate)
        self.recipe = recipe


@fault("https://github.com/Lightning-AI/pytorch-lightning/issues/10766", "master.moments-keep-precision")
class MomentsAreLoadedLow(ReferenceTrainer):
    """A load casts the moments to the model's compute format."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        if self.scope.active:
            low = self.recipe.precision.format
            for values in self.slots.values():
                values.update({name: self.rounding.round(value, low) for name, value in values.items()})


@fault("https://github.com/tensorflow/tensorflow/issues/9047", "autocast.float32-parity")
class EpsilonIsDividedByTheCorrection(ReferenceTrainer):
    """Adam divides epsilon by the correction of the second moment along with that moment."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        recipe = self.recipe
        if isinstance(recipe.optimizer, Adam | AdamW):
            epsilon = EPSILON if recipe.optimizer.epsilon is None else recipe.optimizer.epsilon
            correction = (1.0 - recipe.optimizer.beta2 ** (self.steps + 1)) ** 0.5
            self.recipe = recipe.replace(optimizer=replace(recipe.optimizer, epsilon=epsilon / correction))
        super().apply_update(gradients, rate)
        self.recipe = recipe


@fault("https://github.com/ooples/AiDotNet/issues/2008", "autocast.float32-parity")
class VelocityNeverDecays(ReferenceTrainer):
    """Momentum's factor stands before the gradient instead of the velocity."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        factor = getattr(self.recipe.optimizer, "momentum", 0.0)
        if factor:
            velocity = self.slots["momentum"]
            velocity.update({name: value / factor for name, value in velocity.items()})
            gradients = {name: factor * g for name, g in gradients.items()}
        super().apply_update(gradients, rate)


@fault("https://github.com/pytorch/ao/pull/4915", "master.counts-every-update")
class CountsInBfloat16(ReferenceTrainer):
    """The step count of Adam's bias correction is bfloat16 and stops at 256."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        super().apply_update(gradients, rate)
        self.counts = {name: min(count, 255) for name, count in self.counts.items()}


@fault("https://github.com/pytorch/pytorch/issues/28294", "scaling.tolerates-missing-gradients")
class MissingGradientsAreZero(ReferenceTrainer):
    """A parameter without a gradient is updated as if its gradient were zero."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        super().apply_update({**{n: np.zeros_like(v) for n, v in self.masters.items()}, **gradients}, rate)


@fault("https://github.com/ooples/AiDotNet.Tensors/pull/949", "optimizer.options")
class NesterovIsIgnored(SGDRule):
    """The Nesterov option is accepted and ignored."""

    def ahead(self, velocity: Array, g: Array) -> Array:
        return velocity


@fault("https://github.com/ml-explore/mlx/pull/473", "optimizer.options")
class FirstGradientIsDampened(SGDRule):
    """Dampening acts on the first gradient too."""

    def joining(self, g: Array, count: int) -> Array:
        return super().joining(g, count + 1)


@fault("https://github.com/ml-explore/mlx/pull/473", "optimizer.options")
class DecayNeedsMomentum(SGDRule):
    """SGD's weight decay has no effect without momentum."""

    def add_decay(self, p: Array, g: Array) -> Array:
        return super().add_decay(p, g) if self.optimizer.momentum else g


@fault("https://github.com/PaddlePaddle/Paddle/pull/79341", "optimizer.options")
class MaximizationIsIgnored(SGDRule):
    """The option to maximize is accepted and ignored."""

    def ascent(self, g: Array) -> Array:
        return g


@fault("https://github.com/flagos-ai/FlagGems/issues/4988", "optimizer.options")
class CoupledDecayIsDecoupled(AdamRule):
    """Adam's weight decay follows AdamW's rule."""

    def __call__(self, p: Array, slots: Mapping[str, Array], g: Array, rate: float, count: int) -> tuple[Array, Slots]:
        return self.step(self.r(p * self.r.number(1.0 - rate * self.decay)), slots, self.ascent(g), rate, count)


@fault("https://github.com/pytorch/pytorch/issues/78807", "optimizer.options")
class LargestMomentIsNotStored(AdamRule):
    """AMSGrad takes the larger of two moments and does not store it."""

    def largest(self, held: Array, second: Array, correction: float, moved: Slots) -> tuple[Array, float]:
        result = super().largest(held, second, correction, moved)
        moved["largest_second_moment"] = held
        return result


@fault(
    "https://github.com/deeplearning4j/deeplearning4j/issues/953",
    "optimizer.implementations-agree",
    "optimizer.options",
)
class SumOfSquaresStartsWithOne(AdagradRule):
    """Adagrad's sum of squares begins with one, whatever its initial value is."""

    @classmethod
    def start(cls, optimizer: Adagrad, slot: str) -> float:
        return 1.0


@fault("https://github.com/UselessToys/Ecosystem_WebUI/pull/383", "optimizer.options")
class CentringIsStored(RMSpropRule):
    """Centred RMSprop subtracts the squared mean from the stored mean of squares itself."""

    def step(self, p: Array, slots: Mapping[str, Array], g: Array, rate: float, count: int) -> tuple[Array, Slots]:
        after, moved = super().step(p, slots, g, rate, count)
        if self.optimizer.centred:
            moved["squares"] = self.r(moved["squares"] - self.r(moved["gradients"] * moved["gradients"]))
        return after, moved


@fault("https://github.com/pytorch/pytorch/issues/191763", "optimizer.implementations-agree")
class WholeVectorsStay(ReferenceTrainer):
    """Of a low-precision weight only the remainder after vectors of sixteen is updated."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        before = dict(self.masters)
        super().apply_update(gradients, rate)
        for name in gradients:
            if self.master_formats[name] in ("float16", "bfloat16"):
                after = self.masters[name].copy()
                size = after.size // 16 * 16
                after.reshape(-1)[:size] = before[name].reshape(-1)[:size]
                self.masters[name] = after


@fault("https://github.com/PaddlePaddle/ERNIE/pull/614", "master.decay-of-nobody")
class DecayLeavesNothingOut(ReferenceTrainer):
    """Weight decay applies to the excluded parameters."""

    def rule_of(self, name: str) -> UpdateRule:
        rule = super().rule_of(name)
        rule.decay = float(rule.optimizer.weight_decay)
        return rule


@fault("https://github.com/pytorch/pytorch/issues/196243", "optimizer.schedules")
class JoinedPartsCountFromTheStart(ReferenceTrainer):
    """A part of joined schedules counts the updates of the whole run in place of its own."""

    def learning_rate(self) -> float:
        schedule = self.recipe.schedule
        if not isinstance(schedule, Joined):
            return super().learning_rate()
        part = schedule.parts[sum(self.schedule >= boundary for boundary in schedule.boundaries)]
        return self.recipe.optimizer.learning_rate * part.factor(self.schedule)


@fault("https://github.com/pytorch/pytorch/issues/88791", "optimizer.schedules")
class RestartsBeginAnewAfterALoad(ReferenceTrainer):
    """A schedule with restarts begins a new cycle when it is loaded."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        if isinstance(self.recipe.schedule, CosineRestarts):
            self.make_schedule()


@fault("https://github.com/catalyst-team/catalyst/issues/215", "optimizer.schedules")
class CycleMovesTheMomentumTheOtherWay(ReferenceTrainer):
    """A cycle raises the momentum where it should lower it."""

    def rule_of(self, name: str) -> UpdateRule:
        rule, schedule = super().rule_of(name), self.recipe.schedule
        if isinstance(schedule, OneCycle) and schedule.momenta is not None:
            turned = self.recipe.replace(schedule=replace(schedule, momenta=schedule.momenta[::-1]))
            rule.optimizer = optimizer_of(turned, self.group_of(name), self.schedule)
        return rule


@fault("https://github.com/LiyuanLucasLiu/RAdam/issues/24", "optimizer.group-rates")
class EveryGroupHasTheFirstRate(ReferenceTrainer):
    """All groups are updated with the rate of the first one."""

    def rate_of(self, name: str, rate: float) -> float:
        return rate


@fault("https://github.com/microsoft/hi-ml/issues/611", "optimizer.group-rates")
class ScheduleSetsOneRate(ReferenceTrainer):
    """After its first step a schedule gives all groups one rate."""

    def rate_of(self, name: str, rate: float) -> float:
        return rate if self.factor() != 1.0 else super().rate_of(name, rate)


@fault("https://github.com/Lightning-AI/pytorch-lightning/issues/11269", "optimizer.group-rates")
class EveryGroupDecaysAlike(ReferenceTrainer):
    """The weight decay of the first group applies to all groups."""

    def rule_of(self, name: str) -> UpdateRule:
        rule = super().rule_of(name)
        rule.optimizer = replace(rule.optimizer, weight_decay=self.recipe.optimizer.weight_decay)
        rule.decay = float(self.recipe.optimizer.weight_decay)
        return rule


@fault("https://github.com/keras-team/keras/issues/17012", "optimizer.schedules")
class PlateauForgetsItsCounters(PlateauRule):
    """A restored plateau schedule has the rate without the best metric and the counters."""

    def state(self) -> dict[str, float | None]:
        return {"rate": self.rate}


@fault("https://github.com/keras-team/keras/issues/3991", "optimizer.schedules")
class CooldownIsOneShort(PlateauRule):
    """A plateau schedule counts the last metric of a cooldown."""

    def fall(self) -> None:
        super().fall()
        self.cooling = max(0, self.cooling - 1)


@fault("https://github.com/google-deepmind/optax/pull/1767", "optimizer.schedules")
class NegativeMetricsAlwaysImprove(PlateauRule):
    """A relative threshold is a share of the signed best metric, not of its magnitude."""

    def margin(self, best: float) -> float:
        return super().margin(best) * (-1.0 if best < 0 and self.plateau.relative else 1.0)


@fault("https://github.com/Bjarten/early-stopping-pytorch/pull/28", "optimizer.schedules")
class FirstMetricIsBestWhateverItIs(PlateauRule):
    """NaN as the first metric becomes the best one, on which no metric improves."""

    def improves(self, metric: float) -> bool:
        return self.best is None or super().improves(metric)


@fault("https://github.com/google-deepmind/optax/issues/1784", "optimizer.shipped")
class EpsilonIsLostInFloat16(ReferenceOptimizers):
    """Default epsilons are 0 in float16, where a gradient of zero gives 0/0."""

    def arithmetic(self, format_name: str) -> Arithmetic:
        return _EpsilonIsRounded(self.rounding, format_name)


@fault("https://github.com/PaddlePaddle/Paddle/pull/63549", "optimizer.shipped")
class LoadedMomentsAreZero(ReferenceOptimizers):
    """A load restores the step count with zero moments."""

    def load_states(self, states: Sequence[Slots], count: int) -> tuple[list[Slots], int]:
        return [{slot: np.zeros_like(value) for slot, value in slots.items()} for slots in states], count


@fault("https://github.com/PaddlePaddle/Paddle/pull/34075", "optimizer.shipped")
class ScalerStepsOnAnOverflow(ReferenceOptimizers):
    """An update that overflowed is applied."""

    def skips(self, update: Sequence[Array]) -> bool:
        return False


@fault("https://github.com/LiyuanLucasLiu/RAdam/issues/24", "optimizer.shipped")
class StateBelongsToAPlaceInTheList(ReferenceOptimizers):
    """A load assigns optimizer state by the index of a parameter, whatever its name."""

    def update_weights(
        self,
        rule: UpdateRule,
        weights: Sequence[Array],
        states: Sequence[Slots],
        update: Sequence[Array],
        count: int,
        technique: str,
    ) -> tuple[list[Array], list[Slots]]:
        if technique == "reordered":
            update = [gradient if gradient.ndim == 1 else np.zeros_like(gradient) for gradient in update]
        return super().update_weights(rule, weights, states, update, count, technique)


@fault("https://github.com/Lightning-AI/pytorch-lightning/issues/17544", "accumulation.schedule-frequency")
class FrequencyCountsTheEpochsMicroBatches(ReferenceLoop):
    """A schedule's frequency counts the micro-batches of the epoch."""

    def is_due(self, frequency: int, updates: int, seen: int, position: int) -> bool:
        return position % frequency == 0


@fault("https://github.com/Lightning-AI/pytorch-lightning/issues/1476", "accumulation.schedule-frequency")
class FrequencyCountsMicroBatches(ReferenceLoop):
    """A schedule's frequency counts the micro-batches of the run."""

    def is_due(self, frequency: int, updates: int, seen: int, position: int) -> bool:
        return seen % frequency == 0


@fault("https://github.com/Lightning-AI/pytorch-lightning/issues/9330", "scaling.hooks-see-unscaled")
class HookFindsScaledGradients(ReferenceLoop):
    """The hook before the optimizer step finds gradients multiplied by the loss scale."""

    def hook_gradient(self, unscaled: Array, scale: float) -> Array:
        return unscaled * scale


@fault("https://github.com/huggingface/sentence-transformers/pull/3773", "master.loaded-weights-move")
class LoadedWeightsStayLow(ReferenceLoop):
    """A checkpoint in a low format is trained in that format, without float32 weights."""

    def precision(self, saved: FormatName) -> Precision:
        return super().precision(saved) if saved == "float32" else Precision("O3", saved)


@fault(
    "https://github.com/SWivid/F5-TTS/issues/631",
    "accumulation.nothing-before-boundary",
    "accumulation.once-per-window",
)
class MovesWithEveryMicroBatch(ReferenceTrainer):
    """The moving average is updated with every micro-batch of a window."""

    def take_micro_batch(self, gradients: Arrays) -> None:
        super().take_micro_batch(gradients)
        if self.window.micro_batches < self.recipe.accumulation:
            self.move_average()


@fault("https://github.com/NVIDIA-NeMo/Speech/pull/5169", "master.average-follows-updates")
class MovesBeforeTheUpdate(ReferenceTrainer):
    """The moving average is updated before the optimizer step."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        former = dict(self.masters)
        super().apply_update(gradients, rate)
        updated, self.masters = self.masters, former
        super().move_average()
        self.masters = updated

    def move_average(self) -> None:
        pass


@fault("https://github.com/PaddlePaddle/Paddle/pull/22130", "master.average-follows-updates")
class StartsFromZeros(ReferenceTrainer):
    """The moving average starts from zeros without bias correction."""

    def move_average(self) -> None:
        if self.steps == 1:
            self.averages = {name: 0.0 * value for name, value in self.averages.items()}
            self.steps = 2
            super().move_average()
            self.steps = 1
        else:
            super().move_average()


@fault("https://github.com/pytorch/pytorch/issues/67590", "scaling.skip-is-atomic")
class AverageMovesOnSkip(ReferenceTrainer):
    """A skipped update moves the moving average."""

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        if not finite:
            self.move_average()
        return super().next_scale(scaler, finite)


@fault("https://github.com/d8ahazard/sd_dreambooth_extension/pull/1417", "master.average-keeps-precision")
class KeptInTheComputeFormat(ReferenceTrainer):
    """The average is kept in the recipe's low-precision format."""

    def average_format(self, name: str) -> str:
        return self.recipe.precision.format


@fault("https://github.com/ai2cm/ace/issues/349", "resume.bit-identical")
class AverageIsNotSaved(ReferenceTrainer):
    """After a load the moving average restarts from the weights."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        if self.averages:
            self.averages = dict(self.masters)


@fault("https://github.com/keras-team/keras/issues/18949", "master.average-is-evaluated")
class EvaluatesTheWeights(ReferenceTrainer):
    """Evaluation with the average uses the weights."""

    def read_average(self, name: str) -> Array:
        return self.values[name]


@fault("https://github.com/harubaru/waifu-diffusion/pull/31", "accumulation.evaluation-changes-nothing")
class WeightsAreNotPutBack(ReferenceTrainer):
    """Evaluation with the average leaves the average in the model, and training continues from it."""

    def predict_averaged(self, inputs: Array) -> Arrays:
        outputs = super().predict_averaged(inputs)
        self.masters = dict(self.averages)
        self.sync_masters()
        return outputs
