"""Held-out faults of resume: their authors knew the specification and had not seen the suites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import ml_dtypes
import numpy as np

from fixtures.arrays import FORMATS, Array
from fixtures.layers import Dropout, Layer
from fixtures.model import Batch, Model
from fixtures.recipe import SGD, Adam, AdamW, Offload, Recipe
from frameworks.contract import Conventions, Update
from frameworks.reference import ReferenceFramework, checkpoint, scope
from frameworks.reference.arithmetic import Operations
from frameworks.reference.decisions import Arrays
from frameworks.reference.forward import Layers
from frameworks.reference.network import Pass
from frameworks.reference.offload import Activations, ArrayStore, HostStore
from frameworks.reference.optimizers import Arithmetic, stepper
from frameworks.reference.rank_trainer import COUNT, saved_count
from frameworks.reference.ranks import ReferenceCompany
from frameworks.reference.scaler import LossScale
from frameworks.reference.tensor import Tensor
from frameworks.reference.trainer import ReferenceTrainer
from tests.faults import fault


@fault("https://github.com/m2lines/Samudra/issues/282", component="checkpoint", clauses=("resume.bit-identical",))
class AverageRestartsAfterLoad(ReferenceTrainer):
    """The number of updates that the average has taken in is not restored: it comes back whole, and the first update
    after the load replaces it with a copy of the weights."""

    _anew = False

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self._anew = True

    def move_average(self) -> None:
        if self._anew and self.averages:
            self.averages = dict(self.masters)
        else:
            super().move_average()
        self._anew = False


@fault("", component="save", clauses=("resume.mid-window",))
class SavedOncePerUpdate(ReferenceTrainer):
    """A second save into the same folder before the next applied update is left out, whatever has been accumulated or
    skipped since the first."""

    _saved_at: tuple[Path, int] | None = None

    def save(self, path: Path) -> None:
        if self._saved_at == (path, self.steps) and (path / checkpoint.FILE).exists():
            return
        super().save(path)
        self._saved_at = (path, self.steps)


@fault("", component="checkpoint", clauses=("resume.restored-is-complete",))
class LoadedWindowLooksEmpty(ReferenceTrainer):
    """A load inside a window brings the gradients back, not how many micro-batches they are from: to end the window
    right after it is refused as if nothing had been accumulated."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.window.micro_batches = 0


class _Undropped(Pass):
    """A forward pass that leaves dropout out."""

    def layer(self, path: str, layer: Layer, x: Tensor) -> Tensor:
        return x if isinstance(layer, Dropout) else super().layer(path, layer, x)


@fault("https://github.com/NVIDIA/Megatron-LM/pull/411", component="checkpoint", clauses=("resume.bit-identical",))
class DropoutOffForGood(ReferenceTrainer):
    """An evaluation sets the rate of dropout to zero, and nothing sets it back when training goes on."""

    _evaluated_once = False

    def predict(self, inputs: Array) -> Arrays:
        self._evaluated_once = True
        return super().predict(inputs)

    def _pass(self, parameters: Any, training: bool) -> Pass:
        kind = _Undropped if self._evaluated_once else Pass
        return kind(self.ops, parameters, self, training)


@fault(
    "https://github.com/atomistic-machine-learning/schnetpack/pull/785",
    component="checkpoint",
    clauses=("resume.bit-identical",),
)
class AverageInWeightsPlace(ReferenceTrainer):
    """A checkpoint that is written right after an evaluation with the average holds the average for the weights."""

    swapped = False

    def predict_averaged(self, inputs: Array) -> Arrays:
        outputs = super().predict_averaged(inputs)
        self.swapped = True
        return outputs

    def _open(self, items: int) -> None:
        self.swapped = False
        super()._open(items)

    def save_state(self) -> Arrays:
        arrays = super().save_state()
        if self.swapped:
            for name, average in self.averages.items():
                arrays[f"master/{name}"] = self.rounding.round(average, self.master_formats[name])
                arrays[f"value/{name}"] = self.averaged(name)
        return arrays


@fault("https://github.com/mflux-community/mflux/pull/603", component="save", clauses=("resume.bit-identical",))
class OlderPartsSurvive(ReferenceTrainer):
    """A save into a folder that holds a checkpoint leaves the older one's arrays that the newer one has no use for."""

    def save(self, path: Path) -> None:
        try:
            older = checkpoint.read(path, self._identity(), {})
        except ValueError:
            older = {}
        checkpoint.write(path, older | self.save_state(), self._identity())


