"""The block of meshes and pipelines on simulated ranks.

A fault is a subclass that overrides one of these methods:
    ReferenceMeshes      split, reduce, total_norm, clip, find_axis
    ReferencePipelines   add
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from fixtures.arrays import Array
from frameworks.contract import DIVIDED, BlockSamples, BlockWeights, MeshCase, MeshLayout, MeshUpdate, PipelineCase

GRIDS: Mapping[MeshLayout, tuple[int, int]] = MappingProxyType(
    {"tensor": (1, 2), "sequence": (1, 2), "two-meshes": (2, 2)}
)
"""Ranks that divide the rows, and ranks that divide `up` and `down`."""


def differentiate(
    parts: Sequence[BlockWeights], samples: BlockSamples, share: float, *, sequence: bool = False
) -> list[BlockWeights]:
    """Gradients of the block on ranks that divide `up` and `down`, in float64; one part is the whole block.

    Args:
        share: weight of a row in the loss.
        sequence: every rank normalises its part of the positions, and has that part of the gradient of `norm`.
    """
    inputs, targets = samples
    normal = inputs / np.sqrt((inputs.astype(np.float64) ** 2).mean(-1, keepdims=True))
    everywhere = np.arange(inputs.shape[1])
    positions = np.array_split(everywhere, len(parts)) if sequence else [everywhere] * len(parts)
    scaled = [normal[:, own] * part["norm.weight"] for own, part in zip(positions, parts, strict=True)]
    if sequence:
        scaled = [np.concatenate(scaled, 1)] * len(parts)
    hidden = [np.maximum(x @ part["up.weight"] + part["up.bias"], 0) for x, part in zip(scaled, parts, strict=True)]
    outputs = sum(h @ part["down.weight"] for h, part in zip(hidden, parts, strict=True)) + parts[0]["down.bias"]
    error = (outputs - targets) * share
    back = [(error @ part["down.weight"].T) * (h > 0) for h, part in zip(hidden, parts, strict=True)]
    to_norm = np.asarray(sum(b @ part["up.weight"].T for b, part in zip(back, parts, strict=True)))
    return [
        {
            "norm.weight": (to_norm * normal)[:, own].sum((0, 1)),
            "up.weight": np.tensordot(x, b, ((0, 1), (0, 1))),
            "up.bias": b.sum((0, 1)),
            "down.weight": np.tensordot(h, error, ((0, 1), (0, 1))),
            "down.bias": error.sum((0, 1)),
        }
        for own, x, h, b in zip(positions, scaled, hidden, back, strict=True)
    ]


def add(*gradients: BlockWeights) -> BlockWeights:
    """The sums of arrays by name."""
    return {name: np.sum([own[name] for own in gradients], 0) for name in gradients[0]}


def norm_of(gradients: BlockWeights) -> float:
    """The norm of all gradients together."""
    return math.sqrt(sum(float(np.sum(gradient**2)) for gradient in gradients.values()))


def split_rows(samples: BlockSamples, count: int) -> list[BlockSamples]:
    """Equal parts of the rows."""
    inputs, targets = (np.split(array, count) for array in samples)
    return list(zip(inputs, targets, strict=True))


class ReferenceMeshes:
    """Every rank has its own copy of what the mesh does not divide."""

    def update(self, case: MeshCase) -> tuple[MeshUpdate, ...]:
        layout, weights, samples = case.layout, case.weights, case.samples
        data, model = GRIDS[layout]
        parts = [self.split(weights, rank, model) for rank in range(model)]
        share, sequence = 1.0 / len(samples[0]), layout == "sequence"
        by_rows = [differentiate(parts, rows, share, sequence=sequence) for rows in split_rows(samples, data)]
        gradients = self.reduce(layout, [add(*own) for own in zip(*by_rows, strict=True)])
        norm = self.total_norm(gradients)
        factor = 1.0 if case.clip is None else min(1.0, case.clip / norm)
        for part, own in zip(parts, gradients, strict=True):
            part |= {name: part[name] - gradient for name, gradient in self.clip(own, factor).items()}
        whole = {name: np.concatenate([part[name] for part in parts], axis) for name, axis in DIVIDED.items()}
        views = [{name: array.astype(np.float32) for name, array in (part | whole).items()} for part in parts]
        axes = {n: a for n in weights if (a := self.find_axis(n, weights)) is not None}
        placements = dict.fromkeys(("build", "update", "reload"), axes)
        return tuple(MeshUpdate(view, norm, "", placements) for view in views * data)

    def split(self, weights: BlockWeights, rank: int, count: int) -> dict[str, Array]:
        """A rank's part of the weights."""
        axes = ((name, self.find_axis(name, weights)) for name in weights)
        return {n: weights[n] if axis is None else np.split(weights[n], count, axis)[rank] for n, axis in axes}

    def find_axis(self, name: str, weights: BlockWeights) -> int | None:
        """The divided axis of a parameter, None for none.

        Raises:
            KeyError: no parameter has the name.
        """
        if name not in weights:
            raise KeyError(f"layout: got {name}, want one of {', '.join(weights)}")
        return DIVIDED.get(name)

    def reduce(self, layout: MeshLayout, gradients: Sequence[BlockWeights]) -> Sequence[BlockWeights]:
        """The gradients of each rank, with those that are partial sums added up."""
        if layout != "sequence":
            return gradients
        total = np.sum([own["norm.weight"] for own in gradients], 0)
        return [{**own, "norm.weight": total} for own in gradients]

    def total_norm(self, gradients: Sequence[BlockWeights]) -> float:
        """The norm of the whole gradient: that of all ranks' parts, and of one copy of what is replicated."""
        divided = [{name: own[name] for name in DIVIDED} for own in gradients]
        copies = {name: gradient for name, gradient in gradients[0].items() if name not in DIVIDED}
        return math.hypot(*map(norm_of, (*divided, copies)))

    def clip(self, gradients: BlockWeights, factor: float) -> BlockWeights:
        """The gradients times the factor of clipping."""
        return {name: factor * gradient for name, gradient in gradients.items()}

    def reports_unknown_name(self, weights: BlockWeights) -> bool:
        try:
            self.find_axis("upp.weight", weights)
        except KeyError:
            return True
        return False


class ReferencePipelines:
    """Two stages whose micro-batches run one after another; their order changes nothing."""

    def gradients(self, case: PipelineCase) -> BlockWeights:
        count, weights = case.micro_batches, case.weights
        total: BlockWeights = {name: np.zeros(value.shape) for name, value in weights.items()}
        for samples in case.steps:
            share = count / len(samples[0]) if case.loss == "mean" else 1.0
            step = add(*(differentiate([weights], rows, share)[0] for rows in split_rows(samples, count)))
            total = self.add(total, step, count if case.scaled else 1)
        return {name: array.astype(np.float32) for name, array in total.items()}

    def add(self, total: BlockWeights, step: BlockWeights, micro_batches: int) -> BlockWeights:
        """The gradients of earlier steps and the mean over the micro-batches of another one."""
        return add(total, {name: gradient / micro_batches for name, gradient in step.items()})
