"""Formats, quantizers and quantized models of PyTorch."""
