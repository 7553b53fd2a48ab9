"""Models, operations, devices and settings of JAX."""
