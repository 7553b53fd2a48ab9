"""The compiled functions of a run, as in JMP's and Flax's examples; cases of recomputation and of a user's function."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jmp
import numpy as np
import optax
from flax.training.dynamic_scale import DynamicScale

from fixtures.arrays import Array
from fixtures.model import SCALE, Dropout, FunctionUse, Model, walk
from fixtures.recipe import Precision, Recipe, Recompute
from frameworks.base import AppliedMicroBatch
from frameworks.base.recompute import FACTOR, NO_GRAD_INPUT, WEIGHTS_CHANGE, FailingRerun, recomputed_call
from frameworks.contract import FunctionResult, RecomputeCase, RecomputeResult
from frameworks.jax.core import ways
from frameworks.jax.core.layers import (
    OUTPUTS,
    PERTURBATIONS,
    VARIANTS,
    DeviceBatch,
    Layout,
    Network,
    forward_pass,
    loss_sums,
    pair,
    segments,
)
from frameworks.jax.core.settings import Flat, ShardingLayout, flat, nest_leaves
from frameworks.jax.quantization import (
    amax_leaves,
    collections_of,
    leaves_in,
    overwrite_after_window,
    state_tree,
    total_gradient,
    trained_leaves,
    with_memory,
)
from frameworks.jax.training.optimizers import LossScale, RunState, ScaleUpdate, count_applied_updates, is_window


@dataclass(frozen=True)
class Plan:
    """The parts of a recipe that determine gradients from a micro-batch."""

    model: Model
    precision: Precision
    recompute: Recompute | None
    separate_losses: bool
    history: int | None = None
    ways: Recipe = Recipe()
    frozen: tuple[str, ...] = ()


class CarriedState(NamedTuple):
    """State that a training forward pass changes: running statistics and the random key's data."""

    buffers: Flat
    key: jax.Array


@dataclass(frozen=True)
class JaxMicroBatch(AppliedMicroBatch):
    """One micro-batch of the open window; `finite`: its gradients were finite, computed only if an overflow skips."""

    finite: bool = True


class UpdateResult(NamedTuple):
    """The result of an update.

    Attributes:
        applied: the optimizer made an update; None if nothing can skip it.
        norm: norm of its gradients before clipping, if requested.
        finite: its gradients were finite; None if not requested.
        gradients: the gradients where something holds them in place, None elsewhere.
    """

    applied: jax.Array | None
    norm: jax.Array | None
    finite: jax.Array | None
    gradients: Flat | None = None

    def is_applied(self) -> bool:
        """Returns whether an update was applied."""
        return self.applied is None or bool(self.applied.item())

    def read_norm(self) -> float | None:
        """The norm of its gradients, None if not requested."""
        return None if self.norm is None else float(self.norm.item())


