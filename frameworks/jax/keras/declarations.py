"""Unsupported capabilities of Keras on JAX, with reasons, and its conventions."""

from __future__ import annotations

from frameworks.contract import Capability, Conventions, ScalerRule
from frameworks.keras_parts.options import REFUSED_OPTIONS

INSIDE_RECOMPUTED = "nothing outside keras.remat may refer to what is computed inside: JAX raises UnexpectedTracerError"

_O2 = "Keras has no dtype policy of low-precision weights with float32 masters"
_UNSCALING = "Keras unscales inside Optimizer.stateless_apply; there is no call to unscale by hand"
_LAYOUT = (
    "Keras makes an optimizer's variables with the layout of their weight, and a LayoutMap's entries do not matter"
)
_REFUSED: dict[Capability, str] = {
    Capability.O2_FLOAT16: _O2,
    Capability.O2_BFLOAT16: _O2,
    Capability.SCALING_FACTORS: "LossScaleOptimizer always doubles and halves its scale",
    Capability.SCALING_DISABLED: "LossScaleOptimizer refuses dynamic=False; one leaves it out instead",
    Capability.EXPLICIT_UNSCALE: _UNSCALING,
    Capability.SECOND_UNSCALE: _UNSCALING,
    Capability.PARTIAL_WINDOW: "Keras has no call that ends a window early; an incomplete one is carried over",
    Capability.MISSING_GRADIENTS: "jax.grad gives zeros for a variable that the loss does not reach, never nothing",
}
_CPU_REFUSED: dict[Capability, str] = {
    Capability.PEAK_BYTES: "memory_stats of a CPU device is None: JAX keeps none of its allocator",
    Capability.RANKS_OPTIMIZER: _LAYOUT,
    Capability.RANKS_GRADIENTS: _LAYOUT,
    Capability.RANKS_LOW_REDUCTION: "under jax.jit the compiler places the reduction over the devices, in the format "
    "of the gradient, and keras.distribution has no setting for another one",
    Capability.RANKS_LOST: "the ranks are devices of one program in one process, which ends as a whole",
    Capability.RANKS_COLLECTIVES: "under jax.jit the compiler places the reductions, of which it makes one of several, "
    "and nothing counts those of a run",
}


def refusals(device: str) -> dict[Capability, str]:
    """Unsupported capabilities on this device, with reasons."""
    return _REFUSED | REFUSED_OPTIONS | (_CPU_REFUSED if device == "cpu" else {})


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
    running_variance="biased",
    clip_epsilon=0.0,
    nonfinite_micro_batch="drop-micro-batch",
    batch_statistics="whole",
    remainder="carry",
    static_skips=False,
    partial_overflow="skip-all",
    accumulates="unscaled",
    compiled=True,
    scaler=ScalerRule(
        initial=2.0**15,
        growth=2.0,
        backoff=0.5,
        interval=2000,
        counts="micro-batches",
        nonfinite="scaled",
        latched=False,
    ),
)
"""As Keras documents its optimizers, or as their source reads where the documentation is silent."""
