"""Faults of a round of invention: layers, optimizers, checkpoints, ranks, scopes and quantizers."""
