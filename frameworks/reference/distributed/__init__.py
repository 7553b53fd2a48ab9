"""Ranks of the reference: groups of workers, sharded state and checkpoints."""
