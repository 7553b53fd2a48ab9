"""Training runs of the reference: updates, loss scaling, checkpoints and ways."""
