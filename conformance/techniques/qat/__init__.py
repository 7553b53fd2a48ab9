"""Quantization-aware training."""
