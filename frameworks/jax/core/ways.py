"""Schedules that Optax ships, and other public calls of JAX, Flax and Optax, by the names in `ways.toml`."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import jmp
import optax
import orbax.checkpoint as ocp
from flax import serialization
from flax.training import checkpoints
from flax.training.train_state import TrainState
from jax.example_libraries.optimizers import clip_grads
from optax.contrib import reduce_on_plateau

from fixtures import schedules as curves
from fixtures.recipe import Recipe, Steps
from fixtures.schedules import Curve, Plateau
from frameworks.base import ships, takes
from frameworks.contract import Capability, Unsupported


def make_schedule(rate: float, curve: curves.Curve | curves.Steps) -> optax.Schedule:
    """The schedule that follows a curve from a rate.

    Raises:
        Unsupported: SCHEDULE, where Optax has no function for it.
    """
    match curve:
        case curves.Steps(boundaries=(), factors=(factor,)):
            return optax.constant_schedule(rate * factor)
        case curves.Exponential(ratio=ratio, every=every, staircase=staircase):
            return optax.exponential_decay(rate, every, ratio, staircase=staircase)
        case curves.Linear(start=start, end=end, steps=steps):
            return optax.linear_schedule(rate * start, rate * end, steps)
        case curves.Polynomial(steps=steps, power=power, end=end):
            return optax.polynomial_schedule(rate, rate * end, power, steps)
        case curves.Cosine(steps=steps, end=end):
            return optax.cosine_decay_schedule(rate, steps, alpha=end)
        case curves.OneCycle(top=top, up=up, steps=steps, end=end, momenta=None):
            return optax.cosine_onecycle_schedule(steps, rate * top, up / steps, top, 1.0 / end)
        case curves.CosineRestarts(first=first, multiply=multiply, end=end):
            parts = [first * multiply**number for number in range(6)]
            options = {"init_value": rate, "peak_value": rate, "warmup_steps": 0, "end_value": rate * end}
            return optax.sgdr_schedule([options | {"decay_steps": steps} for steps in parts])
        case curves.Joined(
            parts=(curves.Linear(start=start, end=1.0, steps=steps), curves.Cosine() as cosine), boundaries=(boundary,)
        ) if steps == boundary:
            length, last = steps + cosine.steps, rate * cosine.end
            return optax.warmup_cosine_decay_schedule(rate * start, rate, steps, length, last)
        case curves.Joined(parts=parts, boundaries=boundaries):
            return optax.join_schedules([make_schedule(rate, part) for part in parts], list(boundaries))
    keywords: dict[type, str] = {
        curves.InverseTime: "inverse_time",
        curves.OneCycle: "cycle_momentum",
        curves.Chained: "chained",
    }
    word = keywords.get(type(curve), "triang")
    raise Unsupported(Capability.SCHEDULE, f"optax has no {curve} but one's own", partial(ships, "optax", word))


def rates(plateau: Plateau, metrics: Sequence[float], saved: int | None = None) -> tuple[float, ...]:
    """The learning rate of each update, which gets its metric; the state is saved and loaded after `saved` updates.

    Raises:
        Unsupported: PLATEAU, for the largest metric.
    """
    if plateau.mode == "max":
        attempt = partial(takes, reduce_on_plateau, "mode")
        raise Unsupported(Capability.PLATEAU, "optax.contrib.reduce_on_plateau follows the smallest metric", attempt)
    margin = {"rtol": plateau.threshold, "atol": 0.0} if plateau.relative else {"rtol": 0.0, "atol": plateau.threshold}
    plateaued = reduce_on_plateau(
        plateau.factor, plateau.patience, cooldown=plateau.cooldown, min_scale=plateau.minimum, **margin
    )
    chain = optax.chain(optax.sgd(1.0), plateaued)
    weight = jnp.zeros(())
    state = chain.init(weight)
    update = jax.jit(lambda state, metric: chain.update(jnp.ones(()), state, weight, value=metric))
    result: list[float] = []
    for index, metric in enumerate(metrics):
        if index == saved:
            state = serialization.from_bytes(chain.init(weight), serialization.to_bytes(state))
        moved, state = update(state, metric)
        result.append(-float(moved))
    return tuple(result)


Losses = Callable[[Any], tuple[list[jax.Array], Any]]
Optimizer = Callable[..., optax.GradientTransformation]
State = TypeVar("State", bound=TrainState)
FILE = "run.msgpack"


def gradients(way: str, losses: Losses, primals: Any) -> tuple[list[Any], Any]:
    """The gradient of each loss for a tree, and the auxiliary result of `losses`."""
    match way:
        case "grad" | "value-and-grad":
            count = len(jax.eval_shape(losses, primals)[0])
            results = [_gradient(way, losses, primals, index) for index in range(count)]
            return [gradient for gradient, _ in results], results[0][1]
        case "linear-transpose":
            parts, linear, rest = jax.linearize(losses, primals, has_aux=True)
            transposed = jax.linear_transpose(linear, primals)
            return [transposed(chosen)[0] for chosen in _cotangents(parts)], rest
        case _:
            parts, pull, rest = jax.vjp(losses, primals, has_aux=True)
            return [pull(chosen)[0] for chosen in _cotangents(parts)], rest


def _gradient(way: str, losses: Losses, primals: Any, index: int) -> tuple[Any, Any]:
    def loss(tree: Any) -> tuple[jax.Array, Any]:
        parts, rest = losses(tree)
        return parts[index], rest

    if way == "grad":
        gradient, rest = jax.grad(loss, has_aux=True)(primals)
    else:
        (_, rest), gradient = jax.value_and_grad(loss, has_aux=True)(primals)
    return gradient, rest


def _cotangents(parts: Sequence[jax.Array]) -> list[list[jax.Array]]:
    count = range(len(parts))
    return [[jnp.ones_like(p) if i == j else jnp.zeros_like(p) for j, p in enumerate(parts)] for i in count]


def policy(way: str, usual: Callable[..., Any]) -> Callable[..., Any]:
    """The policy of a recomputed segment."""
    if way == "two-policies":
        policies = jax.checkpoint_policies
        return policies.save_from_both_policies(usual, policies.save_only_these_names("no value has this name"))
    return usual


def add_clipping(way: str, limit: float, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """The optimizer behind a transformation that clips gradients to the joint norm `limit`."""
    match way:
        case "named-chain":
            return optax.named_chain(("clip", optax.clip_by_global_norm(limit)), ("optimizer", optimizer))
        case "stateless":
            return optax.chain(optax.stateless(partial(_scaled_down, limit)), optimizer)
        case "clip-grads":
            return optax.chain(optax.stateless(lambda updates, _: clip_grads(updates, limit)), optimizer)
        case _:
            return optax.chain(optax.clip_by_global_norm(limit), optimizer)


def _scaled_down(limit: float, updates: Any, _: Any) -> Any:
    norm = optax.global_norm(updates)
    factor = jnp.where(norm < limit, 1.0, limit / norm)
    return jax.tree.map(lambda update: update * factor.astype(update.dtype), updates)


def schedule(way: str, rate: float, steps: Steps | Curve | None) -> optax.Schedule:
    """The learning rate by the number of applied updates; a curve as Optax ships it.

    Raises:
        Unsupported: SCHEDULE, for factors that this way cannot express, and for a curve that Optax does not ship.
    """
    if steps is None:
        return optax.constant_schedule(rate)
    if isinstance(steps, Curve):
        return make_schedule(rate, steps)
    rates = [rate * factor for factor in steps.factors]
    match way:
        case "piecewise":
            if 0.0 in rates:
                reason = "piecewise_constant_schedule multiplies, and nothing follows a rate of zero"
                raise Unsupported(Capability.SCHEDULE, reason, _follows_zero)
            ratios = {
                boundary: after / before
                for boundary, (before, after) in zip(steps.boundaries, pairwise(rates), strict=True)
            }
            return optax.piecewise_constant_schedule(rates[0], ratios)
        case "function":
            return partial(_select_rate, steps.boundaries, rates)
        case _:
            return optax.join_schedules([*map(optax.constant_schedule, rates)], list(steps.boundaries))


def _select_rate(boundaries: Sequence[int], rates: Sequence[float], count: Any) -> jax.Array:
    rate = jnp.asarray(rates[0])
    for boundary, later in zip(boundaries, rates[1:], strict=True):
        rate = jax.lax.select(jnp.asarray(count) >= boundary, jnp.asarray(later), rate)
    return rate


def _follows_zero() -> bool:
    return bool(optax.piecewise_constant_schedule(1.0, {1: 0.0, 2: 2.0})(3) > 0)


def _sgd(momentum: float | None, nesterov: bool = False) -> list[optax.GradientTransformation]:
    return [] if momentum is None else [optax.trace(momentum, nesterov=nesterov)]


def _adamw(weight_decay: float, mask: Any = None, **options: Any) -> list[optax.GradientTransformation]:
    return [optax.scale_by_adam(**options), optax.add_decayed_weights(weight_decay, mask)]


_PARTS: Mapping[Optimizer, Callable[..., list[optax.GradientTransformation]]] = {
    optax.sgd: _sgd,
    optax.adam: lambda **options: [optax.scale_by_adam(**options)],
    optax.adamw: _adamw,
    optax.adagrad: lambda **options: [optax.scale_by_rss(**options)],
    optax.amsgrad: lambda **options: [optax.scale_by_amsgrad(**options)],
}
"""The transformations before `scale_by_learning_rate`, with the optimizer's own defaults."""


