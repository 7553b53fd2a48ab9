"""Faults of the moving average of the weights: when it moves, how it is kept, and what evaluation does with it."""

from __future__ import annotations

from fixtures.arrays import Array
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.scaler import LossScale
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault(
    "https://github.com/SWivid/F5-TTS/issues/631",
    "accumulation.nothing-before-boundary",
    "accumulation.once-per-window",
)
class MovesWithEveryMicroBatch(ReferenceTrainer):
    """The average takes in the weights with every micro-batch of a window."""

    def take_micro_batch(self, gradients: Arrays) -> None:
        super().take_micro_batch(gradients)
        if self.window.micro_batches < self.recipe.accumulation:
            self.move_average()


@fault("https://github.com/NVIDIA-NeMo/Speech/pull/5169", "master.average-follows-updates")
class MovesBeforeTheUpdate(ReferenceTrainer):
    """The average takes in the weights that the update is about to replace."""

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        former = dict(self.masters)
        super().apply_update(gradients, rate)
        later, self.masters = self.masters, former
        super().move_average()
        self.masters = later

    def move_average(self) -> None:
        pass


@fault("https://github.com/PaddlePaddle/Paddle/pull/22130", "master.average-follows-updates")
class StartsFromZeros(ReferenceTrainer):
    """The first update is averaged with zeros, and nothing corrects for them."""

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
    """The moving average takes the weights in once more when the update was skipped."""

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        if not finite:
            self.move_average()
        return super().next_scale(scaler, finite)


# how it is kept


@fault("https://github.com/d8ahazard/sd_dreambooth_extension/pull/1417", "master.average-keeps-precision")
class KeptInTheComputeFormat(ReferenceTrainer):
    """The average is kept in the recipe's low-precision format."""

    def average_format(self, name: str) -> str:
        return self.recipe.precision.format


@fault("https://github.com/ai2cm/ace/issues/349", "resume.bit-identical")
class AverageIsNotSaved(ReferenceTrainer):
    """After a load the average begins again at the weights."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        if self.averages:
            self.averages = dict(self.masters)


# what evaluation does with it


@fault("https://github.com/keras-team/keras/issues/18949", "master.average-is-evaluated")
class EvaluatesTheWeights(ReferenceTrainer):
    """Evaluation with the average runs on the weights."""

    def averaged(self, name: str) -> Array:
        return self.values[name]


@fault("https://github.com/harubaru/waifu-diffusion/pull/31", "accumulation.evaluation-changes-nothing")
class WeightsAreNotPutBack(ReferenceTrainer):
    """Evaluation with the average leaves the average in the model, and training goes on from there."""

    def predict_averaged(self, inputs: Array) -> Arrays:
        outputs = super().predict_averaged(inputs)
        self.masters = dict(self.averages)
        self.sync_masters()
        return outputs
