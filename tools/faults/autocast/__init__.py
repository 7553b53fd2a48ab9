"""Faults of mixed precision."""