def _make_chain(kind: Optimizer, learning_rate: Any, **options: Any) -> optax.GradientTransformation:
    """An optimizer as the chain of its parts, which Optax documents; RMSprop's momentum follows the rate."""
    rate = optax.scale_by_learning_rate(learning_rate)
    if kind is not optax.rmsprop:
        return optax.chain(*_PARTS[kind](**options), rate)
    momentum, nesterov = options.pop("momentum", None), options.pop("nesterov", False)
    scale = optax.scale_by_stddev if options.pop("centered", False) else optax.scale_by_rms
    return optax.chain(scale(**options), rate, *_sgd(momentum, nesterov))


def optimizer(ways: Recipe, kind: Optimizer, arguments: Mapping[str, Any]) -> optax.GradientTransformation:
    """An optimizer with these arguments."""
    if ways.way("schedule") in ("inject", "set"):
        rate = arguments["learning_rate"]
        own = {name: value for name, value in arguments.items() if name != "learning_rate"}
        first = rate(0) if callable(rate) and ways.way("schedule") == "set" else rate
        return optax.inject_hyperparams(
            lambda learning_rate: _make_optimizer(ways, kind, own | {"learning_rate": learning_rate})
        )(learning_rate=first)
    return _make_optimizer(ways, kind, arguments)


