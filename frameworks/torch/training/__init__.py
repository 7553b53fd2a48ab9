"""Training runs of PyTorch: updates, loss scaling, checkpoints and ways."""
