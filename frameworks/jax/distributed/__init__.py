"""Ranks of JAX: groups of workers, sharded state and checkpoints."""
