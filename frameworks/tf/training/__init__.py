"""Training runs of TensorFlow: updates, loss scaling, checkpoints and ways."""
