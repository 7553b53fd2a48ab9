"""Training curves of any program: reading them, and judging whether two runs are the same training."""
