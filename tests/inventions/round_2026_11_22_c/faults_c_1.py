"""Faults in what comes back from a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from fixtures.recipe import AdamW
from frameworks.reference import checkpoint
from frameworks.reference.optimizers import Arithmetic, stepper
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault


@fault("https://github.com/ildoonet/pytorch-gradual-warmup-lr/issues/27", clause="resume.bit-identical", kind="real")
class RateFrozenAfterLoad(ReferenceTrainer):
    """The first rate after a load is right, but the schedule then moves an optimizer of the past: the rate stays."""

    frozen = None

    def load_state(self, arrays):
        super().load_state(arrays)
        self.frozen = super().learning_rate()

    def learning_rate(self):
        return super().learning_rate() if self.frozen is None else self.frozen


@fault("https://github.com/NVIDIA-NeMo/Automodel/issues/3882", clause="resume.bit-identical", kind="real")
class DecayBehindAfterLoad(ReferenceTrainer):
    """The first update after a load decays the weights by the schedule's first rate, and moves them right."""

    behind = False

    def load_state(self, arrays):
        super().load_state(arrays)
        self.behind = True

    def apply_update(self, gradients, rate):
        optimizer = self.recipe.optimizer
        if self.behind and isinstance(optimizer, AdamW):
            first = optimizer.learning_rate * (1.0 if self.recipe.schedule is None else self.recipe.schedule.factor(0))
            ratio = (1.0 - first * optimizer.weight_decay) / (1.0 - rate * optimizer.weight_decay)
            for name in gradients if ratio != 1.0 else ():
                self.masters[name] = Arithmetic(self.rounding, self.master_formats[name])(self.masters[name] * ratio)
        self.behind = False
        super().apply_update(gradients, rate)


@fault("https://github.com/facebookresearch/fairscale/issues/380", clause="resume.bit-identical", kind="real")
class MomentsInGroupOrder(ReferenceTrainer):
    """With two groups, moments are written group after group and read in model order, as far as shapes allow it."""

    def load_state(self, arrays):
        names = list(self.masters)
        if self.recipe.groups == 2:
            arrays = dict(arrays)
            written = names[0::2] + names[1::2]
            for slot in self.slots:
                former = {name: arrays[f"slot.{slot}/{name}"] for name in names}
                for shape in {value.shape for value in former.values()}:
                    sources = [name for name in written if former[name].shape == shape]
                    targets = [name for name in names if former[name].shape == shape]
                    for source, target in zip(sources, targets, strict=True):
                        arrays[f"slot.{slot}/{target}"] = former[source]
        super().load_state(arrays)


@fault("https://github.com/pytorch/pytorch/issues/75224", clause="master.counts-every-update", kind="real")
class CountCastOnLoad(ReferenceTrainer):
    """A load brings the count of updates into the format of the parameter that it belongs to."""

    def load_state(self, arrays):
        super().load_state(arrays)
        for name, count in self.counts.items():
            self.counts[name] = int(self.rounding.round(np.asarray(float(count)), self.master_formats[name]))


@fault("https://github.com/pytorch/torchtitan/pull/4615", clause="master.moments-keep-precision", kind="real")
class MomentsWidenOnLoad(ReferenceTrainer):
    """Moments that are declared low are float32 from a load on, so that the resumed run rounds them no more."""

    loaded = False

    def load_state(self, arrays):
        super().load_state(arrays)
        self.loaded = True

    def apply_update(self, gradients, rate):
        wide = {}
        for name, gradient in gradients.items() if self.loaded and self.recipe.precision.level == "O3" else ():
            step = stepper(self.recipe.optimizer, self.conventions, Arithmetic(self.rounding, "float32"))
            slots = {slot: values[name] for slot, values in self.slots.items()}
            taken = self.as_applied(name, gradient)
            wide[name] = step(self.masters[name], slots, taken, rate, self.counts[name] + 1)[1]
        super().apply_update(gradients, rate)
        for name, moved in wide.items():
            for slot, value in moved.items():
                if self.master_formats[name] not in ("float32", "float64"):
                    self.slots[slot][name] = value


@fault("https://github.com/pytorch/pytorch/issues/196083", clause="resume.bit-identical", kind="real")
class CheckpointAliased(ReferenceTrainer):
    """A checkpoint is kept in memory once it was read, and moments are updated in place: a second load of it gets the
    moments as the run after the first load has left them.
    """

    kept: ClassVar[dict] = {}

    def restore(self, path: Path) -> None:
        arrays = checkpoint.read(path, self._identity(), self.save_state())
        key = str(path.resolve()), (path / checkpoint.FILE).stat().st_mtime_ns
        if key not in self.kept:
            self.kept.clear()
            self.kept[key] = arrays
        self.load_state(self.kept[key])

    def apply_update(self, gradients, rate):
        held = {slot: dict(values) for slot, values in self.slots.items()}
        super().apply_update(gradients, rate)
        for slot, values in held.items():
            for name, value in values.items():
                np.copyto(value, self.slots[slot][name])
                self.slots[slot][name] = value


@fault("https://github.com/NVIDIA/apex/pull/132", clause="autocast.cast-is-fresh", kind="real")
class CastsOutliveLoad(ReferenceTrainer):
    """At O1, an evaluation caches casts of the weights; only an update drops them, so that the first training pass
    after a load uses those from before it.
    """

    casts = None

    def predict(self, inputs):
        if self.recipe.precision.level == "O1":
            self.casts = dict(self.values)
        return super().predict(inputs)

    def apply(self):
        self.casts = None
        return super().apply()

    def _backward(self, batch, items):
        casts, self.casts = self.casts, None
        if casts is None:
            return super()._backward(batch, items)
        current, self.values = self.values, casts
        try:
            return super()._backward(batch, items)
        finally:
            self.values = current


@fault("", clause="resume.mid-window", kind="invented")
class MidWindowItemsLost(ReferenceTrainer):
    """After a load inside a window, each earlier micro-batch counts as many items as the whole window has in the loss
    that is reported.
    """

    def load_state(self, arrays):
        super().load_state(arrays)
        self.window.losses = [(total, self.window.items) for total, _ in self.window.losses]


@fault("", clause="resume.other-format-is-refused", kind="invented")
class HalvesAreAlike(ReferenceTrainer):
    """A checkpoint says how wide its weights are but not in which format: bfloat16 runs load float16 ones."""

    def _identity(self):
        return super()._identity().replace("bfloat16", "float16")
