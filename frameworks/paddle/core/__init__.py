"""Models, operations, devices and settings of Paddle."""
