"""The adapter's modes."""

from __future__ import annotations

JIT, NOJIT, SHARDED, OFFLOAD, KERAS = "jit", "nojit", "sharded", "offload", "keras"
PINNED_HOST = "pinned_host"
"""The memory kind of offloaded arrays."""
MODES = (JIT, NOJIT, SHARDED, OFFLOAD, KERAS)
