"""Bounds of a correct implementation's distance from the float64 trajectory, derived from the reference.

The bounds come from an ensemble of reference runs. In a member, every rounding goes up or down at random, with the
probability that makes the rounding unbiased. The spread of a quantity is the largest deviation of a member from the run
without rounding. The spread of the loss never falls from one update to the next. A bound is `IMPLEMENTATION_FREEDOM`
times the spread.

Source: stochastic arithmetic as an error estimator, Parker, "Monte Carlo Arithmetic", UCLA CSD-970002 (1997).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.oracle.bound import Bound
from conformance.oracle.bounds_cache import folder, load_arrays, origin_of, store
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
IMPLEMENTATION_FREEDOM = 4.0
"""Bound as a multiple of the spread: up to 16 roundings for one of the reference; independent errors grow as √16."""
LEARNABLE = 0.1
"""Largest loss spread at which an update is judged, as a share of the first loss; beyond it, training is chaotic."""


@dataclass(frozen=True, eq=False)
class Envelope:
    """The run without rounding (the exact run), and the spread of each of its quantities."""

    exact: Run
    loss_spread: Array
    gradient_spread: float
    gain_spread: Array
    parameter_spread: float
    derivation: dict[str, Any]
    sizes: dict[str, int]

    def count_judged(self) -> int:
        """Return the number of updates that can be judged."""
        beyond = np.flatnonzero(self.loss_spread > LEARNABLE * abs(self.exact.losses[0]))
        return int(beyond[0]) if beyond.size else len(self.loss_spread)

    def loss_bounds(self) -> Array:
        """Return the bound of the loss of every update, shape (updates,); infinite for updates that are not judged."""
        beyond = np.arange(len(self.loss_spread)) >= self.count_judged()
        return np.where(beyond, np.inf, IMPLEMENTATION_FREEDOM * self.loss_spread)

    def worst_loss(self, losses: Array) -> tuple[float, Bound, int]:
        """Return deviation, bound and index of the judged update whose loss deviates most in units of its bound.

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
        is far from all others. Parameters whose gradient is mostly rounding error are left out.
        """
        bounds = IMPLEMENTATION_FREEDOM * self.gain_spread
        gains = _gains(measured, self.exact.gradient, self.sizes)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(np.isnan(gains), np.inf, np.where(gains > 0.0, gains / bounds, 0.0))
        worst = int(np.argmax(np.where(self.gain_spread <= LEARNABLE, ratios, -1.0)))
        return float(gains[worst]), Bound(
            float(bounds[worst]), {**self.derivation, "parameter": list(self.sizes)[worst]}
        )

    def parameters(self, measured: Array) -> tuple[float, Bound]:
        """Return the relative distance of the final parameters from the exact ones, and its bound."""
        return distance(measured, self.exact.parameters), self._bound(self.parameter_spread)

    def _bound(self, spread: float) -> Bound:
        return Bound(IMPLEMENTATION_FREEDOM * spread, self.derivation)


def envelope(conventions: Conventions, model: Model, recipe: Recipe, windows: Sequence[Window]) -> Envelope:
    """Return the envelope of a run, from the cache if one with the same origin was derived before."""
    conventions = relevant(conventions, model, recipe)
    key = origin_of(conventions, model, recipe, windows)
    path = folder() / f"{key[:32]}.npz"
    derivation = _derivation("ensemble of randomly rounded reference runs", recipe, key)
    trained = sorted(model.parameter_shapes().keys() - set(recipe.frozen))
    sizes = {name: int(np.prod(model.parameter_shapes()[name])) for name in trained}
    loaded_arrays = load_arrays(path, "losses", "gradient", "parameters", "loss_spread", "gain_spread", "spread")
    if loaded_arrays is None:
        result = _derive(conventions, model, recipe, windows, derivation, sizes)
        exact = {
            "losses": result.exact.losses,
            "gradient": result.exact.gradient,
            "parameters": result.exact.parameters,
        }
        spread = np.array([result.gradient_spread, result.parameter_spread])
        spreads = {"loss_spread": result.loss_spread, "gain_spread": result.gain_spread, "spread": spread}
        store(path, exact | spreads)
        return result
    exact_run = Run(loaded_arrays["losses"], loaded_arrays["gradient"], loaded_arrays["parameters"])
    along, final = (float(s) for s in loaded_arrays["spread"])
    return Envelope(
        exact_run, loaded_arrays["loss_spread"], along, loaded_arrays["gain_spread"], final, derivation, sizes
    )


def quality(
    conventions: Conventions, model: Model, recipe: Recipe, windows: Sequence[Window], test: Batch
) -> tuple[float, Bound]:
    """Return the mean accuracy of the ensemble on `test` after training, and the bound of a correct run's distance.

    The bound is `IMPLEMENTATION_FREEDOM` times the larger of two: the standard deviation of the ensemble's accuracies,
    and the standard error of an accuracy on `len(test)` samples. Training is chaotic by then, so a run is one draw.
    """
    conventions = relevant(conventions, model, recipe)
    key = origin_of(conventions, model, recipe, [*windows, (test,)])
    path = folder() / f"{key[:32]}.quality.npz"
    loaded_arrays = load_arrays(path, "accuracies")
    if loaded_arrays is None:
        rounding = [Stochastic(np.random.default_rng([recipe.seed, 9, i])) for i in range(SAMPLES)]
        runs = [ReferenceFramework("cpu", conventions=conventions, rounding=r).trainer(model, recipe) for r in rounding]
        loaded_arrays = {"accuracies": np.array([trained_accuracy(run, windows, test) for run in runs])}
        store(path, loaded_arrays)
    accuracies = loaded_arrays["accuracies"]
    mean = float(accuracies.mean())
    sampling = float(np.sqrt(mean * (1.0 - mean) / len(test)))
    spread = max(float(np.std(accuracies, ddof=1)), sampling)
    derivation = _derivation("accuracies of randomly rounded reference runs", recipe, key, spread=spread)
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
    """Return the arrays of `train_and_evaluate` in the exact run, each with the bound of a run's relative distance."""
    conventions = relevant(conventions, model, recipe)
    key = origin_of(conventions, model, recipe, [*windows, (Batch(inputs, {}),)])
    path = folder() / f"{key[:32]}.evaluation.npz"
    names = ("buffers", "predictions") if model.buffers() else ("predictions",)
    loaded_arrays = load_arrays(path, *names, *(f"{name}.spread" for name in names))
    if loaded_arrays is None:

        def run_rounded(rounding: Rounding) -> dict[str, Array]:
            framework = ReferenceFramework("cpu", conventions=conventions, rounding=rounding)
            return train_and_evaluate(framework.trainer(model, recipe), windows, inputs)

        exact = run_rounded(Exact())
        members = [run_rounded(Stochastic(np.random.default_rng([recipe.seed, 10, i]))) for i in range(SAMPLES)]
        spread = {f"{n}.spread": np.array(max(distance(m[n], exact[n]) for m in members)) for n in names}
        loaded_arrays = exact | spread
        store(path, loaded_arrays)
    derivation = _derivation("evaluations of randomly rounded reference runs", recipe, key)
    return {
        n: (loaded_arrays[n], Bound(IMPLEMENTATION_FREEDOM * float(loaded_arrays[f"{n}.spread"]), derivation))
        for n in names
    }


