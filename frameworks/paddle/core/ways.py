"""Learning-rate schedules that Paddle ships, and other public calls for a technique, by the names in `ways.toml`."""

import io
import tempfile
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import paddle
from paddle.optimizer import lr
from paddle.optimizer.lr import ReduceOnPlateau

from fixtures import schedules as curves
from fixtures.recipe import Recipe, Steps
from fixtures.schedules import Curve, Plateau
from frameworks.base import ships, takes
from frameworks.contract import Capability, Unsupported


def make_schedule(rate: float, curve: curves.Curve, last: int = -1) -> lr.LRScheduler:
    """The schedule that follows a curve from a rate, after update `last`, from 0.

    Raises:
        Unsupported: SCHEDULE, where Paddle has no class for it.
    """
    match curve:
        case curves.Exponential(ratio=ratio, every=1):
            return lr.ExponentialDecay(rate, ratio, last)
        case curves.Exponential(ratio=ratio, every=every, staircase=True):
            return lr.StepDecay(rate, every, ratio, last)
        case curves.InverseTime(rate=slope):
            return lr.InverseTimeDecay(rate, slope, last)
        case curves.Linear(start=start, end=end, steps=steps):
            return lr.LinearLR(rate, steps, start_factor=start, end_factor=end, last_epoch=last)
        case curves.Polynomial(steps=steps, power=power, end=end):
            return lr.PolynomialDecay(rate, steps, end_lr=rate * end, power=power, last_epoch=last)
        case curves.Cosine(steps=steps, end=end):
            return lr.CosineAnnealingDecay(rate, steps, rate * end, last)
        case curves.CosineRestarts(first=first, multiply=multiply, end=end):
            return lr.CosineAnnealingWarmRestarts(rate, first, multiply, rate * end, last)
        case curves.Triangular(top=top, up=up, shrink=shrink):
            return lr.CyclicLR(rate, rate * top, up, mode="triangular2" if shrink else "triangular", last_epoch=last)
        case curves.Joined(
            parts=(curves.Linear(start=start, end=1.0, steps=steps), curves.Curve() as rest), boundaries=(boundary,)
        ) if steps == boundary:
            return lr.LinearWarmup(make_schedule(rate, rest), steps, rate * start, rate, last)
        case curves.OneCycle(top=top, up=up, steps=steps, end=end, momenta=None):
            share = (up + 1) / (steps + 1)
            return lr.OneCycleLR(rate * top, steps + 1, top, rate * end, share, last_epoch=last)
        case curves.OneCycle():
            attempt = partial(takes, lr.OneCycleLR, "cycle_momentum", "max_momentum")
        case curves.Chained():
            attempt = partial(ships, "paddle.optimizer.lr", "chain")
        case curves.Joined():
            attempt = partial(ships, "paddle.optimizer.lr", "sequential")
        case _:
            attempt = partial(takes, lr.ExponentialDecay, "every", "step_size", "decay_steps")
    raise Unsupported(Capability.SCHEDULE, f"paddle.optimizer.lr has no {curve} but the user's LambdaDecay", attempt)


class PlateauRun:
    """An optimizer whose rate follows a metric, from 1.

    Attributes:
        part: the object whose state, including the schedule's, is saved and loaded.
    """

    part: Any

    def __init__(self, plateau: Plateau) -> None:
        self.scheduler = ReduceOnPlateau(
            1.0,
            mode=plateau.mode,
            factor=plateau.factor,
            patience=plateau.patience - 1,
            threshold=plateau.threshold,
            threshold_mode="rel" if plateau.relative else "abs",
            cooldown=plateau.cooldown,
            min_lr=plateau.minimum,
        )
        self.begin()

    def begin(self) -> None:
        """Makes the optimizer."""
        self.part = paddle.optimizer.SGD(self.scheduler, [paddle.create_parameter([1], "float32")])

    def rate(self) -> float:
        """The rate of the next update."""
        return float(self.part.get_lr())


def rates(
    make: type[PlateauRun], plateau: Plateau, metrics: Sequence[float], saved: int | None = None
) -> tuple[float, ...]:
    """The learning rate after each metric; the run's state is saved and loaded after `saved` metrics."""
    run = make(plateau)
    result: list[float] = []
    for index, metric in enumerate(metrics):
        if index == saved:
            with tempfile.TemporaryDirectory() as folder:
                file = str(Path(folder) / "run.pdopt")
                paddle.save(run.part.state_dict(), file)
                run = make(plateau)
                run.part.set_state_dict(paddle.load(file))
        run.scheduler.step(metric)
        result.append(run.rate())
    return tuple(result)


SEVERAL_ROOTS = ("function", "grad")
"""Ways of a backward pass that take several losses in one call."""


def run_backward(way: str, losses: list[Any], parameters: Sequence[Any], *, retain: bool) -> None:
    """Adds the gradients of losses to the parameters' gradients; only `SEVERAL_ROOTS` take more than one loss."""
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
    """Refuses ways that cannot be combined.

    Raises:
        Unsupported: RECOMPUTE, for `paddle.grad` behind reentrant recomputation; TWO_OPTIMIZERS, for `minimize`, which
            moves the scale with each of them.
    """
    reentrant = recipe.recompute is not None and recipe.recompute.variant in (None, "reentrant")
    if reentrant and recipe.way("backward") == "grad":
        reason = "paddle.grad gives no gradient of what a PyLayer uses"
        raise Unsupported(Capability.RECOMPUTE, reason, _grad_of_a_layer)
    minimizes = recipe.scaling is not None and "minimize" in (recipe.way("scaling"), recipe.way("optimizer"))
    if minimizes and recipe.optimizers > 1:
        reason = "GradScaler.minimize ends an update with each optimizer"
        raise Unsupported(Capability.TWO_OPTIMIZERS, reason, _ends_once)


def _grad_of_a_layer() -> bool:
    layer, x = paddle.nn.Linear(1, 1), paddle.ones([1, 1])
    x.stop_gradient = False
    y = paddle.distributed.fleet.utils.recompute(layer, x, use_reentrant=True)
    return paddle.grad(y, [layer.weight], allow_unused=True)[0] is not None


def _ends_once() -> bool:
    """Returns whether the growth counter is 1 after `minimize` with two optimizers."""
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


def step(recipe: Recipe, optimizer: Any, scaler: Any | None, loss: Any) -> bool:
    """Makes one update by one of the ways; returns whether it has updated the scaler too."""
    if scaler is not None and "minimize" in (recipe.way("optimizer"), recipe.way("scaling")):
        scaler.minimize(optimizer, loss)
        return True
    if scaler is not None:
        scaler.step(optimizer)
    elif recipe.way("optimizer") == "minimize":
        optimizer.minimize(loss)
    else:
        optimizer.step()
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
