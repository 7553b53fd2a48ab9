"""Gathered batches: several ranks' parts of a micro-batch as one batch of one program."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fixtures.arrays import Array
from fixtures.layers import BatchNorm, walk
from fixtures.model import Batch, Model, Window

NOBODY = -1


@dataclass(frozen=True, eq=False)
class GatheredBatch(Batch):
    """The samples of all ranks, in rank order.

    Attributes:
        owners: (N,) by head name: the rank whose item a sample's loss is, -1 where it is none.
        shares: how many items each rank has.
    """

    owners: Mapping[str, Array] = field(default_factory=dict)
    shares: tuple[int, ...] = ()

    @property
    def items(self) -> int:
        return sum(self.shares)


def gathered(model: Model, parts: Sequence[Batch]) -> GatheredBatch:
    """The ranks' parts of a micro-batch as one, each padded to the longest with samples that do not count.

    Batch norm would take padding for samples, so that a model that has one gets the samples as they are.
    """
    padded = not any(isinstance(layer, BatchNorm) for _, layer in walk(model.layers))
    longest = max(1, *(len(part) for part in parts))
    lengths = [longest if padded else len(part) for part in parts]
    heads = list(dict.fromkeys(name for part in parts for name in part.targets))
    like = {name: next(part.targets[name] for part in parts if name in part.targets) for name in heads}
    targets = {
        name: _together([part.targets.get(name, first[:0]) for part in parts], lengths) for name, first in like.items()
    }
    owners = {name: _owners([len(part.targets.get(name, ())) for part in parts], lengths) for name in heads}
    masks = [part.mask for part in parts if part.mask is not None]
    mask = None
    if masks:
        every = [np.ones((len(part), *masks[0].shape[1:]), masks[0].dtype) for part in parts]
        own = [one if part.mask is None else part.mask for part, one in zip(parts, every, strict=True)]
        mask = _together(own, lengths)
    inputs = _together([part.inputs for part in parts], lengths)
    return GatheredBatch(inputs, targets, mask, owners, tuple(part.items for part in parts))


def gathered_window(model: Model, windows: Sequence[Window]) -> tuple[GatheredBatch, ...]:
    """The ranks' windows as one."""
    return tuple(gathered(model, parts) for parts in zip(*windows, strict=True))


def _together(parts: Sequence[Array], lengths: Sequence[int]) -> Array:
    """The arrays one after the other, each filled up with zeros to its length."""
    shape = parts[0].shape[1:]
    filled = [
        np.concatenate([part, np.zeros((length - len(part), *shape), part.dtype)])
        for part, length in zip(parts, lengths, strict=True)
    ]
    return np.concatenate(filled)


def _owners(counts: Sequence[int], lengths: Sequence[int]) -> Array:
    """Each rank's number as often as it has items of its own, and nobody's up to its length."""
    ranks = np.arange(len(counts), dtype=np.int32)
    own = [np.full(count, rank) for rank, count in zip(ranks, counts, strict=True)]
    rest = [np.full(length - count, NOBODY, np.int32) for count, length in zip(counts, lengths, strict=True)]
    return np.concatenate([part for pair in zip(own, rest, strict=True) for part in pair])