_STATIC = ("mask", "weight_decay_mask", "min_dim_size_to_factor", "ns_coeffs", "ns_steps")


def _make_optimizer(ways: Recipe, kind: Optimizer, arguments: Mapping[str, Any]) -> optax.GradientTransformation:
    match ways.way("optimizer"):
        case "chain" if kind in (*_PARTS, optax.rmsprop):
            return _make_chain(kind, **arguments)
        case "inject":
            return optax.inject_hyperparams(kind, static_args=[name for name in _STATIC if name in arguments])(
                **arguments
            )
        case _:
            return kind(**arguments)


def average(way: str, decay: float, trained: Any, before: Any) -> Any:
    """The exponential moving average of weights after an update."""
    if way == "ema":
        ema = optax.ema(decay, debias=False)
        return ema.update(trained, ema.init(trained)._replace(ema=before))[1].ema
    return optax.incremental_update(trained, before, 1.0 - decay)


def select_state(way: str, finite: jax.Array, after: Callable[[], Any], before: Any) -> Any:
    """The state after an update whose gradients are finite, the one before it otherwise."""
    match way:
        case "cond":
            return jax.lax.cond(finite, after, lambda: before)
        case "skip-not-finite":
            return after()
        case _:
            return jmp.select_tree(finite, after(), before)


def write(way: str, folder: Path, tree: Any) -> None:
    """Writes a tree of arrays below a folder."""
    match way:
        case "manager":
            with ocp.CheckpointManager(folder, options=ocp.CheckpointManagerOptions(max_to_keep=1)) as manager:
                manager.save((manager.latest_step() or 0) + 1, args=ocp.args.StandardSave(tree))
        case "pytree":
            with ocp.PyTreeCheckpointer() as checkpointer:
                checkpointer.save(folder, tree, force=True)
        case "flax-bytes":
            folder.mkdir(parents=True, exist_ok=True)
            (folder / FILE).write_bytes(serialization.to_bytes(tree))
        case "flax-checkpoints":
            checkpoints.save_checkpoint(folder, tree, step=0, overwrite=True)
        case _:
            with ocp.StandardCheckpointer() as checkpointer:
                checkpointer.save(folder, tree, force=True)


def read(recipe: Recipe, folder: Path, like: Any) -> Any:
    """The tree in the files of `write`, with the structure of this one.

    Raises:
        Exception: the files are missing or damaged, or have another tree.
    """
    match recipe.way("save"):
        case "manager":
            with ocp.CheckpointManager(folder) as manager:
                return manager.restore(manager.latest_step(), args=ocp.args.StandardRestore(_target(recipe, like)))
        case "pytree":
            with ocp.PyTreeCheckpointer() as checkpointer:
                asked = ocp.checkpoint_utils.construct_restore_args(like)
                return checkpointer.restore(folder, item=_target(recipe, like), restore_args=asked)
        case "flax-bytes":
            return serialization.from_bytes(like, (folder / FILE).read_bytes())
        case "flax-checkpoints":
            return checkpoints.restore_checkpoint(folder, like)
        case _:
            with ocp.StandardCheckpointer() as checkpointer:
                return checkpointer.restore(folder, _target(recipe, like))


def _target(recipe: Recipe, like: Any) -> Any:
    if recipe.way("load") == "abstract":
        return jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
    return like


def with_rate(rules: Any, state: State, rate: Callable[[], float]) -> State:
    """The state with the rate written into its optimizers, for ways in which the optimizer has no schedule."""
    if rules.schedule is None or rules.ways.way("schedule") != "set":
        return state
    opt_state, first = state.opt_state, rate()
    for index, own in enumerate(rules.own):
        ratio = own.learning_rate / rules.optimizer.learning_rate
        chosen = partial(_is_of, str(index)) if rules.parts else None
        opt_state = optax.tree_utils.tree_set(opt_state, chosen, learning_rate=first * ratio)
    return state.replace(opt_state=opt_state)


def _is_of(label: str, path: Any, _: object) -> bool:
    return any(getattr(key, "key", None) == label for key in path)
