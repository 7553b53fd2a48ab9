"""Faults of TensorFlow and Keras and of their users, patched into the calls that the adapter makes."""
