"""Faults of ranks and of offload."""
