"""Faults of checkpoints."""
