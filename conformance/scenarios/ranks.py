"""An encoder without ranks, and on two and four ranks: replicated, sharded gradients and moments, fully sharded."""

from __future__ import annotations

from conformance.scenarios.encoder_digits import PLAIN, reading_digits
from conformance.scenarios.scenario import Scenario, Side, rank_bytes, share_of
from fixtures.recipe import Ranks, Sharding

ONE_PLACE = "one place"
COUNTS = (2, 4)
SIDES = tuple(f"{count} ranks" for count in COUNTS)


def _with_ranks(name: str, level: Sharding, what: str, source: str) -> Scenario:
    published = {
        (side, share_of(rank_bytes(kind), ONE_PLACE)): f"{1 / count:g}"
        for count, side in zip(COUNTS, SIDES, strict=True)
        for kind in Ranks(count, level).sharded
    }
    ranks = (Side(side, PLAIN.replace(ranks=Ranks(count, level))) for count, side in zip(COUNTS, SIDES, strict=True))
    sides = (Side(ONE_PLACE, PLAIN), *ranks)
    return reading_digits(name, f"one place, two and four ranks, {what}", source, sides, published)


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
