"""Environment variables that JAX reads when it meets a GPU, as the suites want them; imports nothing of JAX."""

import os
from collections.abc import Mapping
from pathlib import Path

KERNELS = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false --xla_gpu_deterministic_ops=true"
"""XLA does not choose kernels by their times: else two runs would have other last bits, and each small program take
seconds to compile."""

DRIVER = Path("/proc/driver/nvidia/version")


def variables(environment: Mapping[str, str] = os.environ, driver: Path = DRIVER) -> dict[str, str]:
    """Variables to set in addition to those of `environment`, whose flags take precedence.

    A GPU's memory is taken as it is needed: the suites run in several processes, of which the first would leave too
    little to the others.
    """
    result = {"XLA_PYTHON_CLIENT_PREALLOCATE": environment.get("XLA_PYTHON_CLIENT_PREALLOCATE", "false")}
    flags = environment.get("XLA_FLAGS", "")
    if driver.is_file() and KERNELS not in flags:
        result["XLA_FLAGS"] = f"{KERNELS} {flags}".strip()
    return result
