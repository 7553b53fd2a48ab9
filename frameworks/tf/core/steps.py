"""The custom training loop of Keras' guide: tape, scaled loss, `optimizer.apply`, run eagerly or in a `tf.function`."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from fixtures.model import Batch, Model
from fixtures.recipe import Recipe
from frameworks.keras_common.layers import BuiltNetwork, batch_losses_of, collected_outputs
from frameworks.keras_common.optimizers import inner_of, readable_optimizer, set_rate
from frameworks.keras_common.run import KerasLoop, KerasMicroBatch, TracedPass
from frameworks.tf.core import ways

COMPILED = {"graph": {}, "rewrite": {}, "xla": {"jit_compile": True}}
"""Arguments of `tf.function` by mode; a mode that is missing runs eagerly."""


def compile_function(function: Callable[..., Any], mode: str) -> Callable[..., Any]:
    """`function` as the mode runs it; traced, as `Model.fit` does it, for the shapes that come first, then for any."""
    if mode not in COMPILED:
        return function
    return tf.function(function, autograph=False, reduce_retracing=True, **COMPILED[mode])


class TapeBackend:
    """Keras' updates by `Optimizer.apply`, run as a mode runs functions, for attempts and measured settings."""

    def __init__(self, mode: str) -> None:
        self._mode = mode

    def apply(
        self, optimizer: keras.optimizers.Optimizer, gradients: Sequence[float], weights: Sequence[keras.Variable]
    ) -> None:
        """One update of scalar weights by these gradients."""

        def step() -> None:
            optimizer.apply([tf.constant(g, tf.float32) for g in gradients], weights)

        compile_function(step, self._mode)()


