"""Recomputation of generated models: any sequence of layers, cut anywhere, trains as without recomputation."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from hypothesis import strategies as st

from conformance.checks.api import Subject, Verdict, clause
from conformance.search import explore
from conformance.techniques import recompute
from fixtures.arrays import Array
from fixtures.model import (
    Activation,
    Batch,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    Head,
    Heads,
    Layer,
    LayerNorm,
    Model,
    Residual,
    Window,
)
from fixtures.recipe import BFLOAT16, FLOAT16, FLOAT32, SGD, Precision, Recipe, Recompute
from frameworks.contract import Trainer

RECIPE = Recipe(SGD(2.0**-4, momentum=0.5))
TOKENS = (Embedding(3000, 4), Flatten())
WIDTH, SAMPLES, OUTPUTS = 12, 8, 4
LINEAR: tuple[tuple[Layer, ...], ...] = (
    (Dense(WIDTH),),
    (Dense(WIDTH, bias=False), Activation("relu")),
    (Residual((Dense(WIDTH), Activation("relu"))),),
    (Residual((Dense(WIDTH, bias=False),)),),
)
CURVED: tuple[tuple[Layer, ...], ...] = (
    (Dense(WIDTH),),
    (LayerNorm(),),
    (Residual((Dense(WIDTH), Activation("sigmoid"))),),
    (Residual((Dense(WIDTH, bias=False),)), Activation("gelu")),
)


@dataclass(frozen=True)
class Case:
    """A model's layers before its head, and its segments; each layer has `WIDTH` inputs and outputs.

    With `exact` the weights are signed permutations and the inputs powers of two, so that no sum of a forward or
    backward pass in float32 is rounded, whatever the order of its terms.
    """

    layers: tuple[Layer, ...]
    segments: int
    exact: bool = True
    precision: Precision = FLOAT32
    parts: tuple[int, ...] = (SAMPLES,)

    @property
    def model(self) -> Model:
        """Return the layers with a head; the inputs are token ids if the first layer is an embedding."""
        ids = isinstance(self.layers[0], Embedding)
        sample = (WIDTH // self.layers[0].width,) if isinstance(self.layers[0], Embedding) else (WIDTH,)
        layers = (*self.layers, Heads((Head("output", OUTPUTS),)))
        model = Model("drawn", layers, sample, (("output", "squared_error"),), integer_inputs=ids)
        return replace(model, starts=tuple(permutations(model))) if self.exact else model

    def window(self, seed: int) -> Window:
        """Return samples that do not depend on their division into `parts`."""
        rng = np.random.default_rng([seed, 8])
        shape = (SAMPLES, *self.model.sample)
        ids, values = rng.integers(2048, 3000, shape), rng.standard_normal(shape)
        targets = rng.integers(-8, 9, (SAMPLES, OUTPUTS)) / 4.0
        if self.exact:
            values = np.ldexp(np.sign(values), rng.integers(-1, 2, shape))
        inputs = ids if self.model.integer_inputs else values.astype(np.float32)
        return Batch(inputs, {"output": targets.astype(np.float32)}).split(*self.parts)


def permutations(model: Model) -> Iterator[tuple[str, Array]]:
    """Yield weights of 0, 1 and -1: each row has one nonzero entry; an embedding table has only nonzero entries."""
    rng = np.random.default_rng(7)
    for name, shape in model.parameter_shapes().items():
        if name.endswith(".weight"):
            rows, columns = shape
            places = rng.permutation(rows) % columns
            chosen = np.ones(shape) if rows > WIDTH else places[:, None] == np.arange(columns)
            yield name, np.where(chosen, rng.choice([-1.0, 1.0], shape), 0.0)


@st.composite
def cases(
    draw: st.DrawFn,
    blocks: tuple[tuple[Layer, ...], ...] = LINEAR,
    *,
    first: tuple[Layer, ...] = (),
    last: tuple[Layer, ...] = (),
    precisions: tuple[Precision, ...] = (FLOAT32,),
    windows: bool = False,
    fewest: int = 1,
) -> Case:
    """Return a strategy of cases: two to four blocks between given layers, in `fewest` to four segments."""
    body = draw(st.lists(st.sampled_from(blocks), min_size=2, max_size=4))
    layers = (*first, *(layer for block in body for layer in block), *last)
    segments = draw(st.integers(fewest, min(4, len(layers))))
    cut = draw(st.integers(1, SAMPLES - 1)) if windows else SAMPLES
    parts = (cut, SAMPLES - cut) if windows else (cut,)
    return Case(layers, segments, blocks is LINEAR, draw(st.sampled_from(precisions)), parts)


_PLAIN_GRADIENTS: dict[tuple[Subject, Case], dict[str, Array]] = {}
_PLAIN_STATES: dict[tuple[Subject, Case], tuple[float, dict[str, Array]]] = {}


def run_of(
    subject: Subject, case: Case, variant: str | None = None, depth: Literal[0, 1, 2] = 0, accumulation: int = 1
) -> Trainer:
    """Return a run of the case's model, recomputed unless `depth` is 0."""
    recompute = Recompute(case.segments, depth=depth, variant=variant) if depth else None
    recipe = RECIPE.replace(precision=case.precision, recompute=recompute, accumulation=accumulation)
    return subject.trainer(case.model, recipe)


