"""Libraries on top of PyTorch."""
