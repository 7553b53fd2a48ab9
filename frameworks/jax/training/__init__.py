"""Training runs of JAX: updates, loss scaling, checkpoints and ways."""
