"""JAX as its users train with it: Flax Linen, Optax, JMP policies and loss scales, `jax.checkpoint`, Orbax checkpoints.

A GPU's memory is taken as it is needed, unless the environment says otherwise: the suites run in several processes, of
which the first would leave too little to the others.
"""

import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

from frameworks.jax.framework import JaxFramework

__all__ = ["JaxFramework"]
