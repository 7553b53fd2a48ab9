"""Comparison of adapters' declared capabilities with the behaviour of their frameworks."""
