"""The forward pass of a training run: segments, dropout stream, buffers, recomputation, and quantized layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Again, Batch, BatchNorm, Layer, LayerNorm, Model
from fixtures.recipe import Float8, Precision, Qat, Recipe
from frameworks.base import inner_bounds, segment_bounds
from frameworks.contract import (
    AmaxHistories,
    AmaxHistory,
    Calibrated,
    CalibratedRanges,
    Capability,
    Conventions,
    Operand,
    Unsupported,
)
from frameworks.reference.core import scope
from frameworks.reference.core.arithmetic import Operations, SavedForBackward
from frameworks.reference.core.network import Pass, TracedTensors, loss_sums
from frameworks.reference.core.tape import Tensor, recompute_function, tensor
from frameworks.reference.quantization.float8 import Float8Layers
from frameworks.reference.quantization.post_training import QatLayers, ReferenceQuantizedModel

Layers = tuple[tuple[str, Layer], ...]


@dataclass(frozen=True)
class Moment:
    """State at the start of a segment: number of draws of the random stream, and the precision."""

    draws: int
    scope: scope.Scope


@dataclass
class OpenWindow:
    """State of an open window: accumulated gradients, loss sums with their items, and overflow decisions.

    Attributes:
        amax: in float8 training, the amax of each operand in this window.
    """

    gradients: dict[str, Array] = field(default_factory=dict)
    amax: dict[str, float] = field(default_factory=dict)
    losses: list[tuple[float, int]] = field(default_factory=list)
    items: int = 0
    micro_batches: int = 0
    dropped: int = 0
    scale: float = 1.0
    unscaled: bool = False
    scaled_overflow: frozenset[int] = frozenset()
    latched: frozenset[int] | None = None


class Forward:
    """Runs the model's layers. Values are float64 carriers; `formats` names the format of every parameter."""

    qat_class: type[QatLayers] = QatLayers
    float8_class: type[Float8Layers] = Float8Layers

    def __init__(self, model: Model, recipe: Recipe, conventions: Conventions, ops: Operations) -> None:
        self.model = model
        self.recipe = recipe
        self.conventions = conventions
        self.ops = ops
        self.rounding = ops.rounding
        names = model.parameter_shapes()
        self.formats = {name: stored_format(model, recipe.precision, name, conventions) for name in names}
        self.scope = scope.Scope(recipe.precision)
        self.draws = 0
        self.statistics = {name: value.astype(np.float64) for name, value in model.buffers().items()}
        asked = recipe.quantization
        self.qat = self.qat_class(ops) if isinstance(asked, Qat) else None
        self.float8 = self.float8_class(ops, asked.history) if isinstance(asked, Float8) else None
        if self.qat is not None:
            self.statistics |= self.qat.initial_statistics(model)
        if self.float8 is not None:
            self.statistics |= self.float8.initial_statistics(model)
        self.magnitudes: dict[str, float] = {}
        self.segments = _segments(model, recipe)
        self.calls = [0] * len(self.segments)
        self._replaying = 0
        self.traced: TracedTensors | None = None

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        """The next dropout mask; the seed and the number of earlier draws determine it."""
        stream = np.random.Generator(np.random.Philox(key=np.array([self.recipe.seed, self.draws], np.uint64)))
        self.draws += 1
        return stream.random(shape, np.float32) >= rate

    def running_statistics(self, path: str) -> tuple[Array, Array]:
        """Running mean and variance of the batch norm at `path`."""
        return self.statistics[f"{path}.mean"], self.statistics[f"{path}.variance"]

    def update_running_statistics(self, path: str, mean: Array, variance: Array, count: int, momentum: float) -> None:
        """Moves the running statistics towards the batch statistics, in float32; recomputation does not move them."""
        if self._replaying:
            return
        if self.conventions.running_variance == "unbiased":
            variance = variance * (count / max(count - 1, 1))
        for name, value in (("mean", mean), ("variance", variance)):
            old = self.statistics[f"{path}.{name}"]
            moved = self.rounding.round(momentum * (value - old), "float32")
            self.statistics[f"{path}.{name}"] = self.rounding.round(old + moved, "float32")

    def dense(self, path: str, x: Tensor, weight: Tensor, bias: Tensor | None, *, training: bool) -> Tensor:
        """The output of the dense layer at `path` for x. Its QAT ranges move in training, but not in recomputation."""
        if self.float8 is not None:
            return self.float8.dense(path, x, weight, bias, self.statistics, self.magnitudes if training else None)
        if self.qat is None:
            return self.ops.linear(x, weight, bias)
        return self.qat.dense(path, x, weight, bias, self.statistics, observes=training and self.observes())

    def observes(self) -> bool:
        """True if a training pass now updates QAT ranges."""
        return not self._replaying

    def passing(self, path: str, output: Tensor) -> Tensor:
        """Returns the output of the layer at `path`, and records it during a trace."""
        return output if self.traced is None else self.traced.passing(path, output)

    def run(self, parameters: Mapping[str, Tensor], batch: Batch, inputs: Any = None) -> dict[str, Tensor]:
        """Training forward: for each head with targets, the sum of its losses over the batch's items.

        Args:
            inputs: the batch's inputs as a traced carrier, if their gradient is needed; None otherwise.
        """
        x = (
            tensor(batch.inputs, owned=False)
            if inputs is None
            else Tensor(inputs, batch.inputs.dtype.name, owned=False)
        )
        for index, layers in enumerate(self.segments):
            x = self._segment(index, layers, parameters, x)
        outputs = self._pass(parameters, True).heads(*self._last, x, tuple(batch.targets))
        return loss_sums(self.model, self.ops, outputs, batch)

    def evaluate(self, parameters: Mapping[str, Tensor], inputs: Array) -> dict[str, Tensor]:
        """Evaluation forward: every head's output."""
        run = self._pass(parameters, False)
        with scope.open_scope(self.scope), np.errstate(all="ignore"):
            x = run.layers(tuple(part for layers in self.segments for part in layers), tensor(inputs, owned=False))
            return run.heads(*self._last, x, tuple(head.name for head in self.model.heads.heads))

    def recompute_segment(self, moment: Moment) -> AbstractContextManager[Any]:
        """Context of a segment's second run, with the random stream, buffers and precision of its first run."""
        stack = ExitStack()
        stack.enter_context(self.replay_random(moment.draws))
        stack.enter_context(self.replay_buffers())
        stack.enter_context(self.replay_precision(moment.scope))
        return stack

    @contextmanager
    def replay_random(self, draws: int) -> Iterator[None]:
        """Sets the random stream back to `draws` draws, and restores its position afterwards."""
        later, self.draws = self.draws, draws
        try:
            yield
        finally:
            self.draws = later

    @contextmanager
    def replay_buffers(self) -> Iterator[None]:
        """Prevents a second update of the running statistics."""
        self._replaying += 1
        try:
            yield
        finally:
            self._replaying -= 1

    def replay_precision(self, former: scope.Scope) -> AbstractContextManager[None]:
        """Opens the precision scope of the forward pass, since backward runs outside it."""
        return scope.open_scope(former)

    def bytes_of_pass(self, parameters: Mapping[str, Tensor], batch: Batch) -> int:
        """Bytes saved between forward and backward of a batch; the run's state does not change.

        Every operation saves the values that its derivative needs (`Operations`). A recomputed segment saves only its
        input; heads and losses are never recomputed. Parameters, inputs and their casts are not counted.
        """
        before = self.draws, dict(self.statistics), list(self.calls)
        self.ops.tape = tape = SavedForBackward()
        try:
            with scope.open_scope(self.scope):
                self.run(parameters, batch)
        finally:
            self.ops.tape = None
            self.magnitudes.clear()
            self.draws, self.statistics, self.calls = before
        return tape.bytes

    @property
    def _last(self) -> tuple[str, Any]:
        return str(len(self.model.layers) - 1), self.model.heads

    def _pass(self, parameters: Mapping[str, Tensor], training: bool) -> Pass:
        return Pass(self.ops, parameters, self, training)

    def _segment(self, index: int, layers: Layers, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        if self.recipe.recompute is None:
            self.calls[index] += 1
            return self._pass(parameters, True).layers(layers, x)

        return self._recompute(layers, parameters, x, self.recipe.recompute.depth, index)

    def _recompute(
        self, layers: Layers, parameters: Mapping[str, Tensor], x: Tensor, depth: int, index: int | None = None
    ) -> Tensor:
        read = [str(layer.at) if isinstance(layer, Again) else path for path, layer in layers]
        own = [name for name in parameters if any(name.startswith(f"{path}.") for path in read)]
        moment = Moment(self.draws, scope.current())
        yielded: list[str] = []

        def run(value: Any, values: Mapping[str, Any]) -> Any:
            if index is not None:
                self.calls[index] += 1
            tensors = {name: Tensor(values[name], parameters[name].format, owned=False) for name in own}
            y = Tensor(value, x.format, x.owned)
            with self._without_saves():
                if depth == 1:
                    y = self._pass(tensors, True).layers(layers, y)
                else:
                    for half in _halves(layers):
                        y = self._recompute(half, tensors, y, depth - 1)
            yielded.append(y.format)
            return y.value

        if self.ops.tape:
            self.ops.tape.keep(x)
        values = {name: parameters[name].value for name in own}
        result = recompute_function(run, x.value, values, replay=lambda: self.recompute_segment(moment))
        return Tensor(result, yielded[-1])

    @contextmanager
    def _without_saves(self) -> Iterator[None]:
        former, self.ops.tape = self.ops.tape, None
        try:
            yield
        finally:
            self.ops.tape = former


class QuantizedForward(Forward):
    """A forward pass with the state of quantized layers: QAT ranges and amax histories.

    Attributes:
        steps: number of applied updates.
    """

    quantized_model_class: type[ReferenceQuantizedModel] = ReferenceQuantizedModel
    steps: int
    values: MutableMapping[str, Array]
    window: OpenWindow

    def observes(self) -> bool:
        qat = self.recipe.quantization
        moves = not isinstance(qat, Qat) or qat.freeze is None or self.steps < qat.freeze
        return super().observes() and moves

    def views(self) -> Mapping[type, Callable[[], Any]]:
        """Functions that read the state of a technique, by the class that `view` is asked for."""
        return {CalibratedRanges: self.observe_ranges, AmaxHistories: self.amax_histories}

    def observe_ranges(self) -> dict[str, Calibrated]:
        """The QAT ranges of the dense layers that have run in a training pass."""
        return self.qat_layers().observe_ranges(self.statistics)

    def convert(self) -> ReferenceQuantizedModel:
        """The model converted to integer codes with the present ranges."""
        layers = self.qat_layers()
        weights = {name: value.astype(np.float32) for name, value in self.values.items()}
        return self.quantized_model_class(layers.rule.linear, self.model, weights, known=self.observe_ranges())

    def qat_layers(self) -> QatLayers:
        """The QAT layers.

        Raises:
            Unsupported: the recipe does not use QAT.
        """
        if self.qat is None:
            raise Unsupported(Capability.QAT, "the recipe has no QAT")
        return self.qat

    def take_magnitudes(self, magnitudes: Mapping[str, float]) -> None:
        """Merges the amax values of a micro-batch into those of its window."""
        if self.float8 is not None:
            known = self.window.amax
            known |= {name: self.float8.larger(known.get(name, 0.0), most) for name, most in magnitudes.items()}

    def end_of_window(self, skipped: bool) -> None:
        """Updates the amax histories at the end of a window; a skipped update may leave them unchanged."""
        if self.float8 is not None and (not skipped or self.float8.rule.skipped == "moves"):
            self.float8.move(self.statistics, self.window.amax)

    def amax_histories(self) -> dict[str, dict[Operand, AmaxHistory]]:
        """The delayed-scaling state of each layer's operands."""
        return self.float8_layers().amax_histories(self.statistics)

    def float8_layers(self) -> Float8Layers:
        """The float8 layers.

        Raises:
            Unsupported: the recipe does not use float8 training.
        """
        if self.float8 is None:
            raise Unsupported(Capability.FLOAT8_TRAINING, "the recipe has no float8 training")
        return self.float8


def stored_format(model: Model, precision: Precision, name: str, conventions: Conventions) -> str:
    """Format of a parameter in the model. Float64 heads stay float64; at O2 normalisation layers may stay float32."""
    if model.parameter_format(name) == "float64":
        return "float64"
    path = name.rpartition(".")[0]
    match precision.level:
        case "O0" | "O1":
            return "float32"
        case "O2":
            kinds = {"float32": (BatchNorm, LayerNorm), "batch": (BatchNorm,), "low": ()}[conventions.normalisation]
            wide = any(at == path and isinstance(layer, kinds) for at, layer, _ in model.shapes())
            return "float32" if wide else precision.format
        case "O3":
            return precision.format


def master_format(precision: Precision, stored: str) -> str:
    """Format of the weights that the optimizer updates, for a parameter that the model stores as `stored`."""
    return "float32" if precision.level == "O2" and stored != "float64" else stored


def _segments(model: Model, recipe: Recipe) -> tuple[Layers, ...]:
    body: Layers = tuple((str(i), layer) for i, layer in enumerate(model.layers[:-1]))
    return tuple(body[start:stop] for start, stop in segment_bounds(len(body), recipe.recompute))


def _halves(layers: Layers) -> tuple[Layers, ...]:
    return tuple(layers[start:stop] for start, stop in inner_bounds((0, len(layers))))
