"""Models, operations, devices and settings of PyTorch."""
