"""8-bit Adam."""
