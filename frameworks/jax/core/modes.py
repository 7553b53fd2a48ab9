"""The adapter's modes."""

from __future__ import annotations

JIT, NOJIT, SHARDED, OFFLOAD, KERAS = "jit", "nojit", "sharded", "offload", "keras"
MODES = (JIT, NOJIT, SHARDED, OFFLOAD, KERAS)
