"""Techniques, such as QAT or float8: for each its expected values, checks and generated cases."""
