"""Shared code of adapters."""

from frameworks.base.checkpoints import of_same_class, same_parts
from frameworks.base.formats import BaseFormats
from frameworks.base.framework import BaseFramework
from frameworks.base.gpus import GPU, gpu_name, named_device
from frameworks.base.introspection import elapsed, observed, processor
from frameworks.base.offload_attempts import offload_attempts
from frameworks.base.optimizer_attempts import OPTIONS, follows_metric, optimizer_attempts, takes_state
from frameworks.base.quantizing_attempts import (
    KERNEL,
    aware_attempts,
    float8_attempts,
    format_attempts,
    quantizer_attempts,
    technique_attempts,
)
from frameworks.base.rank_attempts import with_ranks
from frameworks.base.rank_group import Arguments, BaseRankGroup, ranks_of, with_items
from frameworks.base.rank_group_trainer import RankGroupTrainer, split_across_ranks, window_across_ranks
from frameworks.base.segments import Bounds, inner_bounds, segment_bounds
from frameworks.base.shipped import BaseShipped, shipped_attempts
from frameworks.base.shipping import ships, takes
from frameworks.base.structure_attempts import structure_attempts, uses_function
from frameworks.base.traces import traced_paths, unscaled_in_trace
from frameworks.base.trainer import NO_AVERAGE, NO_SCALER, BaseTrainer
from frameworks.base.window import AppliedMicroBatch, LossLedger, MicroBatch, ending, over_window

__all__ = [
    "GPU",
    "KERNEL",
    "NO_AVERAGE",
    "NO_SCALER",
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
    "aware_attempts",
    "elapsed",
    "ending",
    "float8_attempts",
    "follows_metric",
    "format_attempts",
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
    "ranks_of",
    "same_parts",
    "segment_bounds",
    "shipped_attempts",
    "ships",
    "split_across_ranks",
    "structure_attempts",
    "takes",
    "takes_state",
    "technique_attempts",
    "traced_paths",
    "unscaled_in_trace",
    "uses_function",
    "window_across_ranks",
    "with_items",
    "with_ranks",
]
