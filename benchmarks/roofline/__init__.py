"""How far a step is from what its operations and its bytes take at the device's measured rates."""
