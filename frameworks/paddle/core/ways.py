"""Other public calls of Paddle for a technique, by the names in `ways.toml`; "" is the default one."""

import io
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import paddle
from paddle.incubate.distributed.fleet import recompute_sequential
from paddle.optimizer import lr

from fixtures.recipe import Recipe, Steps
from fixtures.schedules import Curve
from frameworks.contract import Capability, Unsupported
from frameworks.paddle.core.schedules import make_schedule

SEVERAL_ROOTS = ("function", "grad")
"""Ways of a backward pass that take several losses."""


def back(way: str, losses: list[Any], parameters: Sequence[Any], *, retain: bool) -> None:
    """Adds the gradients of losses, in `SEVERAL_ROOTS` of several, to those of the parameters."""
    parameters = [parameter for parameter in parameters if not parameter.stop_gradient]
    match way:
        case "function":
            paddle.autograd.backward(losses, retain_graph=retain)
        case "grad":
            result = paddle.grad(losses, list(parameters), retain_graph=retain, allow_unused=True)
            for parameter, gradient in zip(parameters, result, strict=True):
                if gradient is not None:
                    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        case _:
            losses[0].backward(retain_graph=retain)


def require(recipe: Recipe) -> None:
    """Refuses ways that do not go together.

    Raises:
        Unsupported: RECOMPUTE, for `paddle.grad` behind reentrant recomputation; TWO_OPTIMIZERS, for `minimize`, which
            moves the scale with each of them.
    """
    reentrant = recipe.recompute is not None and recipe.recompute.variant in (None, "reentrant")
    if reentrant and recipe.way("backward") == "grad":
        raise Unsupported(
            Capability.RECOMPUTE, "paddle.grad gives no gradient of what a PyLayer uses", _grad_of_a_layer
        )
    if (
        recipe.optimizers > 1
        and recipe.scaling is not None
        and "minimize" in (recipe.way("scaling"), recipe.way("optimizer"))
    ):
        raise Unsupported(
            Capability.TWO_OPTIMIZERS, "GradScaler.minimize ends an update with each optimizer", _ends_once
        )


def _grad_of_a_layer() -> bool:
    layer, x = paddle.nn.Linear(1, 1), paddle.ones([1, 1])
    x.stop_gradient = False
    y = paddle.distributed.fleet.utils.recompute(layer, x, use_reentrant=True)
    return paddle.grad(y, [layer.weight], allow_unused=True)[0] is not None


def _ends_once() -> bool:
    """Whether two optimizers that `minimize` leave the growth counter at 1."""
    scaler, weights = paddle.amp.GradScaler(), [paddle.create_parameter([1], "float32") for _ in range(2)]
    with paddle.amp.auto_cast(enable=False, dtype="float16"):
        loss = scaler.scale(weights[0].sum() + weights[1].sum())
    loss.backward()
    for weight in weights:
        scaler.minimize(paddle.optimizer.SGD(parameters=[weight]), loss)
    return bool(scaler.state_dict()["incr_count"] == 1)


def schedule(way: str, rate: float, steps: Steps | Curve, last: int = -1) -> lr.LRScheduler:
    """A schedule of piecewise constant rates by a way, or one that Paddle ships for a curve.

    It begins after update `last`, from 0.

    Raises:
        Unsupported: SCHEDULE, for factors that this way cannot express, and for a curve that Paddle does not ship.
    """
    if isinstance(steps, Curve):
        return make_schedule(rate, steps, last)
    factors = steps.factors
    match way:
        case "lambda":
            return lr.LambdaDecay(rate, steps.factor, last)
        case "multi-step":
            ratios = {after / before for before, after in pairwise(factors) if before}
            if factors[0] != 1 or len(ratios) > 1 or 0.0 in factors or not ratios or min(ratios) >= 1:
                raise Unsupported(
                    Capability.SCHEDULE, "MultiStepDecay has one ratio below 1 for all steps", _takes_ratios
                )
            return lr.MultiStepDecay(rate, list(steps.boundaries), *ratios, last_epoch=last)
        case "multiplicative":
            if 0.0 in factors or steps.factor(0) != 1:
                raise Unsupported(Capability.SCHEDULE, "MultiplicativeDecay begins with its rate", _begins_low)
            return lr.MultiplicativeDecay(rate, lambda n: steps.factor(n) / steps.factor(n - 1), last)
        case _:
            return lr.PiecewiseDecay(list(steps.boundaries), [rate * factor for factor in factors], last)


def _takes_ratios() -> bool:
    return bool(lr.MultiStepDecay(1.0, [1, 2], [0.5, 0.25]).get_lr() == 1.0)


def _begins_low() -> bool:
    return bool(lr.MultiplicativeDecay(1.0, lambda _: 0.5).get_lr() == 0.5)


def recompute_segments(segments: Sequence[Any], x: Any, *, reentrant: bool) -> Any:
    """The value of segments one after the other, recomputed by `recompute_sequential`."""
    return recompute_sequential({"segments": len(segments)}, list(segments), x, use_reentrant=reentrant)


def step(recipe: Recipe, optimizer: Any, scaler: Any | None, loss: Any) -> bool:
    """One update by one of the ways; whether it has updated the scaler too."""
    minimizes = "minimize" in (recipe.way("optimizer"), recipe.way("scaling"))
    if scaler is None:
        optimizer.minimize(loss) if recipe.way("optimizer") == "minimize" else optimizer.step()
        return False
    if minimizes:
        scaler.minimize(optimizer, loss)
        return True
    scaler.step(optimizer)
    return False


def drop_gradients(way: str, optimizers: Iterable[Any], network: paddle.nn.Layer) -> None:
    """Drops the gradients of an update."""
    if way == "layer":
        network.clear_gradients(set_to_zero=False)
        return
    for optimizer in optimizers:
        optimizer.clear_grad(set_to_zero=way == "zeros")


def write(way: str, parts: dict[str, Any], file: Path) -> None:
    """Writes the parts of a run."""
    match way:
        case "bytes":
            buffer = io.BytesIO()
            paddle.save(parts, buffer)
            file.write_bytes(buffer.getvalue())
        case "protocol":
            paddle.save(parts, str(file), protocol=2)
        case _:
            paddle.save(parts, str(file))


def read(recipe: Recipe, file: Path) -> Any:
    """The parts that `write` wrote."""
    options = {"return_numpy": True} if recipe.way("load") == "arrays" else {}
    return paddle.load(io.BytesIO(file.read_bytes()) if recipe.way("save") == "bytes" else str(file), **options)
