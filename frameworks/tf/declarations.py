"""Capabilities of TensorFlow with Keras, by device and mode."""

from dataclasses import replace

from frameworks.contract import Capability, Conventions
from frameworks.keras_common.operations import NO_LISTS
from frameworks.keras_common.probes import CONVENTIONS, REFUSED
from frameworks.tf.core.settings import has_tf32
from frameworks.tf.quantization import tflite

_NO_CPU_REWRITE = "auto_mixed_precision needs a GPU or a CPU with AMX-FP16"
_NO_GPU_REWRITE = "auto_mixed_precision_onednn_bfloat16 is a rewrite for CPUs"
_WIDE_WEIGHTS = "a graph rewrite leaves the weights in float32"
_FLOAT8_WANTS_A_GRAPH = (
    "Keras' float8 layers have no gradient in eager execution: model.fit with run_eagerly=True raises ValueError"
)
_NO_TF32 = "TensorFloat-32 is a format of NVIDIA's GPUs, from compute capability 8.0 on"
_UNCOUNTED: dict[str, str] = {
    "eager": "TensorFlow does not report a tape's bytes, and its allocators round up or ignore small tensors",
    "xla": "XLA compiles forward and backward into one program; only a graph that is not yet optimized can be counted",
    "rewrite": "the rewrite happens after the graph whose tensors can be counted",
}
_MIRRORED = "tf.distribute.MirroredStrategy keeps a copy of every variable on each replica; it has no shards"
_OF_RANKS: dict[Capability, str] = {
    Capability.RANKS_OPTIMIZER: _MIRRORED,
    Capability.RANKS_GRADIENTS: _MIRRORED,
    Capability.RANKS_FULL: _MIRRORED,
    Capability.RANKS_HYBRID: _MIRRORED,
    Capability.RANKS_LOW_REDUCTION: "tf.distribute adds gradients up in their own format, and no option names another",
    Capability.RANKS_LOST: "MirroredStrategy's replicas are devices of one process, which ends as a whole",
    Capability.RANKS_COLLECTIVES: "nothing in tf.distribute counts the reductions that a run has made",
}
_RANKED = ("graph", "eager", "mirrored", tflite.MODE)
_NO_CPU_STATISTICS = "TensorFlow documents memory statistics of GPUs and TPUs; a CPU's leave out tensors below 256 KiB"


def has_ranks(device: str, mode: str) -> bool:
    """Whether this adapter has ranks: logical CPUs, in the modes that neither compile nor rewrite what they run."""
    return device == "cpu" and mode in _RANKED


def refusals(device: str, mode: str) -> dict[Capability, str]:
    """Unsupported capabilities on this device in this mode, with reasons."""
    reasons = dict(REFUSED)
    if mode == "rewrite":
        reasons |= dict.fromkeys((Capability.O3_FLOAT16, Capability.O3_BFLOAT16), _WIDE_WEIGHTS)
        if device == "cpu":
            reasons[Capability.O1_FLOAT16] = _NO_CPU_REWRITE
        else:
            reasons[Capability.O1_BFLOAT16] = _NO_GPU_REWRITE
    else:
        reasons[Capability.AUTOCAST_LISTS] = NO_LISTS
    if mode in _UNCOUNTED:
        reasons[Capability.SAVED_BYTES] = _UNCOUNTED[mode]
    if device == "cpu":
        reasons[Capability.PEAK_BYTES] = _NO_CPU_STATISTICS
    if has_ranks(device, mode):
        reasons |= _OF_RANKS
    if mode == tflite.MODE:
        reasons |= tflite.find_refusals()
    if mode == "eager":
        reasons |= dict.fromkeys((Capability.DELAYED_SCALING, Capability.FLOAT8_TRAINING), _FLOAT8_WANTS_A_GRAPH)
    if not has_tf32(device):
        reasons[Capability.TF32] = _NO_TF32
    return reasons


def conventions(mode: str) -> Conventions:
    """Keras' conventions, as the mode runs functions."""
    return replace(CONVENTIONS, compiled=mode != "eager")
