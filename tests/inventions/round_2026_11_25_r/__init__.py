"""Faults of a round of invention."""
