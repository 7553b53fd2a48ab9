"""An encoder that reads digits row by row: on ranks, replicated or sharded, and with state or activations offloaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from conformance.scenarios.digits import digits_setting
from conformance.scenarios.scenario import (
    OFFLOADED,
    Scenario,
    Setting,
    Side,
    accuracy,
    offloaded_bytes,
    rank_bytes,
    share_of,
)
from fixtures import models
from fixtures.layers import Head, Heads
from fixtures.model import Batch
from fixtures.recipe import Adam, Offload, Ranks, Recipe, Sharding

PIXELS, CLASSES = 28, 10
_PLAIN = Recipe(Adam(3e-3))
_LEARNS_IN = 23

ONE_PLACE = "one place"
COUNTS = (2, 4)
SIDES = tuple(f"{count} ranks" for count in COUNTS)

HERE = "here"
AT_LEAST = {"activations": "at least 1", "parameters": "1", "optimizer": "1"}
"""Expected share of offloaded bytes: an activation saved by two operations may be offloaded twice."""


def _rows(batch: Batch) -> Batch:
    """Digits (N, 784) as sequences (N, PIXELS, PIXELS), a row of pixels a token; the first token's label counts."""
    count = len(batch)
    labels = np.repeat(batch.targets["output"][:, None], PIXELS, axis=1)
    mask = np.zeros((count, PIXELS), np.float32)
    mask[:, 0] = 1.0
    return Batch(batch.inputs.reshape(count, PIXELS, PIXELS), {"output": labels}, mask)


def _setting() -> Setting:
    encoder = models.encoder(width=PIXELS, length=PIXELS, embedded=False)
    layers = (*encoder.layers[:-1], Heads((Head("output", CLASSES),)))
    digits = digits_setting()
    about = f"{digits.about}; a row of pixels is a token"
    return Setting(replace(encoder, layers=layers), _rows(digits.train), _rows(digits.test), about)


def _reading_digits(
    name: str,
    beside: str,
    source: str,
    sides: tuple[Side, ...],
    published: Mapping[tuple[str, str], str],
    emulated: int = _LEARNS_IN,
) -> Scenario:
    """A scenario with these sides.

    Args:
        beside: the comparison, in a few words.
        emulated: number of rounds on the reference.
    """
    return Scenario(
        name=name,
        title=f"An encoder of two blocks reads digits row by row, Adam 3e-3: {beside}",
        source=source,
        setting=_setting,
        sides=sides,
        batch=64,
        epochs=3,
        shorter={"emulated": emulated},
        learns_in=_LEARNS_IN,
        quality=accuracy(position=0),
        published=published,
    )


def _with_ranks(name: str, level: Sharding, what: str, source: str) -> Scenario:
    published = {
        (side, share_of(rank_bytes(kind), ONE_PLACE)): f"{1 / count:g}"
        for count, side in zip(COUNTS, SIDES, strict=True)
        for kind in Ranks(count, level).sharded
    }
    ranks = (Side(side, _PLAIN.replace(ranks=Ranks(count, level))) for count, side in zip(COUNTS, SIDES, strict=True))
    sides = (Side(ONE_PLACE, _PLAIN), *ranks)
    return _reading_digits(name, f"one place, two and four ranks, {what}", source, sides, published)


DDP = _with_ranks("ddp", "replicated", "each with everything", "PyTorch's DistributedDataParallel")
FSDP = _with_ranks(
    "fsdp",
    "full",
    "parameters, gradients and optimizer state sharded",
    "ZeRO stage 3 (arXiv:1910.02054); PyTorch's fully_shard",
)
SHARD_GRAD_OP = _with_ranks(
    "shard-grad-op",
    "gradients",
    "gradients and optimizer state sharded",
    "ZeRO stage 2 (arXiv:1910.02054); PyTorch's ShardingStrategy.SHARD_GRAD_OP",
)


def _with_offload(
    name: str, to: Literal["host", "disk"], place: str, source: str, emulated: int = _LEARNS_IN
) -> Scenario:
    published: dict[tuple[str, str], str] = {
        (kind, share_of(offloaded_bytes(kind), HERE)): AT_LEAST[kind] for kind in OFFLOADED
    }
    published |= {(kind, f"distance from {HERE}'s parameters"): "0" for kind in OFFLOADED}
    offloaded = (Side(kind, _PLAIN.replace(offload=Offload((kind,), to)), equal=True) for kind in OFFLOADED)
    beside = f"all of it on the device, and activations, parameters or the optimizer's state in {place}"
    return _reading_digits(name, beside, source, (Side(HERE, _PLAIN), *offloaded), published, emulated)


CPU_OFFLOAD = _with_offload(
    "cpu-offload",
    "host",
    "the host's memory",
    "ZeRO-Offload (arXiv:2101.06840); PyTorch's save_on_cpu; JAX's host offloading",
)
DISK_OFFLOAD = _with_offload(
    "disk-offload",
    "disk",
    "files",
    "ZeRO-Infinity (arXiv:2104.07857); PyTorch's tutorial on hooks for saved tensors",
    emulated=6,
)
