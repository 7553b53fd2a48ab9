"""Compare runs with and without recomputation, and bound Σ tanh(x·w) as `Framework.recompute` computes it.

A compiler may fuse the operations of the two programs differently, and keep more precision than was asked for. Each of
the two runs is then allowed the oracle's bound, so the two may be twice as far apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from conformance.checks.evidence import Verdict
from conformance.checks.subject import Subject
from conformance.oracle.bound import Bound
from conformance.oracle.errormodel import IMPLEMENTATION_FREEDOM, SAMPLES, TECHNIQUE_STREAM, distance, flat
from fixtures.arrays import Array, format_of
from fixtures.model import Batch, Dropout, Layer, Model, Residual
from fixtures.recipe import Recipe, Recompute
from frameworks.contract import RecomputeResult, Trainer
from frameworks.reference import ReferenceFramework
from frameworks.reference.core.rounding import Exact, Rounding, Stochastic

Pass = tuple[Model, Recipe, Batch]
"""What a forward and backward pass depends on."""


def make_runs(subject: Subject, model: Model, recipe: Recipe, recompute: Recompute) -> tuple[Trainer, Trainer]:
    """Return two equal runs, without and with recomputation."""
    return subject.trainer(model, recipe), subject.trainer(model, recipe.replace(recompute=recompute))


def function_bounds(x: Array, w: Array, seed: int) -> dict[str, Bound]:
    """Return bounds of the relative 2-norm distance of "value", "x" and "w" from the exact run, in float32.

    Args:
        x, w: float32, (n, m) and (m, k).
    """

    def values_of(rounding: Rounding) -> Mapping[str, Array]:
        return parts(ReferenceFramework("cpu", rounding=rounding).recompute("plain", x, w))

    exact = values_of(Exact())
    members = [values_of(Stochastic(np.random.default_rng([seed, TECHNIQUE_STREAM, i]))) for i in range(SAMPLES)]
    unit = format_of("float32").unit_roundoff
    derivation = {
        "method": "ensemble of randomly rounded reference runs",
        "format": "float32",
        "unit_roundoff": unit,
        "samples": SAMPLES,
        "multiplier": IMPLEMENTATION_FREEDOM,
        "seed": seed,
    }
    spreads = {name: max(unit, *(distance(m[name], exact[name]) for m in members)) for name in exact}
    return {name: Bound(IMPLEMENTATION_FREEDOM * spread, derivation) for name, spread in spreads.items()}


def parts(result: RecomputeResult) -> dict[str, Array]:
    """Return the value and the gradients for x and w of a result, as float64; a missing gradient is omitted."""
    arrays = {"value": np.asarray(result.value), "x": result.x, "w": result.w}
    return {name: array.astype(np.float64) for name, array in arrays.items() if array is not None}


def same_losses(
    subject: Subject, verdict: Verdict, measured: Sequence[float], expected: Sequence[float], source: Pass
) -> None:
    """Check that losses of updates on one batch are the same with recomputation and without."""
    model, recipe, batch = source
    what = f"loss of {len(expected)} updates"
    if not subject.conventions.compiled:
        verdict.equal(measured, expected, what, "loss-differs")
        return
    envelope = subject.envelope(model, recipe, [(batch,)] * len(expected))
    worst, bound, update = envelope.worst_loss(np.array(measured))
    verdict.within(worst, bound, f"{what}: distance from float64's at update {update}", "loss-differs")


def same_gradients(
    subject: Subject,
    verdict: Verdict,
    measured: Mapping[str, Array],
    expected: Mapping[str, Array],
    source: Pass,
    *,
    what: str = "every gradient",
    signature: str = "gradient-differs",
) -> None:
    """Check that the same parameters have gradients, and that these are the same."""
    model, recipe, batch = source
    if not subject.conventions.compiled:
        verdict.same_gradients(measured, expected, what, signature)
        return
    verdict.equal(sorted(measured), sorted(expected), "parameters that have a gradient", "gradient-missing")
    envelope = subject.envelope(without_masks(model), recipe, [(batch,)])
    _, one = envelope.gradient(envelope.exact.gradient)
    gap = distance(flat(dict(measured)), flat(dict(expected)))
    verdict.within(gap, of_two_runs(one), f"{what}: relative distance from those without recomputation", signature)


def same_values(
    subject: Subject,
    verdict: Verdict,
    measured: Mapping[str, Array | float | None],
    expected: Mapping[str, Array | float | None],
    arguments: tuple[Array, Array],
    signature: str = "differs",
) -> None:
    """Check that results of `Framework.recompute` ("value", "x", "w") are the same with recomputation and without."""
    compiled = subject.conventions.compiled
    bounds = function_bounds(*arguments, subject.seed) if compiled else {}
    for name, value in measured.items():
        what = name if name == "value" else f"gradient of {name}"
        wanted = expected[name]
        if not compiled:
            verdict.equal(value, wanted, what, signature)
            continue
        kinds = [(array.dtype.name, array.shape) for array in map(np.asarray, (value, wanted))]
        verdict.equal(kinds[0], kinds[1], f"format and shape of the {what}", signature)
        gap = distance(np.asarray(value, np.float64), np.asarray(wanted, np.float64))
        bound = of_two_runs(bounds[name])
        verdict.within(gap, bound, f"{what}: relative distance from that without recomputation", signature)


def of_two_runs(one: Bound) -> Bound:
    """Return the bound of the distance of two runs, each of which is within the bound `one`."""
    return Bound(2.0 * one.value, {**one.derivation, "runs": 2, "why": "a compiler may round each otherwise"})


def without_masks(model: Model) -> Model:
    """Return the model with dropout rate 0, which rounds as with any mask."""
    return replace(model, layers=tuple(_without_mask(layer) for layer in model.layers))


def _without_mask(layer: Layer) -> Layer:
    match layer:
        case Dropout():
            return Dropout(0.0)
        case Residual(body=body):
            return replace(layer, body=tuple(_without_mask(part) for part in body))
        case _:
            return layer
