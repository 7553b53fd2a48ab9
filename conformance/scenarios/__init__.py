"""End-to-end scenarios from publications and guides: a model, data, and recipes to compare."""

from __future__ import annotations

from conformance.scenarios.digits import DIGITS_ACCUMULATION, GRAPH_REWRITE, OPT_LEVELS
from conformance.scenarios.encoder_digits import CPU_OFFLOAD, DDP, DISK_OFFLOAD, FSDP, SHARD_GRAD_OP
from conformance.scenarios.examples import SEGMENTS, SINCOS
from conformance.scenarios.quantized import ADAM_8BIT, DYNAMIC_INT8, INT8_LOAD, QAT, STATIC_INT8, WEIGHT_ONLY
from conformance.scenarios.scenario import Scenario
from conformance.scenarios.use_fp16 import USE_FP16

__all__ = ["SCENARIOS", "Scenario"]

_ALL = (
    *(SINCOS, SEGMENTS, DIGITS_ACCUMULATION, OPT_LEVELS, GRAPH_REWRITE, USE_FP16),
    *(DDP, SHARD_GRAD_OP, FSDP, CPU_OFFLOAD, DISK_OFFLOAD),
    *(DYNAMIC_INT8, STATIC_INT8, WEIGHT_ONLY, INT8_LOAD, QAT, ADAM_8BIT),
)

SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in _ALL}
"""Every scenario by its name."""
