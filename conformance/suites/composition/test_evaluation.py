"""Evaluation after training, and the arithmetic of dropout and clipping."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict, clause, naming_the_layer
from conformance.oracle import errormodel
from conformance.oracle.bound import Bound
from fixtures.data import digits_batch, exact_batch, token_batch
from fixtures.model import Batch, Model
from fixtures.models import digits_convolution, dropout_probe, encoder, exact_linear
from fixtures.recipe import SGD, DynamicScaling, Recipe

MODELS: dict[str, tuple[Callable[[], Model], Callable[[int], Batch]]] = {
    "convolution": (lambda: digits_convolution(0.0, 4), lambda i: digits_batch(8, 8 * i, image=True)),
    "encoder": (lambda: encoder(blocks=1), lambda i: token_batch(4, seed=i)),
}


@clause("autocast.evaluation-parity")
@pytest.mark.parametrize("fixture", MODELS)
def test_evaluation_after_training_stays_within_envelope(subject: Subject, verdict: Verdict, fixture: str) -> None:
    make, batch = MODELS[fixture]
    model, recipe, windows = make(), Recipe(SGD(2.0**-6)), [(batch(i),) for i in range(3)]
    inputs = batch(3).inputs
    measured = errormodel.train_and_evaluate(subject.trainer(model, recipe), windows, inputs)
    for name, (exact, bound) in subject.evaluation(model, recipe, windows, inputs).items():
        gap = errormodel.distance(measured[name], exact)
        with naming_the_layer(subject, model, recipe, windows[0][0]):
            verdict.within(gap, bound, f"relative distance of the {name} from the oracle's", f"{name}-beyond-envelope")


@clause("autocast.evaluation-parity")
def test_evaluation_has_no_dropout(subject: Subject, verdict: Verdict) -> None:
    ones = np.ones((2, 64), np.float32)
    outputs = subject.trainer(dropout_probe(64)).predict(ones)["output"]
    verdict.equal(outputs, np.full((2, 1), 64.0, np.float32), "64 ones behind a dropout layer, added up in evaluation")


@clause("autocast.dropout-scales-what-it-keeps")
def test_dropout_divides_by_keep_probability(subject: Subject, verdict: Verdict) -> None:
    batch = Batch(np.ones((1, 64), np.float32), {"output": np.zeros((1, 1), np.float32)})
    gradient = subject.trainer(dropout_probe(64, 0.75)).gradients((batch,))["1.output.weight"].ravel()
    count = int(np.count_nonzero(gradient))
    verdict.holds(bool(0 < count < 64), "a mask keeps some and drops some", count, "1 to 63")
    expected = np.where(gradient != 0, np.float32(2.0 * (4.0 * count) * 4.0), np.float32(0.0))
    verdict.equal(gradient, expected, "gradient of (Σ 4·x)² over the kept inputs", "kept-share-differs")


@clause("autocast.dropout-scales-what-it-keeps")
@pytest.mark.parametrize("rate", [0.1, 0.625])
def test_dropout_keep_rate_matches_its_scale(subject: Subject, verdict: Verdict, rate: float) -> None:
    """The test takes m sums of n ones after dropout: each has mean n and variance n · rate / (1 - rate)."""
    n, m, deviations = 2**14, 64, 6.0
    batch = Batch(np.ones((m, n), np.float32), {"output": np.zeros((m, 1), np.float32)})
    loss = subject.trainer(dropout_probe(n, rate)).accumulate(batch, m)
    odds = rate / (1.0 - rate)
    bound = Bound(deviations * 2.0 * math.sqrt(odds / (n * m)), {"method": "binomial", "deviations": deviations})
    what = f"mean square of sums of {n} ones behind dropout over {n}², from its expectation"
    verdict.within(abs(loss / n**2 - (1.0 + odds / n)), bound, what, "dropped-share-differs")


@clause("accumulation.clips-only-what-is-larger")
@pytest.mark.parametrize("scaling", [None, DynamicScaling(2.0**10)], ids=["unscaled", "scaled"])
@pytest.mark.parametrize("k", [1, 2])
def test_small_gradient_is_not_clipped(
    subject: Subject, verdict: Verdict, k: int, scaling: DynamicScaling | None
) -> None:
    recipe = Recipe(SGD(2.0**-4), scaling=scaling, accumulation=k)
    plain, clipped = (subject.trainer(exact_linear(), recipe.replace(clip=clip)) for clip in (None, 2.0**20))
    for i in range(2):
        for run in (plain, clipped):
            run.update(exact_batch(8, seed=i).into(k))
    verdict.same_state(clipped.state(), plain.state(), "state with a limit above every norm, compared with none")
