"""Settings that the reference's results depend on, and process-wide state that a run may leak."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version

import ml_dtypes
import numpy as np

from frameworks.reference.core import scope, tape


def read_environment() -> dict[str, str]:
    """Versions and the processor's architecture."""
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
    """The open precision scope and how many derivatives are being taken."""
    return {"autocast": scope.current().text(), "traces": str(tape.depth())}


def write_settings(state: Mapping[str, str]) -> None:
    """Restores what `read_settings` returned."""
    scope.enter(scope.parsed(state["autocast"]))
    tape.close_down_to(int(state["traces"]))
