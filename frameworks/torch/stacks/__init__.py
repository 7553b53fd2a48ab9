"""Training by libraries on top of PyTorch, each in its own loop."""
