"""Ranks of Paddle: groups of workers, sharded state and checkpoints."""
