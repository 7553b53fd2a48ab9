"""Techniques: for each its expected values, its checks, and its generated cases."""
