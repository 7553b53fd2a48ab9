"""Paddle's static graph: programs built once and run by an executor."""
