"""Models, operations, devices and settings of the reference."""
