"""Faults of Paddle and of its users, patched into the calls that the adapter makes."""
