"""Models, operations, devices and settings of TensorFlow."""
