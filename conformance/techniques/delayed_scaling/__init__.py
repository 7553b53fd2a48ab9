"""8-bit products with delayed scaling."""
