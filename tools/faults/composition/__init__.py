"""Faults that show where techniques meet."""
