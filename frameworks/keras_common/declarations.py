"""Unsupported capabilities of Keras on every backend, with reasons, and its conventions."""

import keras

from frameworks.contract import Capability, Conventions, ScalerRule
from frameworks.keras_common.optimizers import REFUSED_OPTIONS

_O2 = "Keras has no dtype policy of low-precision weights with float32 masters"
_UNSCALING = "Keras unscales inside the optimizer's update; there is no call to unscale by hand"
_NO_MULTI = "this version of Keras has no MultiOptimizer, and another optimizer has no groups"

SUPPORTED = frozenset(
    {
        Capability.FLOAT64_HEADS,
        Capability.OPERATIONS,
        Capability.STATIC_SCALING,
        Capability.TWO_LOSSES,
        Capability.ACCUMULATION,
        Capability.RECOMPUTE,
        Capability.RECOMPUTE_NESTED,
        Capability.RECOMPUTE_CASES,
        Capability.SEGMENT_CALLS,
        Capability.CLIP,
        Capability.SCHEDULE,
        Capability.MISSING_GRADIENTS,
        Capability.AVERAGE,
        Capability.NESTEROV,
        Capability.AMSGRAD,
        Capability.ADAGRAD,
        Capability.RMSPROP,
        Capability.DECAY_EXCLUDED,
        Capability.FEED,
        Capability.CHECKPOINT,
        Capability.TRACE,
        Capability.LAYER_REUSE,
        Capability.USER_FUNCTION,
        *((Capability.TIED_WEIGHTS,) if hasattr(keras.layers, "ReversibleEmbedding") else ()),
    }
)
"""What Keras has on every backend, unless the backend's refusals have it."""
REFUSED: dict[Capability, str] = {
    **REFUSED_OPTIONS,
    Capability.O2_FLOAT16: _O2,
    Capability.O2_BFLOAT16: _O2,
    Capability.SCALING_FACTORS: "LossScaleOptimizer always doubles and halves its scale",
    Capability.SCALING_DISABLED: "LossScaleOptimizer refuses dynamic=False; one leaves it out instead",
    Capability.EXPLICIT_UNSCALE: _UNSCALING,
    Capability.SECOND_UNSCALE: _UNSCALING,
    Capability.PARTIAL_WINDOW: "Keras has no call that ends a window early; an incomplete one is carried over",
}
if not hasattr(keras.optimizers, "MultiOptimizer"):
    REFUSED |= dict.fromkeys((Capability.GROUPS, Capability.GROUP_RATES, Capability.TWO_OPTIMIZERS), _NO_MULTI)

_SCALER = ScalerRule(
    initial=2.0**15, growth=2.0, backoff=0.5, interval=2000, counts="micro-batches", nonfinite="scaled", latched=False
)

CONVENTIONS = Conventions(
    adam_default_epsilon=1e-7,
    adam_epsilon="inside",
    adam_correction="float32",
    adam_counts="optimizer",
    momentum_rate="inside",
    amsgrad="moments",
    adagrad_epsilon="inside",
    rmsprop_epsilon="inside",
    rmsprop_rate="inside",
    adafactor_decay="first",
    running_variance="biased",
    clip_epsilon=0.0,
    nonfinite_micro_batch="drop-micro-batch",
    remainder="carry",
    partial_overflow="skip-all",
    static_skips=False,
    accumulates="unscaled",
    scaler=_SCALER,
)
"""As Keras documents its optimizers, or as their source reads where the documentation is silent."""
