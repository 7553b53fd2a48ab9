"""Faults of optimizers and of the weights that they update."""
