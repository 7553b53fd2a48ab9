"""Faults of recomputation."""
