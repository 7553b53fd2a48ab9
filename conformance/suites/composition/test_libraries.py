"""Add-on libraries: the effects of their training loops on top of the framework's own calls."""

import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict, clause, need
from fixtures.arrays import Array
from fixtures.data import digits_batch, exact_batch
from fixtures.model import Batch, Model
from fixtures.models import digits_convolution, digits_mlp, exact_linear
from fixtures.recipe import BFLOAT16, SGD, Adam, AdamW, DynamicScaling, Optimizer, Recipe
from frameworks.contract import Capability, Trainer

OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": SGD(0.1),
    "momentum": SGD(0.1, momentum=0.9),
    "adam": Adam(1e-2),
    "adamw": AdamW(1e-2, weight_decay=0.1),
}
MODELS: dict[str, Model] = {"perceptron": digits_mlp((16,)), "convolutions": digits_convolution(0.25, 2)}
WINDOWS = 3


@clause("composition.library-adds-nothing")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_library_matches_framework_alone(subject: Subject, verdict: Verdict, optimizer: str, model: str) -> None:
    need(subject, Capability.PLAIN_LOOP)
    fixture, recipe = MODELS[model], subject.complete_recipe(Recipe(OPTIMIZERS[optimizer])).replace(ranks=None)
    library, plain = subject.framework.trainer(fixture, recipe), subject.framework.plain_trainer(fixture, recipe)
    for index in range(3):
        window = (digits_batch(8, 8 * index, image=model == "convolutions"),)
        measured, expected = library.update(window), plain.update(window)
        verdict.equal(
            (measured.loss, measured.learning_rate),
            (expected.loss, expected.learning_rate),
            f"loss and rate of update {index}",
        )
        ignoring = ("accumulator/",)
        verdict.same_state(
            library.state(), plain.state(), f"training state after update {index}", "library-adds", ignoring=ignoring
        )


class Stepwise:
    """A run whose windows are trained in two parts, so that another run can train in between."""

    def __init__(self, subject: Subject, recipe: Recipe) -> None:
        self.trainer: Trainer = subject.trainer(exact_linear(), recipe)
        self._k = recipe.accumulation
        self.losses: list[float] = []

    def first(self, index: int) -> None:
        """Train on all but the last micro-batch of window `index`."""
        for part in self._parts(index)[:-1]:
            self.losses.append(self.trainer.accumulate(part, 8))

    def second(self, index: int) -> None:
        """Train on the last micro-batch of window `index`, and make the update."""
        self.losses.append(self.trainer.accumulate(self._parts(index)[-1], 8))
        self.trainer.apply()

    def _parts(self, index: int) -> tuple[Batch, ...]:
        return exact_batch(8, seed=index).into(self._k)

    def outcome(self) -> dict[str, Array]:
        """Return losses and training state."""
        return self.trainer.state() | {"losses": np.array(self.losses)}


@clause("composition.two-runs-in-a-process")
@pytest.mark.parametrize("other", ["accumulation", "precision", "scaling"])
def test_alternating_runs_match_separate_runs(subject: Subject, verdict: Verdict, other: str) -> None:
    recipe = Recipe(SGD(2.0**-6, momentum=0.5), accumulation=4)
    others = {
        "accumulation": recipe.replace(accumulation=1),
        "precision": recipe.replace(precision=BFLOAT16, accumulation=2),
        "scaling": recipe.replace(scaling=DynamicScaling(initial=2.0**4, interval=2), accumulation=2),
    }
    recipes = (recipe, others[other])
    alone: list[dict[str, Array]] = []
    for variant in recipes:
        run = Stepwise(subject, variant)
        for index in range(WINDOWS):
            run.first(index)
            run.second(index)
        alone.append(run.outcome())
    together = [Stepwise(subject, variant) for variant in recipes]
    for index in range(WINDOWS):
        for half in (Stepwise.first, Stepwise.second):
            for run in together:
                half(run, index)
    for run, expected, name in zip(together, alone, ("first", "second"), strict=True):
        verdict.finite(run.trainer.parameters(), f"parameters of the {name} run", "runs-interfere")
        verdict.same_state(run.outcome(), expected, f"the {name} run next to another", "runs-interfere")