@fault(
    "https://github.com/koda-dernet/Side-Step/pull/38", component="checkpoint", clauses=("resume.restored-is-complete",)
)
class AverageAsleepAfterLoad(ReferenceTrainer):
    """After a load, evaluation with the average uses the plain weights until an update has moved the average."""

    asleep = False

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.asleep = True

    def move_average(self) -> None:
        super().move_average()
        self.asleep = False

    def averaged(self, name: str) -> Array:
        return self.values[name] if self.asleep else super().averaged(name)


@fault(
    "https://github.com/victorchall/EveryDream2trainer/pull/246",
    component="checkpoint",
    clauses=("resume.bit-identical",),
)
class NoRecomputationAfterEvaluation(ReferenceTrainer):
    """Recomputation heeds a mode that an evaluation switches off and the end of the next window switches on."""

    evaluated = False

    def predict(self, inputs: Array) -> Arrays:
        outputs = super().predict(inputs)
        self.evaluated = True
        return outputs

    def apply(self) -> Update:
        self.evaluated = False
        return super().apply()

    def _segment(self, index: int, layers: Layers, parameters: Any, x: Tensor) -> Tensor:
        if not self.evaluated:
            return super()._segment(index, layers, parameters, x)
        self.calls[index] += 1
        return self._pass(parameters, True).layers(layers, x)


@fault(
    "https://github.com/NVIDIA-NeMo/Automodel/issues/3882", component="checkpoint", clauses=("resume.bit-identical",)
)
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


@fault("https://github.com/pytorch/torchtitan/pull/4615", component="checkpoint", clauses=("resume.bit-identical",))
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


@fault("https://github.com/pytorch/pytorch/issues/196083", component="load", clauses=("resume.bit-identical",))
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


@fault("https://github.com/NVIDIA/Megatron-LM/pull/7468", component="checkpoint", clauses=("resume.mid-window",))
class DecayIsStaleAfterLoad(ReferenceTrainer):
    """The first update after a load decays the weights by the base learning rate instead of the schedule's."""

    stale = False

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.stale = True

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        optimizer, recipe = self.recipe.optimizer, self.recipe
        if self.stale and rate and isinstance(optimizer, AdamW):
            decay = optimizer.weight_decay * optimizer.learning_rate / rate
            self.recipe = recipe.but(optimizer=replace(optimizer, weight_decay=decay))
        self.stale = False
        super().apply_update(gradients, rate)
        self.recipe = recipe


@fault("https://github.com/meta-pytorch/botorch/issues/1471", component="checkpoint", clauses=("resume.bit-identical",))
class LoadKeepsCachedWeights(ReferenceTrainer):
    """Evaluation keeps its copies of the weights until the next update; a load does not drop them."""

    cached: dict[str, Tensor] | None = None

    def predict(self, inputs: Array) -> dict[str, Array]:
        if self.cached is None:
            self.cached = self._tensors()
        return self._evaluated(self.cached, inputs)

    def apply(self) -> Update:
        update = super().apply()
        self.cached = None
        return update


@fault("", component="checkpoint", clauses=("resume.bit-identical",))
class LoadKeepsOpenWindow(ReferenceTrainer):
    """Loading a checkpoint without an open window leaves in the accumulator what the run had gathered in its own."""

    def load_state(self, arrays: dict[str, Array]) -> None:
        former = self.window.gradients
        super().load_state(arrays)
        if not self.window.micro_batches:
            self.window.gradients = dict(former)


@fault("", component="checkpoint", clauses=("resume.mid-window",))
class SecondGroupDecaysByDefault(ReferenceTrainer):
    """After a load the second parameter group of AdamW decays by 0.01, whatever the recipe says."""

    loaded = False

    def load_state(self, arrays: dict[str, Array]) -> None:
        super().load_state(arrays)
        self.loaded = True

    def apply_update(self, gradients: dict[str, Array], rate: float) -> None:
        recipe, steps = self.recipe, self.steps
        if not (self.loaded and recipe.groups == 2 and isinstance(recipe.optimizer, AdamW)):
            return super().apply_update(gradients, rate)
        super().apply_update({n: g for n, g in gradients.items() if self._places[n] % 2 == 0}, rate)
        self.recipe, self.steps = recipe.but(optimizer=replace(recipe.optimizer, weight_decay=0.01)), steps
        super().apply_update({n: g for n, g in gradients.items() if self._places[n] % 2}, rate)
        self.recipe = recipe
        return None


@fault(
    "https://github.com/vllm-project/speculators/pull/899", component="checkpoint", clauses=("resume.bit-identical",)
)
class CountsSavedInBfloat16(ReferenceTrainer):
    """A checkpoint holds the counts that Adam's bias correction reads in bfloat16: beyond 256 they are rounded."""

    def save_state(self) -> Arrays:
        arrays = super().save_state()
        return arrays | {"counts": arrays["counts"].astype(ml_dtypes.bfloat16).astype(np.int64)}


