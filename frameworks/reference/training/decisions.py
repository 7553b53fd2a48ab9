"""`Decisions`: the state of a training run and its overridable decisions, each in a method."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

import numpy as np
from autograd.core import VJPNode

from fixtures.arrays import Array, wider
from fixtures.model import Model
from fixtures.recipe import Adam, Offload, OffloadedKind, Optimizer, Recipe, StaticScaling
from frameworks.contract import Conventions, Gradients
from frameworks.reference.core.arithmetic import Operations
from frameworks.reference.core.tape import Tensor, round_values
from frameworks.reference.quantization.eight_bit_state import (
    EightBitMoments,
    EightBitState,
    Moments,
    bytes_of,
    stored_moments,
)
from frameworks.reference.training.forward import OpenWindow, QuantizedForward, master_format
from frameworks.reference.training.offload import Activations, ArrayStore, StoredArrays, store_of
from frameworks.reference.training.optimizers import RULES, Arithmetic, UpdateRule, optimizer_of
from frameworks.reference.training.scaler import LossScale, loss_scale

Arrays = dict[str, Array]

__all__ = ["Arrays", "Decisions", "OpenWindow", "norm_by_parts", "present"]


def norm_by_parts(gradients: Mapping[str, Array]) -> Array:
    """The 2-norm of all arrays together, computed from the 2-norm of each."""
    return np.asarray(np.linalg.norm([np.linalg.norm(gradient) for gradient in gradients.values()]))


def present(gradients: Gradients) -> Arrays:
    """Gradients in float64, without those that are None."""
    return {name: np.asarray(g).astype(np.float64) for name, g in gradients.items() if g is not None}


class Decisions(QuantizedForward):
    """State and decisions of a run. Arrays are float64 carriers; `formats` and `master_formats` name their formats."""

    eight_bit_class: type[EightBitState] = EightBitState
    rules: Mapping[type[Optimizer], type[UpdateRule]] = RULES

    def __init__(
        self,
        model: Model,
        recipe: Recipe,
        conventions: Conventions,
        ops: Operations,
        weights: Mapping[str, Array] | None = None,
    ) -> None:
        super().__init__(model, recipe, conventions, ops)
        self.master_formats = {n: master_format(recipe.precision, f) for n, f in self.formats.items()}
        arrays = model.weights(recipe.seed) if weights is None else weights
        if {n: a.shape for n, a in arrays.items()} != model.parameter_shapes():
            raise ValueError(f"these weights are not those of {model.name}")
        self.store = None if recipe.offload is None else self.make_store(recipe.offload)
        leaves = recipe.offload is not None and "activations" in recipe.offload.what
        self.activations = Activations(self.store) if self.store is not None and leaves else None
        masters = {
            name: self.rounding.round(arrays[name].astype(np.float64), format_name)
            for name, format_name in self.master_formats.items()
        }
        self.masters = self.storage("parameters", "master", masters)
        self.frozen = frozenset(recipe.frozen)
        self._places = {name: index for index, name in enumerate(self.masters)}
        self.values = self.storage("parameters", "value", {})
        self.sync_masters()
        rule = self.rules[type(recipe.optimizer)]
        self.slots = {slot: self.moments(slot, {}) for slot in rule.slots(recipe.optimizer)}
        for slot, moments in self.slots.items():
            start = rule.start(recipe.optimizer, slot)
            trained = {name: value.shape for name, value in self.masters.items() if self.trains(name)}
            shapes = {name: rule.shape(recipe.optimizer, slot, whole) for name, whole in trained.items()}
            moments.update({name: np.full(shape, start) for name, shape in shapes.items() if shape is not None})
        self.averages: Arrays = {} if recipe.average is None else dict(self.masters)
        self.counts = dict.fromkeys(filter(self.trains, self.masters), 0)
        self.steps = 0
        self.schedule = 0
        self.scaler: LossScale | None = loss_scale(recipe.scaling, conventions.scaler)
        self.settings = self.scaler
        self.window = OpenWindow()

    # decisions: offload

    def make_store(self, offload: Offload) -> ArrayStore:
        """The store of offloaded arrays."""
        return store_of(offload)

    def storage(self, kind: OffloadedKind, group: str, arrays: Arrays) -> MutableMapping[str, Array]:
        """Arrays of the run, in the store if the recipe offloads their kind."""
        if self.store is None or self.recipe.offload is None or kind not in self.recipe.offload.what:
            return dict(arrays)
        return StoredArrays(self.store, group, arrays)

    def moments(self, slot: str, parts: Mapping[str, Arrays]) -> Moments:
        """The moments of one slot, from the saved arrays by parameter name."""

        def part(name: str) -> Moments:
            return self.storage("optimizer", name, parts.get(name, {}))

        plain, optimizer = part(f"slot.{slot}"), self.recipe.optimizer
        if not isinstance(optimizer, Adam) or optimizer.state_bits != 8:
            return plain
        return EightBitMoments(
            self.eight_bit_class(optimizer), slot, plain, part(f"codes.{slot}"), part(f"absmax.{slot}")
        )

    def node_type(self) -> type[VJPNode]:
        """The node type of the tape: nodes offload their saved values if the recipe says so."""
        return VJPNode if self.activations is None else self.activations.node_type()

    def stored_bytes(self) -> dict[str, int]:
        """Offloaded bytes of each kind that the recipe offloads."""
        assert self.recipe.offload is not None
        return {kind: self._stored_bytes(kind) for kind in self.recipe.offload.what}

    def _stored_bytes(self, kind: str) -> int:
        if kind == "activations":
            assert self.activations is not None
            return self.activations.take_bytes()
        groups = [(part, self.master_formats, set[str]()) for part in stored_moments(self.slots)]
        if kind == "parameters":
            same = {name for name, stored in self.formats.items() if stored == self.master_formats[name]}
            groups = [(self.values, self.formats, set()), (self.masters, self.master_formats, same)]
        return sum(
            bytes_of({name: value for name, value in values.items() if name not in twice}, formats)
            for values, formats, twice in groups
            if isinstance(values, StoredArrays)
        )

    # decisions: loss

    def use_scaler(self) -> None:
        """Scales a loss and discards it, so that the scaler has been used before its state is loaded."""
        self.scale_loss(Tensor(np.ones(()), "float32"))

    def normalise(self, loss: Tensor, batch_items: int, window_items: int) -> Tensor:
        """A micro-batch's loss sum divided by the window's number of items: its share in the window's mean."""
        return Tensor(round_values(loss.value / window_items, self.rounding, loss.format), loss.format)

    def scale_loss(self, loss: Tensor) -> Tensor:
        """The scaled loss, in float32 or wider."""
        if self.scaler is None:
            return loss
        wide = self.ops.cast(loss, wider(loss.format, "float32"))
        return Tensor(round_values(wide.value * self.scaler.scale, self.rounding, wide.format), wide.format)

    def reported_loss(self, total: float, items: int) -> float:
        """The reported mean loss."""
        return total / items if items else float("nan")

    # decisions: window

    def take_micro_batch(self, gradients: Arrays) -> None:
        """Adds a micro-batch's scaled gradients; if the conventions say so, checks them for overflow first."""
        rule = self.conventions.scaler
        self.window.micro_batches += 1
        alone = rule.counts == "micro-batches" or self.conventions.nonfinite_micro_batch == "drop-micro-batch"
        if self.scaler is not None and alone:
            gradients = {name: self.unscale(name, g) for name, g in gradients.items()}
            self.window.unscaled = True
            finite = not (self.overflow_skips() and self.has_nonfinite(gradients))
            if rule.counts == "micro-batches":
                self.scaler = self.next_scale(self.scaler, finite)
            if not finite and self.conventions.nonfinite_micro_batch == "drop-micro-batch":
                self.window.dropped += 1
                return
        for name, gradient in gradients.items():
            self.accumulate_gradient(name, gradient)

    def accumulate_gradient(self, name: str, gradient: Array) -> None:
        """Adds a gradient to the parameter's accumulator, which is float32 or wider."""
        former = self.window.gradients.get(name)
        total = gradient if former is None else former + gradient
        self.window.gradients[name] = self.rounding.round(total, self.accumulator_format(name))

    def accumulator_format(self, name: str) -> str:
        """Format of a parameter's accumulator."""
        return wider(self.formats[name], "float32")

    def window_ended(self) -> bool:
        """Returns whether `apply` may update: the window is complete, or the conventions flush incomplete windows."""
        return self.conventions.remainder == "flush" or self.window.micro_batches >= self.recipe.accumulation

    def empty_accumulator(self) -> None:
        """Starts the next window."""
        self.window = OpenWindow()

    # decisions: scaler

    def unscale(self, name: str, gradient: Array) -> Array:
        """A gradient divided by the scale, in the accumulator's format."""
        assert self.scaler is not None
        return self.rounding.round(gradient / self.scaler.scale, self.accumulator_format(name))

    def has_nonfinite(self, gradients: Mapping[str, Array]) -> bool:
        """Returns whether any element of any gradient is infinite or NaN."""
        return not all(bool(np.isfinite(g).all()) for g in gradients.values())

    def judge(self) -> frozenset[int]:
        """Indices of the optimizers whose update is skipped because of non-finite gradients."""
        if not self.overflow_skips():
            return frozenset()
        owners = {self.optimizer_of(name) for name in self.masters}
        applied = {name: self.as_applied(name, g) for name, g in self.window.gradients.items()}
        shares = {o: {n: g for n, g in applied.items() if self.optimizer_of(n) == o} for o in owners}
        overflowed = frozenset(o for o, share in shares.items() if self.has_nonfinite(share))
        return frozenset(owners) if overflowed and self.conventions.partial_overflow == "skip-all" else overflowed

    def overflow_skips(self) -> bool:
        """Returns whether an overflow skips an update."""
        return self.conventions.static_skips or not isinstance(self.recipe.scaling, StaticScaling)

    def as_applied(self, name: str, gradient: Array) -> Array:
        """A gradient in the optimizer's input format, which at O3 is narrower than the accumulator's."""
        wanted = self.master_formats[name]
        return gradient if wanted == self.accumulator_format(name) else self.rounding.round(gradient, wanted)

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        """The scale after an update."""
        return scaler.adjust(finite)

    # decisions: update

    def gradient_norm(self, gradients: Mapping[str, Array]) -> float:
        """Global 2-norm of the gradients."""
        if self.recipe.way("clip") == "by-parts":
            norm = norm_by_parts(gradients)
        else:
            norm = np.sqrt(np.asarray(sum(float(np.vdot(g, g)) for g in gradients.values())))
        return float(self.rounding.round(norm, "float32"))

    def clip(self, gradients: Arrays) -> Arrays:
        """The gradients, scaled down if their global norm exceeds the recipe's `clip`."""
        if self.recipe.clip is None:
            return gradients
        counted = self.window.gradients if self.conventions.clip_norm == "all" else gradients
        norm = self.gradient_norm(counted) + self.conventions.clip_epsilon
        if norm <= self.recipe.clip:
            return gradients
        factor = self.clip_factor(self.recipe.clip / norm, gradients)
        return {name: self.rounding.round(g * factor, self.accumulator_format(name)) for name, g in gradients.items()}

    def clip_factor(self, coefficient: float, gradients: Arrays) -> float:
        """The factor by which the gradients are multiplied, from the clip coefficient."""
        return float(self.rounding.round(np.asarray(coefficient), "float32"))

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        """Updates every parameter that has a gradient, and no other."""
        for name, gradient in gradients.items():
            self.counts[name] += 1
            applied = self.as_applied(name, gradient)
            slots = {slot: values[name] for slot, values in self.slots.items() if name in values}
            count = self.counts[name] if self.conventions.adam_counts == "parameter" else self.steps + 1
            self.masters[name], moved = self.rule_of(name)(
                self.masters[name], slots, applied, self.rate_of(name, rate), count
            )
            for slot, value in moved.items():
                self.slots[slot][name] = value
        self.steps += 1

    def trains(self, name: str) -> bool:
        """Returns whether a parameter is trained."""
        return name not in self.frozen

    def rule_of(self, name: str) -> UpdateRule:
        """The update rule of a parameter."""
        r = self.arithmetic_of(name)
        optimizer = optimizer_of(self.recipe, self.group_of(name), self.schedule)
        return self.rules[type(optimizer)](optimizer, self.conventions, r, decays=name not in self.recipe.undecayed)

    def rate_of(self, name: str, rate: float) -> float:
        """The rate of a parameter's update; `rate` is that of the first group."""
        own, first = self.recipe.of_groups[self.group_of(name)].learning_rate, self.recipe.optimizer.learning_rate
        return rate if own == first else own * self.factor()

    def group_of(self, name: str) -> int:
        """Index of a parameter's group: the parameters of an optimizer alternate between its groups."""
        return self._places[name] // self.recipe.optimizers % self.recipe.groups

    def arithmetic_of(self, name: str) -> Arithmetic:
        """The arithmetic of a parameter's update: in the masters' format."""
        return Arithmetic(self.rounding, self.master_formats[name])

    def moments_as_stored(self) -> Arrays:
        """Every moment in its true format, with codes and absmax of 8-bit moments."""
        result: Arrays = {}
        for slot, moments in self.slots.items():
            codes, largest = (moments.codes, moments.largest) if isinstance(moments, EightBitMoments) else ({}, {})
            for name, value in moments.items():
                dtype = self.rounding.dtype("float32" if name in codes else self.master_formats[name])
                result[f"{slot}/{name}"] = value.astype(dtype)
            result |= {f"codes/{slot}/{name}": code.copy() for name, code in codes.items()}
            result |= {f"absmax/{slot}/{name}": value.copy() for name, value in largest.items()}
        return result

    def make_schedule(self, applied: int = 0) -> None:
        """Creates the schedule at the state after `applied` applied updates."""
        self.schedule = applied

    def advance_schedule(self) -> None:
        """Moves the schedule by one applied update."""
        self.schedule += 1

    def learning_rate(self) -> float:
        """The rate of the next update."""
        return self.recipe.optimizer.learning_rate * self.factor()

    def factor(self) -> float:
        """The schedule's factor of the next update's rates."""
        return 1.0 if self.recipe.schedule is None else self.recipe.schedule.factor(self.schedule)

    def sync_masters(self) -> None:
        """Copies the rounded masters to the model's weights."""
        for name, master in self.masters.items():
            same = self.formats[name] == self.master_formats[name]
            self.values[name] = master if same else self.rounding.round(master, self.formats[name])

    def average_format(self, name: str) -> str:
        """Format of the average of a parameter's weights."""
        return wider(self.master_formats[name], "float32")

    def move_average(self) -> None:
        """Updates the average of the weights after an applied update; the first update copies the weights."""
        if self.recipe.average is None:
            return
        for name, master in self.masters.items():
            if not self.trains(name):
                continue
            r = Arithmetic(self.rounding, self.average_format(name))
            decay = r.number(self.recipe.average) if self.steps > 1 else 0.0
            self.averages[name] = r(r(decay * self.averages[name]) + r((1.0 - decay) * master))

    def read_average(self, name: str) -> Array:
        """The average of a parameter in the model's format, for evaluation."""
        return self.rounding.round(self.averages[name], self.formats[name])

    def optimizer_of(self, name: str) -> int:
        """Index of a parameter's optimizer: parameters alternate in model order."""
        return self._places[name] % self.recipe.optimizers
