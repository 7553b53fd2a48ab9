"""The compiled modes of PyTorch: programs for all sizes, and the error where there would be a second one."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import numpy as np
import torch

from fixtures.data import vector_batch
from fixtures.layers import Head, Heads, LayerNorm, Residual, SelfAttention
from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.registry import load
from frameworks.torch.core.compiling import COMPILE, DYNAMIC, compiled

ATTENTION = Model(
    "attention",
    (Residual((LayerNorm(), SelfAttention(2))), Heads((Head("output", 4),))),
    (5, 8),
    (("output", "cross_entropy"),),
    token_level=True,
)
SIZES = ((3, 5), (4, 7), (6, 9), (2, 5))
"""Batch sizes, and lengths of the sequences."""


def programs() -> int:
    """Graphs that this process has compiled."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def losses(mode: str) -> list[float]:
    run = load("torch", "cpu", mode).trainer(ATTENTION, Recipe())
    return [run.update((vector_batch(size, length, 8),)).loss for size, length in SIZES]


def test_one_program_trains_on_every_size() -> None:
    before = programs()
    result = losses(DYNAMIC)
    assert programs() - before == 1
    np.testing.assert_allclose(result, losses("eager"), rtol=1e-5)


def by_size(x: torch.Tensor) -> torch.Tensor:
    """Another program for more than four rows."""
    return x.exp() if x.shape[0] > 4 else x.neg()


def test_a_second_program_for_another_size_is_an_error() -> None:
    call = compiled(by_size, DYNAMIC)
    call(torch.ones(3, 2))
    with pytest.raises(RuntimeError, match="recompile"):
        call(torch.ones(7, 2))


def test_sizes_that_pytorch_tells_apart_may_have_programs_of_their_own() -> None:
    call = compiled(by_size, DYNAMIC)
    for rows, columns in ((3, 2), (1, 2), (3, 3), (3, 0)):
        assert call(torch.ones(rows, columns)).equal(-torch.ones(rows, columns))
    assert call(torch.ones(3, 2, dtype=torch.float64)).dtype == torch.float64


def test_by_default_another_size_is_another_program() -> None:
    call, before = compiled(by_size, COMPILE), programs()
    call(torch.ones(3, 2))
    call(torch.ones(7, 2))
    assert programs() - before == 2
