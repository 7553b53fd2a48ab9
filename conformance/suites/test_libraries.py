"""Libraries on top of a framework: what their training loop adds to the framework's own calls."""

from __future__ import annotations

import pytest

from conformance.judging.kit import Subject, Verdict, clause, need
from fixtures.data import digits_batch
from fixtures.model import Model
from fixtures.models import digits_convolution, digits_mlp
from fixtures.recipe import SGD, Adam, AdamW, Optimizer, Recipe
from frameworks.contract import Capability

OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": SGD(0.1),
    "momentum": SGD(0.1, momentum=0.9),
    "adam": Adam(1e-2),
    "adamw": AdamW(1e-2, weight_decay=0.1),
}
MODELS: dict[str, Model] = {"perceptron": digits_mlp((16,)), "convolutions": digits_convolution(0.25, 2)}


@clause("composition.library-adds-nothing")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_library_makes_the_updates_of_the_framework_alone(
    subject: Subject, verdict: Verdict, optimizer: str, model: str
) -> None:
    need(subject, Capability.PLAIN_LOOP)
    fixture, recipe = MODELS[model], subject.seeded(Recipe(OPTIMIZERS[optimizer]))
    library, plain = subject.framework.trainer(fixture, recipe), subject.framework.plain_trainer(fixture, recipe)
    for place in range(3):
        window = (digits_batch(8, 8 * place, image=model == "convolutions"),)
        seen, expected = library.update(window), plain.update(window)
        verdict.equal(
            (seen.loss, seen.learning_rate), (expected.loss, expected.learning_rate), f"loss and rate of update {place}"
        )
        but = ("accumulator/",)
        verdict.same_state(
            library.state(), plain.state(), f"training state after update {place}", "library-adds", but=but
        )
