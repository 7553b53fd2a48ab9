"""Trials of sweeps with a toy framework: kills at any moment, and a Ray cluster that loses nodes."""
