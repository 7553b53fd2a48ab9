"""What TensorFlow with Keras says that it does, by capability, device and mode."""

from __future__ import annotations

from frameworks.base import NO_TF32
from frameworks.contract import SUPPORTED, Capability, Conventions, Declaration, ScalerRule
from frameworks.tf.settings import has_tf32

_O2 = "Keras has no dtype policy of low-precision weights with float32 masters"
_NEVER: dict[Capability, str] = {
    Capability.O2_FLOAT16: _O2,
    Capability.O2_BFLOAT16: _O2,
    Capability.AUTOCAST_LISTS: "a dtype policy belongs to a layer; no list names operations",
    Capability.SCALING_FACTORS: "LossScaleOptimizer always doubles and halves its scale",
    Capability.SCALING_DISABLED: "LossScaleOptimizer refuses dynamic=False; one leaves it out instead",
    Capability.EXPLICIT_UNSCALE: "Keras 3 unscales inside optimizer.apply; there is no call to unscale by hand",
    Capability.TWO_OPTIMIZERS: "one LossScaleOptimizer belongs to one optimizer",
    Capability.PARTIAL_WINDOW: "gradient_accumulation_steps has no flush; an incomplete window is carried over",
    Capability.GROUPS: "a Keras optimizer has no parameter groups",
}
_REWRITE: dict[Capability, str] = {
    Capability.O3_FLOAT16: "a graph rewrite leaves the weights in float32",
    Capability.O3_BFLOAT16: "a graph rewrite leaves the weights in float32",
}
_CPU_REWRITE: dict[Capability, str] = {
    Capability.O1_FLOAT16: "auto_mixed_precision needs a GPU or a CPU with AMX-FP16",
}
_GPU_REWRITE: dict[Capability, str] = {
    Capability.O1_BFLOAT16: "auto_mixed_precision_onednn_bfloat16 is a rewrite for CPUs",
}
_UNCOUNTED: dict[str, str] = {
    "eager": "TensorFlow does not tell what an eager tape holds",
    "xla": "XLA compiles forward and backward into one program",
    "rewrite": "the rewrite happens after the graph whose tensors can be counted",
}


def declaration(capability: Capability, device: str, mode: str) -> Declaration:
    """Supported on that device in that mode, or why not."""
    reasons = dict(_NEVER)
    if mode == "rewrite":
        reasons |= _REWRITE | (_GPU_REWRITE if device == "cuda" else _CPU_REWRITE)
    if mode in _UNCOUNTED:
        reasons[Capability.SAVED_BYTES] = _UNCOUNTED[mode]
    if device == "cpu":
        reasons[Capability.PEAK_BYTES] = "TensorFlow documents no memory statistics of the CPU"
    if not has_tf32(device):
        reasons[Capability.TF32] = NO_TF32
    return Declaration(False, reasons[capability]) if capability in reasons else SUPPORTED


CONVENTIONS = Conventions(
    adam_epsilon="inside",
    adam_correction="float32",
    momentum_rate="inside",
    running_variance="biased",
    clip_epsilon=0.0,
    nonfinite_micro_batch="drop-micro-batch",
    remainder="carry",
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
