"""Absolute times of one training step, as an ordinary pytest-benchmark suite."""
