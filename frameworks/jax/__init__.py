"""JAX as its users train with it: Flax Linen modules, Optax optimizers, JMP policies and loss scales, `jax.checkpoint`.

A GPU's memory is taken as it is needed, unless the environment says otherwise: the suites run in several processes, of
which the first would leave too little to the others.

On a CPU XLA multiplies matrices in one thread, unless the environment has flags of its own: no sum may depend on how
many share it. XLA reads its flags once, when JAX first computes.
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

from frameworks.jax.framework import JaxFramework

__all__ = ["JaxFramework"]
