"""Faults of optimizers' options, and of one implementation of the plain rule: elements and parameters left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fixtures.arrays import Array
from fixtures.recipe import SGD, Adagrad, Adam, Optimizer, RMSprop
from fixtures.schedules import Chained, Cosine, CosineRestarts, Joined, OneCycle
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.optimizers import AdagradRule, AdamRule, RMSpropRule, SGDRule, Slots, UpdateRule
from frameworks.reference.training.trainer import ReferenceTrainer
from frameworks.reference.training.update_rules import RULES, optimizer_of
from tools.faults import fault


def with_rule(optimizer: type[Optimizer], rule: type[UpdateRule]) -> Mapping[type[Optimizer], type[UpdateRule]]:
    """The update rules of the reference with another one for an optimizer."""
    return {**RULES, optimizer: rule}


class _ClassicalMomentum(SGDRule):
    def ahead(self, velocity: Array, g: Array) -> Array:
        return velocity


@fault("https://github.com/ooples/AiDotNet.Tensors/pull/949", "optimizer.options")
class NesterovIsIgnored(ReferenceTrainer):
    """Nesterov's momentum is accepted and runs as the classical one."""

    rules = with_rule(SGD, _ClassicalMomentum)


class _LooksBack(SGDRule):
    def ahead(self, velocity: Array, g: Array) -> Array:
        return self.r(2.0 * g - super().ahead(velocity, g)) if self.optimizer.nesterov else velocity


@fault("https://github.com/PaddlePaddle/Paddle/pull/12231", "optimizer.options")
class NesterovLooksBack(ReferenceTrainer):
    """Nesterov's step subtracts the momentum's share of the velocity from the gradient."""

    rules = with_rule(SGD, _LooksBack)


class _DampensTheFirst(SGDRule):
    def joining(self, g: Array, count: int) -> Array:
        return super().joining(g, count + 1)


@fault("https://github.com/ml-explore/mlx/pull/473", "optimizer.options")
class FirstGradientIsDampened(ReferenceTrainer):
    """Dampening acts on the first gradient too."""

    rules = with_rule(SGD, _DampensTheFirst)


class _DecaysWithMomentum(SGDRule):
    def decayed(self, p: Array, g: Array) -> Array:
        return super().decayed(p, g) if self.optimizer.momentum else g


@fault("https://github.com/ml-explore/mlx/pull/473", "optimizer.options")
class DecayNeedsMomentum(ReferenceTrainer):
    """SGD's weight decay has no effect without momentum."""

    rules = with_rule(SGD, _DecaysWithMomentum)


class _Descends(SGDRule):
    def ascent(self, g: Array) -> Array:
        return g


@fault("https://github.com/PaddlePaddle/Paddle/pull/79341", "optimizer.options")
class MaximizationIsIgnored(ReferenceTrainer):
    """Maximization is accepted, and the update goes down the gradient."""

    rules = with_rule(SGD, _Descends)


class _DecaysApart(AdamRule):
    def __call__(self, p: Array, slots: Mapping[str, Array], g: Array, rate: float, count: int) -> tuple[Array, Slots]:
        return self.step(self.r(p * self.r.number(1.0 - rate * self.decay)), slots, self.ascent(g), rate, count)


@fault("https://github.com/flagos-ai/FlagGems/issues/4988", "optimizer.options")
class CoupledDecayIsDecoupled(ReferenceTrainer):
    """Adam's weight decay follows AdamW's rule."""

    rules = with_rule(Adam, _DecaysApart)


class _LosesLargest(AdamRule):
    def largest(self, held: Array, second: Array, correction: float, moved: Slots) -> tuple[Array, float]:
        result = super().largest(held, second, correction, moved)
        moved["largest_second_moment"] = held
        return result


@fault("https://github.com/pytorch/pytorch/issues/78807", "optimizer.options")
class LargestMomentIsNotStored(ReferenceTrainer):
    """AMSGrad takes the larger of two moments and does not store it."""

    rules = with_rule(Adam, _LosesLargest)


