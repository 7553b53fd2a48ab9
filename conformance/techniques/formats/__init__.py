"""Casts, quantizers, and quantized matmul."""
