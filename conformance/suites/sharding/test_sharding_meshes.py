"""Layers divided over a mesh of ranks, and pipelines: gradients, clipping, placements, steps before an update."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict, clause, need_rule
from conformance.checks.evidence import Misdeclared
from conformance.techniques.meshes import (
    LAYOUT,
    ROWS,
    clip_bound,
    find_meshes,
    make_samples,
    make_weights,
    window_gradients,
)
from frameworks.contract import DIVIDED, BlockSamples, Capability, MeshCase, Meshes, MeshLayout, PipelineCase, Pipelines
from frameworks.reference.meshes import differentiate, norm_of

MICRO_BATCHES = 4
LOSSES: tuple[Literal["mean", "sum"], ...] = ("mean", "sum")


def make_steps(subject: Subject, count: int) -> list[BlockSamples]:
    """Return different samples for each step."""
    return [make_samples(subject, number) for number in range(count)]


@clause("sharding.pipeline-window")
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("scaled", [True, False], ids=["scaled", "unscaled"])
def test_pipeline_steps_add_up(
    subject: Subject, verdict: Verdict, schedule: Literal["gpipe", "1f1b"], scaled: bool
) -> None:
    pipelines = need_rule(subject, Capability.RANKS_PIPELINE, Pipelines)
    steps, mean = make_steps(subject, 3), scaled and subject.conventions.pipeline_scaling != "none"
    for count, loss in product((1, 2, 3), LOSSES):
        case = PipelineCase(schedule, make_weights(subject), steps[:count], MICRO_BATCHES, loss, scaled)
        what = f"gradient of {count} steps of {MICRO_BATCHES} micro-batches, {'mean' if mean else 'sum'} of {loss}s"
        verdict.same_gradients(pipelines.gradients(case), window_gradients(case, mean=mean), what, "window-differs")


@clause("sharding.pipeline-window-rule")
def test_pipeline_scaling(subject: Subject, verdict: Verdict) -> None:
    pipelines, steps = need_rule(subject, Capability.RANKS_PIPELINE, Pipelines), make_steps(subject, 2)
    case = PipelineCase("gpipe", make_weights(subject), steps, MICRO_BATCHES)
    first, second = (window_gradients(replace(case, steps=[step]), mean=True) for step in steps)
    measured, n = pipelines.gradients(case), MICRO_BATCHES
    by_rule = {"mean-once": (1, 1), "mean-each-step": (1 / n, 1), "none": (n, n)}
    matching = [
        rule
        for rule, (a, b) in by_rule.items()
        if all(np.array_equal(measured[name], a * first[name] + b * second[name]) for name in measured)
    ]
    verdict.observe("pipeline-scaling", matching)
    declared = subject.conventions.pipeline_scaling
    if matching != [declared]:
        raise Misdeclared("misdeclared", f"pipeline scaling: got {', '.join(matching) or 'another'}, want {declared}")


@clause("sharding.mesh-equals-whole")
@LAYOUT
def test_update_over_mesh_equals_whole(subject: Subject, verdict: Verdict, layout: MeshLayout) -> None:
    meshes = find_meshes(subject, layout)
    weights, samples = make_weights(subject), make_samples(subject)
    (gradients,) = differentiate([weights], samples, 1 / ROWS)
    expected = {name: (weight - gradients[name]).astype(np.float32) for name, weight in weights.items()}
    for rank, update in enumerate(meshes.update(MeshCase(layout, weights, samples))):
        verdict.same_state(update.weights, expected, f"weights of rank {rank} after an update", "mesh-differs")


@clause("sharding.mesh-clip")
@LAYOUT
@pytest.mark.parametrize("share", [0.25, 4.0], ids=["above", "below"])
def test_clip_over_mesh(subject: Subject, verdict: Verdict, layout: MeshLayout, share: float) -> None:
    meshes = find_meshes(subject, layout)
    weights, samples = make_weights(subject), make_samples(subject)
    (gradients,) = differentiate([weights], samples, 1 / ROWS)
    norm = norm_of(gradients)
    updates = meshes.update(MeshCase(layout, weights, samples, share * norm))
    refusals = [update.refusal for update in updates]
    verdict.observe("refusal", refusals[0])
    verdict.equal(len({bool(text) for text in refusals}), 1, "number of decisions to clip or refuse", "decided-apart")
    factor = 0.0 if refusals[0] else min(1.0, share * norm / (norm + subject.conventions.clip_epsilon))
    of_norm, of_weights = clip_bound(gradients, weights, factor)
    for rank, update in enumerate(updates):
        if update.norm is not None:
            error, what = abs(update.norm / norm - 1.0), f"relative error of the norm that rank {rank} reports"
            verdict.within(error, of_norm, what, "norm-differs")
        for name, weight in weights.items():
            error = float(np.abs(update.weights[name] - (weight - factor * gradients[name])).max())
            verdict.within(error, of_weights, f"distance of {name} that rank {rank} has", "clipped-otherwise")


@clause("sharding.layout-takes-effect")
@LAYOUT
def test_placements_are_those_of_layout(subject: Subject, verdict: Verdict, tmp_path: Path, layout: MeshLayout) -> None:
    meshes, weights = find_meshes(subject, layout), make_weights(subject)
    case = MeshCase(layout, weights, make_samples(subject), folder=tmp_path)
    expected = {stage: dict(DIVIDED) for stage in ("build", "update", "reload")}
    for rank, update in enumerate(meshes.update(case)):
        placements = {stage: dict(axes) for stage, axes in update.placements.items()}
        verdict.equal(placements, expected, f"divided axes that rank {rank} reads after each stage", "other-placement")


@clause("sharding.layout-takes-effect")
def test_layout_without_a_match_is_reported(subject: Subject, verdict: Verdict) -> None:
    meshes = need_rule(subject, Capability.RANKS_TENSOR, Meshes)
    reported = meshes.reports_unknown_name(make_weights(subject))
    verdict.holds(reported, "a pattern that names no parameter raises or warns", "nothing", "a report", "silent-layout")
