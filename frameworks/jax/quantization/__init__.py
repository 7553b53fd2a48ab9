"""Formats, quantizers and quantized models of JAX."""
