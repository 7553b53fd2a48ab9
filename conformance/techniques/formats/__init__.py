"""Casts, quantizers, and products of codes."""
