"""Formats, quantizers and quantized models of TensorFlow."""
