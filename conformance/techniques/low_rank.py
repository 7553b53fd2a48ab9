"""Low-rank adapters: networks of exact and of random values, and their oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np

from conformance.checks.subject import Subject, need, need_rule
from conformance.oracle.bound import Bound
from conformance.techniques import Technique
from fixtures.arrays import Array
from fixtures.recipe import SGD, Recipe
from frameworks.contract import AdaptedNetwork, BaseFormat, Capability, LowRank, LowRankAdapters, Unsupported, needs
from frameworks.reference import ReferenceFramework
from frameworks.reference.low_rank import ReferenceAdaptedNetwork

MicroBatch = tuple[Array, Array]
BASES: Mapping[BaseFormat, Capability] = {
    "float32": Capability.ADAPTERS,
    "int8": Capability.ADAPTER_INT8,
    "int4": Capability.ADAPTER_INT4,
    "nf4": Capability.ADAPTER_NF4,
    "fp4": Capability.ADAPTER_FP4,
    "nested": Capability.ADAPTER_NESTED,
    "bfloat16": Capability.ADAPTER_LOW_BASE,
    "float16": Capability.ADAPTER_LOW_BASE,
}
"""The capability of each storage of the base."""
WIDE_BASES = tuple(base for base in BASES if not base.endswith("16"))
"""The storages over which outputs are float32."""
SIZES = (16, 16, 8)
CODED = (64, 64)
"""Sizes of a layer whose weight is a whole number of blocks."""
BOTH = LowRank()
STEP = Recipe(SGD(2.0**-4))
U = 2.0**-24

LOW_RANK = Technique(places={ReferenceAdaptedNetwork: ("adapted_class", ReferenceFramework)})


def powers(seed: int, *shape: int) -> Array:
    """Return values of 1/2 and 1 of both signs at random, float32."""
    rng = np.random.default_rng([seed, 31])
    values = rng.choice([-1.0, 1.0], shape) * 2.0 ** rng.integers(-1, 1, shape)
    return np.asarray(values, np.float32)


def normal(seed: int, *shape: int) -> Array:
    """Return normal random values, float32."""
    return np.random.default_rng([seed, 32]).standard_normal(shape).astype(np.float32)


def weights(sizes: tuple[int, ...] = SIZES, values: Callable[..., Array] = powers) -> dict[str, Array]:
    """Return weight and bias of each layer."""
    result = {}
    for index, (inputs, outputs) in enumerate(pairwise(sizes)):
        result[f"{index}.weight"] = values(2 * index, inputs, outputs)
        result[f"{index}.bias"] = values(2 * index + 1, outputs)
    return result


def window(seed: int = 0, parts: int = 1, rows: int = 4, sizes: tuple[int, ...] = SIZES) -> list[MicroBatch]:
    """Return micro-batches of `rows` rows in all, of powers of two."""
    inputs, gradient = powers(100 + seed, rows, sizes[0]), powers(200 + seed, rows, sizes[-1])
    return list(zip(np.split(inputs, parts), np.split(gradient, parts), strict=True))


def values_of(network: AdaptedNetwork, values: Callable[..., Array] = powers) -> dict[str, Array]:
    """Return values for everything in a network that trains."""
    return {name: values(50 + i, *value.shape) for i, (name, value) in enumerate(sorted(network.trainables().items()))}


def make(
    subject: Subject,
    adapters: LowRank = BOTH,
    recipe: Recipe = STEP,
    base: Mapping[str, Array] | None = None,
    *,
    late: bool = False,
) -> AdaptedNetwork:
    """Return a new network of the framework; end the test if it lacks something that the network needs.

    Raises:
        Unsupported: it does.
    """
    wanted = {
        Capability.ADAPTER_ROOT: adapters.root,
        Capability.ADAPTER_COPIES: bool(adapters.copied),
        Capability.LATE_ADAPTERS: late,
    }
    need(subject, Capability.ADAPTERS, BASES[adapters.base], *(name for name, asked in wanted.items() if asked))
    need(subject, *needs(recipe))
    rule = need_rule(subject, Capability.ADAPTERS, LowRankAdapters)
    seeded = recipe.replace(seed=recipe.seed + subject.seed)
    return rule(weights() if base is None else base, adapters, seeded, late=late)


def make_oracle(subject: Subject, adapters: LowRank = BOTH, recipe: Recipe = STEP) -> AdaptedNetwork:
    """Return the reference's network of exact weights, under the framework's conventions."""
    return ReferenceAdaptedNetwork(weights(), adapters, recipe, conventions=subject.conventions)


def make_pair(
    subject: Subject, adapters: LowRank = BOTH, recipe: Recipe = STEP
) -> tuple[AdaptedNetwork, AdaptedNetwork]:
    """Return a network of the framework and the oracle's, whose adapters have the same powers of two."""
    network, oracle = make(subject, adapters, recipe), make_oracle(subject, adapters, recipe.replace(scaling=None))
    values, trained = values_of(oracle), network.trainables()
    network.assign({name: value for name, value in values.items() if name in trained})
    oracle.assign(values)
    return network, oracle


def drop_zero_signs(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return arrays in which no zero has a sign."""
    return {name: value + np.zeros((), value.dtype) for name, value in arrays.items()}


def refusal(call: Callable[[], object]) -> str:
    """Return the name of the framework's own exception that a call raises, "" for none."""
    try:
        call()
    except Unsupported:
        raise
    except Exception as error:
        return type(error).__name__
    return ""


def worst_share(measured: Array, expected: Array, terms: int, magnitude: Array) -> float:
    """Return the largest error in units of the rounding of float32 sums of `terms` products, in any order.

    Source: Higham 2002, section 3.1: |error| ≤ n·u / (1 − n·u) · Σ|products|.
    """
    slack = terms * U / (1 - terms * U) * magnitude
    gap = np.abs(measured.astype(np.float64) - expected)
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(np.max(np.where(gap == 0, 0.0, gap / slack)))


OF_ROUNDING = Bound(1.0, {"u": U, "bound of": "float32 sums of products in any order"})