@fault("https://github.com/google/flax/pull/1120", component="save", clauses=("resume.bit-identical",))
class NewerCheckpointStays(ReferenceTrainer):
    """A save into a folder that holds a checkpoint of more updates writes nothing and says nothing."""

    def save(self, path: Path) -> None:
        try:
            there = checkpoint.read(path, self._identity(), self.save_state())
        except ValueError:
            there = None
        if there is None or int(there["counters"][0]) <= self.steps:
            super().save(path)


@fault("https://github.com/vllm-project/speculators/pull/411", component="load", clauses=("resume.bit-identical",))
class CountsComeBackInTheWeightsFormat(ReferenceTrainer):
    """A load rounds each parameter's count of updates, which Adam's bias correction reads, to the format that the model
    stores the parameter in (and to its largest number)."""

    def restore(self, path: Path) -> None:
        super().restore(path)
        for name, count in self.counts.items():
            held = np.asarray(min(float(count), FORMATS[self.formats[name]].largest))
            self.counts[name] = int(self.rounding.round(held, self.formats[name]))


@fault("https://github.com/PaddlePaddle/PaddleFormers/pull/2680", component="save", clauses=("resume.mid-window",))
class SavesInMemoryOrder(ReferenceTrainer):
    """A save writes the entries of weights and masters in the order in which they lie in memory, so that those that a
    run was given transposed, and has not updated yet, come back permuted."""

    def save(self, path: Path) -> None:
        arrays = self.save_state()
        for group, held in (("value", self.values), ("master", self.masters)):
            arrays |= {f"{group}/{name}": v.ravel(order="K").reshape(v.shape) for name, v in held.items()}
        checkpoint.write(path, arrays, self._identity())


@fault("https://github.com/vllm-project/speculators/pull/411", component="load", clauses=("resume.bit-identical",))
class LoadRoundsCountsToModelFormat(ReferenceTrainer):
    """A load rounds each parameter's count of updates to the format that the model stores the parameter in, so that a
    count beyond what this format holds as a whole number (256 in bfloat16) comes back as another one."""

    def restore(self, path: Path) -> None:
        super().restore(path)
        self.counts = {
            name: int(self.rounding.round(np.asarray(count, np.float64), self.formats[name]))
            for name, count in self.counts.items()
        }


@fault("https://github.com/huggingface/diffusers/issues/14769", component="save", clauses=("resume.mid-window",))
class SaveKeepsWhatAnEarlierOneLeft(ReferenceTrainer):
    """A save over an earlier one of the same run leaves those arrays of it in place that the new one has none for: one
    that was made inside a window leaves its accumulated gradients to one between windows, and a load has them."""

    def save(self, path: Path) -> None:
        try:
            former: Mapping[str, Array] = checkpoint.read(path, self._identity(), {})
        except ValueError:
            former = {}
        checkpoint.write(path, {**former, **self.save_state()}, self._identity())


class _NewRanksBeginAnew(ReferenceCompany):
    def restore(self, path: Path) -> None:
        super().restore(path)
        for trainer in self.trainers[saved_count(path / COUNT) :]:
            trainer.draws = 0


@fault("https://github.com/TensorAuto/OpenTau/pull/180", component="checkpoint", clauses=("resume.random-state",))
class NewRanksBeginTheirStreamAnew(ReferenceFramework):
    """Where a run goes on with more ranks than saved it, the ranks that were not there before begin the stream of
    dropout from its start instead of going on with a saved one."""

    company_class = _NewRanksBeginAnew


@fault("https://github.com/huggingface/transformers/pull/31800", component="memory", clauses=("resume.truncated-file",))
class RunsShareTheirHostStore(ReferenceTrainer):
    """Runs of one model, without ranks, that are alive at once and offload parameters or moments to the host keep
    them under the same names in one store, where each overwrites the other's."""

    _stores: ClassVar[WeakValueDictionary[Model, HostStore]] = WeakValueDictionary()

    def __init__(
        self,
        model: Model,
        recipe: Recipe,
        conventions: Conventions,
        ops: Operations,
        weights: Mapping[str, Array] | None = None,
    ) -> None:
        super().__init__(model, recipe, conventions, ops, weights)
        if self.activations is not None and recipe.offload is not None and recipe.offload.to == "host":
            self.activations = Activations(super().make_store(recipe.offload))

    def make_store(self, offload: Offload) -> ArrayStore:
        if offload.to != "host" or self.recipe.ranks is not None:
            return super().make_store(offload)
        return self._stores.setdefault(self.model, HostStore())