class CompiledSteps:
    """The functions of one plan; `jax.jit` compiles each for every shape that it meets.

    Each run of a recomputation segment calls `begun`, if given, with the segment's number.
    """

    pin: ShardingLayout | None = None

    def __init__(self, plan: Plan, begun: Callable[[int], object] | None = None) -> None:
        self.plan = plan
        low = jnp.dtype(plan.precision.format)
        parameter_format = low if plan.precision.level == "O3" else jnp.float32
        way = plan.ways.way("recompute")
        self.network = Network(plan.model, low, parameter_format, plan.recompute, begun, plan.history, way)
        self.policy = jmp.Policy(jnp.float32, low, jnp.float32) if plan.precision.level == "O2" else None
        self._example = jnp.int32 if plan.model.integer_inputs else jnp.float32
        example = jax.ShapeDtypeStruct((1, *plan.model.sample), self._example)
        key = jax.eval_shape(lambda: jax.random.key(0))
        shapes = jax.eval_shape(partial(self.network.init, train=False), key, example)
        self.shapes = flat(shapes["params"])
        self.memory_shapes = with_memory({}, shapes)
        self.buffer_shapes = flat(shapes.get("batch_stats", {}))
        self.layout = Layout(plan.model, self.shapes | self.buffer_shapes)
        self._frozen = frozenset(self.layout.parameters[name] for name in plan.frozen)
        self.draws = any(isinstance(layer, Dropout) for _, layer in walk(plan.model.layers))
        self.backward = jax.jit(self._backward)
        self.surrogate = jax.jit(self._surrogate)
        self.predict = jax.jit(self._predict)
        self.cast = jax.jit(self._cast) if self.policy else self._cast

    def memory(self) -> Flat:
        """The initial delayed-scaling state of the module; empty without float8."""
        if not self.memory_shapes:
            return {}
        key, example = jax.random.key(0), jnp.zeros((1, *self.plan.model.sample), self._example)
        return with_memory({}, self.network.init(key, example, train=False))

    def _cast(self, parameters: Flat) -> Flat:
        """The model's parameters: under a policy, all but float64 ones are cast to its format."""
        if self.policy is None:
            return parameters
        body = {path: value for path, value in trained_leaves(parameters).items() if value.dtype != jnp.float64}
        return parameters | self.policy.cast_to_compute(body)

    def losses(self, parameters: Flat, moved: CarriedState, batch: DeviceBatch) -> tuple[list[jax.Array], CarriedState]:
        """Training-mode forward: the sum of the items' losses for each head that has targets."""
        sums, after, _ = self.forward(parameters, moved, batch)
        return sums, after

    def forward(
        self, parameters: Flat, moved: CarriedState, batch: DeviceBatch, perturbations: Flat | None = None
    ) -> tuple[list[jax.Array], CarriedState, Flat]:
        """The result of `losses`, and the layers' outputs by joined path if perturbations are added to them."""
        key, drawn = _split(moved.key) if self.draws else (moved.key, None)
        constants = {path: jax.lax.stop_gradient(parameters[path]) for path in self._frozen}
        variables = collections_of(self._cast(parameters | constants)) | {"batch_stats": nest_leaves(moved.buffers)}
        if perturbations is not None:
            variables[PERTURBATIONS] = nest_leaves(perturbations)
        outputs, changed = forward_pass(
            self.network,
            variables,
            batch.inputs,
            rngs=None if drawn is None else {"dropout": drawn},
            mutable=["batch_stats"] if perturbations is None else ["batch_stats", OUTPUTS],
        )
        buffers = flat(changed["batch_stats"]) if moved.buffers else {}
        sown = {path: value for path, (value,) in flat(changed.get(OUTPUTS, {})).items()}
        return self.sums(outputs, batch), CarriedState(buffers, key), sown

    def sums(self, outputs: dict[str, jax.Array], batch: DeviceBatch) -> list[jax.Array]:
        """The sum of the items' losses for each head that has targets."""
        return loss_sums(self.plan.model, outputs, batch)

    def means(self, sums: list[jax.Array], items: jax.Array) -> list[jax.Array]:
        """The differentiated losses over `items`: their sum, unless each has its own backward pass."""
        losses = [total / items.astype(total.dtype) for total in sums]
        return losses if self.plan.separate_losses else [reduce(jnp.add, losses)]

    def _backward(
        self, parameters: Flat, moved: CarriedState, scale: LossScale, batch: DeviceBatch, items: jax.Array
    ) -> tuple[Flat, ScaleUpdate | None, list[jax.Array], CarriedState]:
        """Gradients of the losses over `items`, the sums of the losses, and the changed state."""

        def means(leaves: Flat) -> tuple[list[jax.Array], tuple[list[jax.Array], CarriedState]]:
            sums, after = self.losses(leaves, moved, batch)
            return self.means(sums, items), (sums, after)

        gradients, judged, (sums, after) = differentiate_losses(
            scale, means, parameters, self.plan.ways.way("backward")
        )
        return gradients, judged, sums, after

    @cache  # noqa: B019 - plans live as long as the process, see `steps_of`
    def whole(self, guarded: bool, normed: bool, decay: float | None, chosen: Recipe) -> Callable[..., Any]:
        """`_whole` compiled for one kind of update, which is bound: static arguments take time at every call."""
        return jax.jit(partial(self._whole, guarded=guarded, normed=normed, decay=decay, chosen=chosen))

    def _whole(
        self,
        state: RunState,
        moved: CarriedState,
        scale: LossScale,
        batch: DeviceBatch,
        items: jax.Array,
        *,
        guarded: bool,
        normed: bool,
        decay: float | None,
        chosen: Recipe,
    ) -> tuple[RunState, LossScale, CarriedState, list[jax.Array], UpdateResult]:
        """Forward, backward and update of a window of one micro-batch as one program, as in the examples."""
        leaves = leaves_in(state.params)
        gradients, judged, sums, after = self._backward(leaves, moved, scale, batch, items)
        gradients = unscale_gradients(scale, gradients, leaves)
        asked: Any = {"guarded": guarded, "normed": normed, "decay": decay, "chosen": chosen}
        state, scale, outcome = update(state, scale, gradients, judged, **asked, last=True, pin=self.pin)
        return state, scale, after, sums, outcome

    def _surrogate(
        self, parameters: Flat, scale: LossScale, cotangents: Mapping[str, jax.Array], parts: jax.Array
    ) -> tuple[Flat, ScaleUpdate | None]:
        """Gradients of Σ p·g over the parameters in `cotangents`, divided by `parts`, in the form of `_backward`.

        No layer multiplies, so the delayed-scaling state is overwritten with itself.
        """
        memory = amax_leaves(parameters)

        def loss(leaves: Flat) -> jax.Array:
            model = self._cast(leaves)
            products = [
                jnp.sum(model[path] * g, dtype=jnp.promote_types(g.dtype, jnp.float32))
                for path, g in cotangents.items()
            ]
            return reduce(jnp.add, products, jnp.zeros(())) / parts

        if isinstance(scale, DynamicScale):
            gradients, judged, _ = _by_flax(scale, lambda leaves: (loss(leaves), None), parameters)
            return gradients | memory, judged
        return jax.grad(lambda leaves: scale.scale(loss(leaves)))(parameters) | memory, None

    def _predict(self, parameters: Flat, buffers: Flat, inputs: jax.Array) -> dict[str, jax.Array]:
        variables = collections_of(self._cast(parameters)) | {"batch_stats": nest_leaves(buffers)}
        outputs: Any = self.network.apply(variables, inputs, train=False)
        return dict(outputs)


