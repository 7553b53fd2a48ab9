"""Quantized models, generated: those of post-training quantization and those of QAT, in one package for both."""
