"""Roofline: a step's time, compared with its operations and bytes at the device's measured rates."""
