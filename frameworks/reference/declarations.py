"""Unsupported capabilities of the reference, its default conventions, and its settings."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version

import ml_dtypes
import numpy as np

from frameworks.contract import Capability, Conventions, ScalerRule
from frameworks.reference.core import scope, tape

CONVENTIONS = Conventions(scaler=ScalerRule(minimum=2.0**-14, maximum=2.0**127, latched=False))

VARIANTS = ("default",)
"""Recomputation variants."""

REFUSALS = {
    Capability.PEAK_BYTES: "the reference has no device allocator",
    Capability.TF32: "the reference multiplies in float64 and rounds what comes out",
}

LACKING = frozenset(
    {
        Capability.SINGLE,
        Capability.FOREACH,
        Capability.FUSED,
        Capability.CAPTURABLE,
        Capability.TENSOR_RATE,
        Capability.STEP_HOOKS,
        Capability.SHIPPED_LAYERS,
        Capability.LIBRARY_REQUESTS,
        Capability.DATA_POSITION,
    }
)
"""Capabilities of libraries of kernels, layers or loaders, which the reference is not; it supports all others."""

LACKING_IN_RANKS = frozenset(
    {
        Capability.FREEZE,
        Capability.FLOAT8_TRAINING,
        Capability.QAT,
        Capability.CONVERT,
        Capability.SAVED_BYTES,
        Capability.TRACE,
        Capability.LOAD_ORDER,
        Capability.LIVE_STATE,
    }
)
"""Capabilities that are unsupported in the mode in which every recipe has ranks."""

WHOLE_BLOCKS = "blocks of a shard are not those of the whole parameter, so 8-bit moments are not sharded"
"""The reason why 8-bit Adam is refused with sharded optimizer state."""


def read_environment() -> dict[str, str]:
    """Versions of the libraries, and the processor's architecture."""
    return {
        "autograd": version("autograd"),
        "blas": _blas(),
        "machine": platform.machine(),
        "ml_dtypes": ml_dtypes.__version__,
        "numpy": np.__version__,
    }


def _blas() -> str:
    """Name and version of the BLAS that NumPy was built with, "unknown" where NumPy does not say."""
    config = np.show_config(mode="dicts")
    blas = (config or {}).get("Build Dependencies", {}).get("blas", {})
    return f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()


def read_settings() -> dict[str, str]:
    """The open precision scope and the number of open traces."""
    return {"autocast": scope.current().text(), "traces": str(tape.depth())}


def write_settings(state: Mapping[str, str]) -> None:
    """Restores settings that `read_settings` returned."""
    scope.enter(scope.parse_scope(state["autocast"]))
    tape.close_down_to(int(state["traces"]))
