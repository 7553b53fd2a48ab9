"""Faults of checkpoints and of what follows a load."""

from __future__ import annotations

from pathlib import Path

from fixtures.arrays import Array
from fixtures.recipe import SGD
from frameworks.reference.tensor import Tensor
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault


@fault("https://github.com/pytorch/pytorch/issues/60265", clause="resume.bit-identical", kind="real")
class RateFromRate(ReferenceTrainer):
    """After a load the schedule takes the rate that it had come down to for its base, and lowers it once more."""

    _lowered = 1.0

    def load_state(self, arrays: dict[str, Array]) -> None:
        super().load_state(arrays)
        if self.recipe.schedule is not None:
            self._lowered = self.recipe.schedule.factor(self.schedule)

    def learning_rate(self) -> float:
        return super().learning_rate() * self._lowered


@fault("https://github.com/NVIDIA/Megatron-LM/pull/5976", clause="resume.load-has-no-side-effects", kind="real")
class MaterialisingStep(ReferenceTrainer):
    """A load first makes the moments by an update of zeros, which stays counted where the checkpoint has none."""

    def load_state(self, arrays: dict[str, Array]) -> None:
        super().load_state(arrays)
        if not isinstance(self.recipe.optimizer, SGD):
            self.counts = {name: max(count, 1) for name, count in self.counts.items()}


@fault("https://github.com/huggingface/accelerate/issues/4283", clause="resume.random-state", kind="real")
class StreamNotRewound(ReferenceTrainer):
    """A random stream that is already past the saved place cannot be set back, and the failure is swallowed."""

    def load_state(self, arrays: dict[str, Array]) -> None:
        before = self.draws
        super().load_state(arrays)
        self.draws = max(before, self.draws)


@fault("", clause="resume.refusal-changes-nothing", kind="invented")
class ClearsBeforeReading(ReferenceTrainer):
    """A restore empties the open window before it reads the file, also when it then refuses the file."""

    def restore(self, path: Path) -> None:
        self.empty_accumulator()
        super().restore(path)


@fault("", clause="resume.mid-window", kind="invented")
class SavedAlready(ReferenceTrainer):
    """A second save to one folder is passed over in silence as long as no update was made since the first."""

    _saved: dict[str, int] | None = None

    def save(self, path: Path) -> None:
        self._saved = self._saved or {}
        if self._saved.get(str(path)) == self.steps:
            return
        super().save(path)
        self._saved[str(path)] = self.steps


@fault("", clause="resume.save-has-no-side-effects", kind="invented")
class SaveUnscales(ReferenceTrainer):
    """A save inside a window divides the gradients that it holds by the scale and does not note that it did."""

    def save(self, path: Path) -> None:
        window = self.window
        if self.scaler is not None and not window.unscaled:
            window.gradients = {name: self.unscale(name, g) for name, g in window.gradients.items()}
        super().save(path)


@fault("", clause="autocast.cast-is-fresh", kind="invented")
class CastByStep(ReferenceTrainer):
    """Mixed-precision evaluation keeps its weights until the step counter moves, also over a load at the same count."""

    _cast: tuple[int, dict[str, Tensor]] | None = None

    def _tensors(self) -> dict[str, Tensor]:
        if self.recipe.precision.level == "O0":
            return super()._tensors()
        if self._cast is None or self._cast[0] != self.steps:
            self._cast = self.steps, super()._tensors()
        return self._cast[1]
