"""Meshes and pipelines: an exact block, its whole gradient, and the updates and sums that must come out."""

from collections.abc import Sequence
from typing import get_args

import numpy as np
import pytest

from conformance.checks.subject import Subject, need, need_rule
from conformance.oracle.bound import Bound
from conformance.techniques import Technique
from fixtures.arrays import Array
from frameworks.contract import BlockSamples, BlockWeights, Capability, Meshes, MeshLayout, PipelineCase
from frameworks.reference.framework import ReferenceFramework
from frameworks.reference.meshes import ReferenceMeshes, ReferencePipelines, add, differentiate

WIDTH, HIDDEN, POSITIONS, ROWS = 4, 8, 4, 8
_SHAPES = {
    "norm.weight": (WIDTH,),
    "up.weight": (WIDTH, HIDDEN),
    "up.bias": (HIDDEN,),
    "down.weight": (HIDDEN, WIDTH),
    "down.bias": (WIDTH,),
}
U = 2.0**-24

LAYOUT = pytest.mark.parametrize("layout", get_args(MeshLayout))


def draw(shape: Sequence[int], seed: int) -> Array:
    """Return numbers of few bits, so that float32 computes the block without rounding."""
    return np.random.default_rng(seed).choice([-1.0, -0.5, 0.5, 1.0, 2.0], shape).astype(np.float32)


def make_weights(subject: Subject) -> BlockWeights:
    """Return the block's weights."""
    return {name: draw(shape, 10 * subject.seed + index) for index, (name, shape) in enumerate(_SHAPES.items())}


def make_samples(subject: Subject, number: int = 0) -> BlockSamples:
    """Return samples whose inputs are 1 or -1, so that their mean square is 1."""
    shape, seed = (ROWS, POSITIONS, WIDTH), 10 * subject.seed + 100 + number
    return np.sign(draw(shape, seed)), draw(shape, seed + 50)


def window_gradients(case: PipelineCase, *, mean: bool) -> BlockWeights:
    """Return the sum over steps of the mean, or sum, of their micro-batches' gradients, in float32."""
    share = (case.micro_batches / ROWS if case.loss == "mean" else 1.0) / (case.micro_batches if mean else 1)
    terms = [differentiate([case.weights], samples, share)[0] for samples in case.steps]
    return {name: value.astype(np.float32) for name, value in add(*terms).items()}


def clip_bound(gradients: BlockWeights, weights: BlockWeights, factor: float) -> tuple[Bound, Bound]:
    """Return the bounds of the norm's relative error and of a weight's distance from the exact clipped update.

    The norm's sum of squares is rounded once for each entry, which the root halves; factor, product and difference are
    rounded once each.
    """
    roundings = sum(gradient.size for gradient in gradients.values()) / 2 + 2
    largest = max(float(np.abs(gradient).max()) for gradient in gradients.values()) * factor
    moved = U * ((roundings + 3) * largest + largest + max(float(np.abs(w).max()) for w in weights.values()))
    return (
        Bound(roundings * U, {"method": "roundings to float32", "count": roundings}),
        Bound(moved, {"method": "roundings to float32", "of the factor": roundings + 3, "largest step": largest}),
    )


def find_meshes(subject: Subject, layout: MeshLayout) -> Meshes:
    """Return the framework's meshes; end the test unless it declares what the layout needs."""
    if layout == "sequence":
        need(subject, Capability.RANKS_SEQUENCE)
    return need_rule(subject, Capability.RANKS_TENSOR, Meshes)


MESHES = Technique(
    places={
        ReferenceMeshes: ("meshes_class", ReferenceFramework),
        ReferencePipelines: ("pipelines_class", ReferenceFramework),
    }
)
