"""Faults of JAX, Flax, Optax and JMP and of their users, patched into the calls that the adapter makes.

Each is in place before anything is traced, for what `jax.jit` has compiled no longer looks at the patched call.
"""
