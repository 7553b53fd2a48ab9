"""What adapters share, written once."""

from frameworks.base.checkpoints import same_parts
from frameworks.base.framework import BaseFramework
from frameworks.base.observing import elapsed, observed, processor
from frameworks.base.segments import Bounds, inner_bounds, segment_bounds
from frameworks.base.traces import traced_paths, unscaled_in_trace
from frameworks.base.trainer import NO_AVERAGE, NO_SCALER, BaseTrainer
from frameworks.base.window import AppliedMicroBatch, LossLedger, MicroBatch, ending, over_window

__all__ = [
    "NO_AVERAGE",
    "NO_SCALER",
    "AppliedMicroBatch",
    "BaseFramework",
    "BaseTrainer",
    "Bounds",
    "LossLedger",
    "MicroBatch",
    "elapsed",
    "ending",
    "inner_bounds",
    "observed",
    "over_window",
    "processor",
    "same_parts",
    "segment_bounds",
    "traced_paths",
    "unscaled_in_trace",
]