@fault("", component="checkpoint", clauses=("resume.bit-identical",))
class OverflowTakesTheGrowthBack(ReferenceTrainer):
    """An overflow right after the scale grew divides it by the growth factor instead of multiplying by the backoff."""

    grew = False

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        moved = super().next_scale(scaler, finite)
        if self.grew and not finite:
            moved = moved.at(float(np.float32(scaler.scale / scaler.growth)), 0)
        self.grew = finite and moved.scale > scaler.scale
        return moved


@fault("https://github.com/lightly-ai/lightly-train/pull/892", component="checkpoint", clauses=("resume.mid-window",))
class AverageStartsAnewAfterLoad(ReferenceTrainer):
    """The average's own count of updates is not in the save, so that the first update after a load copies the weights
    over the average that was loaded.
    """

    _first = False

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self._first = True

    def move_average(self) -> None:
        super().move_average()
        if self._first and self.recipe.average is not None:
            self.averages = dict(self.masters)
        self._first = False


@fault("https://github.com/NVIDIA/apex/pull/132", component="memory", clauses=("resume.bit-identical",))
class CastsOutliveALoad(ReferenceTrainer):
    """At level O1 evaluation keeps its casts of the weights until the next training pass, and a load does not drop
    them: the prediction right after a load is that of the weights before it.
    """

    _casts: Arrays | None = None

    def passed(self, batch: Batch, items: int) -> tuple[float, Arrays]:
        self._casts = None
        return super().passed(batch, items)

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        self._casts = None
        super().apply_update(gradients, rate)

    def predict(self, inputs: Array) -> Arrays:
        if self.recipe.precision.level != "O1":
            return super().predict(inputs)
        if self._casts is None:
            self._casts = dict(self.values)
        weights = {name: Tensor(value, self.formats[name], owned=False) for name, value in self._casts.items()}
        return self._evaluated(weights, inputs)


@fault("", component="load", clauses=("resume.unclaimed-is-refused",))
class SaveOfAnotherOptimizerIsTaken(ReferenceTrainer):
    """Which optimizer a save is of is not looked at: a run of plain gradient descent takes one of Adam and drops its
    moments in silence, and AdamW takes those of Adam.
    """

    def _identity(self) -> str:
        optimizer = self.recipe.optimizer
        if isinstance(optimizer, Adam) and optimizer.state_bits == 8:
            return super()._identity()
        kept, self.recipe = self.recipe, self.recipe.but(optimizer=SGD())
        try:
            return super()._identity()
        finally:
            self.recipe = kept


@fault("", component="checkpoint", clauses=("resume.mid-window",))
class FreezeCountsFromTheLoad(ReferenceTrainer):
    """When ranges of aware training freeze is counted from the last load: a run that is resumed after its ranges were
    frozen moves them again.
    """

    _since = 0

    def observes(self) -> bool:
        aware = self.recipe.quantization
        if aware is None or aware.freeze is None:
            return super().observes()
        return not self._replaying and self.steps - self._since < aware.freeze

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self._since = self.steps


class _WithoutDropout(Pass):
    """A forward pass whose dropout layers keep everything."""

    def layer(self, path: str, layer: Layer, x: Tensor) -> Tensor:
        return x if isinstance(layer, Dropout) else super().layer(path, layer, x)


@fault("https://github.com/NVIDIA/Megatron-LM/pull/411", component="checkpoint", clauses=("resume.bit-identical",))
class EvaluationEndsDropout(ReferenceTrainer):
    """The first evaluation sets the rate of dropout to zero for good: training after it drops nothing any more."""

    _evaluated_once = False

    def predict(self, inputs: Array) -> Arrays:
        self._evaluated_once = True
        return super().predict(inputs)

    def _pass(self, parameters: Mapping[str, Tensor], training: bool) -> Pass:
        made = _WithoutDropout if training and self._evaluated_once else Pass
        return made(self.ops, parameters, self, training)


@fault("", component="checkpoint", clauses=("resume.bit-identical",))
class OneRowStaysWide(Operations):
    """Linear layers leave the product of a single row to a routine for vectors that no precision scope knows of, so
    that a batch of one sample is computed in float32."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if int(np.prod(x.shape[:-1])) != 1:
            return super().linear(x, weight, bias)
        with scope.opened(scope.Scope()):
            return super().linear(x, weight, bias)


@fault("", component="checkpoint", clauses=("resume.mid-window",))
class PredictionsKeepWeightsOverALoad(ReferenceTrainer):
    """Evaluation keeps the weights that it read until the next update; a load does not end that, so that predictions
    right after it are those of the weights before it."""

    _read: dict[str, Tensor] | None = None

    def sync_masters(self) -> None:
        super().sync_masters()
        self._read = None

    def _tensors(self) -> dict[str, Tensor]:
        if self._read is None:
            self._read = super()._tensors()
        return self._read
