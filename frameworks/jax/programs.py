"""JAX's persistent compilation cache, shared by all processes.

JAX's key of a program is a hash of its operations, of the versions of JAX and XLA, of the devices and of XLA's flags.
It does not say which processor XLA generated code for, so the folder's name does.
"""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

import jax

from frameworks.cache_folder import cache_folder, prune

LARGEST = 2**30
"""Bytes that programs may take; beyond, those that were not used for longest go until half of it is left."""

_CPUINFO = Path("/proc/cpuinfo")
_SAID_OF_A_PROCESSOR = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features", "CPU part")


def store_programs(device: jax.Device, largest: int = LARGEST) -> None:
    """Makes JAX store what it compiles for a processor in the cache folder, and take from there what it has compiled.

    A folder that JAX's own settings name stays, and where the cache folder cannot be written nothing is stored.
    """
    if device.platform != "cpu" or jax.config.jax_compilation_cache_dir is not None:
        return
    folder = cache_folder() / "jax" / processor()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        prune(folder.parent, largest)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def processor(listing: Path = _CPUINFO) -> str:
    """A name for all that XLA's code generator may ask of this processor."""
    lines = listing.read_text("utf-8", errors="replace").splitlines() if listing.is_file() else []
    said = {line for line in lines if line.partition(":")[0].strip() in _SAID_OF_A_PROCESSOR}
    described = "\n".join([platform.machine(), platform.processor(), *sorted(said)])
    return hashlib.sha256(described.encode()).hexdigest()[:16]
