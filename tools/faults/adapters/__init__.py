"""Faults of frameworks and libraries, patched into their calls."""
