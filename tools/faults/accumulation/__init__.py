"""Faults of gradient accumulation."""
