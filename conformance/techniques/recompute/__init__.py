"""Recomputation."""
