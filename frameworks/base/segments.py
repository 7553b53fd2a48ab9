"""Bounds of recomputation segments among a model's layers, without heads."""

from __future__ import annotations

from itertools import accumulate, pairwise

from fixtures.recipe import Recompute, segment_sizes

Bounds = tuple[int, int]
"""First layer of a run of layers, and the one after its last."""


def segment_bounds(layers: int, recompute: Recompute | None) -> tuple[Bounds, ...]:
    """Bounds of every segment of so many layers; one segment has them all where nothing is recomputed."""
    return _cut(0, layers, recompute.segments) if recompute else ((0, layers),)


def inner_bounds(segment: Bounds) -> tuple[Bounds, ...]:
    """Bounds of the halves of a segment, each of which nested recomputation recomputes by itself."""
    start, stop = segment
    return _cut(start, stop, min(2, stop - start))


def _cut(start: int, stop: int, count: int) -> tuple[Bounds, ...]:
    return tuple(pairwise(accumulate(segment_sizes(stop - start, count), initial=start)))
