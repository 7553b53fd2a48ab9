"""Formats, quantizers and quantized models of the reference."""
