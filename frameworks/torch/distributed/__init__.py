"""Ranks of PyTorch: groups of workers, sharded state and checkpoints."""