class _StartsWithOne(AdagradRule):
    @classmethod
    def start(cls, optimizer: Adagrad, slot: str) -> float:
        del optimizer, slot
        return 1.0


@fault(
    "https://github.com/deeplearning4j/deeplearning4j/issues/953",
    "optimizer.implementations-agree",
    "optimizer.options",
)
class SumOfSquaresStartsWithOne(ReferenceTrainer):
    """Adagrad's sum of squares begins with one, whatever its initial value is."""

    rules = with_rule(Adagrad, _StartsWithOne)


class _KeepsTheRate(AdagradRule):
    def slowed(self, rate: float, count: int) -> float:
        return rate


@fault("https://github.com/eaplatanios/tensorflow_scala/pull/55", "optimizer.options")
class RateDecayIsIgnored(ReferenceTrainer):
    """Adagrad's own decay of the rate has no effect."""

    rules = with_rule(Adagrad, _KeepsTheRate)


class _CentresInPlace(RMSpropRule):
    def step(self, p: Array, slots: Mapping[str, Array], g: Array, rate: float, count: int) -> tuple[Array, Slots]:
        after, moved = super().step(p, slots, g, rate, count)
        if self.optimizer.centred:
            moved["squares"] = self.r(moved["squares"] - self.r(moved["gradients"] * moved["gradients"]))
        return after, moved


@fault("https://github.com/UselessToys/Ecosystem_WebUI/pull/383", "optimizer.options")
class CentringIsStored(ReferenceTrainer):
    """Centred RMSprop subtracts the squared mean from the stored mean of squares itself."""

    rules = with_rule(RMSprop, _CentresInPlace)


@fault("https://github.com/pytorch/pytorch/issues/191763", "optimizer.implementations-agree")
class WholeVectorsStay(ReferenceTrainer):
    """Of a low-precision weight only what is left over by vectors of sixteen is stored."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        before = dict(self.masters)
        super().apply_update(gradients, rate)
        for name in gradients:
            if self.master_formats[name] in ("float16", "bfloat16"):
                after = self.masters[name].copy()
                whole = after.size // 16 * 16
                after.reshape(-1)[:whole] = before[name].reshape(-1)[:whole]
                self.masters[name] = after


@fault("https://github.com/PaddlePaddle/ERNIE/pull/614", "master.decay-of-nobody")
class DecayLeavesNothingOut(ReferenceTrainer):
    """Weight decay acts on the parameters that it is to leave out."""

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


@fault("https://github.com/PaddlePaddle/Paddle/issues/43004", "optimizer.schedules")
class CosineIsOneUpdateAhead(ReferenceTrainer):
    """A cosine gives each update the rate of the next one."""

    def learning_rate(self) -> float:
        schedule = self.recipe.schedule
        if not isinstance(schedule, Cosine):
            return super().learning_rate()
        return self.recipe.optimizer.learning_rate * schedule.factor(self.schedule + 1)


@fault("https://github.com/pytorch/pytorch/issues/129565", "optimizer.schedules")
class RestartsForgetTheChain(ReferenceTrainer):
    """Restarts in chained schedules compute each rate from the first one, without what other parts did before."""

    def factor(self) -> float:
        match self.recipe.schedule:
            case Chained(parts=(CosineRestarts() as restarts, other)) if self.schedule:
                last = other.factor(self.schedule) / other.factor(self.schedule - 1)
                return restarts.factor(self.schedule) * last
            case _:
                return super().factor()


@fault("https://github.com/catalyst-team/catalyst/issues/215", "optimizer.schedules")
class CycleMovesTheMomentumTheOtherWay(ReferenceTrainer):
    """A cycle raises the momentum where it is to lower it."""

    def rule_of(self, name: str) -> UpdateRule:
        rule, schedule = super().rule_of(name), self.recipe.schedule
        if isinstance(schedule, OneCycle) and schedule.momenta is not None:
            turned = self.recipe.replace(schedule=replace(schedule, momenta=schedule.momenta[::-1]))
            rule.optimizer = optimizer_of(turned, self.group_of(name), self.schedule)
        return rule
