"""Faults of runs, checkpoints, ranks, offload, layers, scopes and quantization, written on 24 November 2026."""
