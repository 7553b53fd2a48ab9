"""Faults of PyTorch, of its users and of libraries on it, patched into the calls that the adapter makes."""
