"""Overhead of a step through an adapter, compared with a native training loop."""
