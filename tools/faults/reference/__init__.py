"""Faults of the reference, by family."""
