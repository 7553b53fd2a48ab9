"""Shared code of adapters."""

from frameworks.base.checkpoints import of_same_class, same_parts
from frameworks.base.formats import BaseFormats
from frameworks.base.framework import BaseFramework
from frameworks.base.gpus import GPU, gpu_name, named_device
from frameworks.base.introspection import elapsed, observed, processor
from frameworks.base.offload_attempts import offload_attempts
from frameworks.base.optimizer_attempts import OPTIONS, optimizer_attempts
from frameworks.base.quantizing_attempts import (
    KERNEL,
    casts_of,
    delayed_attempts,
    float8_attempts,
    quantizer_attempts,
    quantizers_of,
    technique_attempts,
    techniques_of,
)
from frameworks.base.rank_attempts import OF_ONE_PLACE, with_ranks
from frameworks.base.rank_group import Arguments, BaseRankGroup, ranks_of, with_items
from frameworks.base.rank_group_trainer import RankGroupTrainer, split_across_ranks, window_across_ranks
from frameworks.base.segments import Bounds, inner_bounds, segment_bounds
from frameworks.base.shipped import BaseShipped, shipped_attempts
from frameworks.base.shipping import ships, takes
from frameworks.base.traces import traced_paths, unscaled_in_trace
from frameworks.base.trainer import NO_AVERAGE, NO_SCALER, BaseTrainer
from frameworks.base.window import AppliedMicroBatch, LossLedger, MicroBatch, ending, over_window

__all__ = [
    "GPU",
    "KERNEL",
    "NO_AVERAGE",
    "NO_SCALER",
    "OF_ONE_PLACE",
    "OPTIONS",
    "AppliedMicroBatch",
    "Arguments",
    "BaseFormats",
    "BaseFramework",
    "BaseRankGroup",
    "BaseShipped",
    "BaseTrainer",
    "Bounds",
    "LossLedger",
    "MicroBatch",
    "RankGroupTrainer",
    "casts_of",
    "delayed_attempts",
    "elapsed",
    "ending",
    "float8_attempts",
    "gpu_name",
    "inner_bounds",
    "named_device",
    "observed",
    "of_same_class",
    "offload_attempts",
    "optimizer_attempts",
    "over_window",
    "processor",
    "quantizer_attempts",
    "quantizers_of",
    "ranks_of",
    "same_parts",
    "segment_bounds",
    "shipped_attempts",
    "ships",
    "split_across_ranks",
    "takes",
    "technique_attempts",
    "techniques_of",
    "traced_paths",
    "unscaled_in_trace",
    "window_across_ranks",
    "with_items",
    "with_ranks",
]
