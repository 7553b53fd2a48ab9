"""Base classes and attempts that all adapters share."""

from frameworks.base.capability_attempts import (
    KERNEL,
    OF_ONE_PLACE,
    OPTIONS,
    casts_of,
    delayed_attempts,
    float8_attempts,
    has_effect,
    offload_attempts,
    optimizer_attempts,
    quantizer_attempts,
    quantizers_of,
    ships,
    takes,
    technique_attempts,
    techniques_of,
    with_ranks,
)
from frameworks.base.framework import GPU, BaseFormats, BaseFramework, gpu_name, named_device
from frameworks.base.host import measure_elapsed, processor
from frameworks.base.rank_group import (
    Arguments,
    BaseRankGroup,
    RankGroupTrainer,
    ranks_of,
    split_across_ranks,
    window_across_ranks,
    with_items,
)
from frameworks.base.recompute import Bounds, inner_bounds, segment_bounds
from frameworks.base.shipped import BaseShipped, shipped_attempts
from frameworks.base.trainer import (
    NO_AVERAGE,
    NO_SCALER,
    AppliedMicroBatch,
    BaseTrainer,
    LossLedger,
    MicroBatch,
    ending,
    of_same_class,
    over_window,
    same_parts,
    traced_paths,
    unscaled_in_trace,
)
