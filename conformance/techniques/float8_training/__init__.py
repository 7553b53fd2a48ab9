"""Float8 training of dense layers."""