def _split(data: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The data of the next key, and a key for the present draw."""
    after, drawn = jax.random.split(jax.random.wrap_key_data(data))
    return jax.random.key_data(after), drawn


steps_of = cache(CompiledSteps)
"""The functions of a plan, shared by all of its runs, so that each is compiled once in a process."""


def differentiate_losses(
    scale: LossScale, losses: Callable[[Any], tuple[list[jax.Array], Any]], tree: Any, way: str = ""
) -> tuple[Any, ScaleUpdate | None, Any]:
    """The gradient of the losses for a tree, summed over losses, and the auxiliary result of `losses`.

    Under JMP's scale the gradients are scaled. Flax's scale differentiates, unscales and checks them itself.
    """
    if isinstance(scale, DynamicScale):

        def first_loss(leaves: Any) -> tuple[jax.Array, Any]:
            parts, rest = losses(leaves)
            return parts[0], rest

        return _by_flax(scale, first_loss, tree)

    def scale_losses(leaves: Any) -> tuple[list[jax.Array], Any]:
        parts, rest = losses(leaves)
        return scale.scale(parts), rest

    gradients, rest = ways.gradients(way, scale_losses, tree)
    return total_gradient(gradients), None, rest


def _by_flax(scale: DynamicScale, loss: Callable[[Any], Any], tree: Any) -> tuple[Any, ScaleUpdate, Any]:
    """Unscaled gradients, the check and update of Flax's scale, and the loss function's auxiliary result."""
    result = scale.value_and_grad(loss, has_aux=True)(tree)
    return result.grad, ScaleUpdate(result.finite, result.dynamic_scale), result.aux[1]


@jax.jit
def unscale_gradients(scale: LossScale, gradients: Flat, parameters: Flat) -> Flat:
    """The gradients divided by the scale, unless Flax's has done so, in their parameters' formats.

    The values that overwrite a collection are no gradients, and JMP's scale does not divide them.
    """
    scaled = trained_leaves(gradients)
    divided = scaled if isinstance(scale, DynamicScale) else scale.unscale(scaled)
    formats = jax.tree.map(lambda leaf: leaf.dtype, trained_leaves(parameters))
    return jax.tree.map(jnp.astype, divided, formats) | amax_leaves(gradients)


@partial(jax.jit, static_argnames=("guarded", "normed", "decay", "chosen", "last", "pin"))
def update(
    state: RunState,
    scale: LossScale,
    gradients: Flat,
    judged: ScaleUpdate | None = None,
    *,
    guarded: bool,
    normed: bool,
    decay: float | None,
    chosen: Recipe,
    last: bool,
    pin: ShardingLayout | None = None,
) -> tuple[RunState, LossScale, UpdateResult]:
    """One call of the optimizer with unscaled gradients; `guarded`: gradients that are not finite change nothing.

    With the window's `last` micro-batch the loss scale moves by its gradients alone, so only a window of one moves it.
    """
    pinned = None if pin is None else pin.gradients(gradients)
    gradients = gradients if pinned is None else pinned
    norm_of = optax.tree.norm if hasattr(optax, "tree") else optax.global_norm  # before Optax 0.2.5
    norm = norm_of(trained_leaves(gradients)) if normed else None
    stepped, finite = partial(_apply_step, state, gradients, decay, chosen), None
    if guarded:
        finite = jmp.all_finite(gradients) if judged is None else judged.finite
        way = "" if amax_leaves(gradients) else chosen.way("scaling")  # Flax overwrites this state in a skip too
        result = ways.select_state(way, finite, stepped, state)
        if last:
            scale = scale.adjust(finite) if judged is None else judged.scale
    else:
        result = stepped()
    moved = count_applied_updates(result) > count_applied_updates(state) if guarded or is_window(state) else None
    return result if pin is None else pin.state(result), scale, UpdateResult(moved, norm, finite, pinned)


def _apply_step(state: RunState, gradients: Flat, decay: float | None, chosen: Recipe) -> RunState:
    after = state.apply_gradients(grads=state_tree(gradients))
    if state.overwritten is not None:
        updated = count_applied_updates(after) > count_applied_updates(state)
        params, overwritten = overwrite_after_window(state.params, after.params, state.overwritten, updated)
        after = after.replace(params=params, overwritten=overwritten)
    if decay is None:
        return after
    trained = trained_leaves(leaves_in(after.params))
    mixed = ways.average(chosen.way("average"), decay, trained, state.average)
    average = jax.tree.map(partial(jnp.where, count_applied_updates(state) == 0), trained, mixed)
    if is_window(state):
        average = jax.tree.map(
            partial(jnp.where, count_applied_updates(after) > count_applied_updates(state)), average, state.average
        )
    return after.replace(average=average)


def runs_in_a_pass(
    plan: Plan, leaves: Flat, moved: CarriedState, scale: LossScale, batch: DeviceBatch
) -> tuple[int, ...]:
    """The number of forwards of each segment in one forward and backward pass.

    The pass is that of training, with a `jax.debug.callback` at the beginning of each segment.
    """
    begun: list[int] = []
    steps = CompiledSteps(plan, begun.append)
    result: Any = steps.backward(leaves, moved, scale, batch, np.float32(1.0))
    jax.block_until_ready(result)
    jax.effects_barrier()
    return tuple(begun.count(number) for number in range(len(segments(plan.model, plan.recompute))))


def _value(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w).sum()


def _failing(rerun: FailingRerun) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """A function whose second run raises; a callback counts runs, because Python code runs only while JAX traces."""

    def begin(zero: Array) -> Array:
        rerun.begin()
        return np.asarray(zero)

    def function(x: jax.Array, w: jax.Array) -> jax.Array:
        zero = jax.lax.stop_gradient(x[0, 0] * 0)
        return _value(x + jax.pure_callback(begin, jax.ShapeDtypeStruct((), x.dtype), zero), w)

    return function


def recompute(case: RecomputeCase, x: Array, w: Array, variant: str, device: jax.Device) -> RecomputeResult:
    """One case of `Framework.recompute`; JAX's own exceptions leave this call."""

    def run(function: Callable[..., jax.Array], *args: Any, **named: Any) -> Any:
        return jax.checkpoint(function, policy=VARIANTS[variant])(*args, **named)

    return differentiate_case(case, x, w, run, device)


def differentiate_case(
    case: RecomputeCase, x: Array, w: Array, run: Callable[..., Any], device: jax.Device
) -> RecomputeResult:
    """Value and gradients of a case whose recomputation call is `run(function, *args, **named)`.

    JAX's arrays cannot change, so weights that change are new ones.
    """
    inputs, weight = (jax.device_put(np.float32(array), device) for array in (x, w))
    function = partial(recomputed_call, case, run, _value, _failing(FailingRerun()))
    if case == NO_GRAD_INPUT:
        value, pull = jax.vjp(partial(function, inputs), weight)
        return RecomputeResult(float(value), None, np.array(pull(jnp.ones_like(value))[0]))
    value, pull = jax.vjp(function, inputs, weight)
    if case == WEIGHTS_CHANGE:
        weight *= FACTOR
    gradients = [np.array(gradient) for gradient in pull(jnp.ones_like(value))]
    return RecomputeResult(float(value), gradients[0], gradients[1])


def function_used(use: FunctionUse, inputs: tuple[Array, ...], variant: str | None) -> FunctionResult:
    """The inputs of the operation of `fixtures.model` that each backward pass differentiates, and the gradients."""
    asked: list[tuple[bool, ...]] = []

    def loss(*arrays: jax.Array) -> Any:
        results = [dict(zip("yz", pair(*arrays, SCALE, asked), strict=True)) for _ in range(use.times)]
        return sum(outputs[name].sum() for outputs in results for name in use.outputs)

    called = loss if variant is None else jax.checkpoint(loss, policy=VARIANTS[variant])
    places = [index for index, needed in enumerate(use.needs) if needed]
    result = iter(jax.jit(jax.grad(called, places))(*map(jnp.asarray, inputs)))
    return FunctionResult(tuple(asked), tuple(np.array(next(result)) if needed else None for needed in use.needs))
