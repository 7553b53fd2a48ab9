"""Bounds of a correct implementation's distance from the float64 trajectory, derived from the reference.

The bounds come from an ensemble of reference runs. In a member, every rounding goes up or down at random, with the
probability that makes the rounding unbiased. The spread of a quantity is the largest deviation of a member from the run
without rounding. The spread of the loss never falls from one update to the next. A bound is `IMPLEMENTATION_FREEDOM`
times the spread.

Source: stochastic arithmetic as an error estimator, Parker, "Monte Carlo Arithmetic", UCLA CSD-970002 (1997).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.oracle.bound import Bound
from conformance.oracle.bounds_cache import Origin, load_arrays, store
from conformance.oracle.runs import Run as Run
from conformance.oracle.runs import flat as flat
from conformance.oracle.runs import run as run
from conformance.oracle.runs import train_and_evaluate as train_and_evaluate
from fixtures.arrays import Array, format_of
from fixtures.model import Batch, BatchNorm, Model, Window
from fixtures.recipe import SGD, Recipe
from frameworks.contract import Conventions, Trainer
from frameworks.reference import ReferenceFramework
from frameworks.reference.core.rounding import Exact, Rounding, Stochastic

SAMPLES = 8
"""Number of randomly rounded runs of an ensemble, its members."""
IMPLEMENTATION_FREEDOM = 4.0
"""Bound as a multiple of the spread: up to 16 roundings for one of the reference; independent errors grow as √16."""
LEARNABLE = 0.1
"""Largest loss spread at which an update is judged, as a share of the first loss; beyond it, training is chaotic."""
ENVELOPE_STREAM, ACCURACY_STREAM, EVALUATION_STREAM, LAYER_STREAM, TECHNIQUE_STREAM = 8, 9, 10, 11, 12
"""Numbers that keep the random roundings of the kinds of ensembles apart."""


@dataclass(frozen=True, eq=False)
class Envelope:
    """The run without rounding (the exact run), and the spread of each of its quantities.

    Attributes:
        loss_spread: of each update's loss, shape (updates,).
        gradient_spread, parameter_spread: of the first gradient and of the final parameters, relative in the 2-norm.
        gain_spread: of each trained parameter's gain, in the order of `sizes`; NaN where the exact gradient is zero.
        sizes: number of values of each trained parameter, by name.
    """

    exact: Run
    loss_spread: Array
    gradient_spread: float
    gain_spread: Array
    parameter_spread: float
    derivation: dict[str, Any]
    sizes: dict[str, int]

    def count_judged(self) -> int:
        """Return the number of updates that can be judged."""
        chaotic = np.flatnonzero(self.loss_spread > LEARNABLE * abs(self.exact.losses[0]))
        return int(chaotic[0]) if chaotic.size else len(self.loss_spread)

    def loss_bounds(self) -> Array:
        """Return the bound of the loss of every update, shape (updates,); infinite for updates that are not judged."""
        unjudged = np.arange(len(self.loss_spread)) >= self.count_judged()
        return np.where(unjudged, np.inf, IMPLEMENTATION_FREEDOM * self.loss_spread)

    def worst_loss(self, losses: Array) -> tuple[float, Bound, int]:
        """Return deviation, bound and index of the judged update whose loss deviates most in units of its bound.

        A loss that is NaN deviates most; its deviation is NaN, which exceeds every bound.

        Raises:
            ValueError: no update is judged.
        """
        count = self.count_judged()
        if not count:
            raise ValueError("the spread is too large to judge at the first update already")
        deviation = np.abs(losses[:count] - self.exact.losses[:count])
        bounds = self.loss_bounds()[:count]
        worst = int(np.argmax(np.where(np.isnan(deviation), np.inf, deviation / bounds)))
        return float(deviation[worst]), Bound(float(bounds[worst]), {**self.derivation, "update": worst}), worst

    def gradient(self, measured: Array) -> tuple[float, Bound]:
        """Return the relative distance of the first gradient from the exact one, and its bound."""
        return distance(measured, self.exact.gradient), self._bound(self.gradient_spread)

    def gain(self, measured: Array) -> tuple[float, Bound]:
        """Return the gain error of the parameter that deviates most, |⟨g, e⟩ / ⟨e, e⟩ − 1|, and its bound.

        g is the parameter's first gradient, e the exact one. Rounding errors of many values average out along e, so
        the gain shows errors that the distance of the whole gradient hides: a common factor, swapped parameters, or
        an error in a small parameter. The spread is the larger of the ensemble's gain errors and of the component that
        an error of a member's size has along any one direction by chance: at a maximum or a kink, one run in hundreds
        is far from all others. Parameters whose gradient is mostly rounding error are left out, and those whose exact
        gradient is zero. A gain error that is NaN is the largest one, and exceeds every bound.
        """
        bounds = IMPLEMENTATION_FREEDOM * self.gain_spread
        errors = _gain_errors(measured, self.exact.gradient, self.sizes)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(np.isnan(errors), np.inf, np.where(errors > 0.0, errors / bounds, 0.0))
        worst = int(np.argmax(np.where(self.gain_spread <= LEARNABLE, ratios, -1.0)))
        derivation = {**self.derivation, "parameter": list(self.sizes)[worst]}
        return float(errors[worst]), Bound(float(bounds[worst]), derivation)

    def parameters(self, measured: Array) -> tuple[float, Bound]:
        """Return the relative distance of the final parameters from the exact ones, and its bound."""
        return distance(measured, self.exact.parameters), self._bound(self.parameter_spread)

    def _bound(self, spread: float) -> Bound:
        return Bound(IMPLEMENTATION_FREEDOM * spread, self.derivation)


def envelope(conventions: Conventions, model: Model, recipe: Recipe, windows: Sequence[Window]) -> Envelope:
    """Return the envelope of a run, from the cache if one with the same origin was derived before.

    Raises:
        ValueError: the spread of a loss, of the gradient or of the parameters is NaN.
    """
    conventions = relevant(conventions, model, recipe)
    origin = Origin(conventions, model, recipe, tuple(windows))
    shapes = model.parameter_shapes()
    sizes = {name: math.prod(shapes[name]) for name in sorted(shapes.keys() - set(recipe.frozen))}

    def derive() -> dict[str, Array]:
        exact = run(_trainer(conventions, model, recipe, Exact()), windows)
        members = [run(trainer, windows) for trainer in _members(conventions, model, recipe, ENVELOPE_STREAM)]
        return _exact_arrays_and_spreads(exact, members, sizes)

    names = ("losses", "gradient", "parameters", "loss_spread", "gain_spread", "spread")
    arrays = _load_or_derive(origin, "", names, derive)
    gradient_spread, parameter_spread = (float(spread) for spread in arrays["spread"])
    return Envelope(
        exact=Run(arrays["losses"], arrays["gradient"], arrays["parameters"]),
        loss_spread=arrays["loss_spread"],
        gradient_spread=gradient_spread,
        gain_spread=arrays["gain_spread"],
        parameter_spread=parameter_spread,
        derivation=_derivation("ensemble of randomly rounded reference runs", recipe, origin),
        sizes=sizes,
    )


def _exact_arrays_and_spreads(exact: Run, members: Sequence[Run], sizes: dict[str, int]) -> dict[str, Array]:
    """Return what the cache stores of an envelope; "spread" holds those of the gradient and of the parameters."""
    deviations = _largest((np.abs(member.losses - exact.losses) for member in members), "losses")
    floor = format_of("float32").unit_roundoff * np.abs(exact.losses)
    measures = (_gain_errors, _random_gain_errors)
    gain_errors = [measure(member.gradient, exact.gradient, sizes) for member in members for measure in measures]
    gradient_spread = _largest((distance(member.gradient, exact.gradient) for member in members), "gradients")
    parameter_spread = _largest((distance(member.parameters, exact.parameters) for member in members), "parameters")
    return {
        "losses": exact.losses,
        "gradient": exact.gradient,
        "parameters": exact.parameters,
        "loss_spread": np.maximum(np.maximum.accumulate(deviations), floor),
        "gain_spread": np.max(gain_errors, axis=0),
        "spread": np.array([gradient_spread, parameter_spread]),
    }


def quality(
    conventions: Conventions, model: Model, recipe: Recipe, windows: Sequence[Window], test: Batch
) -> tuple[float, Bound]:
    """Return the mean accuracy of the ensemble on `test` after training, and the bound of a correct run's distance.

    The bound is `IMPLEMENTATION_FREEDOM` times the larger of two: the standard deviation of the ensemble's accuracies,
    and the standard error of an accuracy on `len(test)` samples. Training is chaotic by then, so a run is one draw.
    """
    conventions = relevant(conventions, model, recipe)
    origin = Origin(conventions, model, recipe, (*windows, (test,)))

    def derive() -> dict[str, Array]:
        trainers = _members(conventions, model, recipe, ACCURACY_STREAM)
        return {"accuracies": np.array([trained_accuracy(trainer, windows, test) for trainer in trainers])}

    accuracies = _load_or_derive(origin, "quality", ("accuracies",), derive)["accuracies"]
    mean = float(accuracies.mean())
    sampling = float(np.sqrt(mean * (1.0 - mean) / len(test)))
    spread = max(float(np.std(accuracies, ddof=1)), sampling)
    derivation = _derivation("accuracies of randomly rounded reference runs", recipe, origin, spread=spread)
    return mean, Bound(IMPLEMENTATION_FREEDOM * spread, derivation)


def trained_accuracy(trainer: Trainer, windows: Sequence[Window], test: Batch) -> float:
    """Return the share of `test` that a run classifies correctly after one update for each window."""
    for window in windows:
        trainer.update(window)
    outputs = trainer.predict(test.inputs)["output"].astype(np.float64)
    return float(np.mean(outputs.argmax(-1) == test.targets["output"]))


def evaluation(
    conventions: Conventions, model: Model, recipe: Recipe, windows: Sequence[Window], inputs: Array
) -> dict[str, tuple[Array, Bound]]:
    """Return the arrays of `train_and_evaluate` in the exact run, each with the bound of a run's relative distance.

    Raises:
        ValueError: the spread of an array is NaN.
    """
    conventions = relevant(conventions, model, recipe)
    origin = Origin(conventions, model, recipe, (*windows, (Batch(inputs, {}),)))
    names = ("buffers", "predictions") if model.buffers() else ("predictions",)

    def derive() -> dict[str, Array]:
        exact = train_and_evaluate(_trainer(conventions, model, recipe, Exact()), windows, inputs)
        trainers = _members(conventions, model, recipe, EVALUATION_STREAM)
        members = [train_and_evaluate(trainer, windows, inputs) for trainer in trainers]
        spreads = {name: _largest((distance(m[name], exact[name]) for m in members), name) for name in names}
        return exact | {f"{name}.spread": spread for name, spread in spreads.items()}

    arrays = _load_or_derive(origin, "evaluation", (*names, *(f"{name}.spread" for name in names)), derive)
    derivation = _derivation("evaluations of randomly rounded reference runs", recipe, origin)
    bounds = {name: IMPLEMENTATION_FREEDOM * float(arrays[f"{name}.spread"]) for name in names}
    return {name: (arrays[name], Bound(bounds[name], derivation)) for name in names}


def _load_or_derive(
    origin: Origin, kind: str, names: Sequence[str], derive: Callable[[], dict[str, Array]]
) -> dict[str, Array]:
    """Return the named arrays from their cache file; if it lacks one, derive them all and store them there."""
    arrays = load_arrays(origin, kind, names)
    if arrays is None:
        arrays = derive()
        store(origin, kind, arrays)
    return arrays


def _trainer(conventions: Conventions, model: Model, recipe: Recipe, rounding: Rounding) -> Trainer:
    return ReferenceFramework("cpu", conventions=conventions, rounding=rounding).trainer(model, recipe)


def _members(conventions: Conventions, model: Model, recipe: Recipe, stream: int) -> Iterator[Trainer]:
    for member in range(SAMPLES):
        rounding = Stochastic(np.random.default_rng([recipe.seed, stream, member]))
        yield _trainer(conventions, model, recipe, rounding)


def _largest(deviations: Iterable[Any], what: str) -> Array:
    """Return the largest of the members' deviations, which are numbers or arrays of one shape, elementwise.

    Raises:
        ValueError: one is NaN, so the members give no bound.
    """
    largest = np.asarray(np.max(list(deviations), axis=0))
    if np.isnan(largest).any():
        raise ValueError(f"the spread of the {what} is NaN: a run of the reference has values that are not finite")
    return largest


def _derivation(method: str, recipe: Recipe, origin: Origin, **more: float) -> dict[str, Any]:
    return {
        "method": method,
        "format": recipe.precision.format,
        "unit_roundoff": format_of(recipe.precision.format).unit_roundoff,
        "samples": SAMPLES,
        "multiplier": IMPLEMENTATION_FREEDOM,
        "seed": recipe.seed,
        "origin": origin.digest[:16],
        **more,
    }


def relevant(conventions: Conventions, model: Model, recipe: Recipe) -> Conventions:
    """Return the conventions with those that do not affect the recipe at their default: frameworks share envelopes."""
    default = Conventions()
    normalised = any(isinstance(layer, BatchNorm) for _, layer, _ in model.shapes())
    momentum = isinstance(recipe.optimizer, SGD) and recipe.optimizer.momentum > 0
    adam = default if isinstance(recipe.optimizer, SGD) else conventions
    return replace(
        default,
        adam_epsilon=adam.adam_epsilon,
        adam_correction=adam.adam_correction,
        momentum_rate=conventions.momentum_rate if momentum else default.momentum_rate,
        running_variance=conventions.running_variance if normalised else default.running_variance,
        clip_epsilon=conventions.clip_epsilon if recipe.clip is not None else default.clip_epsilon,
        batch_statistics=conventions.batch_statistics if recipe.ranks is not None else default.batch_statistics,
    )


def distance(measured: Array, exact: Array) -> float:
    """Return |m − e| / |e| in the 2-norm for vectors m and e; if e is zero, NaN for m = 0 and infinity otherwise."""
    return float(np.linalg.norm(measured - exact) / np.linalg.norm(exact))


def _gain_errors(measured: Array, exact: Array, sizes: dict[str, int]) -> Array:
    """Return |⟨g, e⟩ / ⟨e, e⟩ − 1| for every parameter's gradient g and exact gradient e; NaN where e is zero."""
    return np.abs(_per_parameter((measured - exact) * exact, exact, sizes))


def _random_gain_errors(measured: Array, exact: Array, sizes: dict[str, int]) -> Array:
    """Return |g − e| / (|e| √n) for every parameter of n values: the error along a random direction; NaN if e is 0."""
    counts = np.array([*sizes.values()], np.float64)
    return np.asarray(np.sqrt(_per_parameter((measured - exact) ** 2, exact, sizes) / counts))


def _per_parameter(terms: Array, exact: Array, sizes: dict[str, int]) -> Array:
    """Return Σ terms / Σ e² for every parameter's exact gradient e; NaN where e is zero."""
    starts = np.cumsum([0, *sizes.values()])[:-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.add.reduceat(terms, starts) / np.add.reduceat(exact**2, starts))
