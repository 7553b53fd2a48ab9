"""Tests of number formats, quantizers and quantized models."""