def _derivation(method: str, recipe: Recipe, origin: str, **more: float) -> dict[str, Any]:
    return {
        "method": method,
        "format": recipe.precision.format,
        "unit_roundoff": format_of(recipe.precision.format).unit_roundoff,
        "samples": SAMPLES,
        "multiplier": IMPLEMENTATION_FREEDOM,
        "seed": recipe.seed,
        "origin": origin[:16],
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


def _derive(
    conventions: Conventions,
    model: Model,
    recipe: Recipe,
    windows: Sequence[Window],
    derivation: dict[str, Any],
    sizes: dict[str, int],
) -> Envelope:
    def run_rounded(rounding: Rounding) -> Run:
        return run(
            ReferenceFramework("cpu", conventions=conventions, rounding=rounding).trainer(model, recipe), windows
        )

    exact = run_rounded(Exact())
    members = [run_rounded(Stochastic(np.random.default_rng([recipe.seed, 8, i]))) for i in range(SAMPLES)]
    deviations = np.max([np.abs(member.losses - exact.losses) for member in members], axis=0)
    loss_spread = np.maximum.accumulate(deviations)
    floor = format_of("float32").unit_roundoff
    return Envelope(
        exact,
        np.maximum(loss_spread, floor * np.abs(exact.losses)),
        max(distance(member.gradient, exact.gradient) for member in members),
        np.max(
            [part(member.gradient, exact.gradient, sizes) for member in members for part in (_gains, _chances)], axis=0
        ),
        max(distance(member.parameters, exact.parameters) for member in members),
        derivation,
        sizes,
    )


def distance(measured: Array, exact: Array) -> float:
    """Return the relative distance in the 2-norm."""
    return float(np.linalg.norm(measured - exact) / np.linalg.norm(exact))


def _gains(measured: Array, exact: Array, sizes: dict[str, int]) -> Array:
    """Return |⟨g, e⟩ / ⟨e, e⟩ − 1| for every parameter's gradient g and exact gradient e; NaN where e is zero."""
    return np.abs(_per_parameter((measured - exact) * exact, exact, sizes))


def _chances(measured: Array, exact: Array, sizes: dict[str, int]) -> Array:
    """Return |g − e| / (|e| √n) for every parameter of n values: the error along a random direction; NaN if e is 0."""
    counts = np.array([*sizes.values()], np.float64)
    return np.asarray(np.sqrt(_per_parameter((measured - exact) ** 2, exact, sizes) / counts))


def _per_parameter(terms: Array, exact: Array, sizes: dict[str, int]) -> Array:
    """Return Σ terms / Σ e² for every parameter's exact gradient e; NaN where e is zero."""
    starts = np.cumsum([0, *sizes.values()])[:-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.add.reduceat(terms, starts) / np.add.reduceat(exact**2, starts))
