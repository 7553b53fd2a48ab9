"""The suites' values of environment variables that JAX reads when it finds a GPU; this module imports no JAX."""

import os
from collections.abc import Mapping
from pathlib import Path

KERNELS = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false --xla_gpu_deterministic_ops=true"
"""Flags that stop XLA from choosing kernels by their times: then two runs would differ in their last bits, and each
small program would take seconds to compile."""

DRIVER = Path("/proc/driver/nvidia/version")


def variables(environment: Mapping[str, str] = os.environ, driver: Path = DRIVER) -> dict[str, str]:
    """Variables to set in addition to those of `environment`, whose flags take precedence.

    JAX allocates GPU memory on demand: the suites run in several processes, and the first would leave too little
    memory to the others.
    """
    result = {"XLA_PYTHON_CLIENT_PREALLOCATE": environment.get("XLA_PYTHON_CLIENT_PREALLOCATE", "false")}
    flags = environment.get("XLA_FLAGS", "")
    if driver.is_file() and KERNELS not in flags:
        result["XLA_FLAGS"] = f"{KERNELS} {flags}".strip()
    return result
