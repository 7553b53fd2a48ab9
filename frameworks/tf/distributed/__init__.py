"""Ranks of TensorFlow: groups of workers, sharded state and checkpoints."""
