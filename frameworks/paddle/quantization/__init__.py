"""Formats, quantizers and quantized models of Paddle."""