def plain_gradients(subject: Subject, case: Case) -> dict[str, Array]:
    """Return the gradients without recomputation, which are the same for all variants and segmentations.

    A process computes them once; each test starts the run, so that its record names it.
    """
    run = run_of(subject, case)
    if (subject, case) not in _PLAIN_GRADIENTS:
        _PLAIN_GRADIENTS[subject, case] = run.gradients(case.window(subject.seed))
    return _PLAIN_GRADIENTS[subject, case]


def plain_state(subject: Subject, case: Case) -> tuple[float, dict[str, Array]]:
    """Return loss and training state after an update without recomputation; computed once, as `plain_gradients`."""
    run = run_of(subject, case, accumulation=len(case.parts))
    if (subject, case) not in _PLAIN_STATES:
        _PLAIN_STATES[subject, case] = run_update(subject, case, run)
    return _PLAIN_STATES[subject, case]


def run_update(subject: Subject, case: Case, run: Trainer) -> tuple[float, dict[str, Array]]:
    """Make an update; return its loss and the training state after it."""
    loss = run.update(case.window(subject.seed)).loss
    return loss, subject.state(run)


def same_gradients(
    subject: Subject,
    verdict: Verdict,
    case: Case,
    variant: str,
    depth: Literal[1, 2] = 1,
    signature: str = "gradient-differs",
) -> None:
    """Compare gradients with and without recomputation."""
    window = case.window(subject.seed)
    measured = run_of(subject, case, variant, depth).gradients(window)
    expected = plain_gradients(subject, replace(case, segments=1))
    recipe, (batch, *_) = RECIPE.replace(precision=case.precision), window
    recompute.same_gradients(subject, verdict, measured, expected, (case.model, recipe, batch), signature=signature)


def same_state(subject: Subject, verdict: Verdict, case: Case, variant: str) -> None:
    """Compare loss and training state after an update with and without recomputation."""
    expected = plain_state(subject, replace(case, segments=1))
    measured = run_update(subject, case, run_of(subject, case, variant, 1, len(case.parts)))
    verdict.equal(measured[0], expected[0], "loss", "loss-differs")
    verdict.same_state(measured[1], expected[1], "training state after an update")


@clause("recompute.same-gradients")
@explore(cases(), examples=5)
def test_any_segmentation_gives_same_gradients(subject: Subject, verdict: Verdict, case: Case, variant: str) -> None:
    same_gradients(subject, verdict, case, variant)


@clause("recompute.replays-dropout")
@explore(cases((*LINEAR, (Dropout(0.25),)), last=(Dropout(0.5),)), examples=4)
def test_any_segmentation_replays_dropout_masks(subject: Subject, verdict: Verdict, case: Case, variant: str) -> None:
    same_gradients(subject, verdict, case, variant, signature="mask-redrawn")


@clause("recompute.replays-autocast")
@explore(cases(CURVED, precisions=(FLOAT16, BFLOAT16), fewest=2), examples=5)
def test_any_segmentation_replays_precision(subject: Subject, verdict: Verdict, case: Case, variant: str) -> None:
    same_gradients(subject, verdict, case, variant, signature="precision-not-replayed")


@clause("recompute.no-grad-input")
@explore(cases(first=TOKENS), examples=3)
def test_any_segmentation_takes_token_ids(subject: Subject, verdict: Verdict, case: Case, variant: str) -> None:
    same_gradients(subject, verdict, case, variant)


@clause("recompute.nested")
@explore(cases(last=(Dropout(0.5),)), examples=4)
def test_any_segmentation_may_be_nested(subject: Subject, verdict: Verdict, case: Case, variant: str) -> None:
    run_of(subject, case, variant, 1).gradients(case.window(subject.seed))
    try:
        same_gradients(subject, verdict, case, variant, depth=2)
    except (TypeError, ValueError, RuntimeError) as refusal:
        verdict.holds(bool(str(refusal)), "the refusal says why", str(refusal), "a message")


@clause("recompute.same-state")
@explore(cases(precisions=(FLOAT32, FLOAT16, BFLOAT16)), examples=4)
def test_any_segmentation_gives_same_state(subject: Subject, verdict: Verdict, case: Case, variant: str) -> None:
    same_state(subject, verdict, case, variant)


@clause("recompute.with-accumulation")
@explore(cases(windows=True), examples=3)
def test_any_segmentation_within_any_window(subject: Subject, verdict: Verdict, case: Case, variant: str) -> None:
    same_state(subject, verdict, case, variant)