class TracedSteps(KerasLoop):
    """The functions of one run; each is traced when it is first called, and again for a batch of another structure."""

    def __init__(
        self, model: Model, bound: BuiltNetwork, optimizer: keras.optimizers.Optimizer, mode: str, recipe: Recipe
    ) -> None:
        self._model = model
        self._bound = bound
        self._optimizer = optimizer
        self._recipe = recipe
        self._mode = mode
        self._train = self._compile(self._train_step)
        self._gradients = self._compile(self._compute_gradients)
        self._trace = self._compile(self._trace_layers)
        self._feed = self._compile(self._surrogate_step)
        self._predict = self._compile(lambda inputs: bound.network(inputs, training=False))
        self._losses = batch_losses_of(model)
        compiling = {"run_eagerly": mode == "eager", "jit_compile": mode == "xla"}
        fits = ways.compile_model(recipe, bound.network, model, optimizer, compiling)
        self._fits = [name for name, _ in model.losses] if fits else []

    def _compile(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """A step as the run calls it."""
        return compile_function(step, self._mode)

    def train(self, batch: Batch) -> KerasMicroBatch:
        self._set_rate()
        if self._fits and set(batch.targets) == set(self._fits):
            before = self._numbers()
            loss = ways.train_on_batch(self._bound.network, batch)
            after = self._numbers()
            return micro_batch((loss, *before[:3], *after[:2], after[3]), batch.items)
        return micro_batch(self._train(*_arguments(batch)), batch.items)

    def gradients(self, batch: Batch) -> dict[str, tf.Tensor]:
        result: dict[str, tf.Tensor] = self._gradients(*_arguments(batch))
        return result

    def trace(self, batch: Batch) -> TracedPass:
        return TracedPass(*self._trace(*_arguments(batch)))

    def apply_gradients(self, gradients: Mapping[str, Any]) -> KerasMicroBatch:
        self._set_rate()
        return replace(micro_batch(self._feed(self._to_tensors(gradients)), 1), total=math.nan, mean=math.nan)

    def _to_tensors(self, gradients: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        return {name: tf.convert_to_tensor(value) for name, value in gradients.items()}

    def predict(self, inputs: Any) -> dict[str, tf.Tensor]:
        outputs: dict[str, tf.Tensor] = self._predict(tf.convert_to_tensor(inputs))
        return outputs

    def forward_loss(self, inputs: Any, targets: Mapping[str, Any], mask: Any = None) -> tf.Tensor:
        """Training-mode loss, the sum over the heads that have targets."""
        return tf.add_n(_same_format(list(self._head_losses(inputs, targets, mask).values())))

    def _head_losses(self, inputs: Any, targets: Mapping[str, Any], mask: Any) -> dict[str, tf.Tensor]:
        outputs = self._bound.network(inputs, training=True)
        return {
            name: self._losses[name, mask is not None](targets[name], outputs[name], sample_weight=mask)
            for name, _ in self._model.losses
            if name in targets
        }

    def _backward(
        self, inputs: Any, targets: Mapping[str, Any], mask: Any, collected: Mapping[str, tf.Tensor] | None = None
    ) -> tuple[tf.Tensor, list[Any]]:
        """The loss, and scaled gradients: of variables, of what they overwrite, of what is put into `collected`."""
        way, weights = self._recipe.way("backward"), [*self._bound.trained.values(), *self._bound.memory.values()]
        with ways.tape(way, persistent=self._recipe.separate_losses) as tape:
            if way == "watched":
                tape.watch([weight.value for weight in weights])
            if collected is not None and inputs.dtype.is_floating:
                tape.watch(inputs)  # a tape follows only what comes of something watched, layers without weights too
            losses = _same_format(list(self._head_losses(inputs, targets, mask).values()))
            total = tf.add_n(losses)
            parts = losses if self._recipe.separate_losses else [total]
            scaled = [self._optimizer.scale_loss(part) for part in parts]
        sources = [*weights, *(collected or {}).values()]
        gradients = [ways.gradients(way, tape, part, sources) for part in scaled]
        return total, [_sum(list(column)) for column in zip(*gradients, strict=True)]

    def _train_step(self, inputs: Any, targets: Mapping[str, Any], mask: Any = None) -> tuple[Any, ...]:
        total, gradients = self._backward(inputs, targets, mask)
        return self._apply(total, gradients)

    def _surrogate_step(self, gradients: Mapping[str, tf.Tensor]) -> tuple[Any, ...]:
        with tf.GradientTape() as tape:
            total = self._surrogate(gradients)
            scaled = self._optimizer.scale_loss(total)
        return self._apply(total, tape.gradient(scaled, list(self._bound.trained.values())))

    def _surrogate(self, gradients: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Σ p·g."""
        variables = self._bound.variables
        products = [tf.cast(variables[name].value, g.dtype) * g for name, g in gradients.items()]
        return tf.add_n([tf.zeros(()), *(tf.cast(tf.reduce_sum(product), tf.float32) for product in products)])

    def _set_rate(self) -> None:
        inner = inner_of(self._optimizer)
        set_rate(self._recipe, getattr(inner, "optimizers", [inner]))

    def _numbers(self) -> tuple[Any, ...]:
        """Loss scale, count of updates, rate and the scaler's counter."""
        reader, good = readable_optimizer(self._optimizer), getattr(self._optimizer, "step_counter", -1)
        return self._scale(), tf.identity(reader.iterations), tf.identity(reader.learning_rate), tf.identity(good)

    def _apply(self, loss: tf.Tensor, gradients: list[Any]) -> tuple[Any, ...]:
        *before, _ = self._numbers()
        variables = [*self._bound.trained.values(), *self._bound.memory.values()]
        if self._recipe.way("clip") and self._recipe.clip is not None:
            count = len(self._bound.trained)
            gradients = ways.clip_gradients(self._recipe.clip, self._scale(), gradients[:count]) + gradients[count:]
        ways.apply(self._recipe.way("optimizer"), self._optimizer, gradients, variables)
        scale, updates, _, good = self._numbers()
        return loss, *before, scale, updates, good

    def _scale(self) -> tf.Tensor:
        if isinstance(self._optimizer, keras.optimizers.LossScaleOptimizer):
            return tf.identity(self._optimizer.dynamic_scale)
        return tf.constant(1.0 if self._optimizer.loss_scale_factor is None else self._optimizer.loss_scale_factor)

    def _compute_gradients(self, inputs: Any, targets: Mapping[str, Any], mask: Any = None) -> dict[str, tf.Tensor]:
        _, gradients = self._backward(inputs, targets, mask)
        trained = self._bound.trained
        return self._divide_by_scale(zip(trained, gradients[: len(trained)], strict=True))

    def _trace_layers(self, inputs: Any, targets: Mapping[str, Any], mask: Any = None) -> tuple[Any, ...]:
        with collected_outputs() as collected:
            _, gradients = self._backward(inputs, targets, mask, collected)
        count = len(self._bound.trained)
        of_parameters = self._divide_by_scale(zip(self._bound.trained, gradients[:count], strict=True))
        of_outputs = gradients[count + len(self._bound.memory) :]
        return collected, _dense(zip(collected, of_outputs, strict=True)), of_parameters, self._scale()

    def _divide_by_scale(self, gradients: Iterable[tuple[str, Any]]) -> dict[str, tf.Tensor]:
        """Existing gradients divided by the loss scale as in the optimizer, in their own formats."""
        scale = self._scale()
        dense = _dense(gradients).items()
        return {name: tf.cast(keras.ops.divide(gradient, scale), gradient.dtype) for name, gradient in dense}


def micro_batch(outcome: tuple[Any, ...], items: int) -> KerasMicroBatch:
    """Converts the result of `TracedSteps._apply`, for a micro-batch of so many items."""
    loss, scale_before, updates_before, rate, scale_after, updates_after, good = (float(value) for value in outcome)
    applied = updates_after > updates_before
    return KerasMicroBatch(loss * items, items, scale_before, applied, rate, scale_after, int(good), loss)


def _arguments(batch: Batch) -> list[Any]:
    result: list[Any] = [tf.convert_to_tensor(batch.inputs)]
    result.append({name: tf.convert_to_tensor(value) for name, value in sorted(batch.targets.items())})
    return result if batch.mask is None else [*result, tf.convert_to_tensor(batch.mask)]


def _dense(gradients: Iterable[tuple[str, Any]]) -> dict[str, tf.Tensor]:
    return {name: tf.convert_to_tensor(gradient) for name, gradient in gradients if gradient is not None}


def _same_format(losses: list[tf.Tensor]) -> list[tf.Tensor]:
    """The losses in float64 if one of them is, else in the format of the first."""
    widest = tf.float64 if any(loss.dtype == tf.float64 for loss in losses) else losses[0].dtype
    return [tf.cast(loss, widest) for loss in losses]


def _sum(gradients: list[Any]) -> Any:
    present = [tf.convert_to_tensor(g) for g in gradients if g is not None] if len(gradients) > 1 else gradients
    if not present:
        return None
    return present[0] if len(present) == 1 else tf.add_n(present)
