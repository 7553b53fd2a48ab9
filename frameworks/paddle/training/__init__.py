"""Training runs of Paddle: updates, loss scaling, checkpoints and ways."""
