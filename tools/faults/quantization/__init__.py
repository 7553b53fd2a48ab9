"""Faults of formats, quantizers and quantized models."""
