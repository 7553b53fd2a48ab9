"""JAX as its users train with it: Flax Linen modules, Optax optimizers, JMP policies and loss scales, `jax.checkpoint`.

Bits on a CPU depend on how many threads share a sum, so XLA gets one, unless the environment says otherwise; XLA reads
its flags once, when JAX first computes.
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

from frameworks.jax.framework import JaxFramework

__all__ = ["JaxFramework"]
