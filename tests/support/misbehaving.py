"""Twins of the reference: frameworks that misbehave, and devices whose times and bytes are known."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.models import blocks
from fixtures.recipe import Recipe
from frameworks.contract import SUPPORTED, Attempt, Capability, Declaration, Unsupported, Update
from frameworks.reference import ReferenceFramework
from frameworks.reference.training.trainer import ReferenceTrainer


class Unnamed(ReferenceFramework):
    """Has no version."""

    def version(self) -> str:
        raise ZeroDivisionError("no version")


class Leaky(ReferenceFramework):
    """Every new trainer changes a process-wide counter."""

    trainers: ClassVar[int] = 0

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        type(self).trainers += 1
        return super().trainer(model, recipe, weights)

    def global_state(self) -> dict[str, str]:
        return {**super().global_state(), "trainers": str(self.trainers)}

    def restore_global_state(self, state: Mapping[str, str]) -> None:
        super().restore_global_state(state)
        type(self).trainers = int(state["trainers"])


class Refusing(ReferenceFramework):
    """Declares that it does not clip, and refuses schedules that it declares to follow."""

    def declares(self, capability: Capability) -> Declaration:
        if capability is Capability.CLIP:
            return Declaration(False, "gradients are never clipped here")
        return super().declares(capability)

    def attempts(self) -> Mapping[Capability, Attempt]:
        return {**super().attempts(), Capability.CLIP: bool}

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        if recipe.schedule is not None:
            raise Unsupported(Capability.SCHEDULE, "schedules are not followed after all")
        return super().trainer(model, recipe, weights)


class Restless(ReferenceFramework):
    """Every run starts with other weights."""

    _runs = 0

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        self._runs += 1
        initial_weights = model.weights(recipe.seed) if weights is None else weights
        factor = 1.0 + self._runs / 1024.0
        moved = {name: (value * factor).astype(value.dtype) for name, value in initial_weights.items()}
        return super().trainer(model, recipe, moved)


class AbortingAtOnce(ReferenceFramework):
    """Making a trainer aborts the process."""

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        os.abort()


class Flaky(ReferenceFramework):
    """Is wrong in the first run and right in later ones; the file named by FLAKY stores the first one."""

    def steady(self) -> bool:
        """Whether this process belongs to a later run than the first."""
        path = Path(os.environ["FLAKY"])
        if not path.exists():
            path.write_text(str(os.getppid()))
        return path.read_text() != str(os.getppid())


def technique_of(recipe: Recipe) -> str:
    """ "mixed", "recomputed", "accumulated" or "plain"."""
    if recipe.precision.level != "O0":
        return "mixed"
    if recipe.recompute is not None:
        return "recomputed"
    return "accumulated" if recipe.accumulation > 1 else "plain"


class DeviceTrainer(ReferenceTrainer):
    """A run that simulates the device's time and memory; only its first update is computed."""

    framework: Device
    pace = 1.0
    first_update: Update | None = None

    def update(self, window: Window) -> Update:
        self.framework.pass_time(self.pace, technique_of(self.recipe))
        self.last = window[-1]
        self.first_update = self.first_update or super().update(window)
        return self.first_update

    def peak_bytes(self) -> int:
        return sum(4 * value.size for value in self.masters.values()) + self.framework.device_bytes(self, self.last)


TIMES = {"mixed": 0.5, "recomputed": 1.33}
"""Of a step with a technique, by that of a plain one."""


class Device(ReferenceFramework):
    """A device on which mixed precision takes half the time, and recomputation a third more."""

    trainer_class = DeviceTrainer
    peaks: ClassVar[Mapping[str, float]] = {}
    """What a technique's bytes are multiplied with."""

    def __init__(
        self, device: str = "cuda", mode: str | None = None, times: Mapping[str, float] = TIMES, drift: float = 0.0
    ) -> None:
        """`times`: by technique. `drift`: by what share each new run is slower than the one before."""
        super().__init__(device, mode)
        self.times, self.drift = times, drift
        self.now, self.float32, self.pace = 0.0, 1.0, 1.0
        self.noise = np.random.default_rng(0)
        self.scopes: list[bool | None] = []

    def devices(self) -> tuple[str, ...]:
        return ("cpu", "cuda")

    def declares(self, capability: Capability) -> Declaration:
        return SUPPORTED if capability in (Capability.PEAK_BYTES, Capability.TF32) else super().declares(capability)

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        trainer = super().trainer(model, recipe, weights)
        assert isinstance(trainer, DeviceTrainer)
        trainer.framework, trainer.pace = self, self.pace
        self.pace *= 1.0 + self.drift
        return trainer

    @contextmanager
    def tf32(self, allowed: bool | None) -> Iterator[None]:
        self.scopes.append(allowed)
        former, self.float32 = self.float32, 0.6 if allowed else 1.0
        yield
        self.float32 = former

    def measure_time(self, work: Callable[[], object]) -> int:
        begin = self.now
        work()
        return round(1e9 * (self.now - begin))

    def pass_time(self, pace: float, technique: str) -> None:
        """Time of one update: a millisecond in float32 with 0.1 % of noise."""
        factor = (
            self.times.get(technique, 1.0) if technique == "mixed" else self.float32 * self.times.get(technique, 1.0)
        )
        self.now += 1e-3 * pace * factor * self.noise.normal(1.0, 0.001)

    def device_bytes(self, run: ReferenceTrainer, batch: Batch) -> int:
        """Peak bytes of one micro-batch: the counted ones, the largest segment and two activations."""
        count = run.saved_bytes(batch)
        width, recompute = run.masters["0.bias"].size, run.recipe.recompute
        if recompute is not None:
            equal = blocks((len(run.model.layers) - 1) // 2 // recompute.segments, width, run.model.sample[0])
            recipes = [run.recipe.replace(recompute=None), run.recipe.replace(recompute=type(recompute)(1))]
            segment = [ReferenceFramework("cpu").trainer(equal, recipe).saved_bytes(batch) for recipe in recipes]
            count += segment[0] - segment[1]
        return round(count * self.peaks.get(technique_of(run.recipe), 1.0)) + 2 * 4 * len(batch) * width


class KeepsFloat32(Device):
    """Under mixed precision half of the activations are saved in float32 too."""

    peaks: ClassVar[Mapping[str, float]] = {"mixed": 2.0}


class KeepsSegments(Device):
    """Recomputed segments keep their activations."""

    peaks: ClassVar[Mapping[str, float]] = {"recomputed": 2.6}


class KeepsMicroBatches(Device):
    """Activations of micro-batches are freed at the end of the window."""

    peaks: ClassVar[Mapping[str, float]] = {"accumulated": 8.0}


class NoPeak(Device):
    """The reported peak is the bytes of the weights."""

    def device_bytes(self, run: ReferenceTrainer, batch: Batch) -> int:
        del run, batch
        return 0
