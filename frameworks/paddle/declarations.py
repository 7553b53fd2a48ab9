"""What Paddle declares on each device, in each mode, with the reason in one sentence where it does not."""

from __future__ import annotations

from frameworks.contract import SUPPORTED, Capability, Declaration

DYGRAPH, STATIC, FORCED = "dygraph", "static", "dygraph-forced-scaler"
MODES = (DYGRAPH, STATIC, FORCED)

PRECISIONS = {c for c in Capability if c.startswith("precision.O")}
SCOPES = {Capability.AUTOCAST_SCOPE, Capability.AUTOCAST_LISTS}
SCALING = {
    Capability.DYNAMIC_SCALING,
    Capability.STATIC_SCALING,
    Capability.SCALING_FACTORS,
    Capability.EXPLICIT_UNSCALE,
}

_TF32 = "only NVIDIA_TF32_OVERRIDE in the environment switches TensorFloat-32, for a whole process"
_KERNELS = "kernels are registered by device and format, and several operations have none for a low-precision one"
_SCOPE_ON_CPU = "on a CPU auto_cast in dynamic mode warns and leaves every operation in float32"
_DECORATE_ON_CPU = "on a CPU amp.decorate in dynamic mode returns the model unchanged, in float32"
_SCALER_ON_CPU = "on a CPU GradScaler in dynamic mode warns and disables itself"


_AVERAGE = "ExponentialMovingAverage raises in dynamic mode, and ModelAverage weighs the updates of a window equally"


def _dygraph_on_cpu(capability: Capability) -> str | None:
    if capability in SCOPES or capability in (Capability.O1_FLOAT16, Capability.O1_BFLOAT16):
        return _SCOPE_ON_CPU
    if capability in PRECISIONS:
        return _DECORATE_ON_CPU
    return None


def reason_against(capability: Capability, device: str, mode: str) -> str | None:
    """Why `capability` is not supported, None if it is."""
    if capability is Capability.OPERATIONS:
        return _KERNELS
    if capability is Capability.TF32:
        return _TF32
    if mode == STATIC:
        from frameworks.paddle.static_declarations import reason_against_static

        return reason_against_static(capability, device)
    if capability is Capability.AVERAGE:
        return _AVERAGE
    if device != "cpu":
        return None
    if capability is Capability.PEAK_BYTES:
        return "a CPU has no device allocator of its own"
    if mode == DYGRAPH and capability in SCALING:
        return _SCALER_ON_CPU
    return _dygraph_on_cpu(capability)


def declaration(capability: Capability, device: str, mode: str) -> Declaration:
    """Supported, or the reason why not."""
    reason = reason_against(capability, device, mode)
    return SUPPORTED if reason is None else Declaration(False, reason)
