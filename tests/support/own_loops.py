"""The training loop of `conformance new loop` with mistakes that users make, and devices that are not there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.models import blocks
from fixtures.recipe import Recipe
from frameworks.contract import SUPPORTED, Capability, Declaration, Update
from frameworks.reference import ReferenceFramework
from frameworks.reference.training.trainer import ReferenceTrainer
from tests.support.suite_runs import ROOT

SOURCE = (ROOT / "frameworks" / "torch" / "template" / "my_training.py").read_text("utf-8")
_ZERO, _TRAIN, _SCHEDULED = (
    "        self.optimizer.zero_grad()\n",
    "        self.network.train()\n",
    "if self.scheduler and self.scaler.get_scale() >= scale:",
)
_FORWARD = "        with torch.autocast(self.recipe.device"
_MEAN_OF_MEANS = (
    (
        "        self.network, self.recipe = network, recipe\n",
        "        self.network, self.recipe, self.count = network, recipe, 0\n",
    ),
    (
        "self.scaler.scale(losses.sum() / items).backward()",
        "self.scaler.scale(losses.mean()).backward()\n        self.count += 1",
    ),
    (
        "        scale, norm = self.scaler.get_scale(), None\n",
        "        scale, norm = self.scaler.get_scale(), None\n"
        "        for parameter in self.network.parameters():\n"
        "            if parameter.grad is not None:\n"
        "                parameter.grad /= self.count\n"
        "        self.count = 0\n",
    ),
)
_NOTHING_OPTIONAL = (SOURCE[SOURCE.index("    def predict") :], "")
MISTAKES: dict[str, tuple[tuple[str, str], ...]] = {
    "mean-of-means": _MEAN_OF_MEANS,
    "last-window-divided-by-k": (("losses.sum() / items", "losses.mean() / self.recipe.accumulation"),),
    "clip-before-unscale": (("            self.scaler.unscale_(self.optimizer)\n", ""),),
    "misplaced-zero-grad": ((_ZERO, ""), (_FORWARD, f"{_ZERO}{_FORWARD}")),
    "schedule-steps-on-a-skip": ((_SCHEDULED, "if self.scheduler:"),),
    "evaluation-mode-left-on": ((_TRAIN, ""),),
    "scaler-not-saved": ((', "scaler": self.scaler}', "}"),),
}
"""Lines of the loop and what stands in their place, by mistake."""

RIGHT: dict[str, tuple[tuple[str, str], ...]] = {
    "as-written": (),
    "divides-in-step": tuple(
        (old, new.replace("losses.mean()", "losses.sum()").replace("self.count += 1", "self.count = items"))
        for old, new in _MEAN_OF_MEANS
    ),
    "ignores-nothing": (
        (
            "        self.scaler = torch.amp",
            "        decay = recipe.average\n"
            "        self.average = decay and torch.optim.swa_utils.AveragedModel(\n"
            "            network, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay))\n"
            "        self.scaler = torch.amp",
        ),
        (
            "            losses = self.network(inputs, targets)\n",
            "            if self.recipe.recompute:\n"
            "                again = torch.utils.checkpoint.checkpoint\n"
            "                losses = again(self.network, inputs, targets, use_reentrant=False)\n"
            "            else:\n"
            "                losses = self.network(inputs, targets)\n",
        ),
        ("self.scaler.update()", "self.scaler.update(self.recipe.static_scale)"),
        (
            "        self.scaler.step(self.optimizer)\n",
            "        applied = []\n"
            "        hook = self.optimizer.register_step_post_hook(lambda *_: applied.append(True))\n"
            "        self.scaler.step(self.optimizer)\n"
            "        hook.remove()\n",
        ),
        (
            _SCHEDULED,
            "if self.average and applied:\n"
            "            self.average.update_parameters(self.network)\n"
            "        if self.scheduler and applied:",
        ),
        _NOTHING_OPTIONAL,
    ),
    "three-methods": (_NOTHING_OPTIONAL,),
}
"""The same for loops that are right."""


def replace_lines(*changes: Iterable[tuple[str, str]]) -> str:
    """The source of the loop with these lines replaced.

    Raises:
        ValueError: a line is not there, or is there several times.
    """
    text = SOURCE
    for old, new in (pair for change in changes for pair in change):
        if text.count(old) != 1:
            raise ValueError(f"the loop has {text.count(old)} times {old!r}")
        text = text.replace(old, new)
    return text


def technique_of(recipe: Recipe) -> str:
    """ "mixed", "recomputed", "accumulated" or "plain"."""
    if recipe.precision.level != "O0":
        return "mixed"
    if recipe.recompute is not None:
        return "recomputed"
    return "accumulated" if recipe.accumulation > 1 else "plain"


class DeviceTrainer(ReferenceTrainer):
    """A run whose updates take the device's time and whose micro-batches fill its memory; its first one is real."""

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
    """Mixed precision is twice as fast, TensorFloat-32 nearly, and a recomputed forward pass costs a third."""

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
        """One update, a millisecond in float32 with 0.1 % of noise."""
        factor = (
            self.times.get(technique, 1.0) if technique == "mixed" else self.float32 * self.times.get(technique, 1.0)
        )
        self.now += 1e-3 * pace * factor * self.noise.normal(1.0, 0.001)

    def device_bytes(self, run: ReferenceTrainer, batch: Batch) -> int:
        """Bytes at most of one micro-batch: what is counted, the largest segment's, and two activations to work in."""
        count = run.saved_bytes(batch)
        width, recompute = run.masters["0.bias"].size, run.recipe.recompute
        if recompute is not None:
            equal = blocks((len(run.model.layers) - 1) // 2 // recompute.segments, width, run.model.sample[0])
            apart = [run.recipe.replace(recompute=None), run.recipe.replace(recompute=type(recompute)(1))]
            segment = [ReferenceFramework("cpu").trainer(equal, recipe).saved_bytes(batch) for recipe in apart]
            count += segment[0] - segment[1]
        return round(count * self.peaks.get(technique_of(run.recipe), 1.0)) + 2 * 4 * len(batch) * width


class KeepsFloat32(Device):
    """Beside what mixed precision holds, half of it is held in float32."""

    peaks: ClassVar[Mapping[str, float]] = {"mixed": 2.0}


class KeepsSegments(Device):
    """Recomputed segments keep their activations."""

    peaks: ClassVar[Mapping[str, float]] = {"recomputed": 2.6}


class KeepsMicroBatches(Device):
    """What a window's micro-batches hold is given back at its end."""

    peaks: ClassVar[Mapping[str, float]] = {"accumulated": 8.0}


class NoPeak(Device):
    """Its allocator tells the weights alone."""

    def device_bytes(self, run: ReferenceTrainer, batch: Batch) -> int:
        del run, batch
        return 0
